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
    return os.fstat(loader._engine._arena).st_blocks * 512 / 2**20


def test_memory_of_batches_that_were_kept_and_let_go_is_given_back(monkeypatch):
    monkeypatch.setattr("dataporter.engine.processes._STRETCH_BYTES", 2**24)
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
    # Free slots of 16 MiB, those under way, and the one in hand, 2 MiB each.
    assert megabytes(loader) <= 16 + 2 * (4 + 1) + 2
