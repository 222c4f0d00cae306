"""Pinning keeps containers as they are. What it does to tensors needs a device."""

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from dataporter.engine.page_locks import pinned


class Pair(NamedTuple):
    x: Any
    y: Any


class Pinnable:
    """Knows how to pin itself, as custom batches do."""

    def __init__(self, times: int = 0) -> None:
        self.times = times

    def pin_memory(self) -> "Pinnable":
        return Pinnable(self.times + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p,
        lambda p: [p, "text", 1],
        lambda p: (p, b"bytes", None),
        lambda p: {"a": p, "b": [p]},
        lambda p: OrderedDict(b=p, a=2.5),
        lambda p: Pair(p, {"z": p}),
    ],
)
def test_every_part_that_can_be_pinned_is_and_containers_keep_their_type(make):
    batch = make(Pinnable())
    result = pinned(batch)
    assert type(result) is type(batch)

    def shape(part):
        if isinstance(part, Pinnable):
            return ("pinnable", part.times)
        if isinstance(part, dict):
            return {name: shape(value) for name, value in part.items()}
        if isinstance(part, list | tuple):
            return [type(part), *map(shape, part)]
        return part

    assert shape(result) == shape(make(Pinnable(1)))
    assert shape(batch) == shape(make(Pinnable(0)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a device")
def test_tensors_are_page_locked():
    assert pinned({"x": [torch.zeros(3)]})["x"][0].is_pinned()
