"""What torch documents of its DataLoader, point by point: ours does the same beside it."""

import itertools
import warnings
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from beside_torch import LOADERS, alike, both_loaders, errors_of, shape, with_and_without_workers
from support import Ids, one_pass, plain
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    default_convert,
)
from watching import until

from dataporter import ResumableDataLoader

LENGTH = 11


class Squares(Dataset):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(2, index, np.float32), "y": index**2, "name": f"sample {index}"}


# dataset, batch_size, drop_last


@with_and_without_workers
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, LENGTH, 50])
def test_batches_of_every_size_and_the_last_one(batch_size, drop_last, num_workers):
    alike(Squares(), batch_size, drop_last=drop_last, num_workers=num_workers)


@with_and_without_workers
@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(np.float64(0.5), id="scalar"),
        pytest.param(np.arange(3), id="array"),
        pytest.param(torch.ones(2), id="tensor"),
        pytest.param({"a": np.zeros(2), "b": ["text", 1]}, id="dict"),
        pytest.param((1, b"bytes", None), id="tuple"),
    ],
)
def test_without_automatic_batching_samples_are_only_converted(sample, num_workers):
    found = alike([sample] * 3, None, num_workers=num_workers)
    assert len(found) == 3
    assert [shape(part) for part in found] == [shape(default_convert(sample))] * 3


@with_and_without_workers
def test_without_automatic_batching_a_collate_function_gets_every_sample_by_itself(num_workers):
    found = alike(Ids(5), None, collate_fn=_doubled, num_workers=num_workers)
    assert found == [0, 2, 4, 6, 8]


def _doubled(sample: int) -> int:
    return 2 * sample


@with_and_without_workers
def test_batches_may_be_read_in_bulk_by_a_sampler_of_batches(num_workers):
    sampler = BatchSampler(SequentialSampler(range(7)), 3, drop_last=False)
    found = alike(torch.arange(7) * 10, None, sampler=sampler, num_workers=num_workers)
    assert plain(found) == [[0, 10, 20], [30, 40, 50], [60]]


class AtOnce(Ids):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [(index, len(indices)) for index in indices]


@with_and_without_workers
def test_a_dataset_that_fetches_samples_of_a_batch_at_once_is_asked_to(num_workers):
    found = alike(AtOnce(7), 3, num_workers=num_workers)
    assert plain(found[0]) == [[0, 1, 2], [3, 3, 3]]


# shuffle, sampler, batch_sampler


