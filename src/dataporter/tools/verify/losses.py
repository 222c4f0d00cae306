"""The losses of a loader that is not ours: it is interrupted as it is, and started again.

A plain torch DataLoader has no state. So its order is drawn by two processes, without reading data,
and the same samples are read by two processes. A loader with a state, such as torchdata's, is saved
and loaded in a new process, with its own number of workers and with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median
from time import monotonic
from typing import Any

from dataporter.errors import FactoryError
from dataporter.tools.sandbox import (
    USUAL,
    Conditions,
    Problem,
    ProcessEndedError,
    Sandbox,
    TimeUpError,
)
from dataporter.tools.units import duration
from dataporter.tools.verify.batch_contents import Contents, difference
from dataporter.tools.verify.report import TIME_UP, Check
from dataporter.tools.verify.restart import OtherLoader, Restart, Restarted

_SHARE = 0.35  # of the time that is left, for all runs
_RUNS = 8  # that share it, at most
_MOST_INDICES = 1_000_000  # that are drawn of an epoch
_OTHER_ORDER = "another process draws another order"
_RIGHT_SAMPLES = ". The samples are the right ones, but their random numbers differ"
_OTHER_SAMPLES = ". Other samples come than without an interruption"


def describe(sandbox: Sandbox) -> OtherLoader | None:
    """Describe the loader that the factory makes; None for one of ours."""
    return sandbox.run(Restart())[0]


def find_losses(
    sandbox: Sandbox, loader: OtherLoader, batches: int, workers: Sequence[int] | None
) -> Iterator[Check]:
    """Interrupt a loader that is not ours; yield a check for each thing that it keeps or loses."""
    runs = _Runs(sandbox, loader, batches)
    try:
        if loader.has_state:
            yield from _from_its_state(runs, workers)
        elif loader.is_iterable:
            yield from _from_the_start(runs)
        else:
            yield from _by_skipping(runs)
    except (TimeUpError, ProcessEndedError) as error:
        reason = TIME_UP if isinstance(error, TimeUpError) else "a process ended"
        yield Check(name="the loader as it is", outcome="not run", words=reason)


class _Runs:
    """Runs of one loader, each in a process of its own, within a share of the time."""

    def __init__(self, sandbox: Sandbox, loader: OtherLoader, batches: int) -> None:
        self._sandbox = sandbox
        self._deadline = monotonic() + sandbox.seconds_left * _SHARE
        self._seconds = sandbox.seconds_left * _SHARE / _RUNS
        self.loader = loader
        self.batches = batches
        self.waits: list[float] = []  # seconds until the first batch after each resume

    def run(self, *, is_first: bool = False, **options: Any) -> Restarted:
        """Run it once. All but the first run are in a process that has imported it anew."""
        if monotonic() > self._deadline:
            raise TimeUpError
        job = Restart(
            **{"seconds": self._seconds, **options},
            reseeds=bool(self._sandbox.why_not_importable) and not is_first,
        )
        _, found = self._sandbox.run(job, USUAL if is_first else Conditions(copy=1))
        return Restarted(problem=found) if isinstance(found, Problem) else found

    def first(self, **options: Any) -> Restarted:
        """Run it from its start, as before an interruption; raise if it does not run."""
        found = self.run(is_first=True, batches=self.batches, **options)
        if found.problem is not None:
            found.problem.fail("the loader failed")
        self.check_enough(len(found.times))
        return found

    def check_enough(self, batches: int) -> None:
        """Raise unless there is a batch before an interruption, and one after it."""
        if batches < 2:  # noqa: PLR2004  these two
            count = "a single batch" if batches else "no batch"
            msg = (
                f"the loader over {self.loader.dataset} delivered {count}, so there is no resume "
                "to compare. Give it more data, or smaller batches."
            )
            raise FactoryError(msg)


def _check(name: str, loss: str | None, kept: str = "", *, batches: int = 0) -> Check:
    if loss is None:
        return Check(name=name, outcome="exact", words=kept, batches=batches)
    return Check(name=name, outcome="differs", words=loss)


# Without a state, map-style


def _by_skipping(runs: _Runs) -> Iterator[Check]:
    size = runs.loader.batch_size or 1
    epoch = {"order": True, "num_workers": 0, "batches": max(_MOST_INDICES // size, 2)}
    one, other = (runs.run(is_first=is_first, **epoch) for is_first in (True, False))
    for run in (one, other):
        if run.problem is not None:
            run.problem.fail("the loader failed")
    runs.check_enough(len(one.indices))
    half = len(one.indices) // 2
    yield _started_anew(one, other, half)
    yield _order(one, other, half)
    read = tuple(one.indices[: runs.batches])
    first = runs.first(indices=read)
    point = len(first.batches) // 2
    yield from _samples(runs, first, point, indices=read)
    yield _time_to_skip(first, point, half)


def _started_anew(one: Restarted, other: Restarted, half: int) -> Check:
    again = len(_samples_of(one.indices[:half]) & _samples_of(other.indices))
    loss = (
        f"it has none. Started again after {_count(half, 'batch', 'es')} of "
        f"{len(one.indices):,}, it begins the epoch anew: {_count(again, 'sample')} of "
        f"{len(_samples_of(one.indices)):,} come a second time"
    )
    return _check("a state to resume from", loss)


def _samples_of(batches: Sequence[tuple[Any, ...]]) -> set[Any]:
    """Return the indices in some batches; a sampler's may be lists, which have no hash."""
    indices = chain.from_iterable(batches)
    return {each if isinstance(each, int) else repr(each) for each in indices}


