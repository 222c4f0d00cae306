"""Slots are page-locked once, used again when no device reads them, and unlocked with the loader.

Without a CUDA device a pretended one keeps the books: what was locked and unlocked, and marks
that pass when a test says so.
"""

import ctypes
import gc
import itertools
import warnings
from typing import Any

import pytest
import torch
from forked_scripts import run
from support import Ids

from dataporter import PageLockWarning, ResumableDataLoader

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a device is pretended; with a real one see test_gpu.py"
)


class Runtime:
    """CUDA's, as far as page locks go."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.times = 0
        self.refuses = False

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802
        if self.refuses:
            return 2
        assert address not in self.locked
        assert address % 4096 == size % 4096 == 0
        self.locked[address] = size
        self.times += 1
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.locked[address]
        return 0

    def cudaGetErrorString(self, outcome: int) -> str:  # noqa: N802
        return f"error {outcome}"


class Marks:
    """Marks that pass when they are told to, or waited for."""

    def __init__(self) -> None:
        self.done = 0
        self.taken = 0
        self.waits = 0

    def __call__(self) -> Any:
        self.taken += 1
        return Mark(self, self.taken)


class Mark:
    def __init__(self, marks: Marks, number: int) -> None:
        self.marks, self.number = marks, number

    def passed(self) -> bool:
        return self.number <= self.marks.done

    def wait(self) -> None:
        self.marks.waits += 1
        self.marks.done = max(self.marks.done, self.number)


@pytest.fixture
def runtime(monkeypatch) -> Runtime:
    runtime = Runtime()
    monkeypatch.setattr("torch.cuda.cudart", lambda: runtime)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_stream", lambda: "stream")
    monkeypatch.setattr("dataporter.engine.taking.can_pin", lambda: True)
    monkeypatch.setattr("dataporter.engine.taking.pinned", lambda batch: batch)
    monkeypatch.setattr("dataporter.engine.page_locks._forget_last_error", lambda: None)
    return runtime


@pytest.fixture
def marks(monkeypatch) -> Marks:
    marks = Marks()
    monkeypatch.setattr("dataporter.engine.slots.mark", marks)
    monkeypatch.setattr("dataporter.engine.page_locks.mark", marks)
    return marks


class Large(Ids):
    """Sample i is 256 KiB of i."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2**15,), float(index), dtype=torch.float64)


