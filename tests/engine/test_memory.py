"""What a consumer let go of goes back to the system."""

import os

import torch
from support import Ids

from dataporter import ResumableDataLoader


class Large(Ids):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256, 1024), float(index))  # 1 MiB


def megabytes(loader: ResumableDataLoader) -> float:
    """What the arena's file occupies."""
    return os.fstat(loader._runner._kept._connections.arena).st_blocks * 512 / 2**20


def test_memory_of_batches_that_were_kept_and_let_go_is_given_back(monkeypatch):
    monkeypatch.setattr("dataporter.engine.budget.AHEAD_BYTES", 2**24)
    loader = ResumableDataLoader(
        Large(80), 2, seed=1, num_workers=2, prefetch_factor=2, persistent_workers=True
    )
    kept = list(loader)
    assert megabytes(loader) >= 80
    for number, batch in enumerate(kept):
        assert (batch[:, 0, 0] == torch.tensor([2.0 * number, 2.0 * number + 1])).all()
    del kept, batch
    for _ in loader:
        pass
    # Slots of 2 MiB: 16 MiB of free ones, as many more as are fetched ahead, a few delivered.
    assert megabytes(loader) <= 16 + 2 * (4 + 4) + 2


def test_an_epoch_ends_without_giving_memory_back_that_the_next_one_needs(monkeypatch):
    monkeypatch.setattr("dataporter.engine.budget.AHEAD_BYTES", 2**21)
    given_back = []
    monkeypatch.setattr("dataporter.engine.arena.Slot.forget", given_back.append)
    loader = ResumableDataLoader(Large(40), 2, num_workers=2, persistent_workers=True)
    last = None
    for _ in range(3):
        for batch in loader:
            last = batch, last and last[0]  # and the one before it
    assert not given_back
