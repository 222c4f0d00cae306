"""Training steps, as each rank logs its share of them, and put together again.

A rank takes every W-th sample of a step. A step counts as made once all ranks have logged it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of all ranks."""

    step: int  # from 1
    epoch: int
    ids: tuple[int, ...]  # of all ranks' samples, in the order of the epoch
    inputs: tuple[str, ...]  # SHA-256 of each sample's augmented image
    losses: tuple[str, ...]  # as each rank knows it; float.hex(): every bit of it
    wait_ms: float  # of the slowest rank; from load_state_dict() on where that came just before

    @property
    def loss(self) -> float:
        """The loss as rank 0 knows it."""
        return float.fromhex(self.losses[0])


def log_of(folder: Path, rank: int) -> Path:
    """Where a rank logs its steps."""
    return folder / f"rank{rank}.jsonl"


def read_steps(folder: Path, world_size: int) -> list[Step]:
    """Read the steps that all ranks have logged."""
    shares = [_lines(log_of(folder, rank)) for rank in range(world_size)]
    return [_joined(lines) for lines in zip(*shares, strict=False)]


def count_steps(folder: Path, world_size: int) -> int:
    """How many steps all ranks have logged so far."""
    logs = [log_of(folder, rank) for rank in range(world_size)]
    return min(log.read_bytes().count(b"\n") if log.exists() else 0 for log in logs)


def _lines(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    lines = log.read_text().splitlines(keepends=True)
    # One that a kill cut short has no end.
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _joined(shares: Sequence[dict[str, Any]]) -> Step:
    return Step(
        step=shares[0]["step"],
        epoch=shares[0]["epoch"],
        ids=_interleaved([share["ids"] for share in shares]),
        inputs=_interleaved([share["inputs"] for share in shares]),
        losses=tuple(share["loss"] for share in shares),
        wait_ms=max(share["wait_ms"] for share in shares),
    )


def _interleaved(shares: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Put the ranks' shares back into the order that they were dealt from.

    >>> _interleaved([[0, 2], [1, 3]])
    (0, 1, 2, 3)
    """
    return tuple(value for row in zip(*shares, strict=True) for value in row)
