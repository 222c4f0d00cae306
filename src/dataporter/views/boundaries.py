"""The boundaries of documents in packed samples: positions, masks and places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from dataporter.fetch.collate import Empty
from dataporter.views.tape import Pieces

Boundary = Literal["position_ids", "loss_mask", "cu_seqlens"]

PADDING = -1  # the number of a piece that fills a sample up


def padded(pieces: Pieces, length: int) -> Pieces:
    """Add a piece of padding to each sample that has fewer than `length` tokens."""
    sizes = pieces.stops - pieces.starts
    if int(sizes.sum()) == length * len(pieces.counts):
        return pieces
    ends = np.cumsum(pieces.counts)
    tokens = np.append(0, np.cumsum(sizes))
    missing = length - (tokens[ends] - tokens[ends - pieces.counts])
    short = np.flatnonzero(missing)
    counts = pieces.counts.copy()
    counts[short] += 1
    at = ends[short]
    return Pieces(
        np.insert(pieces.numbers, at, PADDING),
        np.insert(pieces.origins, at, PADDING),
        np.insert(pieces.starts, at, 0),
        np.insert(pieces.stops, at, missing[short]),
        counts,
    )


def boundaries_of(
    pieces: Pieces, length: int, wanted: Sequence[Boundary], empty: Empty | None = None
) -> dict[str, Any]:
    """Say where the documents of samples begin, in the ways that are wanted.

    What is large is written into `empty(shape, dtype)`, if it is given. `cu_seqlens` are a list of
    tensors, the others one tensor, with a row a sample.
    """
    found: dict[str, Any] = {}
    sizes = pieces.stops - pieces.starts
    begins = np.cumsum(sizes) - sizes  # counted over all samples
    if "position_ids" in wanted:
        tokens = len(pieces.counts) * length
        places = (empty or _torch_empty)((tokens,), torch.int64)
        np.subtract(np.arange(tokens), np.repeat(begins, sizes), out=places.numpy())
        found["position_ids"] = places.view(-1, length)
    if "loss_mask" in wanted:
        mask = np.repeat(pieces.numbers != PADDING, sizes)
        mask[begins] = False
        found["loss_mask"] = torch.from_numpy(mask).view(-1, length)
    if "cu_seqlens" in wanted:
        each = np.split((begins % length).astype(np.int32), np.cumsum(pieces.counts)[:-1])
        found["cu_seqlens"] = [torch.from_numpy(np.append(own, np.int32(length))) for own in each]
    return found


def _torch_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
