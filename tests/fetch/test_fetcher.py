import pickle
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sameness import assert_same, assert_same_batches, outcome
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)

from dataporter import OptionTypeError, ResumableDataLoader, sample_rng
from dataporter.errors import LeftOutError
from dataporter.fetch import Fetcher
from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import Samples


class Squares(Sequence):
    """Sample i is i squared; keeps a record of what it was asked for."""

    def __init__(self, length=7):
        self.length = length
        self.asked = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.asked.append(index)
        return index**2


class SquaresAtOnce(Squares):
    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [index**2 for index in indices]


class NoisyAtOnce(SquaresAtOnce):
    """Draws random numbers, one after another."""

    def __getitem__(self, index):
        return index + random.random()

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Ragged(Squares):
    """Sample i has i numbers, or is left out."""

    def __getitem__(self, index):
        if index == 2:
            raise LeftOutError
        return torch.zeros(index)


def noted(loader):
    """The notes of the error of a pass."""
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as raised:
        list(loader)
    return raised.value.__notes__


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"converter": lambda batch: batch}])
def test_an_error_of_collation_names_the_samples_of_its_batch(options):
    options |= {"sampler": [5, 2, 3, np.int64(4)]}
    expected = "dataporter was making a batch of the samples at indices 5, 3, 4"
    assert noted(ResumableDataLoader(Ragged(), 4, **options)) == [expected]


def test_an_error_of_a_users_collation_names_the_samples_of_its_batch():
    loader = ResumableDataLoader(Squares(), 2, collate_fn=torch.stack)
    with pytest.raises(TypeError) as raised:
        list(loader)
    (note,) = raised.value.__notes__
    assert note.endswith("the samples at indices 0, 1")


def test_of_a_large_batch_the_first_samples_are_named():
    (note,) = noted(ResumableDataLoader(Ragged(100), 90, sampler=[1] * 80 + [3] * 10))
    assert note.endswith(", 1, 1 and 26 more")


class RaggedStream(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(1), torch.zeros(2)])


def test_an_error_of_collation_of_a_stream_names_the_lane():
    (note,) = noted(ResumableDataLoader(RaggedStream(), 2))
    assert note == "dataporter was making a batch of the next samples of lane 0"


def assert_as_torch(dataset, **options):
    assert_same_batches(ResumableDataLoader(dataset, **options), DataLoader(dataset, **options))


# How samples are asked for


def test_samples_are_asked_for_one_by_one_with_plain_ints():
    dataset = Squares(4)
    batches = [batch.tolist() for batch in ResumableDataLoader(dataset, batch_size=3)]
    assert batches == [[0, 1, 4], [9]]
    assert dataset.asked == [0, 1, 2, 3]
    assert all(type(index) is int for index in dataset.asked)


def test_a_dataset_that_offers_getitems_is_asked_for_whole_batches():
    dataset = SquaresAtOnce(4)
    batches = [batch.tolist() for batch in ResumableDataLoader(dataset, batch_size=3)]
    assert batches == [[0, 1, 4], [9]]
    assert dataset.asked == [[0, 1, 2], [3]]
    assert all(type(index) is int for batch in dataset.asked for index in batch)


def test_getitems_is_not_used_where_single_samples_are_delivered():
    dataset = SquaresAtOnce(3)
    assert list(ResumableDataLoader(dataset, batch_size=None)) == [0, 1, 4]
    assert dataset.asked == [0, 1, 2]


def test_getitems_that_is_none_is_passed_over():
    dataset = Squares(4)
    dataset.__getitems__ = None
    assert_as_torch(dataset, batch_size=3)


def test_samples_that_getitems_draws_have_random_numbers_of_their_own():
    whole = next(iter(ResumableDataLoader(NoisyAtOnce(6), batch_size=6, seed=1)))
    halves = torch.cat(list(ResumableDataLoader(NoisyAtOnce(6), batch_size=3, seed=1)))
    assert whole.tolist() == halves.tolist()
    assert len({sample % 1 for sample in whole.tolist()}) == 6


# What __getitems__ returns, if that is no list of samples


MAKES = {
    "tensor": torch.tensor,
    "array": np.array,
    "dict": lambda numbers: {"x": torch.tensor(numbers), "y": [str(one) for one in numbers]},
    "tuple": lambda numbers: (torch.tensor(numbers), torch.tensor(numbers) + 1),
    "list": lambda numbers: [torch.tensor(numbers), torch.tensor(numbers) + 1],
    "number": sum,
}