def _order(one: Restarted, other: Restarted, half: int) -> Check:
    name = f"the order, if {_count(half, 'batch', 'es')} are skipped"
    if one.indices == other.indices:
        return _check(name, None, "the same in two processes", batches=len(one.indices))
    if not one.passes or not other.passes:  # too long to be drawn as a whole
        return _check(name, _OTHER_ORDER)
    before, after = _samples_of(one.indices[:half]), _samples_of(other.indices[half:])
    everything = _samples_of(one.indices)
    twice, never = len(before & after), len(everything - before - after)
    loss = (
        f"{_OTHER_ORDER}: {_count(twice, 'sample')} of {len(everything):,} come twice in the "
        f"epoch, {never:,} never"
    )
    return _check(name, loss)


def _samples(runs: _Runs, first: Restarted, point: int, **options: Any) -> Iterator[Check]:
    """Compare the batches after an interruption, with the present workers and with another number.

    The batches before it are read again, as a script does that skips them.
    """
    own = runs.loader.num_workers
    for workers in (own, own + 1):
        name = f"the samples after {_count(point, 'skipped batch', 'es')}"
        name += "" if workers == own else f", with {_count(workers, 'worker')}"
        found = runs.run(batches=len(first.batches), num_workers=workers, **options)
        loss = _difference(first, found, point)
        if loss is None:
            yield _check(name, None, batches=len(first.batches) - point)
            continue
        is_same = not runs.loader.is_iterable and found.problem is None
        yield _check(name, loss + _RIGHT_SAMPLES if is_same else loss)
        return


def _time_to_skip(first: Restarted, point: int, half: int) -> Check:
    spent = first.times[point - 1] if point else 0.0
    loss = f"{_count(point, 'batch', 'es')} were read for nothing in {duration(spent)}"
    if half > point:
        much = duration(spent * half / max(point, 1))
        loss += f"; at this speed, half an epoch ({half:,} batches) takes {much}"
    return _check("the time to skip batches", loss)


# Without a state, iterable


def _from_the_start(runs: _Runs) -> Iterator[Check]:
    first = runs.first()
    point = len(first.batches) // 2
    loss = (
        f"it has none. Started again after {_count(point, 'batch', 'es')}, it reads its data from "
        "the beginning"
    )
    yield _check("a state to resume from", loss)
    yield from _samples(runs, first, point)
    yield _time_to_skip(first, point, 0)


# With a state