class Growing(Ids):
    """Samples are larger and larger."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000 * (index + 1),), index, dtype=torch.int32)


def make(dataset: Any = None, **options: Any) -> ResumableDataLoader:
    dataset = Large(64) if dataset is None else dataset
    options = {"num_workers": 2, "pin_memory": True, "persistent_workers": True, **options}
    return ResumableDataLoader(dataset, 2, seed=1, **options)


def at(address: int) -> float:
    """What a device would read there."""
    return ctypes.c_double.from_address(address).value


def test_a_slot_is_not_used_again_before_its_mark_has_passed(runtime, marks):
    being_read = {}  # what a device still copies out of batches that are long dropped
    loader = make()
    for number, batch in enumerate(loader):
        being_read[batch.data_ptr()] = 2.0 * number
        del batch
        assert all(at(address) == value for address, value in being_read.items())
    assert len(being_read) == 32  # every batch has had memory of its own
    assert marks.taken
    assert not marks.waits


def test_a_slot_whose_mark_has_passed_is_used_again_and_not_locked_again(runtime, marks):
    loader = make()
    used = set()
    for _ in range(50):
        for batch in loader:
            marks.done = marks.taken
            used.add(batch.data_ptr())
    del batch
    # Four ahead, up to 16 times as many while a batch is late; each locked once.
    assert len(used) <= 64 + 8
    assert runtime.times == len(runtime.locked) <= 64 + 8


def test_no_more_slots_wait_for_devices_than_are_kept_free(runtime, marks):
    loader = make(Large(400), prefetch_bytes=2**22)
    for batch in loader:
        del batch
    # Eight of 512 KiB may be kept; beyond them the oldest mark is waited for.
    assert marks.waits
    assert sum(runtime.locked.values()) <= 2**19 * 9 / 8 * (8 + 8 + 4 + 4)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_is_gone_has_unlocked_what_it_locked(runtime, marks, persistent):
    loader = make(persistent_workers=persistent)
    for _ in range(10 if not persistent else 3):
        for batch in itertools.islice(loader, 5):
            del batch
        gc.collect()
        assert bool(runtime.locked) == persistent
    assert runtime.times
    del loader
    gc.collect()
    assert not runtime.locked
    assert marks.waits  # for copies that may have been under way


def test_a_batch_that_outlives_its_loader_stays_locked_as_long_as_it_lives(runtime, marks):
    batch = next(iter(make(persistent_workers=False)))
    gc.collect()
    assert len(runtime.locked) == 1
    assert batch.data_ptr() in runtime.locked
    del batch
    assert not runtime.locked


def test_memory_that_is_given_back_is_unlocked_first(runtime, marks):
    loader = make(prefetch_bytes=2**21)
    kept = list(loader)
    assert len(runtime.locked) == 32
    del kept
    for batch in loader:
        marks.done = marks.taken
        del batch
    # Free slots that keep their memory: four ahead, eight read by devices, four delivered.
    assert len(runtime.locked) <= 4 + 8 + 4


def test_batches_that_grow_are_locked_whole_and_seldom_anew(runtime, marks):
    for batch in make(Growing(100), collate_fn=lambda samples: samples[-1]):
        marks.done = marks.taken
        (size,) = [s for a, s in runtime.locked.items() if a <= batch.data_ptr() < a + s]
        assert size >= batch.nbytes
        assert size <= max(2**18, batch.nbytes * 5 / 4)
        del batch


def test_where_page_locks_are_refused_one_warning_says_so_and_all_batches_come(
    runtime, marks, monkeypatch
):
    copied = []
    monkeypatch.setattr(
        "dataporter.engine.taking.pinned", lambda batch: copied.append(1) or batch.clone()
    )
    runtime.refuses = True
    loader = make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = [batch[0, 0].item() for _ in range(2) for batch in loader]
    assert values == [2.0 * number for number in range(32)] * 2
    assert len(copied) == 64
    (warning,) = (found for found in caught if found.category is not DeprecationWarning)
    assert warning.category is PageLockWarning
    assert "(error 2)" in str(warning.message)
    assert warning.filename == __file__
    assert not marks.taken


def test_at_exit_what_is_still_locked_is_unlocked_once_and_by_the_process_that_locked_it():
    printed = run(
        """
import os, sys
import torch
import dataporter.engine.page_locks as locks
import dataporter.engine.taking as taking
import dataporter.engine.slots as slots
from dataporter import ResumableDataLoader

class Runtime:
    locked = {}
    def cudaHostRegister(self, address, size, flags):
        self.locked[address] = os.getpid()
        return 0
    def cudaHostUnregister(self, address):
        assert self.locked.pop(address) == os.getpid()
        print("unlocked", len(self.locked), flush=True)

runtime = Runtime()
torch.cuda.cudart = lambda: runtime
torch.cuda.is_available = lambda: True
torch.cuda.current_stream = lambda: None
taking.can_pin = lambda: True
taking.pinned = lambda batch: batch
locks.mark = slots.mark = lambda: None if sys.is_finalizing() else Mark()

class Mark:
    def passed(self): return True
    def wait(self): pass

loader = ResumableDataLoader(torch.rand(64, 8), 4, num_workers=2, pin_memory=True,
                             persistent_workers=True)
for batch in loader:
    pass
kept = [batch, loader]
kept.append(kept)
print("locked", len(runtime.locked), flush=True)
"""
    )
    first, *unlocked = printed.splitlines()
    count = int(first.split()[1])
    assert count
    assert unlocked == [f"unlocked {left}" for left in reversed(range(count))]
