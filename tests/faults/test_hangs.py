"""Workers that hang: a retry waits on for the same work, and nobody hangs for longer than asked."""

import ctypes
import gc
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Ids, plain
from torch.utils.data import IterableDataset
from watching import state_of, until, worker_pids

from dataporter import ResumableDataLoader
from dataporter.engine import worker_shutdown
from dataporter.errors import WorkerTimeoutError

LENGTH, SLOW = 16, 9
EXPECTED = [[index, index + 1] for index in range(0, LENGTH, 2)]


class Gated(Ids):
    """One sample is there once a file is, and every fetch is noted in another."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LENGTH)
        self.gate, self.log = folder / "gate", folder / "log"

    def __getitem__(self, index: int) -> int:
        with self.log.open("a") as file:
            file.write(f"{index}\n")
        if index == SLOW:
            until(self.gate.exists, seconds=60)
        return super().__getitem__(index)

    def fetched(self) -> list[int]:
        return sorted(map(int, self.log.read_text().split())) if self.log.exists() else []


class GatedStream(Gated, IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(LENGTH))


class GatedCounter(Gated):
    """Read by index, and has a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Hangs(Ids):
    """One sample is never there, or only if it is not the first time that it is fetched."""

    def __init__(self, once: Path | None = None) -> None:
        super().__init__(LENGTH)
        self.once = once

    def __getitem__(self, index: int) -> int:
        while index == SLOW and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            time.sleep(1000)
        return super().__getitem__(index)


def make(dataset: Any, **options: Any) -> ResumableDataLoader:
    options = {"num_workers": 2, "timeout": 0.2, "seed": 1, **options}
    return ResumableDataLoader(dataset, 2, **options)


def patient(iterator: Iterator[Any]) -> Iterator[Any]:
    """What arrives, however often a busy machine makes it late."""
    while True:
        try:
            yield plain(next(iterator))
        except WorkerTimeoutError:
            pass
        except StopIteration:
            return


def some(iterator: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(patient(iterator), count))


def retried(iterator: Iterator[Any], dataset: Gated, timeouts: int) -> list[Any]:
    """What arrives, the slow sample being there after some timeouts while it was fetched."""
    batches, late = [], 0
    while True:
        is_at_it = SLOW in dataset.fetched()
        try:
            batches.append(plain(next(iterator)))
        except WorkerTimeoutError:
            late += is_at_it  # a busy machine may be late before
            assert len(worker_pids()) <= 2
            if late == timeouts:
                dataset.gate.touch()
        except StopIteration:
            assert late >= timeouts
            return batches


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Gated, {}),
        (Gated, {"persistent_workers": True}),
        (Gated, {"in_order": False}),
        (Gated, {"device": "cpu"}),
        (Gated, {"engine": "threads"}),
        (GatedStream, {"num_workers": 1}),
        (GatedStream, {"num_workers": 1, "engine": "threads"}),
        (GatedCounter, {}),
    ],
    ids=str,
)
def test_a_batch_slower_than_the_timeout_arrives_by_trying_again(kind, options, tmp_path):
    dataset = kind(tmp_path)
    loader = make(dataset, **options)
    batches = retried(iter(loader), dataset, timeouts=2)
    assert (batches if options.get("in_order", True) else sorted(batches)) == EXPECTED
    assert dataset.fetched() == list(range(LENGTH))
    assert loader.state_dict()["samples_processed"] == LENGTH


def test_what_is_looked_at_may_be_late_too(tmp_path):
    dataset = Gated(tmp_path)
    iterator: Any = iter(make(dataset))
    batches = some(iterator, 4)
    until(lambda: SLOW in dataset.fetched())
    assert not iterator.is_last()
    assert batches + retried(iterator, dataset, timeouts=1) == EXPECTED


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_hangs_ends_with_its_pass(persistent):
    loader = make(Hangs(), persistent_workers=persistent)
    iterator = iter(loader)
    assert some(iterator, 4) == EXPECTED[:4]
    pids = worker_pids()
    for _ in range(3):
        with pytest.raises(WorkerTimeoutError):
            next(iterator)
        assert worker_pids() == pids
    del iterator
    until(lambda: len(worker_pids()) <= persistent)
    del loader
    until(lambda: not worker_pids())


def test_the_pass_after_one_that_hung_has_workers_that_work(tmp_path):
    hung = tmp_path / "hung"
    loader = make(Hangs(hung), num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    assert some(iterator, 4) == EXPECTED[:4]
    until(hung.exists)
    with pytest.raises(WorkerTimeoutError, match="is still fetching the batch"):
        next(iterator)
    del iterator
    assert list(patient(iter(loader))) == EXPECTED
    assert len(worker_pids()) == 1


def test_a_worker_that_hangs_at_an_earlier_pass_is_replaced_after_a_timeout(tmp_path):
    hung = tmp_path / "hung"
    loader = make(Hangs(hung), num_workers=1, persistent_workers=True)
    broken_off = iter(loader)
    assert some(broken_off, 4) == EXPECTED[:4]
    until(hung.exists)
    del broken_off
    iterator = iter(loader)
    with pytest.raises(WorkerTimeoutError, match="no worker has begun the batch"):
        next(iterator)
    assert list(patient(iterator)) == EXPECTED
    assert len(worker_pids()) == 1


class AlwaysHangs(Ids):
    def __getitem__(self, index: int) -> int:
        time.sleep(1000)
        return index


def test_a_worker_that_hangs_at_what_nobody_waits_for_is_killed_after_a_while(monkeypatch):
    monkeypatch.setattr(worker_shutdown, "_GRACE", 0.2)
    loader = make(AlwaysHangs(LENGTH), timeout=0)
    iterator = iter(loader)
    assert len(worker_pids()) == 2
    del loader, iterator
    until(lambda: not worker_pids())


class HangsWithoutPython(Ids):
    def __getitem__(self, index: int) -> int:
        ctypes.PyDLL(None).sleep(1000)
        return index


def test_so_is_one_in_which_python_does_not_run(monkeypatch):
    monkeypatch.setattr(worker_shutdown, "_GRACE", 0.2)
    loader = make(HangsWithoutPython(LENGTH), timeout=0)
    iterator = iter(loader)
    until(lambda: [state_of(pid) for pid in worker_pids()] == ["S", "S"])
    del loader, iterator
    until(lambda: gc.collect() >= 0 and not worker_pids())


def test_passes_that_are_broken_off_leave_no_more_workers_than_one_of_them_has(monkeypatch):
    monkeypatch.setattr(worker_shutdown, "_GRACE", 1000)  # no worker ends by itself
    loader = make(AlwaysHangs(LENGTH), timeout=0)
    for _ in range(5):
        iter(loader)
    until(lambda: len(worker_pids()) <= 2 + 2)
    for child in multiprocessing.active_children():
        child.kill()


def test_a_worker_may_finish_what_it_has_in_hand(tmp_path, monkeypatch):
    """It may be writing a file or hold a lock."""
    monkeypatch.setattr(worker_shutdown, "_GRACE", 1000)  # however long the gate takes to open
    finished = tmp_path / "finished"

    class Finishes(Gated):
        def __getitem__(self, index: int) -> int:
            sample = super().__getitem__(index)
            if index == SLOW:
                finished.touch()
            return sample

    dataset = Finishes(tmp_path)
    iterator = iter(make(dataset, timeout=0))
    assert some(iterator, 4) == EXPECTED[:4]
    until(lambda: SLOW in dataset.fetched())
    del iterator
    dataset.gate.touch()
    until(finished.exists)
    until(lambda: not worker_pids())
