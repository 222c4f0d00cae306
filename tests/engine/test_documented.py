"""What torch documents of its DataLoader, point by point: ours does the same beside it."""

import contextlib
import itertools
import multiprocessing
import os
import random
import time
import traceback
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support import Ids, one_pass, plain
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)
from watching import until, worker_pids

from dataporter import ResumableDataLoader

LOADERS = [DataLoader, ResumableDataLoader]
LENGTH = 11

both_loaders = pytest.mark.parametrize(
    "loader_class",
    [pytest.param(DataLoader, marks=pytest.mark.soak), ResumableDataLoader],
    ids=["torch", "ours"],
)
with_and_without_workers = pytest.mark.parametrize("num_workers", [0, 2])


def alike(dataset: Any, *arguments: Any, **options: Any) -> list[Any]:
    """One pass of our loader, after torch's has been seen to deliver the same."""
    torchs, ours = (make(dataset, *arguments, **options) for make in LOADERS)
    expected, found = list(torchs), list(ours)
    assert [shape(batch) for batch in found] == [shape(batch) for batch in expected]
    with contextlib.suppress(TypeError):  # what has no length in torch's loader has none in ours
        assert len(torchs) == len(ours)
    return found


def shape(part: Any) -> Any:
    """The types and values of a batch, through and through."""
    if isinstance(part, torch.Tensor):
        return torch.Tensor, part.dtype, part.tolist()
    if isinstance(part, np.ndarray):
        return np.ndarray, part.dtype, part.tolist()
    if isinstance(part, dict):
        return type(part), [(name, shape(value)) for name, value in part.items()]
    if isinstance(part, list | tuple):
        return type(part), [shape(value) for value in part]
    return type(part), part


def errors_of(attempt: Any) -> list[type[Exception]]:
    """What `attempt` raises with torch's loader and with ours."""
    raised = []
    for make in LOADERS:
        with pytest.raises(Exception) as caught:
            attempt(make)
        raised.append(type(caught.value))
    return raised


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


# timeout


class Stuck(Ids):
    def __getitem__(self, index: int) -> int:
        time.sleep(1000)
        return index


@both_loaders
def test_a_batch_that_takes_longer_than_the_timeout_is_a_runtime_error(loader_class):
    iterator = iter(loader_class(Stuck(8), 2, num_workers=2, timeout=0.25))
    with pytest.raises(RuntimeError, match=r"0\.25"):
        next(iterator)


# worker_init_fn, get_worker_info, seeds


@both_loaders
def test_in_the_main_process_there_is_no_worker_info(loader_class):
    class Asks(Ids):
        def __getitem__(self, index: int) -> bool:
            return get_worker_info() is None

    assert plain(list(loader_class(Asks(2)))) == [[True], [True]]
    list(loader_class(Ids(4), num_workers=2))
    assert get_worker_info() is None


class Configured(Ids):
    """Made whole in its worker, as torch's documentation shows with `worker_init_fn`."""

    connection = "none"

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        info = get_worker_info()
        return self.connection, info.dataset is self, 0 <= info.id < info.num_workers == 2


def _configure(worker: int) -> None:
    info = get_worker_info()
    assert info.id == worker
    assert isinstance(info.seed, int)
    info.dataset.connection = "opened in a worker"


@both_loaders
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_can_configure_its_own_copy_of_the_dataset(loader_class, method):
    dataset = Configured(4)
    loader = loader_class(
        dataset,
        2,
        num_workers=2,
        worker_init_fn=_configure,
        multiprocessing_context=method,
        collate_fn=list,
    )
    assert set(itertools.chain(*loader)) == {("opened in a worker", True, True)}
    assert dataset.connection == "none"


class Initials(Ids):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return get_worker_info().seed, _initial["seed"], os.getpid()


_initial: dict[str, Any] = {}


def _note_initial_seed(_worker: int) -> None:
    _initial["seed"] = torch.initial_seed()


@both_loaders
def test_a_worker_is_seeded_with_the_seed_it_is_told_before_its_init_function(loader_class):
    loader = loader_class(
        Initials(40), 1, num_workers=2, worker_init_fn=_note_initial_seed, collate_fn=list
    )
    found = set(itertools.chain(*loader))
    assert found
    assert all(told == initial for told, initial, _ in found)
    assert all(0 <= told < 2**64 for told, _, _ in found)