class Ready:
    """Returns ready batches, and has nothing else to be read by; draws them if told to."""

    def __init__(self, make, draws=None, length=11):
        self.make, self.draws, self.length = make, draws, length

    def __len__(self):
        return self.length

    def __getitems__(self, indices):
        drawn = {
            None: lambda: 0.0,
            "python": random.random,
            "torch": lambda: torch.rand(()).item(),
            "own": lambda: float(sample_rng().random()),
        }[self.draws]
        return MAKES[self.make]([index + drawn() for index in indices])


class ReadyOfDataset(Ready, Dataset):
    """Has torch's `__getitem__`, which raises NotImplementedError."""


class ReadyOrNot(Ready):
    """Can be read by index too, and then returns samples of another make."""

    def __getitem__(self, index):
        numbers = self.__getitems__([index])
        return (numbers, index) if self.make in ("tensor", "array") else torch.tensor(index)


def as_it_is(batch):
    return batch


READY = [Ready, ReadyOfDataset, ReadyOrNot]


@pytest.mark.parametrize("kind", READY)
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("collate_fn", [None, as_it_is], ids=["default", "own"])
def test_what_getitems_returns_is_collated_as_in_torch(kind, make, collate_fn):
    # Of 2 samples too, for which a pair of columns looks like a pair of samples.
    for size in (1, 2, 4):
        ours, theirs = (
            outcome(list, loader(kind(make), batch_size=size, collate_fn=collate_fn))
            for loader in (ResumableDataLoader, DataLoader)
        )
        assert_same(ours, theirs)


@pytest.mark.parametrize("engine", ["processes", "threads"])
@pytest.mark.parametrize("make", ["tensor", "dict", "list"])
def test_what_getitems_returns_arrives_from_workers(make, engine):
    options = {"batch_size": 4, "collate_fn": as_it_is}
    loader = ResumableDataLoader(ReadyOfDataset(make), **options, num_workers=2, engine=engine)
    assert_same_batches(loader, DataLoader(ReadyOfDataset(make), **options))


@pytest.mark.parametrize("kind", READY)
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("draws", ["python", "torch", "own"])
def test_a_ready_batch_that_is_drawn_has_the_numbers_of_its_first_sample(kind, make, draws):
    for size in (2, 3):
        options = {"batch_size": size, "collate_fn": as_it_is, "shuffle": True, "seed": 1}
        loader = ResumableDataLoader(kind(make, draws), **options)
        batches, states = [], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
        plain = DataLoader(kind(make), batch_size=size, collate_fn=as_it_is)
        assert {type(batch) for batch in batches} == {type(batch) for batch in plain}
        resumed = ResumableDataLoader(kind(make, draws), **options)
        resumed.load_state_dict(states[1])
        assert_same(list(resumed), batches[2:])


def test_a_ready_batch_is_drawn_alike_by_any_number_of_workers():
    alone, helped = (
        ResumableDataLoader(Ready("tensor", "torch", 60), 4, collate_fn=as_it_is, seed=1, **workers)
        for workers in ({}, {"num_workers": 2})
    )
    drawn = list(alone)
    assert_same(list(helped), drawn)
    assert len({number % 1 for batch in drawn for number in batch.tolist()}) > 50


class OneIsMissing(Ready):
    def __getitems__(self, indices):
        if 5 in indices:
            raise KeyError(5)
        return super().__getitems__(indices)


@pytest.mark.parametrize("make", ["tensor", "array", "dict", "tuple"])
@pytest.mark.parametrize("draws", [None, "torch"])
def test_a_sample_that_fails_is_left_out_of_a_ready_batch(make, draws):
    dataset = OneIsMissing(make, draws, length=8)
    loader = ResumableDataLoader(dataset, 4, collate_fn=as_it_is, on_error="skip", seed=1)
    found = list(loader)
    (last,) = found[1:]
    while not hasattr(last, "tolist"):
        last = next(iter(last.values() if isinstance(last, dict) else last))
    assert [int(number) for number in last.tolist()] == [4, 6, 7]
    assert [(one.index, one.position) for one in loader.skipped] == [(5, 5)]


def test_an_error_of_a_ready_batch_that_is_drawn_is_the_datasets_own():
    class Fails(ReadyOfDataset):
        def __getitems__(self, indices):
            random.random()
            raise LookupError(indices)

    with pytest.raises(LookupError) as raised:
        list(ResumableDataLoader(Fails("tensor"), 2, collate_fn=as_it_is))
    assert "samples at indices [0, 1]" in raised.value.__notes__[0]


