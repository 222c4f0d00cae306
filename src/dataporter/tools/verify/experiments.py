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

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dataporter.tools.verify.object_changes import Change
from dataporter.tools.verify.runs import LoaderFacts

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Variation(NamedTuple):
    """Two runs of the same batches, and the one thing that differs between them."""

    evidence: str  # if they are unequal
    conditions: Mapping[str, Any] = _NOTHING  # of the second run
    worker: tuple[int, int, int] | None = None  # number, count and seed, of the second run
    first_worker: tuple[int, int, int] | None = None  # of the first
    fetched_before: bool = False  # the second run has fetched the samples before
    twice: bool = False  # both runs in one process, one after the other


TWICE = Variation("the same batches, delivered twice by one process, differ", twice=True)
PROCESSES = Variation("the same batches differ from process to process")
FETCHED = Variation(
    "the same batches differ if their samples were fetched before, in another epoch",
    fetched_before=True,
)
WORKERS = Variation("the same batches differ from worker to worker", worker=(1, 2, 11))
WORKER_SEEDS = Variation("", worker=(0, 2, 12), first_worker=(0, 2, 11))
WORKER_IDS = Variation("", worker=(1, 2, 11), first_worker=(0, 2, 11))
INTERPRETERS = Variation(
    "the same batches differ from interpreter to interpreter", {"interpreter": 1, "copy": 1}
)
TIMES = Variation("the same batches differ at another time", {"clock": "long ago", "copy": 1})
ADDRESSES = Variation(
    "the same batches differ when objects have other addresses", {"addresses": "moved"}
)
# From the fewest things that may differ to the most.
VARIATIONS = (TWICE, PROCESSES, FETCHED, WORKERS, INTERPRETERS, TIMES, ADDRESSES)


class Experiment(NamedTuple):
    """A variation with something held still, and the cause that follows if the runs are equal.

    An experiment that holds nothing needs no such runs: its cause follows from the variation, and
    from the one that must differ too.
    """

    cause: str  # in CAUSES
    evidence: str = ""
    varied: Variation | None = None  # None for any
    held: Mapping[str, Any] = _NOTHING  # conditions of both runs
    options: Mapping[str, Any] = _NOTHING  # of the loader in both runs
    must_differ_too: Variation | None = None  # else the runs are equal by chance
    applies: Callable[[LoaderFacts], bool] = lambda _: True


CLOCK = Experiment(
    "clock",
    "with the clock stopped they are equal",
    held={"clock": "stopped"},
    must_differ_too=TIMES,
)
# In this order: data that changes by the second may seem to depend on anything.
EXPERIMENTS = (
    Experiment(
        "randomness=False",
        "with randomness=True they are equal",
        options={"randomness": True},
        applies=lambda facts: not facts.has_randomness,
    ),
    CLOCK,
    Experiment("address", varied=ADDRESSES),
    Experiment(
        "address",
        "when objects have other addresses, they differ too",
        varied=INTERPRETERS,
        held={"interpreter": 0},
        must_differ_too=ADDRESSES,
    ),
    Experiment(
        "hash",
        "with the same PYTHONHASHSEED they are equal",
        varied=INTERPRETERS,
        held={"interpreter": 0},
    ),
    Experiment("process", "with the same process id they are equal", held={"process_id": "fixed"}),
    Experiment(
        "entropy",
        "with the system's random numbers made the same they are equal",
        held={"entropy": "fixed"},
    ),
    Experiment(
        "worker_init_fn",
        "without worker_init_fn they are equal",
        varied=WORKERS,
        options={"worker_init_fn": None},
        applies=lambda facts: facts.has_worker_init_fn,
    ),
    Experiment(
        "worker seed",
        "two workers that differ in get_worker_info().seed alone make other batches",
        varied=WORKERS,
        must_differ_too=WORKER_SEEDS,
    ),
    Experiment(
        "worker id",
        "two workers that differ in get_worker_info().id alone make other batches",
        varied=WORKERS,
        must_differ_too=WORKER_IDS,
    ),
    Experiment("workers", varied=WORKERS),
)

# Causes by the object that changes while one process delivers batches: the first that applies.
CHANGES: tuple[tuple[str, Callable[[Change, LoaderFacts], bool]], ...] = (
    ("sampler", lambda change, _: change.path.startswith("sampler")),
    ("state", lambda _, facts: facts.has_state),
    ("generator", lambda change, _: change.kind == "generator"),
    ("lru_cache", lambda change, _: change.kind == "lru_cache"),
    ("cache", lambda change, _: change.kind == "size"),
    ("call order", lambda change, _: change.kind == "number" and not change.path.endswith("]")),
    ("mutation", lambda _change, _facts: True),
)

# Causes that remain if no variation shows a difference: the first that applies.
_EQUAL_AGAIN = "delivered again from one state, the same batches are equal"
REMAINING: tuple[tuple[str, str, Callable[[LoaderFacts], bool]], ...] = (
    ("lanes", "read from the start, every run is equal", lambda facts: facts.has_lanes),
    ("draws", _EQUAL_AGAIN, lambda facts: facts.has_sampler),
    ("history", _EQUAL_AGAIN, lambda _: True),
)


class CauseText(NamedTuple):
    """The report on a cause. `{where}` is the sampler, the samples or their collation."""

    finding: str
    remedy: str
    kind: str = ""  # if it is not the cause's own name


