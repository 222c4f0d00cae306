"""Cost of counting what a loader delivers, for `loader.stats()`.

    python benchmarks/stats_overhead.py [SECONDS]

Two loaders in one process take turns, some batches each: one as it is, and one whose passes count
nothing. What counts is the processor time of the consumer's thread, since that of the clock says
more of what else the machine does; and of it the median over all turns of what the one took, by
what the other took in the same turn, with the middle half of these. `against itself` is the same
with a copy of the first in place of the second: that is the error of this measurement. On a busy
machine the cost comes out too high: measurements are so many a second by the clock.

The first loaders do next to nothing, so that the counting shows. The last ones fetch small images
and tokens, as training does.
"""

from __future__ import annotations

import inspect
import itertools
import statistics
import sys
import textwrap
import time
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from measure import table
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader, resumable_dataloader
from dataporter.sources import passes
from dataporter.sources.passes import Pass

SECONDS = 20.0  # for each row
# The lines of Pass.__next__ that count.
COUNTING = """\
    tally = self._tally
    tally.unmeasured -= 1
    if tally.unmeasured < 0:
        self._measure_next()
"""


class Images:
    """Small images, each decoded by a little arithmetic, with a label."""

    def __init__(self) -> None:
        self._raw = torch.randint(0, 255, (4096, 3, 32, 32), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self._raw[index].float().div_(255), "label": index % 10}


def _tokens() -> torch.Tensor:
    return torch.randint(0, 9, (200_000, 64))


def _numbers() -> range:
    return range(200_000)


def _columns() -> TensorDataset:
    return TensorDataset(torch.zeros(500_000, 8), torch.zeros(500_000))


# By name: the dataset, options, and batches in a turn.
LOADERS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "numbers one by one, no workers": (_numbers, {"batch_size": None}, 8000),
    "2 small columns, no workers": (_columns, {"batch_size": 32}, 4000),
    "2 small columns, 2 workers": (_columns, {"batch_size": 32, "num_workers": 2}, 2000),
    "tokens, no workers": (_tokens, {"batch_size": 256}, 2000),
    "images, no workers": (Images, {"batch_size": 32}, 100),
    "images, 2 workers": (Images, {"batch_size": 32, "num_workers": 2}, 100),
}


def passes_with(source: str) -> type[Pass]:
    """Make a class of passes with other code to hand over a batch."""
    names: dict[str, Any] = {}
    exec(source, vars(passes), names)  # noqa: S102  it is the package's own
    function: FunctionType = names["__next__"]
    return type("Other", (Pass,), {"__next__": function})


def counting() -> str:
    """Return the code by which a pass hands over a batch."""
    return textwrap.dedent(inspect.getsource(Pass.__next__))


def uncounting() -> str:
    """Return that code without what counts."""
    source = counting()
    if COUNTING not in source:
        msg = f"Pass.__next__ has changed, so change COUNTING too:\n{source}"
        raise RuntimeError(msg)
    return source.replace(COUNTING, "")


def endless(loader: ResumableDataLoader[Any], kind: type[Pass]) -> Iterator[Any]:
    """Yield batches of one pass after the other, each of passes of a kind."""
    while True:
        vars(resumable_dataloader)["Pass"] = kind
        try:
            batches = iter(loader)
        finally:
            vars(resumable_dataloader)["Pass"] = Pass
        yield from batches


class Turns:
    """Iterators that take turns, of so many batches each."""

    def __init__(self, name: str, kinds: list[type[Pass]]) -> None:
        dataset, options, self._batches = LOADERS[name]
        data = dataset()
        stays = "num_workers" in options
        self._loaders = [
            ResumableDataLoader(data, persistent_workers=stays, **options) for _ in kinds
        ]
        self._kinds = kinds

    def spent(self, seconds: float) -> list[list[int]]:
        """Return the ns that each one took in every turn."""
        each = list(map(endless, self._loaders, self._kinds))
        spent: list[list[int]] = [[] for _ in each]
        for iterator in each:
            _timed(iterator, self._batches)  # once to warm up, and to have workers
        deadline = time.monotonic() + seconds
        for turn in itertools.count():
            order = range(len(each)) if turn % 2 else range(len(each) - 1, -1, -1)
            for number in order:
                spent[number].append(_timed(each[number], self._batches))
            if time.monotonic() > deadline:
                return spent
        raise AssertionError


def _timed(iterator: Iterator[Any], batches: int) -> int:
    began = time.thread_time_ns()
    for _ in itertools.islice(iterator, batches):
        pass
    return time.thread_time_ns() - began


def row(name: str, seconds: float) -> tuple[str, ...]:
    """Measure one loader."""
    kinds: list[type[Pass]] = [Pass, passes_with(uncounting()), passes_with(counting())]
    counts, bare, same = Turns(name, kinds).spent(seconds)
    batch = statistics.median(bare) / LOADERS[name][2]
    return name, f"{batch / 1000:,.1f} µs", _more(same, bare), _more(counts, same)


def _more(ones: list[int], others: list[int]) -> str:
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle - 1:+.2%} (half of them {low - 1:+.1%} to {high - 1:+.1%})"


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if sys.argv[1:] else SECONDS
    rows = [row(name, seconds) for name in LOADERS]
    header = ("loader", "a batch without", "with / without", "against itself")
    print(table("What counting for loader.stats() costs (target: below 0.5 %)", header, rows))


if __name__ == "__main__":
    main()