def _from_its_state(runs: _Runs, workers: Sequence[int] | None) -> Iterator[Check]:
    own, every = runs.loader.num_workers, tuple(range(1, runs.batches))
    first = runs.first(passes=2, saves=every)
    order = None
    if not runs.loader.is_iterable:
        order = runs.run(is_first=True, order=True, batches=runs.batches, passes=2, saves=every)
    middle = len(first.batches) // 2
    ends = [at for at in first.passes[:1] if at < len(first.batches)]
    for point in dict.fromkeys([1, middle, *ends]):
        yield _resumed(runs, first, order, point, own)
    for count in sorted({0, 1, 2, own + 1} - {own}) if workers is None else workers:
        if count != own:
            yield _resumed(runs, first, order, middle, count)
    yield _read_again(runs, first, order, middle)


def _resumed(
    runs: _Runs, first: Restarted, order: Restarted | None, point: int, workers: int
) -> Check:
    """Load the state that was saved at a point in a new process, and compare the rest."""
    name = f"after {_count(point, 'batch', 'es')}, with {_count(workers, 'worker')}"
    rest = len(first.batches) - point
    resumed: dict[str, Any] = {"passes": 2, "num_workers": workers}
    found = runs.run(batches=rest, state=first.states[point], **resumed)
    runs.waits += found.times[:1]
    loss = _difference(first, found, point, skipped=point)
    if loss is None or found.problem is not None:
        return _check(name, loss, batches=rest)
    if order is not None and point in order.states:
        rest = len(order.indices) - point
        indices = runs.run(order=True, batches=rest, state=order.states[point], **resumed).indices
        is_same = indices == order.indices[point:]
        loss += _RIGHT_SAMPLES if is_same else _OTHER_SAMPLES
    return _check(name, loss)


def _read_again(runs: _Runs, first: Restarted, order: Restarted | None, point: int) -> Check:
    """Count the samples that are fetched from a state to the end of an epoch, in vain."""
    name = f"the way to its state after {_count(point, 'batch', 'es')}"
    of = first if order is None else order
    rest: dict[str, Any] = {"batches": _MOST_INDICES, "passes": 1, "order": order is not None}
    found = runs.run(state=of.states[point], **rest) if point in of.states else None
    if found is None or found.problem is not None or found.fetched is None:
        reason = "the samples that are read on the way cannot be counted"
        return Check(name=name, outcome="skipped", words=reason)
    size = runs.loader.batch_size or 1
    delivered = sum(map(len, found.indices)) or sum(_size(each, size) for each in found.batches)
    again = found.fetched - delivered
    wait = ""
    if runs.waits:
        wait = (
            f". The first batch came after {duration(median(runs.waits))}, at the start of the run "
            f"after {duration(first.times[0])}"
        )
    if again <= 0:
        return _check(name, None, f"no sample is read again{wait}")
    loss = f"{_count(again, 'sample')} are read again to get there"
    if order is None:
        loss += f", since {runs.loader.dataset} has no state; any loader has to"
    return _check(name, loss + wait)


def _size(batch: Contents, most: int) -> int:
    """Return the number of samples in a batch, as far as its tensors show it."""
    return min((leaf.shape[0] for leaf in batch.values() if leaf.shape), default=most)


# In words


def _difference(first: Restarted, found: Restarted, point: int, skipped: int = 0) -> str | None:
    """Describe how the batches after a point differ from an uninterrupted run; None if not."""
    if found.problem is not None:
        return f"it fails with {found.problem.message}".rstrip(": ")
    expected, others = first.batches[point:], found.batches[point - skipped :]
    differing = [
        (number, differs)
        for number, (one, other) in enumerate(zip(expected, others, strict=False), point + 1)
        if (differs := difference(one, other)) is not None
    ]
    if differing:
        number, differs = differing[0]
        place = f", at {differs.path}" if differs.path else ""
        return (
            f"{len(differing)} of {_count(len(expected), 'batch', 'es')} differ, the first is "
            f"batch {number}{place}: {differs.message}"
        )
    if len(others) < len(expected):
        return f"expected {_count(len(expected), 'batch', 'es')}, found {len(others)}"
    return None


def _count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else ending}"
