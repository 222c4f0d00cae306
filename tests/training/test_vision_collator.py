"""Image batches: one float tensor, whatever the images were."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from PIL import Image
from support import one_pass

from dataporter import CollationError, OptionError, OptionTypeError, ResumableDataLoader
from dataporter.training import VisionCollator, VisionDataCollator
from dataporter.training.vision_collator import CONSTANTS

HALF = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.5, 1.0]}
sides = st.integers(5, 9)


def photographs(channels):
    """Batches of uint8 images, height x width x channels, that are no other way round."""
    shape = st.tuples(st.integers(1, 3), sides, sides, st.just(channels))
    return shape.flatmap(lambda whole: np_st.arrays(np.uint8, whole))


def normalised(batch, mean, std):
    """Normalise in double precision, as a reference."""
    pixels = batch.astype(np.float64) / 255
    return torch.from_numpy(((pixels - mean) / std).transpose(0, 3, 1, 2).copy())


def pixels_of(images, collator):
    return collator([{"pixel_values": image} for image in images])["pixel_values"]


@settings(max_examples=40)
@given(photographs(3))
def test_one_photograph_is_the_same_as_an_array_a_tensor_and_a_pil_image(batch):
    collator = VisionCollator(**HALF)
    wanted = normalised(batch, HALF["mean"], HALF["std"])
    forms = {
        "arrays": list(batch),
        "tensors": [torch.from_numpy(image).permute(2, 0, 1) for image in batch],
        "tensors, channels last": [torch.from_numpy(image.copy()) for image in batch],
        "floats": [torch.from_numpy(image).permute(2, 0, 1) / 255 for image in batch],
        "float arrays": [image.transpose(2, 0, 1) / 255 for image in batch],
        "pil": [Image.fromarray(image) for image in batch],
        "lists": [(image / 255).tolist() for image in batch],
    }
    mixture = zip(("arrays", "floats", "pil"), range(len(batch)), strict=False)
    forms["mixed"] = [forms[form][number] for form, number in mixture]
    for images in forms.values():
        found = pixels_of(images, collator)
        assert found.dtype == torch.float32
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_every_precision_become_single_ones(dtype):
    image = torch.full((3, 6, 5), 0.25, dtype=dtype)
    out = pixels_of([image], VisionCollator(normalize=False))
    assert torch.equal(out, torch.full((1, 3, 6, 5), 0.25))


@settings(max_examples=30)
@given(photographs(1))
def test_grey_images_have_one_channel_and_the_mean_of_the_constants(batch):
    constants = CONSTANTS["imagenet"]
    wanted = normalised(batch, np.mean(constants.mean), np.mean(constants.std))
    for images in (
        list(batch),
        list(batch[..., 0]),
        [torch.from_numpy(image).permute(2, 0, 1) for image in batch],
        [Image.fromarray(image[..., 0]) for image in batch],
    ):
        found = pixels_of(images, VisionCollator())
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=5e-6)


def test_grey_images_become_colour_images_where_that_is_asked_for():
    grey, colour = Image.new("L", (6, 5), 51), Image.new("RGB", (6, 5), (51, 51, 51))
    out = VisionCollator(channels=3)([{"img": grey}, {"img": colour}])["pixel_values"]
    assert out.shape == (2, 3, 5, 6)
    assert torch.equal(out[0], out[1])
    with pytest.raises(CollationError, match=r"Use collate_fn=VisionDataCollator\(channels=3\)"):
        VisionCollator()([{"img": grey}, {"img": colour}])


@pytest.mark.parametrize("mode", ["RGBA", "P", "PA", "CMYK", "YCbCr", "HSV"])
def test_other_modes_of_pil_are_converted_to_colour(mode):
    image = Image.new("RGB", (6, 5), (255, 0, 0)).convert("P" if mode == "PA" else mode)
    image = image.convert(mode)
    out = pixels_of([image], VisionCollator(normalize=False))
    assert out.shape == (1, 3, 5, 6)
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([1.0, 0.0, 0.0]), rtol=0, atol=0.02)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "F", "I;16"])
def test_grey_modes_of_pil_stay_grey(mode):
    white = {"1": 1, "L": 255, "LA": (255, 128), "F": 1.0, "I;16": 65535}[mode]
    out = pixels_of([Image.new(mode, (6, 5), white)], VisionCollator(normalize=False))
    assert torch.equal(out, torch.ones(1, 1, 5, 6))


def test_uint8_is_scaled_without_normalisation_too_and_black_and_white_stay_exact():
    image = np.zeros((6, 5, 3), dtype=np.uint8)
    image[0] = 255
    out = pixels_of([image], VisionCollator(normalize=False))
    assert out.unique().tolist() == [0.0, 1.0]


def test_the_constants_are_those_of_imagenet_or_cifar10_or_your_own():
    grey = np.full((6, 5, 3), 255, dtype=np.uint8)
    for options, first in (
        ({}, (1 - 0.485) / 0.229),
        ({"constants": "cifar10"}, (1 - 0.4914) / 0.2470),
        ({"mean": [0.0, 0, 0], "std": [2, 2, 2]}, 0.5),
    ):
        out = pixels_of([grey], VisionCollator(**options))
        assert out[0, 0, 0, 0].item() == pytest.approx(first, abs=1e-6)


def test_as_many_channels_as_there_are_constants_are_recognised():
    bands = torch.rand(7, 20, 30)
    out = pixels_of([bands], VisionCollator(mean=[0.5] * 7, std=[1] * 7))
    torch.testing.assert_close(out[0], bands - 0.5)


def test_a_shape_that_can_be_read_both_ways_is_read_as_is_usual():
    array = np.zeros((3, 9, 3), dtype=np.uint8)
    plain = VisionCollator(normalize=False)
    assert pixels_of([array], plain).shape == (1, 3, 3, 9)
    assert pixels_of([torch.from_numpy(array)], plain).shape == (1, 3, 9, 3)
    assert pixels_of([array / 255], plain).shape == (1, 3, 9, 3)


@pytest.mark.parametrize("image", ["pixel_values", "image", "img"])
@pytest.mark.parametrize("label", ["labels", "label", None])
def test_image_and_label_go_by_any_of_their_names(image, label):
    row = {image: torch.rand(3, 8, 8), "id": "a"} | ({label: 4} if label else {})
    out = VisionCollator()([row, row])
    assert set(out) == {"pixel_values", "id"} | ({"labels"} if label else set())
    assert out["id"] == ["a", "a"]
    if label:
        assert out["labels"].tolist() == [4, 4]
        assert out["labels"].dtype == torch.int64


def test_pairs_and_plain_images_are_rows_too():
    image = torch.rand(3, 8, 8)
    assert VisionCollator()([(image, 1), (image, 2)])["labels"].tolist() == [1, 2]
    assert set(VisionCollator()([(image,), (image,)])) == {"pixel_values"}
    assert set(VisionCollator()([image, image])) == {"pixel_values"}


def test_images_are_left_as_they_were_even_if_nobody_may_write_to_them():
    tensor, array = torch.rand(3, 8, 8), np.random.default_rng(0).random((3, 8, 8))
    array.flags.writeable = False
    before = tensor.clone(), array.copy()
    VisionCollator()([tensor])
    VisionCollator()([array])
    assert torch.equal(tensor, before[0])
    assert np.array_equal(array, before[1])


class Pictures:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"img": Image.new("RGB", (8, 8), (index, 0, 0)), "label": index}


def test_a_loader_with_and_without_workers_gives_the_same_batches():
    wanted, found = (
        one_pass(ResumableDataLoader(Pictures(), 4, collate_fn=VisionCollator(), num_workers=n))
        for n in (0, 2)
    )
    assert found == wanted
    assert [batch["labels"] for batch in wanted] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_collator_is_picklable():
    again = pickle.loads(pickle.dumps(VisionCollator(**HALF)))
    image = torch.rand(3, 8, 8)
    assert torch.equal(pixels_of([image], again), pixels_of([image], VisionCollator(**HALF)))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "the batch is empty"),
        ([{"picture": 1}], "no 'pixel_values', 'image' or 'img', found the columns 'picture'"),
        (
            [{"img": torch.rand(3, 8, 8)}, {"img": torch.rand(3, 8, 9)}],
            r"image 1 has shape \(3, 8, 9\), image 0 has \(3, 8, 8\)\. Resize or crop",
        ),
        ([{"img": torch.rand(3, 8, 8), "label": 1}, {"img": torch.rand(3, 8, 8)}], "row 1 has"),
        ([{"img": torch.rand(5, 8, 8)}], r"shape \(5, 8, 8\)\. Its first or last"),
        ([{"img": torch.rand(4, 8, 8)}], "the images have 4 channels, but mean and std have 3"),
        ([{"img": torch.rand(8)}], r"must have height, width and.*found shape \(8,\)"),
        ([{"img": torch.ones(3, 8, 8, dtype=torch.int64)}], "has dtype int64, whose value range"),
        ([{"img": Image.new("I", (8, 8))}], "has dtype int32, whose value range is unknown"),
        ([{"img": None}], "image 0: expected a tensor, an array or a PIL image, found NoneType"),
        ([{"img": "cat.png"}], "found str"),
        ([(torch.rand(3, 8, 8), 1), (torch.rand(3, 8, 8),)], "row 1: expected an .* tuple of 1"),
    ],
)
def test_rows_that_make_no_batch_of_images_are_named(rows, said):
    with pytest.raises(CollationError, match=said):
        VisionCollator()(rows)


def test_images_with_more_channels_than_asked_for_are_an_error():
    with pytest.raises(CollationError, match="has 3 channels, expected 1"):
        VisionCollator(normalize=False, channels=1)([torch.rand(3, 8, 8)])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"mean": [0.5] * 3}, OptionError, "mean was given without std"),
        ({"std": [0.5] * 3}, OptionError, "std was given without mean"),
        ({"mean": [0.5] * 3, "std": [0.5] * 2}, OptionError, "found 3 and 2"),
        ({"mean": [], "std": []}, OptionError, "found 0 and 0"),
        ({"mean": [0.5] * 3, "std": [0.5, 0, 0.5]}, OptionError, "and std above 0"),
        ({"mean": [float("nan")], "std": [1]}, OptionError, "must be finite"),
        ({"mean": 0.5, "std": 0.5}, OptionTypeError, "must be sequences of numbers"),
        ({"constants": "mnist"}, OptionError, "one of 'imagenet', 'cifar10', found 'mnist'"),
        ({"channels": 2}, OptionError, "channels must be 1, 3 or None, found 2"),
        ({"mean": [0.5], "std": [1], "channels": 3}, OptionError, "conflicts with a mean of"),
    ],
)
def test_options_of_images_that_cannot_work_are_refused_at_once(options, error, said):
    with pytest.raises(error, match=said):
        VisionDataCollator(**options)


def test_both_names_are_one_class():
    assert VisionCollator is VisionDataCollator


@pytest.mark.parametrize(
    "image",
    [torch.ones(3, 4, 4), np.ones((3, 4, 4), np.float32), Image.new("RGB", (4, 4), "white")],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_pair_may_be_a_list(image, kind):
    out = VisionDataCollator(normalize=False)([kind([image, 3]), kind([image, 4])])
    assert torch.equal(out["pixel_values"], torch.ones(2, 3, 4, 4))
    assert out["labels"].tolist() == [3, 4]


def test_a_list_of_numbers_is_an_image_and_one_of_unequal_lengths_is_none():
    out = VisionDataCollator(normalize=False)([[[0.5, 1.0], [0.25, 0.0]]])
    assert out["pixel_values"].tolist() == [[[[0.5, 1.0], [0.25, 0.0]]]]
    with pytest.raises(CollationError, match=r"image 0: expected a tensor, .* found list of 2"):
        VisionDataCollator()([[[0.5], [0.25, 0.0]]])
