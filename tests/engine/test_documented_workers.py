"""What torch documents of its DataLoader's workers, point by point: ours does the same."""

import itertools
import multiprocessing
import os
import random
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from beside_torch import LOADERS, alike, both_loaders, with_and_without_workers
from support import Ids, one_pass, plain
from torch.utils.data import (
    get_worker_info,
)
from watching import until, worker_pids

from dataporter import ResumableDataLoader

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