class Counting(ReadyOfDataset):
    """Has a state, so it is read in a lane."""

    read = 0

    def __getitems__(self, indices):
        self.read += len(indices)
        return super().__getitems__(indices) + self.read * 100

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("draws", [None, "torch"])
def test_a_dataset_with_a_state_may_return_ready_batches(workers, draws):
    options = {"batch_size": 4, "collate_fn": as_it_is, "num_workers": workers, "seed": 1}
    loader = ResumableDataLoader(Counting("tensor", draws), **options)
    batches, states = [], []
    for batch in loader:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    assert [int(batch[0]) for batch in batches] == [400, 804, 1108]
    resumed = ResumableDataLoader(Counting("tensor", draws), **options)
    resumed.load_state_dict(states[0])
    assert [batch.tolist() for batch in resumed] == batches[1:]


# Collation


def test_a_collate_function_gets_the_list_of_samples():
    seen = []

    def record(samples):
        seen.append(samples)
        return len(samples)

    assert list(ResumableDataLoader(Squares(4), batch_size=3, collate_fn=record)) == [3, 1]
    assert seen == [[0, 1, 4], [9]]
    assert all(type(samples) is list for samples in seen)


@pytest.mark.parametrize(
    "dataset",
    [torch.arange(8).reshape(4, 2), np.arange(4), TensorDataset(torch.arange(4), torch.eye(4))],
    ids=["tensor", "array", "TensorDataset"],
)
def test_a_collate_function_gets_samples_of_datasets_that_could_be_gathered(dataset):
    def listed(samples):
        assert type(samples) is list
        return samples

    assert_as_torch(dataset, batch_size=3, collate_fn=listed)


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("collate_fn", [None, default_collate, default_convert])
@pytest.mark.parametrize(
    "dataset",
    [
        [(1, 2), (3, 4), (5, 6), (7, 8)],
        [(1, np.arange(2)), (2, np.arange(2)), (3, np.arange(2)), (4, np.arange(2))],
        torch.arange(8).reshape(4, 2),
        np.arange(8).reshape(4, 2),
        TensorDataset(torch.arange(4), torch.arange(4)),
    ],
    ids=["pairs", "tuples", "tensor", "array", "TensorDataset"],
)
def test_torchs_own_functions_do_what_they_do_in_torch(dataset, collate_fn, batch_size):
    # A tensor is not a list of samples, for instance: default_collate refuses a single one.
    ours, theirs = (
        outcome(list, loader(dataset, batch_size=batch_size, collate_fn=collate_fn))
        for loader in (ResumableDataLoader, DataLoader)
    )
    assert_same(ours, theirs)


# Single samples

SAMPLES = {
    "ints": [1, 2, 3],
    "strings": ["a", "b"],
    "arrays": [np.arange(2), np.arange(3.0)],
    "NumPy numbers": [np.float32(1), np.int8(2)],
    "tuples": [(1, np.ones(2)), ("a", "b")],
    "lists": [[1, np.ones(2)]],
    "dicts": [{"x": np.ones(2), "y": "a"}, {"z": None}],
    "tensors": [torch.ones(2), torch.ones(3)],
    "None": [None, None],
}


@pytest.mark.parametrize("dataset", SAMPLES.values(), ids=SAMPLES)
def test_without_batches_single_samples_are_delivered_as_torch_does(dataset):
    assert_as_torch(dataset, batch_size=None)


@pytest.mark.parametrize(
    "dataset",
    [torch.arange(4), torch.eye(4), np.arange(4.0), np.eye(4), TensorDataset(torch.eye(4))],
    ids=["1-D tensor", "tensor", "1-D array", "array", "TensorDataset"],
)
def test_without_batches_rows_are_delivered_as_torch_does(dataset):
    assert_as_torch(dataset, batch_size=None)


def test_without_batches_a_collate_function_gets_each_sample():
    loader = ResumableDataLoader(Squares(4), batch_size=None, collate_fn=str)
    assert list(loader) == ["0", "1", "4", "9"]


def test_a_sampler_of_batches_may_ask_the_dataset_itself_for_many():
    sampler = BatchSampler(SequentialSampler(range(5)), 2, drop_last=False)
    assert_as_torch(torch.arange(10).reshape(5, 2), batch_size=None, sampler=sampler)


# Conversion


class Negative:
    def convert_batch(self, batch):
        return -batch