_SAMPLER_STATE = (
    "Give the sampler state_dict and load_state_dict, or let it draw from a torch.Generator or the "
    "global generators only."
)
_WHOLE_STATE = (
    "Let state_dict() return all that decides what comes next (position, buffers, generators), and "
    "load_state_dict() restore all of it."
)
_CACHE_WHAT_IS_READ = "Keep only data as it was read, and augment a copy of it each time."
_INDEX_ALONE = "Compute each sample only from its index and dataporter.sample_rng()."

CAUSES = {
    "randomness=False": CauseText(
        "the loader has randomness=False, but its samples draw random numbers.",
        "Remove randomness=False.",
    ),
    "clock": CauseText(
        "the data depends on the time ({where}).",
        "Keep the time out of the samples, or store it when the data is made.",
    ),
    "address": CauseText(
        "the data depends on addresses of objects: on id(), or on the order of a set of objects "
        "without a hash of their own.",
        "Identify objects by a name or a number of their own, and put sorted(..., key=...) around "
        "sets.",
    ),
    "hash": CauseText(
        "the data depends on hash() of strings, or on the order of a set of strings, which differ "
        "from interpreter to interpreter.",
        "Use hashlib instead of hash(), and sorted(...) around sets; or set the same "
        "PYTHONHASHSEED for all runs.",
    ),
    "process": CauseText(
        "the data depends on the process id ({where}).",
        "Keep the process id out of the samples; names of files may contain it.",
    ),
    "entropy": CauseText(
        "the data depends on random numbers that nobody has seeded ({where}).",
        "Seed generators that are used when the dataset is made, for example with "
        "numpy.random.default_rng(0). Inside of a sample, draw from dataporter.sample_rng().",
    ),
    "entropy in the sampler": CauseText(
        "the data depends on random numbers that nobody has seeded ({where}).",
        _SAMPLER_STATE,
        "entropy",
    ),
    "worker_init_fn": CauseText(
        "worker_init_fn makes workers differ from each other.",
        "Let worker_init_fn do the same in each worker. dataporter seeds the samples, and any "
        "worker may fetch a batch.",
    ),
    "workers": CauseText(
        "the data depends on which worker fetches it ({where}).",
        "Do not use get_worker_info() to make samples or batches: any worker may fetch a batch.",
    ),
    "worker seed": CauseText(
        "the data depends on get_worker_info().seed ({where}).",
        "Draw from dataporter.sample_rng(), or from the global generators of Python, NumPy or "
        "torch, which dataporter seeds for each sample: any worker may fetch it.",
        "workers",
    ),
    "worker id": CauseText(
        "the data depends on get_worker_info().id: on which worker fetches it ({where}).",
        "Do not use get_worker_info() to make samples or batches: any worker may fetch a batch.",
        "workers",
    ),
    "sampler": CauseText("the sampler depends on its earlier draws: {path}.", _SAMPLER_STATE),
    "state": CauseText("the state of {dataset} is incomplete: it lacks {path}.", _WHOLE_STATE),
    "generator": CauseText(
        "the dataset draws from a generator of its own: {path}, {description}.",
        "Draw from dataporter.sample_rng(), or from the global generators of Python, NumPy or "
        "torch, which dataporter seeds for each sample.",
    ),
    "cache": CauseText(
        "samples depend on what the dataset keeps of earlier ones: {path}.",
        _CACHE_WHAT_IS_READ,
    ),
    "lru_cache": CauseText(
        "samples depend on what an lru_cache keeps of earlier ones: {path}.",
        _CACHE_WHAT_IS_READ,
        "cache",
    ),
    "augmented cache": CauseText(
        "{path} keeps augmented samples: one that comes again has its old random numbers.",
        _CACHE_WHAT_IS_READ,
        "cache",
    ),
    "hidden cache": CauseText(
        "something keeps augmented samples of {dataset}: one that comes again has its old random "
        "numbers.",
        _CACHE_WHAT_IS_READ,
        "cache",
    ),
    "call order": CauseText("samples depend on earlier fetches through {path}.", _INDEX_ALONE),
    "mutation": CauseText(
        "the dataset changes its own data in place: {path}.",
        "Copy before changing, for example: sample = self.data[index].clone().",
    ),
    "lanes": CauseText(
        "the state of {dataset}, or of its iterator, is incomplete.", _WHOLE_STATE, "state"
    ),
    "draws": CauseText(
        "the sampler does not draw the same indices again.", _SAMPLER_STATE, "sampler"
    ),
    "history": CauseText(
        "{dataset} depends on earlier fetches, or on other processes.", _INDEX_ALONE
    ),
    "unknown": CauseText(
        "not found ({where}). The data depends on something besides dataset, epoch and position.",
        "Look for inputs of a sample that are not in its files: addresses (id()), the order of "
        "directories, other processes, the network.",
    ),
    "length": CauseText(
        "the dataset has another length in another process.",
        "Compute the length from the data alone: from a complete, sorted list of files, without "
        "limits by time, environment or chance.",
    ),
    "arguments": CauseText(
        "the factory makes another loader at each call: {changed} changed.",
        "Make the loader with the same arguments at each call; fix the seed, or give none.",
    ),
    "interrupted": CauseText(
        "not found before the time was up, or because a process ended.",
        "Verify again with more seconds, or fewer batches.",
        "unknown",
    ),
}