@both_loaders
def test_workers_are_seeded_from_the_loaders_generator(loader_class):
    def seeds(seed):
        generator = torch.Generator().manual_seed(seed)
        loader = loader_class(
            Initials(4), 4, num_workers=1, worker_init_fn=_note_initial_seed,
            collate_fn=list, generator=generator,
        )  # fmt: skip
        return {told for told, _, _ in itertools.chain(*loader)}

    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)


class Draws(Ids):
    def __getitem__(self, index: int) -> tuple[float, ...]:
        return random.random(), float(np.random.random()), float(torch.rand(()))


@both_loaders
def test_no_two_samples_of_two_workers_draw_the_same_numbers(loader_class):
    found = list(itertools.chain(*loader_class(Draws(64), 4, num_workers=2, collate_fn=list)))
    for drawn in zip(*found, strict=True):
        assert len(set(drawn)) == 64


# multiprocessing_context


@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.soak), "forkserver"]
)
def test_a_context_may_be_named_or_given(method):
    context = multiprocessing.get_context(method)
    assert plain(alike(Ids(4), 2, num_workers=1, multiprocessing_context=context)) == [
        [0, 1],
        [2, 3],
    ]
    for make in LOADERS:
        loader = make(Ids(4), 2, num_workers=1, multiprocessing_context=method)
        assert loader.multiprocessing_context.get_start_method() == method
    assert one_pass(loader) == [[0, 1], [2, 3]]


def test_a_context_of_torchs_own_is_taken():
    context = torch.multiprocessing.get_context("forkserver")
    loader = ResumableDataLoader(Ids(4), 2, num_workers=1, multiprocessing_context=context)
    assert one_pass(loader) == [[0, 1], [2, 3]]


# generator


@both_loaders
def test_a_generator_decides_the_order(loader_class):
    def orders(seed, num_workers=0):
        generator = torch.Generator().manual_seed(seed)
        loader = loader_class(
            Ids(50), 50, shuffle=True, generator=generator, num_workers=num_workers
        )
        return [one_pass(loader) for _ in range(2)]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    random_state = torch.get_rng_state()
    if loader_class is ResumableDataLoader:
        assert orders(1, num_workers=2) == orders(1)
        assert torch.equal(torch.get_rng_state(), random_state)


# prefetch_factor, in_order


class Touches(Ids):
    def __init__(self, length: int, folder: Path) -> None:
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index: int) -> int:
        (self.folder / str(index)).touch()
        return index

    def touched(self) -> int:
        return len(os.listdir(self.folder))  # noqa: PTH208  a count is all that is needed


@both_loaders
@pytest.mark.parametrize("prefetch", [None, 1, 4])
def test_so_many_batches_are_loaded_in_advance_by_each_worker(loader_class, prefetch, tmp_path):
    dataset = Touches(100, tmp_path)
    loader = loader_class(dataset, 2, num_workers=2, prefetch_factor=prefetch)
    iterator = iter(loader)
    ahead = 2 * (prefetch or 2)
    until(lambda: dataset.touched() >= 2 * ahead)
    time.sleep(0.1)  # nobody says that no more will come
    assert dataset.touched() == 2 * ahead
    del iterator


class FirstWaits(Touches):
    """The first sample is there when a later one was fetched."""

    def __getitem__(self, index: int) -> int:
        if index == 0:
            until((self.folder / "7").exists, seconds=60)
        return super().__getitem__(index)


@both_loaders
def test_batches_that_may_come_in_any_order_come_each_once(loader_class, tmp_path):
    loader = loader_class(FirstWaits(16, tmp_path), 2, num_workers=2, in_order=False)
    found = one_pass(loader)
    assert sorted(found) == [[index, index + 1] for index in range(0, 16, 2)]
    assert found != sorted(found)


# persistent_workers


class Counts(Ids):
    """Sample i is how many samples this copy of the dataset has been asked for."""

    asked = 0

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return self.asked


@both_loaders
@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_keep_their_dataset_alive_over_epochs(loader_class, persistent):
    loader = loader_class(Counts(4), 2, num_workers=1, persistent_workers=persistent)
    assert one_pass(loader) == [[1, 2], [3, 4]]
    assert one_pass(loader) == ([[5, 6], [7, 8]] if persistent else [[1, 2], [3, 4]])


