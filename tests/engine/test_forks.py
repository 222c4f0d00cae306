"""A child that the user forks keeps the batches that it was forked with, however long it lives."""

import contextlib
import gc
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Ids, plain
from watching import arena_bytes, open_descriptors

from dataporter import ResumableDataLoader
from dataporter.engine.slots import watch_forks


class Rows(Ids):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"row": torch.full((1000,), index), "array": torch.full((50,), -index).numpy()}


class Forked:
    """A child that holds a batch until it is asked what is in it."""

    def __init__(self, batch: Any, generations: int = 1) -> None:
        asked, self._ask = os.pipe()
        self._answer, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                os.close(self._ask)
                if generations > 1 and os.fork():
                    os._exit(0)  # the grandchild lives on without its parent
                os.read(asked, 1)
                os.write(answers, pickle.dumps(plain(batch)))
            os._exit(0)
        os.close(asked)
        os.close(answers)

    def contents(self) -> Any:
        os.write(self._ask, b"?")
        with os.fdopen(self._answer, "rb") as answer:
            found = pickle.load(answer)
        os.close(self._ask)
        os.waitpid(self.pid, 0)
        return found


@contextlib.contextmanager
def looping(**options: Any) -> Iterator[tuple[ResumableDataLoader, Any]]:
    loader = ResumableDataLoader(Rows(200), 4, num_workers=2, **options)
    yield loader, iter(loader)


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_child_that_outlives_the_pass_reads_the_batch_it_was_forked_with(persistent, generations):
    with looping(persistent_workers=persistent) as (loader, batches):
        next(batches)
        batch = next(batches)
        expected, child = plain(batch), Forked(batch, generations)
        del batch
        for _ in batches:
            pass
        for _ in loader:  # the next pass, by the same workers if they persist
            pass
        del loader, batches
        gc.collect()
        assert child.contents() == expected


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 49), min_size=1, max_size=4), st.integers(0, 3))
def test_every_child_reads_its_own_batch_whatever_the_parent_holds(forks, kept):
    with looping() as (_, batches):
        children, held = [], []
        for step, batch in enumerate(batches):
            held = [*held, batch][-kept:] if kept else []
            children += [(plain(batch), Forked(batch)) for _ in range(forks.count(step))]
            del batch
        for expected, child in children:
            assert child.contents() == expected


class Large(Ids):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256, 1024), float(index))  # 1 MiB


def test_what_a_child_lets_go_of_stays_with_its_parent():
    loader = ResumableDataLoader(Large(40), 2, num_workers=2, prefetch_bytes=2**21)
    held = list(loader)
    pid = os.fork()
    if pid == 0:
        held.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    firsts = [batch[:, 0, 0].tolist() for batch in held]
    assert firsts == [[2.0 * number, 2.0 * number + 1] for number in range(20)]


def test_slots_and_descriptors_of_children_that_have_ended_are_used_again():
    loader = ResumableDataLoader(Large(24), 2, num_workers=2, persistent_workers=True)

    def fork_often(times: int) -> tuple[int, int]:
        for _ in range(times):
            for batch in loader:
                pid = os.fork()
                if pid == 0:
                    os._exit(len(batch))
                os.waitpid(pid, 0)
            del batch
        for _ in loader:
            pass
        gc.collect()
        return open_descriptors(), arena_bytes()

    descriptors, memory = fork_often(1)
    after = fork_often(3)
    assert after[0] <= descriptors + 1  # one child may not have been looked at yet
    assert after[1] <= memory + 2**25  # of 72 MiB that the children shared


def test_a_dataset_of_delivered_batches_is_read_by_workers_as_it_was_when_they_started():
    class Replay(Ids):
        def __init__(self, kept: list[torch.Tensor]) -> None:
            super().__init__(len(kept))
            self.kept = kept
            self.is_overtaken = multiprocessing.get_context("fork").Event()

        def __getitem__(self, index: int) -> torch.Tensor:
            assert self.is_overtaken.wait(60)
            return self.kept[index]

    source = iter(ResumableDataLoader(Large(160), 1, num_workers=2))
    replay = Replay([next(source)[0] for _ in range(8)])
    again = iter(ResumableDataLoader(replay, 1, num_workers=1))
    replay.kept.clear()
    for _ in source:
        pass
    replay.is_overtaken.set()
    assert [batch[0, 0, 0].item() for batch in again] == list(range(8))


class Lending:
    """Lends something at any time, and notes the children that may read it."""

    def __init__(self) -> None:
        self.children: list[Any] = []

    def has_lent(self) -> bool:
        return True

    def note_child(self, child: Any) -> None:
        self.children.append(child)

    def disown(self) -> None:
        """A child has nothing to give back."""


def test_no_child_is_missed_while_another_thread_starts_lending():
    lenders, done = [Lending() for _ in range(500)], threading.Event()
    for lender in lenders:
        watch_forks(lender)

    def lend() -> None:
        while not done.is_set():
            watch_forks(Lending())

    other = threading.Thread(target=lend)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that it comes in between
    other.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    finally:
        sys.setswitchinterval(before)
        done.set()
        other.join()
    assert all(len(lender.children) == 10 for lender in lenders)
