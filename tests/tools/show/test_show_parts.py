"""The parts of a batch, described, and the images among them."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image

from dataporter.tools.show.parts import images_in, parts_in


@dataclass
class Pair:
    left: torch.Tensor
    right: list


def words(batch):
    return {part.path: part.words() for _, part in parts_in(batch)}


def test_every_part_has_its_shape_its_dtype_and_its_range():
    bad = torch.tensor([[1.0, float("nan")], [float("inf"), -3.0]])
    found = words(
        {
            "ids": torch.arange(20).reshape(2, 10),
            "bad": bad,
            "half": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
            "mask": np.array([True, False]),
            "pair": Pair(torch.zeros(0, 3), [3, 4]),
            "sparse": torch.eye(3).to_sparse(),
            "scale": 0.25,
        }
    )
    assert found == {
        "ids": "torch.int64 [2, 10]; 0 to 19, mean 9.5; 0 1 2 3 4 5 6 7 ...",
        "bad": "torch.float32 [2, 2]; -3 to 1, mean -1; 2 values not finite (NaN or infinity)",
        "half": "torch.bfloat16 [2]; 0.5 to 1.5, mean 1; 0.5 1.5",
        "mask": "numpy bool [2]; 0 to 1, mean 0.5; True False",
        "pair.left": "torch.float32 [0, 3]",
        "pair.right": "list of int [2]; 3 4",
        "sparse": "torch.float32 [3, 3]",
        "scale": "float; 0.25",
    }


def test_texts_are_shortened_and_a_batch_may_be_a_single_value():
    ((_, part),) = parts_in(["short", "x" * 1000])
    assert (part.path, part.kind) == ("batch", "list of str")
    assert part.texts[0] == "short"
    assert part.texts[1].endswith("x ...")
    assert len(part.texts[1]) == 300
    nested: list = []
    nested.append(nested)
    assert len(parts_in(nested)) == 1  # and it ends


def images(batch, samples):
    return {each.path: each for each in images_in(parts_in(batch), samples)}


@pytest.mark.parametrize(
    ("part", "samples", "count", "shape"),
    [
        (torch.rand(5, 3, 8, 6), 5, 5, (8, 6, 3)),
        (torch.rand(5, 8, 6, 3), 5, 5, (8, 6, 3)),
        (torch.rand(5, 1, 8, 6), 5, 5, (8, 6)),
        (np.zeros((3, 8, 6), dtype=np.uint8), 3, 3, (8, 6)),
        (torch.rand(3, 8, 6), 1, 1, (8, 6, 3)),
        (torch.rand(2, 3, 1000, 500), 2, 2, (250, 125, 3)),
        (torch.rand(200, 1, 8, 8), 200, 64, (8, 8)),
        (Image.new("L", (6, 8)), 1, 1, (8, 6)),
        (Image.new("RGB", (6, 8)), 1, 1, (8, 6, 3)),
        (torch.rand(5, 3, 8, 2), 5, 0, ()),
        (torch.rand(5, 7), 5, 0, ()),
        (torch.zeros(5, 3, 8, 8, dtype=torch.int64), 5, 0, ()),
        (torch.full((5, 3, 8, 8), float("nan")), 5, 0, ()),
        (torch.rand(5, 2, 8, 8), 5, 0, ()),
    ],
)
def test_images_are_known_by_their_shape(part, samples, count, shape):
    found = images({"x": part}, samples)
    assert len(found) == (count > 0)
    if count:
        assert len(found["x"].pixels) == count
        assert {each.shape for each in found["x"].pixels} == {shape}


def test_brightness_is_that_of_the_usual_ranges_or_of_the_values():
    unit = torch.zeros(1, 4, 4)
    unit[0, 0, 0] = 0.5
    assert images(unit, 1)["batch"].pixels[0][0, 0] == 128
    assert images(unit * 200, 1)["batch"].pixels[0][0, 0] == 100
    normalised = images(unit * 4 - 2, 1)["batch"]
    assert normalised.scale == "black -2, white 0"
    assert normalised.pixels[0][0, 0] == 255
    assert normalised.pixels[0][1, 1] == 0