@pytest.mark.parametrize("converter", [Negative(), torch.neg], ids=["convert_batch", "callable"])
@pytest.mark.parametrize("dataset", [[1, 2, 3], torch.tensor([1, 2, 3])], ids=["list", "tensor"])
def test_a_converter_is_applied_to_every_batch(dataset, converter):
    loader = ResumableDataLoader(dataset, batch_size=2, converter=converter)
    assert [batch.tolist() for batch in loader] == [[-1, -2], [-3]]


def test_a_converter_comes_after_the_collate_function():
    loader = ResumableDataLoader([1, 2, 3], batch_size=3, collate_fn=sum, converter=str)
    assert list(loader) == ["6"]


def test_a_converter_is_applied_to_single_samples():
    assert list(ResumableDataLoader([1, 2], batch_size=None, converter=str)) == ["1", "2"]


@pytest.mark.parametrize("converter", [3, "float16", [str]], ids=repr)
def test_a_converter_that_cannot_be_called_is_refused(converter):
    with pytest.raises(OptionTypeError, match="convert_batch"):
        ResumableDataLoader([1], converter=converter)


# Indices of samplers of the user's own

ANIMALS = {"cat": 1, "dog": 2, "owl": 3}


def test_a_sampler_may_yield_keys():
    assert_as_torch(ANIMALS, batch_size=2, sampler=["owl", "cat", "dog"])
    assert_as_torch(ANIMALS, batch_sampler=[["owl"], ["cat", "dog"]])
    assert_as_torch(ANIMALS, batch_size=None, sampler=["owl", "cat", "dog"])


def test_a_sampler_may_yield_tuples_for_a_dataset_that_takes_them():
    grid = {(row, column): row * 10 + column for row in range(3) for column in range(3)}
    assert_as_torch(grid, batch_size=2, sampler=[(0, 1), (2, 2), (1, 0)])


@pytest.mark.parametrize(
    "indices", [np.array([3, 1, 2]), torch.tensor([3, 1, 2]), (3, 1, 2), range(3, 0, -1)], ids=repr
)
@pytest.mark.parametrize("dataset", [[0, 10, 20, 30], torch.arange(4)], ids=["list", "tensor"])
def test_a_sampler_may_be_any_iterable_of_indices(dataset, indices):
    assert_as_torch(dataset, batch_size=2, sampler=indices)
    assert_as_torch(dataset, batch_sampler=[indices])


# The fetcher by itself


def test_a_fetcher_travels_to_another_process():
    for dataset in (torch.arange(5), SquaresAtOnce(5), list(range(5))):
        fetcher = Fetcher(dataset, collate_fn=None)
        fetcher.begin_pass()
        positions = np.array([4, 0])
        here = fetcher(Samples(positions, positions, EpochKeys(seed=1, epoch=0)))
        there = pickle.loads(pickle.dumps(fetcher))
        there.begin_pass()
        assert_same(there(Samples(positions, positions, EpochKeys(seed=1, epoch=0))), here)


# Samples that are left out


class Holes(Squares):
    """Every third sample is left out."""

    def __getitem__(self, index):
        if index % 3 == 1:
            raise LeftOutError(index)
        return super().__getitem__(index)


class HolesAtOnce(Holes):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class NoisyHolesAtOnce(HolesAtOnce):
    def __getitem__(self, index):
        return super().__getitem__(index) + float(sample_rng().random())


@pytest.mark.parametrize("kind", [Holes, HolesAtOnce, NoisyHolesAtOnce])
@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "engine": "threads"}]
)
def test_a_dataset_leaves_samples_out_of_their_batches(kind, options):
    loader = ResumableDataLoader(kind(10), batch_size=2, **options)
    found = [[int(value) for value in batch] for batch in loader]
    assert found == [[0], [4, 9], [25], [36], [64, 81]]
    assert loader.skipped == []
    singly = ResumableDataLoader(kind(10), batch_size=1, **options)
    assert [int(value) for batch in singly for value in batch] == [0, 4, 9, 25, 36, 64, 81]
    assert singly.state_dict()["batches_processed"] == 10


def test_a_sample_beside_a_hole_has_its_own_random_numbers():
    full = [batch.tolist() for batch in ResumableDataLoader(NoisyAtOnce(9), batch_size=3, seed=1)]

    class NoisyHoles(NoisyAtOnce):
        def __getitem__(self, index):
            if index % 3 == 1:
                raise LeftOutError(index)
            return super().__getitem__(index)

    holes = [batch.tolist() for batch in ResumableDataLoader(NoisyHoles(9), batch_size=3, seed=1)]
    assert holes == [[first, third] for first, _, third in full]
