"""Converters run where batches are fetched, so narrow batches are what travels."""

import traceback

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from watching import arena_bytes

from dataporter import ResumableDataLoader
from dataporter.converters import DtypeConverter, KeyBasedDtypeConverter
from dataporter.errors import ConversionError

SAMPLES, WIDTH = 32, 64 * 1024
SLACK = 256 * 1024  # outlines of batches, and the rest of a slot's last page


class Wide(Dataset):
    """Samples of int64 and float32, of which one may be too large."""

    def __init__(self, largest=1000):
        self.largest = largest

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        ids = torch.arange(WIDTH) % 1000
        ids[index] = self.largest
        return {"ids": ids, "image": np.full(WIDTH, index, np.float32), "name": f"sample {index}"}


def loader_of(converter, dataset=None, **options):
    return ResumableDataLoader(dataset or Wide(), batch_size=4, converter=converter, **options)


def bytes_in_slots(converter):
    """Return the bytes in the slots of all batches of a pass, and the bytes of the batches."""
    loader = loader_of(converter, num_workers=1, persistent_workers=True)  # its arena stays open
    batches = list(loader)
    held = arena_bytes()
    tensors = [part for batch in batches for part in batch.values() if not isinstance(part, list)]
    return held, sum(part.nbytes for part in tensors)


def test_narrow_batches_are_what_lies_in_the_slots():
    wide, whole = bytes_in_slots(None)
    narrow, part = bytes_in_slots(KeyBasedDtypeConverter({"ids": "int16", "image": "float16"}))
    assert whole == SAMPLES * WIDTH * (8 + 4)
    assert part == SAMPLES * WIDTH * (2 + 2)
    assert whole <= wide <= whole + SLACK
    assert part <= narrow <= part + SLACK


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        pytest.param(
            {"num_workers": 1, "multiprocessing_context": "spawn"}, marks=pytest.mark.soak
        ),
        {"num_workers": 2, "engine": "threads"},
    ],
    ids=["fork", "spawn", "threads"],
)
def test_workers_convert_as_the_caller_would(options):
    converter = KeyBasedDtypeConverter({"ids": "int16", "image": "bfloat16"})
    found = list(loader_of(converter, **options))
    wanted = [converter(batch) for batch in loader_of(None)]
    assert len(found) == len(wanted) == SAMPLES // 4
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["name"] == theirs["name"]
        for name, dtype in (("ids", torch.int16), ("image", torch.bfloat16)):
            assert ours[name].dtype is dtype
            assert torch.equal(ours[name], theirs[name])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_value_that_does_not_fit_is_raised_to_the_caller(num_workers):
    loader = loader_of(
        DtypeConverter("int16", on_overflow="raise"), Wide(40000), num_workers=num_workers
    )
    with pytest.raises(ConversionError) as raised:
        next(iter(loader))
    assert "ids: 40000 does not fit into int16" in "".join(traceback.format_exception(raised.value))


def test_single_samples_are_converted_too():
    loader = ResumableDataLoader(Wide(), batch_size=None, converter=DtypeConverter("float32"))
    assert next(iter(loader))["ids"].dtype is torch.float32
