"""Measuring on a noisy machine: the same work, in turns, medians, ratios; and the results.

Contenders take turns, so that a slow second hits all of them. Their ratio in one run counts; times
of different runs cannot be compared. This module needs the standard library only.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BARE = "bare loop"  # one process that fetches and collates by hand
AT_ONCE = "bare loops at once"  # one in each of as many processes as there are workers
QUIET = 0.03  # noise below which a contender has had enough turns
ENOUGH = 5  # turns before its noise is looked at
_FEW = 3  # turns even after the time is over


@dataclass(frozen=True, slots=True)
class Quartiles:
    """The middle half of some measurements.

    >>> Quartiles.of([1.0, 2.0, 3.0, 4.0, 5.0])
    Quartiles(low=2.0, median=3.0, high=4.0)
    >>> Quartiles.of([7.0]).noise
    0.0
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """Quartiles of one or more values."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))

    @property
    def noise(self) -> float:
        """Half of the range between the quartiles, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0

    def overlaps(self, other: Quartiles) -> bool:
        """Two middle halves have a value in common."""
        return self.low <= other.high and other.low <= self.high

    def text(self, form: str) -> str:
        """The median and the range around it.

        >>> Quartiles(1.9, 2.0, 2.25).text("{:.2f}x")
        '2.00x (1.90-2.25)'
        """
        low, high = (_bare_number(form).format(value) for value in (self.low, self.high))
        return f"{form.format(self.median)} ({low}-{high})"


def _bare_number(form: str) -> str:
    """Strip the unit behind a number's format."""
    return form[: form.index("}") + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The turns of one contender."""

    amount: float = 1.0  # of work in a turn, such as samples
    seconds: tuple[float, ...] = ()  # of each turn
    batches: int = 0  # in a turn
    consumer: tuple[float, ...] = ()  # CPU seconds of the consuming thread in each turn
    peak_mb: float | None = None  # memory of the process tree
    failed: str = ""

    @property
    def speeds(self) -> list[float]:
        """Work a second, in each turn."""
        return [self.amount / seconds for seconds in self.seconds]

    @property
    def consumer_us(self) -> Quartiles | None:
        """Microseconds of the consumer's CPU time for each batch."""
        if not self.consumer or not self.batches:
            return None
        return Quartiles.of([spent / self.batches * 1e6 for spent in self.consumer])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One work, done by every contender in turns."""

    work: str
    workers: int
    unit: str  # of a speed, or "ms" where times are compared
    turns: dict[str, Turns]
    busy: dict[str, float] = field(default_factory=dict)  # shares of the cores that others used
    warnings: tuple[str, ...] = ()  # reasons not to trust the row

    def has(self, who: str) -> bool:
        """The contender has had a turn."""
        return who in self.turns and bool(self.turns[who].seconds)

    def values(self, who: str) -> Quartiles | None:
        """Speed in the row's unit, or milliseconds."""
        if not self.has(who):
            return None
        turns = self.turns[who]
        if self.unit == "ms":
            return Quartiles.of([seconds * 1e3 for seconds in turns.seconds])
        return Quartiles.of(turns.speeds)

    def ratio(self, who: str, to: str, share: float = 1.0) -> Quartiles | None:
        """Speed divided by `share` times that of another contender, round by round."""
        if not self.has(who) or not self.has(to):
            return None
        pairs = zip(self.turns[who].speeds, self.turns[to].speeds, strict=True)
        return Quartiles.of([one / other / share for one, other in pairs])

    def cpu_ratio(self, who: str, to: str) -> Quartiles | None:
        """Speed by the consumer's CPU time, divided by that of another contender.

        Without workers that is all the time there is, and other processes change it little.
        """
        if self.workers or not self.has(who) or not self.has(to):
            return None
        one, other = self.turns[who], self.turns[to]
        share = one.amount / other.amount
        pairs = zip(one.consumer, other.consumer, strict=True)
        ratios = [share * theirs / ours for ours, theirs in pairs if ours]
        return Quartiles.of(ratios) if ratios else None

    @property
    def noisy(self) -> dict[str, float]:
        """Noise of the contenders whose turns were not enough."""
        noise = {
            who: Quartiles.of(turns.seconds).noise
            for who, turns in self.turns.items()
            if turns.seconds
        }
        return {who: each for who, each in noise.items() if each >= QUIET}

    def of_limit(self, who: str) -> Quartiles | None:
        """Share of the limit: as many bare loops as there are workers, each at full speed."""
        return self.ratio(who, BARE, max(self.workers, 1))

    def of_bare_loops(self, who: str) -> Quartiles | None:
        """Share of the speed of that many bare loops, run at once on this machine."""
        return self.ratio(who, AT_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All rows of one run, and the machine they were measured on."""

    versions: dict[str, str]
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Store the run as JSON, with the figures of the tables beside the times."""
        rows = [{**asdict(row), "figures": _figures(row)} for row in self.rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**asdict(self), "rows": rows}, indent=1))

    @classmethod
    def read(cls, path: Path) -> Run:
        """Load a stored run."""
        stored = json.loads(path.read_text())
        rows = [_row(each) for each in stored["rows"]]
        return cls(versions=stored["versions"], machine=stored["machine"], rows=rows)