@both_loaders
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_see_what_changed_in_the_dataset_unless_they_persist(loader_class, persistent):
    dataset = Configured(2)
    loader = loader_class(dataset, 2, num_workers=2, persistent_workers=persistent, collate_fn=list)
    assert {sample[0] for sample in next(iter(loader))} == {"none"}
    dataset.connection = "changed"
    expected = "none" if persistent else "changed"
    assert {sample[0] for sample in next(iter(loader))} == {expected}


# Errors


def error_of(iterable: Any) -> tuple[type[Exception], str]:
    """What iterating it ends with."""
    try:
        list(iterable)
    except Exception as error:  # noqa: BLE001  which, is the question
        # torch's workers are slow to end where their error is left to the garbage collector.
        traceback.clear_frames(error.__traceback__)
        return type(error), str(error)
    raise AssertionError("no error")


class Broken(Ids):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise KeyError(f"no sample {index}")
        return index


@with_and_without_workers
@both_loaders
def test_an_error_of_the_dataset_is_raised_with_its_type(loader_class, num_workers):
    iterator = iter(loader_class(Broken(8), 2, num_workers=num_workers))
    assert [plain(next(iterator)), plain(next(iterator))] == [[0, 1], [2, 3]]
    kind, text = error_of(iterator)
    assert kind is KeyError
    assert "no sample 5" in text


@with_and_without_workers
@both_loaders
def test_an_error_of_the_collate_function_is_raised_with_its_type(loader_class, num_workers):
    ragged = [torch.zeros(2), torch.zeros(3)]
    kind, text = error_of(loader_class(ragged, 2, num_workers=num_workers))
    assert kind is RuntimeError
    assert "equal size" in text


def _init_fails(_worker: int) -> None:
    raise LookupError("in the init function")


@both_loaders
def test_an_error_of_the_init_function_is_raised_with_its_type(loader_class):
    loader = loader_class(Ids(8), 2, num_workers=2, worker_init_fn=_init_fails)
    kind, text = error_of(loader)
    assert kind is LookupError
    assert "in the init function" in text


# Loaders in other processes, and in datasets


def _send_a_pass(loader_class: Any, connection: Any) -> None:
    try:
        connection.send(one_pass(loader_class(Ids(6), 4, num_workers=2)))
    except AssertionError as error:
        connection.send(str(error))


def _in_a_process(loader_class: Any, method: str, *, daemon: bool) -> Any:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_send_a_pass, args=(loader_class, there), daemon=daemon)
    process.start()
    try:
        assert here.poll(60)
        return here.recv()
    finally:
        process.join(10)
        assert process.exitcode == 0


@both_loaders
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_a_loader_may_be_used_in_a_subprocess(loader_class, method):
    found = _in_a_process(loader_class, method, daemon=False)
    assert found == [[0, 1, 2, 3], [4, 5]]


@both_loaders
def test_a_daemonic_process_may_not_have_workers(loader_class):
    assert "daemonic" in _in_a_process(loader_class, "fork", daemon=True)


class Nested(Ids):
    """Sample i is a pass over a loader of its own."""

    def __init__(self, length: int, loader_class: Any, num_workers: int) -> None:
        super().__init__(length)
        self.loader_class, self.num_workers = loader_class, num_workers

    def __getitem__(self, index: int) -> list[list[int]]:
        return one_pass(self.loader_class(range(index, index + 3), 2, num_workers=self.num_workers))


@both_loaders
@pytest.mark.parametrize(("outer", "inner"), [(0, 0), (2, 0), (0, 1)])
def test_a_dataset_may_use_a_loader_itself(loader_class, outer, inner):
    dataset = Nested(4, loader_class, inner)
    found = list(loader_class(dataset, None, num_workers=outer))
    assert found == [[[index, index + 1], [index + 2]] for index in range(4)]


@both_loaders
def test_a_dataset_in_a_worker_may_not_use_a_loader_with_workers(loader_class):
    kind, text = error_of(loader_class(Nested(4, loader_class, 1), None, num_workers=1))
    assert kind is AssertionError
    assert "daemonic" in text


# Ending


@both_loaders
def test_workers_end_with_the_iteration_or_with_its_iterator(loader_class):
    before = set(multiprocessing.active_children())

    def mine():
        return set(multiprocessing.active_children()) - before

    loader = loader_class(Ids(20), 2, num_workers=2)
    assert len(list(loader)) == 10
    until(lambda: not mine())
    iterator = iter(loader)
    next(iterator)
    assert len(mine()) == 2
    del iterator
    until(lambda: not mine())
    assert not worker_pids()
