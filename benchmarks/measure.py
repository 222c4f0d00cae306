"""Measuring on a noisy machine: the same work, interleaved, medians, ratios.

Contenders take turns, so that a slow second hits all of them. The ratio of their medians in one run
counts; times of different runs cannot be compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

_QUARTERS = 4
_FEW = 3  # rounds


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run every contender once to warm up, then in turns; median seconds of each."""
    for run in contenders.values():
        run()
    times = in_turns(contenders, rounds)
    return {name: statistics.median(measured) for name, measured in times.items()}


def in_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, until: float | None = None
) -> dict[str, list[float]]:
    """Run contenders in turns; all their seconds.

    After `until`, on the monotonic clock, no round begins, except the few that a spread needs.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        if number >= _FEW and until is not None and time.monotonic() > until:
            break
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def spread(values: Sequence[float]) -> float:
    """Half of the range between the quartiles, as a share of the median; needs two values.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    0.3333333333333333
    """
    first, middle, last = statistics.quantiles(values, n=_QUARTERS, method="inclusive")
    return (last - first) / 2 / middle


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out as a Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(f'{cell:<{w}}' for cell, w in zip(cells, widths, strict=True))} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([f"\n## {title}\n", line(header), rule, *map(line, rows)])


def count(number: int) -> str:
    """Write a power of ten as one, any other number with separators.

    >>> count(10**9), count(1234)
    ('10^9', '1,234')
    """
    power = len(str(number)) - 1
    return f"10^{power}" if number == 10**power else f"{number:,}"