def _figures(row: Row) -> dict[str, Any]:
    """Derive the figures of a row, for readers of the JSON."""
    return {
        who: {
            row.unit: _as_dict(row.values(who)),
            "to_torch": _as_dict(row.ratio(who, "torch")),
            "to_torch_in_cpu_time": _as_dict(row.cpu_ratio(who, "torch")),
            "of_limit": _as_dict(row.of_limit(who)),
            "of_bare_loops_at_once": _as_dict(row.of_bare_loops(who)),
            "consumer_us": _as_dict(turns.consumer_us),
        }
        for who, turns in row.turns.items()
    }


def _as_dict(found: Quartiles | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _row(stored: dict[str, Any]) -> Row:
    turns = {
        who: Turns(
            **{
                **each,
                "seconds": tuple(each["seconds"]),
                "consumer": tuple(each["consumer"]),
            }
        )
        for who, each in stored["turns"].items()
    }
    return Row(
        work=stored["work"],
        workers=stored["workers"],
        unit=stored["unit"],
        turns=turns,
        busy=stored["busy"],
        warnings=tuple(stored["warnings"]),
    )


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run every contender once to warm up, then in turns; median seconds of each."""
    found = timed_turns(contenders, rounds)
    return {who: statistics.median(turns.seconds) for who, turns in found.items()}


def timed_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, amount: float = 1.0
) -> dict[str, Turns]:
    """Run every contender once to warm up, then in turns of so much work."""
    for run in contenders.values():
        run()
    timed = {who: _timed(run) for who, run in contenders.items()}
    found = in_turns(timed, seconds_of=float, rounds=rounds)
    return {who: Turns(amount=amount, seconds=tuple(each)) for who, each in found.items()}


def _timed(run: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return timed


def in_turns(
    contenders: Mapping[str, Callable[[], Any]],
    *,
    seconds_of: Callable[[Any], float],
    until: float | None = None,
    rounds: int | None = None,
) -> dict[str, list[Any]]:
    """Run contenders in turns; all that they returned.

    There are so many `rounds`; or rounds until every contender is quiet, or the monotonic clock
    shows `until`. Each round begins with another contender, since the first finds colder caches.
    """
    found: dict[str, list[Any]] = {who: [] for who in contenders}
    order = list(contenders)
    for number in itertools.count():
        if number == rounds:
            return found
        late = until is not None and time.monotonic() > until
        if rounds is None and ((late and number >= _FEW) or _is_quiet(found, seconds_of)):
            return found
        first = number % max(len(order), 1)
        for who in order[first:] + order[:first]:
            found[who].append(contenders[who]())
    raise AssertionError


def _is_quiet(found: dict[str, list[Any]], seconds_of: Callable[[Any], float]) -> bool:
    return all(
        len(turns) >= ENOUGH and Quartiles.of([seconds_of(turn) for turn in turns]).noise < QUIET
        for turns in found.values()
    )


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
