"""The verdict: who waits for whom, and what to change, each with the figures that say so.

The loader keeps up where hardly anybody waits for it. Where it does not, a batch costs more of
its makers than there are of them in a step: more makers, or less to make.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dataporter.tools.profile.figures import Figures
from dataporter.tools.profile.subject import Subject
from dataporter.tools.profile.units import duration, percent, size, times

KEEPS_UP = 0.05  # share of the time below which waiting does not matter
LACKS_CORES = 0.2  # share of the makers' time, above which others must have had the cores

_RESERVE = 1.15  # more workers than just enough, since no two batches cost the same
_WAITS_RATHER = 0.5  # share of computing below which workers wait for disks or networks
_MOST_WAITING = 32  # workers that are advised where they do not compute
_CHEAP_SAMPLE = 1e-4  # seconds, of which the call and what is around it are a good part
_LARGE_PART = 0.3  # of a batch's making, that is worth changing
_LARGE_BATCH = 2**16  # bytes, of which fewer would be felt


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change, and why."""

    change: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Who waits for whom."""

    bound: Literal["loader", "step"]
    words: str
    advice: tuple[Advice, ...]


def judge(subject: Subject, figures: Figures) -> Verdict:
    """Say whether the loader keeps up, and what to change."""
    keeps_up = figures.waiting < KEEPS_UP
    share = percent(figures.waiting)
    if keeps_up:
        words = f"STEP-BOUND: the loader keeps up, {share} of the time is spent waiting for it."
        advice = _when_it_keeps_up(subject, figures)
    elif not figures.step:
        words = f"LOADER-BOUND: without steps there is nothing but waiting ({share} of the time)."
        advice = _when_it_does_not(subject, figures)
    else:
        words = f"LOADER-BOUND: {share} of the time is spent waiting for batches."
        advice = _when_it_does_not(subject, figures)
    return Verdict(bound="step" if keeps_up else "loader", words=words, advice=tuple(advice))


def workers_needed(figures: Figures) -> int:
    """How many workers keep up with the steps, by what a batch costs one of them."""
    if not figures.making:
        return 1
    return math.ceil(_RESERVE * figures.making / max(figures.step, 1e-4))


def most_workers(subject: Subject, figures: Figures) -> int:
    """How many workers can be of use: as many as cores, unless they rather wait."""
    most = subject.cores
    if figures.computing is not None and figures.computing < _WAITS_RATHER:
        most = _MOST_WAITING
    if subject.has_lanes:
        most = 1 if subject.in_threads else min(most, subject.lanes or most)
    return most


def _when_it_keeps_up(subject: Subject, figures: Figures) -> Iterator[Advice]:
    needed = workers_needed(figures)
    if figures.making is not None and not subject.adapts and subject.num_workers > needed + 1:
        yield Advice(
            change=f"num_workers={needed}",
            why=f"would do: a batch takes {duration(figures.making)} of a worker, a step "
            f"{duration(figures.step)}.",
        )
    yield from _about_passes(subject, figures)


def _when_it_does_not(subject: Subject, figures: Figures) -> Iterator[Advice]:
    if not subject.is_ours:
        yield Advice(
            change="dataporter.ResumableDataLoader",
            why="takes the same arguments, and shows where the time goes; of this loader only "
            "waits can be seen.",
        )
        return
    yield from _about_workers(subject, figures)
    yield from _about_samples(subject, figures)
    yield from _about_batches(subject, figures)
    yield from _about_passes(subject, figures)


def _about_workers(subject: Subject, figures: Figures) -> Iterator[Advice]:
    if figures.making is None:
        return
    needed, most = workers_needed(figures), most_workers(subject, figures)
    cost = f"a batch takes {duration(figures.making)} of a worker"
    if figures.step:
        cost += f", a step {duration(figures.step)}"
    waits = figures.computing is not None and figures.computing < _WAITS_RATHER
    if subject.num_workers < min(needed, most):
        why = f"{cost}: {needed} would keep up" if needed <= most else f"{cost}"
        if needed > most:
            why += f"; it would take {needed}, and there are {subject.cores} cores"
        if subject.has_lanes and not subject.lanes:
            why += ". The lanes of an iterable are as many as its workers, and change with them"
        yield Advice(change=f"num_workers={min(needed, most)}", why=f"{why}.")
        # Threads share the global generators, which the dataset then may not draw from.
        if waits and not (subject.in_threads or subject.has_lanes or figures.draws):
            yield Advice(
                change='engine="threads"',
                why="fetching rather waits than computes (which is "
                f"{percent(figures.computing or 0)} of its time), so threads "
                "do as well as processes, for less memory.",
            )
    elif subject.num_workers and needed > most:
        what = f"all {subject.cores} cores have a worker" if not waits else f"{cost}"
        if subject.has_lanes and subject.lanes and subject.num_workers >= subject.lanes:
            what = f"each of the {subject.lanes} lanes has a worker"
        yield Advice(
            change="less work for a sample, or more cores",
            why=f"{what}, and {needed} workers would be needed: {cost}.",
        )
    elif subject.num_workers and figures.waiting >= KEEPS_UP:
        yield Advice(
            change=f"prefetch_factor={subject.prefetch_factor * 4}",
            why=f"there are workers enough, but batches do not come evenly (the wait is "
            f"{duration(figures.wait.p50)} as a rule, {duration(figures.wait.p99)} for one of a "
            "hundred): more of them ahead make up for that.",
        )


def _about_samples(subject: Subject, figures: Figures) -> Iterator[Advice]:
    if figures.sample and figures.slowest and (figures.queued or 0.0) <= LACKS_CORES:
        named = ", ".join(f"{index} ({duration(spent)})" for index, spent in figures.slowest)
        factor = times(figures.slowest[0][1] / figures.sample)
        yield Advice(
            change=f"the slowest samples: {named}",
            why=f"{factor} the usual {duration(figures.sample)}, each time that they are fetched. "
            "Look at what they have in common; prepare such samples beforehand, or batch them by "
            "themselves.",
        )
    fetch = figures.stages.get("fetch")
    if fetch is None or not figures.making or not figures.samples_per_batch:
        return
    each = fetch.mean / figures.samples_per_batch
    share = fetch.mean / figures.making
    if share <= _LARGE_PART or each >= _CHEAP_SAMPLE:
        return
    if figures.draws:
        yield Advice(
            change="random numbers for a batch at once, drawn in collate_fn",
            why=f"the dataset draws them, so samples are fetched one by one and seeded, "
            f"{duration(each)} each, {percent(share)} of a batch's making; __getitems__ is of no "
            "use then. A collate_fn is seeded once a batch; what it draws depends on the batch "
            "size.",
        )
    elif subject.way == "one by one":
        yield Advice(
            change="__getitems__(indices), a vectorised fetch",
            why=f"samples are fetched one by one, {duration(each)} each, {percent(share)} of a "
            "batch's making. A method of the dataset that returns the samples of many indices "
            "at once is used by itself.",
        )


def _about_batches(subject: Subject, figures: Figures) -> Iterator[Advice]:
    making = figures.making
    if not making:
        return
    shares = {name: spread.mean / making for name, spread in figures.stages.items()}
    if shares.get("collate", 0) > _LARGE_PART:
        who = "your collate_fn" if subject.has_collate_fn else "collating"
        yield Advice(
            change="cheaper collation",
            why=f"{who} takes {percent(shares['collate'])} of a batch's making. Samples that are "
            "tensors of equal shape are stacked straight into shared memory by default.",
        )
    if shares.get("convert", 0) > _LARGE_PART:
        yield Advice(
            change="a cheaper converter",
            why=f"it takes {percent(shares['convert'])} of a batch's making.",
        )
    if shares.get("state", 0) > _LARGE_PART:
        yield Advice(
            change="snapshot_every_n_steps=10",
            why=f"taking the lanes' states is {percent(shares['state'])} of a batch's making.",
        )
    take = figures.take.mean if figures.take else 0.0
    transport = shares.get("write", 0) + shares.get("pin", 0)
    is_felt = transport > _LARGE_PART or take > KEEPS_UP * max(figures.step, making)
    if is_felt and figures.bytes_per_batch >= _LARGE_BATCH:
        yield _narrower(figures, transport, take)


def _narrower(figures: Figures, transport: float, take: float) -> Advice:
    wide = [name for name in ("float64", "int64", "float32") if name in figures.bytes_by_dtype]
    of = ""
    if wide:
        of = f", {percent(figures.bytes_by_dtype[wide[0]])} of it {wide[0]}"
    return Advice(
        change="smaller dtypes: converter=..., one of dataporter.converters",
        why=f"handing batches over takes {percent(transport)} of a worker's time and "
        f"{duration(take)} of the consumer's; a batch has {size(figures.bytes_per_batch)}{of}.",
    )


def _about_passes(subject: Subject, figures: Figures) -> Iterator[Advice]:
    processes = subject.num_workers and not subject.in_threads
    extra = figures.first - figures.wait.mean
    if processes and not subject.stays and figures.passes > 1 and extra > 2 * figures.step:
        yield Advice(
            change="persistent_workers=True",
            why=f"the first batch of a pass takes {duration(figures.first)}: workers start anew.",
        )