@with_and_without_workers
@both_loaders
def test_data_is_reshuffled_at_every_epoch(loader_class, num_workers):
    loader = loader_class(Ids(100), 10, shuffle=True, num_workers=num_workers)
    first, second = (list(itertools.chain(*one_pass(loader))) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second != list(range(100)) != first


@with_and_without_workers
@pytest.mark.parametrize(
    "sampler", [SequentialSampler(range(6)), [5, 3, 3, 0], range(2, 8, 2), torch.tensor([4, 1])]
)
def test_a_sampler_may_be_any_iterable_with_a_length(sampler, num_workers):
    alike(Ids(10), 2, sampler=sampler, num_workers=num_workers)


@with_and_without_workers
@pytest.mark.parametrize(
    "batch_sampler",
    [
        BatchSampler(SequentialSampler(range(10)), 4, drop_last=True),
        [[1], [2, 3], [], [9] * 4],
        [(1, 2), (0,)],
    ],
)
def test_a_batch_sampler_decides_the_batches(batch_sampler, num_workers):
    alike(Ids(10), batch_sampler=batch_sampler, num_workers=num_workers, collate_fn=list)


@with_and_without_workers
def test_a_sampler_may_yield_keys_that_are_no_numbers(num_workers):
    found = alike({"a": 1, "b": 2}, 2, sampler=["b", "a"], num_workers=num_workers)
    assert plain(found) == [[2, 1]]


@both_loaders
@pytest.mark.parametrize("kind", [RandomSampler, SubsetRandomSampler])
def test_random_samplers_of_torchs_yield_each_sample_once(kind, loader_class):
    loader = loader_class(Ids(20), 3, sampler=kind(range(20)), num_workers=2)
    assert sorted(itertools.chain(*one_pass(loader))) == list(range(20))


class WithoutLength(Dataset):
    def __getitem__(self, index: int) -> int:
        return 3 * index


@with_and_without_workers
def test_a_dataset_without_length_needs_a_sampler_and_nothing_else(num_workers):
    assert plain(alike(WithoutLength(), 2, sampler=[4, 1, 0], num_workers=num_workers)) == [
        [12, 3],
        [0],
    ]
    refused = errors_of(lambda make: make(WithoutLength(), shuffle=True))
    assert all(issubclass(error, TypeError) for error in refused)


def test_the_length_is_that_of_the_sampler_and_an_error_where_it_has_none():
    for options in (
        {"sampler": [1, 2, 3], "batch_size": 2},
        {"sampler": [1, 2, 3], "batch_size": 2, "drop_last": True},
        {"batch_sampler": [[1, 2], [3]]},
        {"batch_size": None},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
    ):
        torchs, ours = (make(Ids(10), **options) for make in LOADERS)
        assert len(ours) == len(torchs) == len(list(ours))
    for name in ("sampler", "batch_sampler"):
        endless = {name: (index for index in range(3))}
        assert errors_of(lambda make: len(make(Ids(10), **endless))) == [TypeError, TypeError]


def test_what_the_loader_was_made_of_can_be_read_as_from_torchs():
    own = RandomSampler(range(10))
    for options in (
        {"batch_size": 4, "drop_last": True, "num_workers": 2, "timeout": 3},
        {"batch_size": None, "pin_memory": True},
        {"batch_sampler": [[1]]},
        {"sampler": own, "collate_fn": list, "worker_init_fn": print},
    ):
        dataset = Ids(10)
        torchs, ours = (make(dataset, **options) for make in LOADERS)
        for name in (
            *("dataset", "batch_size", "drop_last", "num_workers", "timeout", "pin_memory"),
            *("collate_fn", "worker_init_fn", "persistent_workers", "prefetch_factor"),
            *("multiprocessing_context", "generator", "pin_memory_device", "in_order"),
        ):
            assert getattr(ours, name) == getattr(torchs, name), name
        assert type(ours.batch_sampler) is type(torchs.batch_sampler)
    assert list(ResumableDataLoader(Ids(5), 2).batch_sampler) == [[0, 1], [2, 3], [4]]
    assert ours.sampler is own


@with_and_without_workers
def test_reading_the_samplers_does_not_change_what_is_delivered(num_workers):
    loader = ResumableDataLoader(Ids(20), 4, shuffle=True, seed=1, num_workers=num_workers)
    expected = one_pass(ResumableDataLoader(Ids(20), 4, shuffle=True, seed=1))
    assert list(loader.batch_sampler) == expected
    assert sorted(loader.sampler) == list(range(20))
    assert one_pass(loader) == expected


# Options that exclude each other, and attributes


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": [1]},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"num_workers": -1},
        {"timeout": -1},
        {"num_workers": 1, "prefetch_factor": -1},
        {"persistent_workers": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "thread"},
        {"num_workers": 1, "multiprocessing_context": 5},
        {"batch_size": 0},
    ],
    ids=str,
)
def test_what_torch_refuses_is_refused_with_the_same_kind_of_error(options):
    torchs, ours = errors_of(lambda make: make(Ids(10), **options))
    assert issubclass(ours, torchs)


@pytest.mark.parametrize(
    "name",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
)
def test_attributes_that_made_the_loader_cannot_be_set_later(name):
    def attempt(make):
        loader = make(Ids(10), 2)
        try:
            setattr(loader, name, getattr(loader, name))
        finally:
            assert len(list(loader)) == 5

    assert errors_of(attempt) == [ValueError, ValueError]


