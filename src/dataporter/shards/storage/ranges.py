"""Ranges of a file, merged and split into requests. A range is its first byte and its end."""

from __future__ import annotations

from collections.abc import Sequence

GAP = 64 << 10  # bytes between two ranges that are read rather than asked for apart
EXCESS = 0.05  # bytes read beyond those wanted, as a share of these
PART = 8 << 20  # bytes of one request at most

Range = tuple[int, int]


def merged(ranges: Sequence[Range]) -> list[Range]:
    """Join neighbours whose gap is small, as long as few bytes are read in vain.

    >>> merged([(0, 2_000_000), (2_000_100, 3_000_000), (9_000_000, 9_000_001)])
    [(0, 3000000), (9000000, 9000001)]
    """
    runs: list[Range] = []
    wanted = 0  # bytes of the last run that were asked for
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if runs:
            first, end = runs[-1]
            more = max(0, stop - max(start, end))
            read = max(stop, end) - first
            if start <= end or (start - end <= GAP and read <= (1 + EXCESS) * (wanted + more)):
                runs[-1] = (first, max(stop, end))
                wanted += more
                continue
        runs.append((start, stop))
        wanted = stop - start
    return runs


def split(run: Range) -> list[Range]:
    """Cut a range into equal parts of at most `PART` bytes.

    >>> split((0, 20 << 20)) == [(0, 6990507), (6990507, 13981014), (13981014, 20 << 20)]
    True
    """
    start, stop = run
    count = max(1, -(-(stop - start) // PART))
    size = -(-(stop - start) // count)
    return [(at, min(at + size, stop)) for at in range(start, stop, max(1, size))]
