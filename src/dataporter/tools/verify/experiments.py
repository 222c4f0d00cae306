"""The experiments that find a cause, as tables.

A *variation* is a pair of runs of the same batches between which one thing differs. The first
variation whose runs are unequal shows where to look. An *experiment* repeats this variation while
it holds something still. If the runs are equal then, that is the cause.

    what varies             what is held still            what follows
    two processes           the process id                the data depends on the process id
    two interpreters        the hash seed                 the data depends on hash() of strings
    one process, twice      an object that changed        the data depends on that object
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dataporter.tools.verify.facts import LoaderFacts
from dataporter.tools.verify.object_changes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Two runs of the same batches, and the one thing that differs between them."""

    evidence: str  # if they are unequal
    conditions: dict[str, Any] = field(default_factory=dict)  # of the second run
    worker: tuple[int, int] | None = None  # that the second run claims to be in
    twice: bool = False  # both runs in one process, one after the other


TWICE = Variation(evidence="the same batches, delivered twice by one process, differ", twice=True)
PROCESSES = Variation(evidence="the same batches differ from process to process")
WORKERS = Variation(evidence="the same batches differ from worker to worker", worker=(1, 2))
INTERPRETERS = Variation(
    evidence="the same batches differ from interpreter to interpreter",
    conditions={"interpreter": 1, "copy": 1},
)
TIMES = Variation(
    evidence="the same batches differ at another time",
    conditions={"clock": "long ago", "copy": 1},
)
ADDRESSES = Variation(
    evidence="the same batches differ when objects have other addresses",
    conditions={"addresses": "moved"},
)
# From the fewest things that may differ to the most.
VARIATIONS = (TWICE, PROCESSES, WORKERS, INTERPRETERS, TIMES, ADDRESSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A variation with something held still, and the cause that follows if the runs are equal.

    An experiment that holds nothing needs no run: its cause follows from the variation.
    """

    kind: str
    finding: str  # "{where}" is the sampler, the samples or their collation
    remedy: str
    varied: Variation | None = None  # None for any
    held: dict[str, Any] = field(default_factory=dict)  # conditions of both runs
    options: dict[str, Any] = field(default_factory=dict)  # of the loader in both runs
    evidence: str = ""
    must_differ_too: Variation | None = None  # or the runs were equal by chance
    applies: Callable[[LoaderFacts], bool] = lambda _: True


SAMPLER_STATE = (
    "Give the sampler state_dict and load_state_dict, or let it draw from a torch.Generator or the "
    "global generators only."
)
_ADDRESS = {
    "kind": "address",
    "finding": "the data depends on addresses of objects: on id(), or on the order of a set of "
    "objects without a hash of their own.",
    "remedy": "Identify objects by a name or a number of their own, and put sorted(..., key=...) "
    "around sets.",
}
# In this order: data that changes by the second may seem to depend on anything.
EXPERIMENTS = (
    Experiment(
        kind="randomness=False",
        options={"randomness": True},
        applies=lambda facts: not facts.has_randomness,
        evidence="with randomness=True they are equal",
        finding="the loader has randomness=False, but its samples draw random numbers.",
        remedy="Remove randomness=False.",
    ),
    Experiment(
        kind="clock",
        held={"clock": "stopped"},
        must_differ_too=TIMES,
        evidence="with the clock stopped they are equal",
        finding="the data depends on the time ({where}).",
        remedy="Keep the time out of the samples, or store it when the data is made.",
    ),
    Experiment(varied=ADDRESSES, **_ADDRESS),
    Experiment(
        varied=INTERPRETERS,
        held={"interpreter": 0},
        must_differ_too=ADDRESSES,
        evidence="when objects have other addresses, they differ too",
        **_ADDRESS,
    ),
    Experiment(
        kind="hash",
        varied=INTERPRETERS,
        held={"interpreter": 0},
        evidence="with the same PYTHONHASHSEED they are equal",
        finding="the data depends on hash() of strings, or on the order of a set of strings, "
        "which differ from interpreter to interpreter.",
        remedy="Use hashlib instead of hash(), and sorted(...) around sets; or set the same "
        "PYTHONHASHSEED for all runs.",
    ),
    Experiment(
        kind="process",
        held={"process_id": "fixed"},
        evidence="with the same process id they are equal",
        finding="the data depends on the process id ({where}).",
        remedy="Keep the process id out of the samples; names of files may contain it.",
    ),
    Experiment(
        kind="entropy",
        held={"entropy": "fixed"},
        evidence="with the system's random numbers made the same they are equal",
        finding="the data depends on random numbers that nobody has seeded ({where}).",
        remedy="Seed generators that are used when the dataset is made, for example with "
        "numpy.random.default_rng(0). Inside of a sample, draw from dataporter.sample_rng().",
    ),
    Experiment(
        kind="worker_init_fn",
        varied=WORKERS,
        options={"worker_init_fn": None},
        applies=lambda facts: facts.has_worker_init_fn,
        evidence="without worker_init_fn they are equal",
        finding="worker_init_fn makes workers differ from each other.",
        remedy="Let worker_init_fn do the same in each worker. dataporter seeds the samples, and "
        "any worker may fetch a batch.",
    ),
    Experiment(
        kind="workers",
        varied=WORKERS,
        finding="the data depends on which worker fetches it ({where}).",
        remedy="Do not use get_worker_info() to make samples or batches: any worker may fetch a "
        "batch.",
    ),
)
# For evidence about experiments that found nothing.
HELD_NAMES = {"clock": "the clock", "process": "the process id", "entropy": "entropy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCause:
    """The cause that follows from an object that changes while batches are delivered."""

    kind: str
    finding: str
    remedy: str
    applies: Callable[[Change, LoaderFacts], bool] = lambda _change, _facts: True


_WHOLE_STATE = (
    "Let state_dict() return all that decides what comes next (position, buffers, generators), and "
    "load_state_dict() restore all of it."
)
_INDEX_ALONE = "Compute each sample only from its index and dataporter.sample_rng()."
# The first that applies.
CHANGE_CAUSES = (
    ChangeCause(
        kind="sampler",
        applies=lambda change, _: change.path.startswith("sampler"),
        finding="the sampler depends on its earlier draws: {path}.",
        remedy=SAMPLER_STATE,
    ),
    ChangeCause(
        kind="state",
        applies=lambda _, facts: facts.has_state,
        finding="the state of {dataset} is incomplete: it lacks {path}.",
        remedy=_WHOLE_STATE,
    ),
    ChangeCause(
        kind="generator",
        applies=lambda change, _: change.kind == "generator",
        finding="the dataset draws from a generator of its own: {path}, {description}.",
        remedy="Draw from dataporter.sample_rng(), or from the global generators of Python, NumPy "
        "or torch, which dataporter seeds for each sample.",
    ),
    ChangeCause(
        kind="cache",
        applies=lambda change, _: change.kind == "size",
        finding="samples depend on what the dataset keeps of earlier ones: {path}.",
        remedy="Keep only data as it was read, and augment a copy of it each time.",
    ),
    ChangeCause(
        kind="call order",
        applies=lambda change, _: change.kind == "number" and not change.path.endswith("]"),
        finding="samples depend on earlier fetches through {path}.",
        remedy=_INDEX_ALONE,
    ),
    ChangeCause(
        kind="mutation",
        finding="the dataset changes its own data in place: {path}.",
        remedy="Copy before changing, for example: sample = self.data[index].clone().",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingCause:
    """The cause that remains if no variation shows a difference."""

    kind: str
    finding: str
    remedy: str
    evidence: str = "delivered again from one state, the same batches are equal"
    applies: Callable[[LoaderFacts], bool] = lambda _: True


# The first that applies.
REMAINING_CAUSES = (
    RemainingCause(
        kind="state",
        applies=lambda facts: facts.has_lanes,
        finding="the state of {dataset}, or of its iterator, is incomplete.",
        remedy=_WHOLE_STATE,
        evidence="read from the start, every run is equal",
    ),
    RemainingCause(
        kind="sampler",
        applies=lambda facts: facts.has_sampler,
        finding="the sampler does not draw the same indices again.",
        remedy=SAMPLER_STATE,
    ),
    RemainingCause(
        kind="history",
        finding="{dataset} depends on earlier fetches, or on other processes.",
        remedy=_INDEX_ALONE,
    ),
)