@both_loaders
def test_how_workers_are_run_can_be_set_later(loader_class, tmp_path):
    def init(worker):
        (tmp_path / str(worker)).touch()

    loader = loader_class(Ids(6), 2, num_workers=1)
    assert len(one_pass(loader)) == 3
    loader.num_workers = 3
    loader.worker_init_fn = init
    loader.multiprocessing_context = "fork"
    assert one_pass(loader) == [[0, 1], [2, 3], [4, 5]]
    until(lambda: sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"])
    with pytest.raises(ValueError, match="multiprocessing_context"):
        loader.multiprocessing_context = "thread"


# collate_fn


class Pair(NamedTuple):
    x: Any
    y: Any


@with_and_without_workers
@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(1.5, id="float"),
        pytest.param("text", id="string"),
        pytest.param(np.arange(3, dtype=np.int16), id="array"),
        pytest.param({"x": torch.ones(2), "y": {"z": [1, 2.5]}}, id="nested dict"),
        pytest.param(OrderedDict(b=1, a="text"), id="ordered dict"),
        pytest.param(Pair(np.float32(1), (b"a", True)), id="named tuple"),
    ],
)
def test_default_collation_keeps_the_structure_and_prepends_a_dimension(sample, num_workers):
    (found,) = alike([sample] * 4, 4, num_workers=num_workers)
    assert shape(found) == shape(default_collate([sample] * 4))


@with_and_without_workers
def test_a_collate_function_gets_a_list_of_samples(num_workers):
    found = alike(Squares(), 4, collate_fn=_padded, num_workers=num_workers)
    assert [plain(lengths) for _, lengths in found] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]]


def _padded(samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    assert type(samples) is list
    rows = [torch.arange(int(sample["x"][0]) + 1) for sample in samples]
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


@with_and_without_workers
@both_loaders
def test_a_collate_function_that_is_set_later_is_used_from_the_next_pass_on(
    loader_class, num_workers
):
    loader = loader_class(Ids(4), 2, num_workers=num_workers)
    assert one_pass(loader) == [[0, 1], [2, 3]]
    loader.collate_fn = sum
    assert one_pass(loader) == [1, 5]
    loader.collate_fn = default_collate
    assert shape(next(iter(loader))) == shape(torch.tensor([0, 1]))


# pin_memory, pin_memory_device


class SimpleCustomBatch:
    """A batch of a class of its own, as in torch's documentation."""

    def __init__(self, samples: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        inputs, targets = zip(*samples, strict=True)
        self.inputs, self.targets = torch.stack(inputs), torch.stack(targets)
        self.pinned = False

    def pin_memory(self) -> "SimpleCustomBatch":
        self.inputs, self.targets = self.inputs.pin_memory(), self.targets.pin_memory()
        self.pinned = True
        return self


@with_and_without_workers
@both_loaders
@pytest.mark.parametrize("pin_memory", [False, True])
def test_custom_batches_arrive_pinned_where_there_is_a_device(
    loader_class, pin_memory, num_workers
):
    dataset = TensorDataset(torch.arange(10.0).view(5, 2), torch.arange(5))
    loader = loader_class(
        dataset, 2, collate_fn=SimpleCustomBatch, pin_memory=pin_memory, num_workers=num_workers
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's loader warns where there is no device
        batches = list(loader)
    is_pinned = pin_memory and torch.accelerator.is_available()
    assert [type(batch) for batch in batches] == [SimpleCustomBatch] * 3
    assert [batch.pinned for batch in batches] == [is_pinned] * 3
    assert [batch.inputs.is_pinned() for batch in batches] == [is_pinned] * 3
    assert plain([batch.targets for batch in batches]) == [[0, 1], [2, 3], [4]]


@with_and_without_workers
@pytest.mark.parametrize("device", ["", "cuda"])
def test_a_deprecated_device_to_pin_for_is_taken_and_changes_nothing(device, num_workers):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # likewise, and of the deprecation
        alike(Ids(5), 2, pin_memory=True, pin_memory_device=device, num_workers=num_workers)
