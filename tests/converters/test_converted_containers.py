"""A converted batch has the containers of the original, which is unchanged."""

import copy
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataporter.converters import DtypeConverter, KeyBasedDtypeConverter
from dataporter.errors import ConversionError

halved = DtypeConverter("float16")


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass
class Mutable:
    image: Any
    label: Any
    seen: list = field(default_factory=list, init=False)


@dataclass(frozen=True)
class Frozen:
    image: Any
    label: Any
    total: Any = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "total", 2)


@dataclass(frozen=True, slots=True)
class Slotted:
    image: Any
    label: Any


class Row(dict):
    """A dict that also has attributes."""

    origin = None


class FrozenMapping(Mapping):
    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Items(list):
    """A list that also has attributes."""


def row_with_origin(items):
    row = Row(items)
    row.origin = "shard 3"
    return row


CONTAINERS = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda items: defaultdict(list, items),
    "UserDict": UserDict,
    "dict subclass": row_with_origin,
    "mapping": FrozenMapping,
    "namedtuple": lambda items: Pair(**items),
    "old namedtuple": lambda items: namedtuple("Old", "image label")(**items),  # noqa: PYI024
    "dataclass": lambda items: Mutable(**items),
    "frozen dataclass": lambda items: Frozen(**items),
    "slotted dataclass": lambda items: Slotted(**items),
}


def part(container, name):
    return container[name] if isinstance(container, Mapping) else getattr(container, name)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_keep_their_class_and_the_original_is_unchanged(kind):
    image, label = torch.ones(2), torch.tensor(3)
    batch = CONTAINERS[kind]({"image": image, "label": label})
    nested = {"inputs": [batch]}
    for converter, where in (
        (KeyBasedDtypeConverter({"image": "float16"}), batch),
        (KeyBasedDtypeConverter({"inputs[0].image": "float16"}), nested),
    ):
        converted = converter(where)
        converted = converted["inputs"][0] if where is nested else converted
        assert type(converted) is type(batch)
        assert part(converted, "image").dtype is torch.float16
        assert part(converted, "label") is label
        assert part(batch, "image") is image
        assert image.dtype is torch.float32


def test_what_else_a_container_holds_is_kept():
    convert = KeyBasedDtypeConverter({"image": "float16"})
    items = {"image": torch.ones(2), "label": 3}
    assert convert(defaultdict(list, items)).default_factory is list
    assert list(convert(OrderedDict(reversed(items.items())))) == ["label", "image"]
    assert convert(row_with_origin(items)).origin == "shard 3"
    assert convert(Frozen(**items)).total == 2
    seen = Mutable(**items)
    seen.seen = ["here"]
    assert convert(seen).seen is seen.seen


def test_lists_and_tuples_are_kept():
    tensor = torch.ones(1)
    items = Items([tensor, "a"])
    items.origin = "shard 3"
    converted = halved((items, [tensor], (tensor,), torch.Size([2])))
    assert [type(part) for part in converted] == [Items, list, tuple, torch.Size]
    assert converted[0].origin == "shard 3"
    assert items[0] is tensor
    assert converted[1][0].dtype is torch.float16


def test_a_batch_in_which_nothing_changes_is_handed_on():
    batch = {"x": torch.ones(1, dtype=torch.float16), "y": ["a", ("b", None)]}
    assert halved(batch) is batch


def test_parts_that_do_not_change_are_shared():
    batch = {"x": torch.ones(1), "meta": {"name": ["a"]}}
    assert halved(batch)["meta"] is batch["meta"]


def test_what_is_there_twice_is_one_thing_in_the_result_too():
    ids = torch.arange(4)
    convert = KeyBasedDtypeConverter({"input_ids": "int32", "labels": "int32", "raw": "int16"})
    batch = convert({"input_ids": ids, "labels": ids, "raw": ids})
    assert batch["input_ids"] is batch["labels"]
    assert batch["raw"].dtype is torch.int16


def test_a_mapping_that_makes_its_items_when_asked_is_converted_right():
    class Lazy(FrozenMapping):
        def __getitem__(self, key):
            value = self._items[key]
            return torch.full((2,), value) if isinstance(value, float) else value

    converted = halved(Lazy({str(i): float(i) for i in range(50)}))
    assert [converted[str(i)].tolist() for i in range(50)] == [[i, i] for i in range(50)]


class Unmakeable(FrozenMapping):
    def __init__(self, items, needed):
        super().__init__({**items, "needed": needed})


def test_a_container_that_cannot_be_made_anew_is_named():
    with pytest.raises(ConversionError, match=r"^inputs: a Unmakeable cannot be made anew"):
        halved({"inputs": Unmakeable({"x": torch.ones(1)}, needed=1)})


leaves = st.sampled_from(
    [torch.arange(3.0), torch.tensor(2), np.arange(2.0), np.float64(1.5), "text", None, 7, 2.5]
)
batches = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", "c.d", 0]), inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Frozen, inner, inner)
    ),
    max_leaves=8,
)


def everything(batch):
    """A batch as builtins, with the types of its containers but no dtypes."""
    if isinstance(batch, Pair | Frozen):
        return type(batch).__name__, everything(batch.image), everything(batch.label)
    if isinstance(batch, dict):
        return {key: everything(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(everything(value) for value in batch)
    return batch.tolist() if hasattr(batch, "tolist") else batch


def dtypes(batch):
    if isinstance(batch, Pair | Frozen):
        return dtypes(batch.image) | dtypes(batch.label)
    if isinstance(batch, dict):
        return dtypes(list(batch.values()))
    if isinstance(batch, list | tuple):
        return set().union(*map(dtypes, batch))
    return {str(batch.dtype).removeprefix("torch.")} if hasattr(batch, "dtype") else set()


@given(batches)
def test_any_batch_has_the_same_values_in_the_same_containers(batch):
    before = copy.deepcopy(batch)
    converted = halved(batch)
    assert everything(converted) == everything(batch) == everything(before)
    assert dtypes(converted) <= {"float16"}
    assert dtypes(batch) == dtypes(before)
