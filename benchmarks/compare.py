"""Changes between two stored runs.

    python benchmarks/compare.py OLD.json NEW.json [--rows PATTERN]

A change is marked if the middle halves of both runs' turns have no value in common. Needs the
standard library only.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from measure import BARE, Quartiles, Row, Run, table

OURS = "dataporter"


def _peak(row: Row) -> Quartiles | None:
    peak = row.turns[OURS].peak_mb if OURS in row.turns else None
    return None if peak is None else Quartiles(peak, peak, peak)


def _consumer(row: Row) -> Quartiles | None:
    return row.turns[OURS].consumer_us if row.workers and OURS in row.turns else None


def _own(row: Row, *, times: bool) -> Quartiles | None:
    """Speeds or times of rows without a limit: there is nothing better to compare them by."""
    return row.values(OURS) if BARE not in row.turns and (row.unit == "ms") == times else None


# What is compared, how it is written, and whether more is better. Of one memory peak there are no
# quartiles, so a change of less than a tenth is not marked.
QUANTITIES: list[tuple[str, Callable[[Row], Quartiles | None], str, bool]] = [
    ("Speed as a ratio to torch", lambda row: row.ratio(OURS, "torch"), "{:.2f}x", True),
    ("Speed as a ratio to torchdata", lambda row: row.ratio(OURS, "torchdata"), "{:.2f}x", True),
    ("Ratio to torch in CPU time", lambda row: row.cpu_ratio(OURS, "torch"), "{:.2f}x", True),
    ("Share of the limit", lambda row: row.of_limit(OURS), "{:.3f}", True),
    ("Share of bare loops at once", lambda row: row.of_bare_loops(OURS), "{:.3f}", True),
    ("Consumer µs a batch", _consumer, "{:,.1f}", False),
    ("Own speed, in GiB/s or samples/s", partial(_own, times=False), "{:,.1f}", True),
    ("Own time, in ms", partial(_own, times=True), "{:,.2f}", False),
    ("Peak MB", _peak, "{:,.0f}", False),
]
_LEAST = {"Peak MB": 0.1}


def compared(old: Run, new: Run, pattern: str = "") -> str:
    """One table for each quantity that both runs have."""
    before = {(row.work, row.workers): row for row in old.rows}
    pairs = [
        (before[row.work, row.workers], row)
        for row in new.rows
        if (row.work, row.workers) in before and re.search(pattern, row.work)
    ]
    parts = [_machines(old, new)]
    for title, read, form, more_is_better in QUANTITIES:
        lines = []
        for one, other in pairs:
            was, now = read(one), read(other)
            if was is not None and now is not None:
                mark = _mark(was, now, more_is_better, _LEAST.get(title, 0.0))
                lines.append(
                    (
                        *(other.work, str(other.workers), was.text(form), now.text(form)),
                        f"{now.median / was.median - 1:+.1%}" if was.median else "-",
                        f"{mark}{', too busy to trust' if one.warnings or other.warnings else ''}",
                    )
                )
        if lines:
            parts.append(table(title, ("work", "workers", "old", "new", "change", ""), lines))
    missing = len(new.rows) + len(old.rows) - 2 * len(pairs)
    if missing and not pattern:
        parts.append(f"\nRows that only one of the runs has: {missing}.")
    return "\n".join(parts)


def _mark(was: Quartiles, now: Quartiles, more_is_better: bool, least: float) -> str:
    if was.overlaps(now) or abs(now.median - was.median) < least * was.median:
        return "within noise"
    return "BETTER" if (now.median > was.median) == more_is_better else "WORSE"


def _machines(old: Run, new: Run) -> str:
    lines = [
        f"{name}: {', '.join(f'{key} {value}' for key, value in shown.items())}"
        for name, run in (("old", old), ("new", new))
        for shown in [{**run.versions, **run.machine}]
    ]
    differ = [key for key in ("processor", "cores") if old.machine[key] != new.machine[key]]
    if differ:
        lines.append(f"The machines differ in {' and '.join(differ)}: compare with care.")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Print the changes between two stored runs.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rows", default="", help="a regular expression for the rows' names")
    asked = parser.parse_args(arguments)
    print(compared(Run.read(asked.old), Run.read(asked.new), asked.rows))


if __name__ == "__main__":
    main()
