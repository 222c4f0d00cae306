"""Batches of any container: equal ones have no difference, others one that is pointed at."""

import copy
import functools
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataporter import FactoryError
from dataporter.tools.verify.batch_contents import contents_of, difference, digest

SAMPLES = 3


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    first: Any
    second: Any


class Opaque:
    """No container, but something that pickle would take apart."""

    def __init__(self, value: Any) -> None:
        self.value = value


DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary()


@st.composite
def tensors(draw):
    numbers = draw(st.lists(st.integers(0, 1), min_size=2 * SAMPLES, max_size=2 * SAMPLES))
    made = torch.tensor(numbers, dtype=draw(st.sampled_from(DTYPES))).reshape(SAMPLES, 2)
    return made if draw(st.booleans()) else made.t().contiguous().t()


arrays = st.lists(st.floats(width=32), min_size=SAMPLES, max_size=SAMPLES).map(np.array)
leaves = plain | tensors() | arrays | plain.map(Opaque) | st.sets(st.text(max_size=3), max_size=4)
batches = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(Record, inner, inner)
    ),
    max_leaves=6,
)


@given(batches)
def test_a_batch_equals_a_copy_of_it(batch):
    assert (
        difference(contents_of(batch, SAMPLES), contents_of(copy.deepcopy(batch), SAMPLES)) is None
    )


@given(tensors(), st.integers(0, SAMPLES - 1), st.integers(0, 1))
def test_one_changed_element_is_pointed_at(tensor, sample, element):
    changed = tensor.clone()
    changed[sample, element] = ~changed[sample, element] if tensor.dtype is torch.bool else 7
    one, other = (contents_of({"a": [0], "x": x}, SAMPLES) for x in (tensor, changed))
    found = difference(one, other)
    assert (found.path, found.sample) == ("x", sample)
    assert found.message.endswith(f"at element {element}")


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            torch.zeros(2),
            torch.zeros(2).double(),
            "torch.float32 of shape .2., found torch.float64",
        ),
        (torch.zeros(2), torch.zeros(3), "shape .2., found torch.float32 of shape .3."),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "expected 0, found -0"),
        ({"x": 1}, {"y": 1}, "was not found there"),
        ({"x": 1}, {"x": 1, "y": 2}, "was not expected there"),
        ("a", b"a", "expected str 'a', found bytes b'a'"),
        (1, True, "expected int 1, found bool True"),
        ([], {}, "expected empty list, found empty dict"),
        (Opaque([1, 2]), Opaque([1, 3]), "expected <"),
        (np.zeros(2), torch.zeros(2), "expected NumPy float64"),
        ({"t": ["a", "b"]}, {"t": ["a", "c"]}, "expected 'b', found 'c'"),
    ],
)
def test_differences_are_told_in_words(one, other, words):
    found = difference(contents_of(one, 2), contents_of(other, 2))
    assert found is not None
    assert re.search(words, found.message)


def test_a_nan_is_equal_to_the_same_nan_and_large_values_are_not_carried_along():
    nan = torch.tensor([float("nan")])
    assert difference(contents_of(nan), contents_of(nan.clone())) is None
    (leaf,) = contents_of(torch.zeros(10**6)).values()
    assert leaf.values == ()
    (other,) = contents_of(torch.ones(10**6)).values()
    assert difference({"": leaf}, {"": other}).message == "the bits differ"


def test_an_object_that_refers_to_itself_has_a_digest():
    ring: list[Any] = [1]
    ring.append(ring)
    assert digest(ring) == digest(ring)
    assert digest(Opaque(ring)) != digest(Opaque([1]))
    assert difference(contents_of(ring), contents_of(copy.deepcopy(ring))) is None


def test_objects_that_refer_to_each_other_by_sets_have_a_digest():
    def neighbours(value):
        one, other = Opaque({value}), Opaque(set())
        one.value.add(other)
        other.value.add(one)
        return one

    assert digest(neighbours(1)) == digest(neighbours(1))
    assert digest(neighbours(1)) != digest(neighbours(2))


@pytest.mark.parametrize("inside", [Opaque, lambda value: [value], lambda value: {"a": value}])
def test_a_chain_deeper_than_pythons_stack_is_compared_to_its_end(inside):
    def chain(end):
        return functools.reduce(lambda value, _: inside(value), range(3000), end)

    one, same, other = (contents_of([chain(end)]) for end in (1, 1, 2))
    assert difference(one, same) is None
    assert difference(one, other) is not None


RAGGED = [torch.arange(2.0), torch.arange(3.0)]
CHANGED = [torch.arange(2.0), torch.tensor([0.0, 1.0, 7.0])]
SQUARE, OTHER = torch.eye(4), torch.eye(4) * torch.tensor([1.0, 1.0, 1.0, 7.0])


def by_channel(tensor):
    scales, zeros = torch.full((4,), 0.1), torch.zeros(4)
    return torch.quantize_per_channel(tensor, scales, zeros, 0, torch.quint8)


TENSORS = {
    "nested": (torch.nested.nested_tensor, RAGGED, CHANGED, "x[1]"),
    "jagged": (
        lambda ts: torch.nested.nested_tensor(ts, layout=torch.jagged),
        *(RAGGED, CHANGED, "x[1]"),
    ),
    "coo": (lambda t: t.to_sparse(), SQUARE, OTHER, "x.values"),
    "csr": (lambda t: t.to_sparse_csr(), SQUARE, OTHER, "x.values"),
    "csc": (lambda t: t.to_sparse_csc(), SQUARE, OTHER, "x.values"),
    "bsr": (lambda t: t.to_sparse_bsr((2, 2)), SQUARE, OTHER, "x.values"),
    "bsc": (lambda t: t.to_sparse_bsc((2, 2)), SQUARE, OTHER, "x.values"),
    "quantised": (
        lambda t: torch.quantize_per_tensor(t, 0.1, 2, torch.qint8),
        *(SQUARE, OTHER, "x.int_repr"),
    ),
    "by channel": (by_channel, SQUARE, OTHER, "x.int_repr"),
    "mkldnn": (lambda t: t.to_mkldnn(), SQUARE, OTHER, "x"),
    "meta": (lambda t: t.to("meta"), SQUARE, SQUARE[:3], "x"),
}


@pytest.mark.filterwarnings("ignore")  # torch's, about prototypes and deprecations
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_not_one_block_of_memory_are_taken_apart(name):
    make, values, others, path = TENSORS[name]
    one, same, other = (make(each) for each in (values, values, others))
    held = contents_of({"x": one}, 2)
    assert difference(held, contents_of({"x": same}, 2)) is None
    assert difference(held, contents_of({"x": other}, 2)).path == path
    assert digest([one]) == digest([same])
    assert digest([one]) != digest([other])


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_whose_bits_cannot_be_read_is_refused_in_words():
    masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    with pytest.raises(FactoryError, match=r"a MaskedTensor of layout torch\.strided whose bits"):
        contents_of({"x": masked})
