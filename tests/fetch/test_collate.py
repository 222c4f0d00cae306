from collections import OrderedDict, defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sameness import assert_same, outcome
from samples import Frozen, Point, Record, batches, mixtures
from torch.utils.data import default_collate

from dataporter.fetch import collate


@settings(max_examples=500)
@given(samples=batches)
def test_a_batch_is_what_torch_makes_of_it(samples):
    assert_same(outcome(collate, samples), outcome(default_collate, samples))


@settings(max_examples=300)
@given(samples=mixtures)
def test_samples_that_do_not_belong_together_end_as_in_torch(samples):
    assert_same(outcome(collate, samples), outcome(default_collate, samples))


@dataclass
class Pair:
    x: int
    y: int


TAKEN = {
    "ints": [1, 2, 3],
    "the largest ints": [2**63 - 1, -(2**63)],
    "ints and floats": [1, 2.5],
    "floats and ints": [2.5, 1],
    "ints and bools": [1, True],
    "bools and ints": [True, 2],
    "floats and huge ints": [1.0, 2**63],
    "not a number and infinity": [float("nan"), float("inf"), -0.0],
    "strings": ["a", "b"],
    "bytes": [b"a", b"b"],
    "tensors": [torch.ones(2), torch.zeros(2)],
    "tensors without dimensions": [torch.tensor(1), torch.tensor(2)],
    "tensors of two dtypes": [torch.ones(2, dtype=torch.int32), torch.ones(2)],
    "tensors with gradients": [torch.ones(2, requires_grad=True), torch.ones(2)],
    "parameters": [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))],
    "tensors that overlap themselves": [torch.ones(1).expand(3), torch.ones(3)],
    "arrays": [np.ones(2, dtype=np.float16), np.zeros(2, dtype=np.float16)],
    "arrays without dimensions": [np.array(1.0), np.array(2.0)],
    "NumPy numbers": [np.float16(1), np.float16(2)],
    "NumPy and Python numbers": [np.float64(1), 1.0],
    "Python and NumPy numbers": [1.0, np.float64(1)],
    "tuples": [(1, "a", 2.0), (2, "b", 3.0)],
    "tuples and lists": [(1, "a"), [2, "b"]],
    "lists": [[1, torch.ones(1)], [2, torch.zeros(1)]],
    "ranges": [range(3), range(3)],
    "namedtuples": [Point(1, "a"), Point(2, "b")],
    "dicts": [{"x": 1, "y": [1, 2]}, {"y": [3, 4], "x": 2}],
    "dicts of which the first has fewer keys": [{"x": 1}, {"x": 2, "y": 3}],
    "ordered dicts": [OrderedDict(b=1, a=2), OrderedDict(b=3, a=4)],
    "dicts with a default": [defaultdict(int, x=1), defaultdict(int)],
    "subclasses of dict": [Record(x=1), Record(x=2)],
    "mappings": [Frozen({"x": 1}), Frozen({"x": 2})],
    "empty tuples": [(), ()],
    "empty dicts": [{}, {}],
}


@pytest.mark.parametrize("samples", TAKEN.values(), ids=TAKEN)
def test_torchs_batch_is_made_of(samples):
    assert_same(collate(samples), default_collate(samples))


REFUSED = {
    "nothing at all": [],
    "None": [None, None],
    "None among ints": [1, None],
    "None among floats": [1.0, None],
    "None in a dict": [{"x": 1}, {"x": None}],
    "a dataclass": [Pair(1, 2), Pair(3, 4)],
    "a set": [{1}, {1}],
    "an int past 64 bits": [2**64],
    "an int past 63 bits": [1, 2**63],
    "a float and an int past all floats": [1.0, 10**400],
    "strings among ints": [1, "2"],
    "complex numbers among floats": [1.0, 1j],
    "lists among ints": [1, [2]],
    "ints among lists": [[1], 2],
    "ints among dicts": [{"x": 1}, 2],
    "ints among tensors": [torch.ones(2), 1],
    "tensors of two shapes": [torch.ones(2), torch.ones(3)],
    "arrays of two shapes": [np.ones(2), np.ones(3)],
    "arrays of strings": [np.array(["a"]), np.array(["b"])],
    "arrays of objects": [np.array([None]), np.array([None])],
    "dates": [np.datetime64("2026-11-15"), np.datetime64("2026-11-16")],
    "tuples of two sizes": [(1, 2), (1, 2, 3)],
    "tuples of two sizes, the longer first": [(1, 2, 3), (1, 2)],
    "lists of two sizes": [[1], [1, 2]],
    "missing keys": [{"x": 1, "y": 2}, {"x": 1}],
    "sparse tensors": [torch.eye(2).to_sparse(), torch.eye(2).to_sparse()],
}


@pytest.mark.parametrize("samples", REFUSED.values(), ids=REFUSED)
def test_torchs_exception_is_raised_for(samples):
    expected = outcome(default_collate, samples)
    assert isinstance(expected, type)
    with pytest.raises(expected) as caught:
        collate(samples)
    assert type(caught.value) is expected


def test_the_batch_does_not_share_memory_with_a_sample():
    sample = torch.zeros(3)
    collate([sample])[0] += 1
    assert sample.tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [tuple, list, lambda parts: {"x": parts[0], "y": parts[1]}])
def test_large_tensors_are_stacked_into_the_memory_that_is_offered(kind):
    offered = []

    def empty(shape, dtype):
        offered.append(torch.empty(shape, dtype=dtype))
        return offered[-1]

    batch = collate([kind((torch.full((256,), float(i)), i)) for i in range(3)], empty)
    stacked = batch["x"] if isinstance(batch, dict) else batch[0]
    (memory,) = offered
    assert stacked.data_ptr() == memory.data_ptr()
    assert memory[:, 0].tolist() == [0, 1, 2]


def test_samples_are_left_as_they_were():
    samples = [{"x": [1, 2]}, {"x": [3, 4]}]
    collate(samples)
    assert samples == [{"x": [1, 2]}, {"x": [3, 4]}]


def test_a_type_that_was_registered_with_torch_is_collated_its_way():
    from torch.utils.data._utils.collate import default_collate_fn_map

    def as_sums(pairs, *, collate_fn_map):
        return torch.tensor([pair.x + pair.y for pair in pairs])

    default_collate_fn_map[Pair] = as_sums
    try:
        batch = collate([{"pair": Pair(1, 2)}, {"pair": Pair(3, 4)}])
    finally:
        del default_collate_fn_map[Pair]
    assert batch["pair"].tolist() == [3, 7]
