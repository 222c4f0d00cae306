"""Cost of an index of the shuffled order, from a thousand samples to a trillion."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch
from measure import count, interleaved, table

from dataporter.law import ShuffledOrder

LENGTHS = [10**3, 10**4, 10**6, 10**8, 10**9, 10**12]
INDICES = 2**17  # evaluated at a time, from the middle of the epoch where it is longer
ROUNDS = 7
LARGEST_RANDPERM = 10**8  # 0.8 GB; ten times that does not fit beside anything else


def main() -> None:
    """Print the table."""
    rows = []
    for length in LENGTHS:
        order = ShuffledOrder(length, seed=1)
        start = max(length // 2 - INDICES, 0)
        positions = np.arange(start, min(start + INDICES, length), dtype=np.int64)
        work = {"dataporter": partial(order.indices, 0, positions)}
        seconds = interleaved(work, ROUNDS)["dataporter"]
        rows.append((count(length), f"{seconds / len(positions) * 1e9:.0f} ns", _randperm(length)))
    header = ("samples", "dataporter, an index", "torch.randperm, the whole epoch first")
    print(table("Index generation (target: at most 60 ns at large n, flat)", header, rows))


def _randperm(length: int) -> str:
    if length > LARGEST_RANDPERM:
        return f"not run: {8 * length / 1e9:,.0f} GB"
    start = time.perf_counter()
    torch.randperm(length)
    spent = time.perf_counter() - start
    return f"{spent:.3g} s, {8 * length / 1e6:,.3g} MB"


if __name__ == "__main__":
    main()
