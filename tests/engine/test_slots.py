"""What a consumer let go of goes back to the system."""

import contextlib
import mmap
import os
import sys

import pytest
import torch
from support import Ids
from watching import until

from dataporter import ResumableDataLoader
from dataporter.engine import slots
from dataporter.engine.arena import Slot, Writer, create_arena
from dataporter.errors import WorkerTimeoutError


class Large(Ids):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256, 1024), float(index))  # 1 MiB


def megabytes(loader: ResumableDataLoader) -> float:
    """What the arena's file occupies."""
    return os.fstat(loader._runner._kept._transport._connections.arena).st_blocks * 512 / 2**20


def test_memory_of_batches_that_were_kept_and_let_go_is_given_back():
    loader = ResumableDataLoader(
        Large(80), 2, seed=1, num_workers=2, persistent_workers=True, prefetch_bytes=2**24
    )
    kept = list(loader)
    assert megabytes(loader) >= 80
    for number, batch in enumerate(kept):
        assert (batch[:, 0, 0] == torch.tensor([2.0 * number, 2.0 * number + 1])).all()
    del kept, batch
    for _ in loader:
        pass
    # Slots of 2 MiB: 16 MiB of free ones, as many more as are fetched ahead, a few delivered.
    assert megabytes(loader) <= 16 + 2 * (5 + 4) + 2


def test_an_epoch_ends_without_giving_memory_back_that_the_next_one_needs(monkeypatch):
    given_back = []
    monkeypatch.setattr("dataporter.engine.arena.Slot.forget", given_back.append)
    loader = ResumableDataLoader(
        Large(40), 2, num_workers=2, persistent_workers=True, prefetch_bytes=2**21
    )
    last = None
    for _ in range(3):
        for batch in loader:
            last = batch, last and last[0]  # and the one before it
    assert not given_back


class SlowFirst(Ids):
    """Reading sample 0 waits until another process writes into a pipe."""

    def __init__(self, length: int, released: int) -> None:
        super().__init__(length)
        self._released = released

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0:
            os.read(self._released, 1)
        return torch.full((1024,), float(index))


@pytest.mark.parametrize(
    ("prefetch_bytes", "most"),
    [(0, 4), (10 * 2**13, 9), (2**28, 64)],  # a batch takes 8 KiB and its outline
)
def test_as_many_batches_are_behind_a_slow_one_as_the_bytes_allow(prefetch_bytes, most):
    released, release = os.pipe()
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_bytes": prefetch_bytes}
    loader = ResumableDataLoader(SlowFirst(400, released), 2, timeout=0.1, **options)
    batches = iter(loader)
    engine = loader._runner._kept

    def all_others_are_ready() -> bool:
        with pytest.raises(WorkerTimeoutError):
            next(batches)
        # Tasks are issued several at a time, so a few may be missing.
        least = most - engine._transport.budget.waiting.together + 1
        return engine._board.unfinished == 1 and len(engine._board) >= least

    until(all_others_are_ready)
    assert len(engine._board) <= most
    os.write(release, b".")
    found: list[int] = []
    while len(found) < 200:
        with contextlib.suppress(WorkerTimeoutError):  # others may be late too
            found.append(int(next(batches)[0, 0]))
    assert found == list(range(0, 400, 2))
    assert next(batches, None) is None
    os.close(released)
    os.close(release)


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="the call is Linux's")
def test_a_batch_of_many_parts_asks_for_each_page_about_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "dataporter.engine.arena.libc.madvise", lambda address, size, advice: asked.append(size)
    )
    arena = create_arena()
    writer, part = Writer(Slot(arena, 1)), torch.ones(5000)
    for _ in range(400):
        end = writer.copy(part) + part.nbytes
    os.close(arena)
    # A slot that grows is mapped anew, each time twice as far.
    assert end <= sum(asked) <= 3 * end
    assert len(asked) <= 400


def test_the_pipe_of_a_child_is_closed_in_silence_when_the_interpreter_ends(monkeypatch):
    ours, theirs = os.pipe()
    child, unraised = slots.Child(ours), []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    monkeypatch.setattr(slots, "os", None)  # as the interpreter leaves it then
    del child
    os.close(theirs)
    assert unraised == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)
