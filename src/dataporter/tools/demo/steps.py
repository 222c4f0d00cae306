"""Training steps: each rank logs its share, and the shares are joined here.

A rank takes every W-th sample of a step. A step counts once all ranks have logged it.
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
    losses: tuple[str, ...]  # one for each rank, by float.hex(): every bit
    wait_ms: float  # of the slowest rank; after a load, since load_state_dict()

    @property
    def loss(self) -> float:
        """The loss that rank 0 logged."""
        return float.fromhex(self.losses[0])


def log_of(folder: Path, rank: int) -> Path:
    """The file that a rank logs its steps to."""
    return folder / f"rank{rank}.jsonl"


def read_steps(folder: Path, world_size: int) -> list[Step]:
    """Read the steps that all ranks have logged."""
    shares = [_lines(log_of(folder, rank)) for rank in range(world_size)]
    return [_joined(lines) for lines in zip(*shares, strict=False)]


def _lines(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    # A kill may have cut the last one short.
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
    """Put the ranks' shares back into the order of the epoch.

    >>> _interleaved([[0, 2], [1, 3]])
    (0, 1, 2, 3)
    """
    return tuple(value for row in zip(*shares, strict=True) for value in row)
