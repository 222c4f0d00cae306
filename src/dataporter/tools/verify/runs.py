"""One run of the user's loader, in a process of the sandbox: its facts, batches and states.

The `Reference` is the uninterrupted run, which all others are compared with.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from dataporter.errors import FactoryError
from dataporter.fetch.worker_info import WorkerInfo, announced
from dataporter.law.datasets import chooses_batches, leaves_samples_out
from dataporter.layout import counted
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import ResumableSampler
from dataporter.sources.lanes import is_iterable, is_stateful
from dataporter.tools.sandbox import (
    USUAL,
    Conditions,
    Problem,
    ProcessEndedError,
    Sandbox,
    TimeUpError,
)
from dataporter.tools.sandbox.factories import (
    Description,
    Factory,
    described,
    make_loader,
    rebuilt_as_ours,
)
from dataporter.tools.verify.batch_contents import Contents, contents_of
from dataporter.tools.verify.object_changes import Change, changes, keep, look

_OTHER_SEED = 2**31 + 11  # of random numbers that no run of the user's has
_SHARE_OF_REFERENCE = 0.3  # of the seconds of a verification, at most
_PASSES = 2  # of the uninterrupted run, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts(Description):
    """Everything that decides how a loader can be interrupted."""

    batches: int | None
    world_size: int
    shuffle: bool
    follows_own_order: bool
    has_sampler: bool
    has_state: bool
    shares_nothing: bool
    in_threads: bool
    skips_errors: bool
    leaves_samples_out: bool
    chooses_batches: bool
    has_collate_fn: bool
    has_worker_init_fn: bool
    has_randomness: bool
    is_rebuilt: bool  # from a loader that is not ours

    def __str__(self) -> str:
        size = "single samples" if self.batch_size is None else f"batches of {self.batch_size}"
        if self.has_sampler:
            size = "a sampler of its own"
        batches = f"{size}, shuffled" if self.shuffle else size
        return self.line(batches, counted(self.num_workers, "worker"))

    @property
    def knows_indices(self) -> bool:
        """True if the samples of a batch are known before it is fetched."""
        return self.follows_own_order and not self.has_lanes

    @property
    def why_batches_are_fixed(self) -> str:
        """The reason why batches cannot have other sizes or be shared out; empty if they can."""
        if self.is_iterable:
            return "an IterableDataset makes its batches lane by lane"
        if self.has_lanes:
            return "a dataset with a state of its own is read lane by lane"
        if self.has_sampler:
            return "the loader has a sampler of its own, which decides that"
        if self.skips_errors:
            return "on_error='skip' leaves samples out, and batches do not say which"
        if self.leaves_samples_out:
            return f"{self.dataset} leaves samples out, and batches do not say which"
        if self.chooses_batches:
            return f"{self.dataset} chooses samples for batches of this size"
        if self.batch_size is None:
            return "batch_size=None delivers single samples"
        return ""


def make_verifiable(
    factory: Factory, changes: Mapping[str, Any]
) -> tuple[ResumableDataLoader[Any], LoaderFacts]:
    """Make the user's loader with some options changed; one that is not ours is rebuilt as ours."""
    loader, given = make_loader(factory, changes)
    if not isinstance(loader, ResumableDataLoader) or given is None:
        rebuilt, given = rebuilt_as_ours(loader, changes)
        return rebuilt, _facts(rebuilt, given, is_rebuilt=True)
    return loader, _facts(loader, given)


def _facts(
    loader: ResumableDataLoader[Any], given: Mapping[str, Any], *, is_rebuilt: bool = False
) -> LoaderFacts:
    iterable = is_iterable(loader.dataset)
    sampler = loader.sampler
    has_our_sampler = isinstance(sampler, ResumableSampler)
    return LoaderFacts(
        **described(loader),
        batches=None if iterable else _length(loader),
        world_size=loader.state_dict()["world_size"],
        shuffle=isinstance(sampler, ResumableSampler) and sampler.shuffle,
        follows_own_order=has_our_sampler and not iterable and given["batch_sampler"] is None,
        has_sampler=given["sampler"] is not None or given["batch_sampler"] is not None,
        has_state=is_stateful(loader.dataset),
        shares_nothing=given["strategy"] == "simple",
        in_threads=given["engine"] == "threads",
        skips_errors=given["on_error"] == "skip",
        leaves_samples_out=leaves_samples_out(loader.dataset),
        chooses_batches=chooses_batches(loader.dataset),
        has_collate_fn=given["collate_fn"] is not None or given["converter"] is not None,
        has_worker_init_fn=given["worker_init_fn"] is not None,
        has_randomness=given["randomness"],
        is_rebuilt=is_rebuilt,
    )


def _length(loader: ResumableDataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a sampler without a length
        return None


class Delivered(NamedTuple):
    """One batch."""

    epoch: int
    number: int  # in its epoch, from 1
    positions: tuple[int, ...] | None  # None unless the order is our own
    indices: tuple[int, ...] | None
    contents: tuple[Contents, ...]  # of the batch, or of each of its samples


@dataclass(slots=True, kw_only=True)
class RunResult:
    """All that a run has delivered."""

    delivered: list[Delivered] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)  # before each batch, and after the last
    first: int = 0  # batches of the first of two times
    out_of_time: bool = False
    killed: int = 0  # workers
    changed: list[Change] = field(default_factory=list)
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """Changes to a loader, and to its processes, while it delivers batches."""

    options: dict[str, Any] = field(default_factory=dict)  # in place of its own
    kills: tuple[int, ...] = ()  # kill a worker after so many batches
    twice: bool = False  # go back to the start in the same process, and deliver the same again
    worker: tuple[int, int, int] | None = None  # announce worker i of n, with a seed
    fetched_before: bool = False  # fetch the samples first, with other random numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Treatment):
    """A job for the sandbox: make the loader, load a state, deliver batches."""

    state: bytes | None = None
    batches: int = 1
    seconds: float = 60.0
    passes: int = 1000  # at most
    by_sample: bool = False  # record the samples of each batch, uncollated
    looks: bool = False  # record which objects change meanwhile
    restores: str | None = None  # the path of an object to put back before the second time

    def make(self, factory: Factory) -> tuple[ResumableDataLoader[Any], LoaderFacts]:
        """Make the loader with this run's options."""
        options = {"in_order": True, **self.options, **(_BY_SAMPLE if self.by_sample else {})}
        return make_verifiable(factory, options)

    def use(self, loader: ResumableDataLoader[Any], facts: LoaderFacts) -> RunResult:
        """Deliver the batches."""
        return _Delivery(loader, facts, self).result()


class _Delivery:
    def __init__(self, loader: ResumableDataLoader[Any], facts: LoaderFacts, run: Run) -> None:
        self._loader = loader
        self._facts = facts
        self._run = run
        self._result = RunResult()
        self._deadline = monotonic() + run.seconds
        self._restore: Callable[[], None] = lambda: None
        self._other_children = {child.pid for child in multiprocessing.active_children()}

    def result(self) -> RunResult:
        try:
            if self._run.state is not None:
                self._loader.load_state_dict(pickle.loads(self._run.state))  # noqa: S301  ours
            roots = self._roots()
            before = look(roots) if self._run.looks else {}
            try:
                self._deliver_once_or_twice(roots)
            finally:
                if self._run.looks:
                    self._result.changed = changes(before, look(roots))
        except BaseException as error:  # noqa: BLE001  a dataset can raise anything
            self._result.problem = Problem.of(error)
        return self._result

    def _roots(self) -> dict[str, Any]:
        """Objects of the user's from which to look for changes."""
        roots: dict[str, Any] = {self._facts.dataset: self._loader.dataset}
        if self._loader.collate_fn is not None:
            roots["collate_fn"] = self._loader.collate_fn
        if self._facts.has_sampler:
            is_batched = self._loader.batch_size is None and self._loader.batch_sampler is not None
            roots["sampler"] = self._loader.batch_sampler if is_batched else self._loader.sampler
        return roots

    def _deliver_once_or_twice(self, roots: dict[str, Any]) -> None:
        if self._run.restores is not None:
            self._restore = keep(roots, self._run.restores)
        start = self._loader.state_dict()
        self._deliver(self._run.batches)
        self._result.first = len(self._result.delivered)
        if self._run.twice:
            self._restore()
            self._loader.load_state_dict(start)
            self._deliver(2 * self._result.first)

    def _deliver(self, most: int) -> None:
        self._record_state()
        delivered, empty = self._result.delivered, 0
        for _ in range(self._run.passes):
            count = len(delivered)
            self._deliver_pass(most)
            empty = empty + 1 if len(delivered) == count else 0
            # The rest of an epoch may be empty; two empty passes are the end.
            if self._result.out_of_time or len(delivered) >= most or empty == 2:  # noqa: PLR2004
                return

    def _deliver_pass(self, most: int) -> None:
        with self._in_worker():
            batches = iter(self._loader)
            if self._run.fetched_before:
                self._fetch_before(most - len(self._result.delivered))
            self._kill_if_due()
            for batch in batches:
                self._record(batch)
                self._kill_if_due()
                if monotonic() > self._deadline:
                    self._result.out_of_time = True
                if self._result.out_of_time or len(self._result.delivered) >= most:
                    break

    def _fetch_before(self, most: int) -> None:
        """Fetch the samples of the coming batches by another loader."""
        loader = self._loader
        plan: Any = loader.plan  # not None: see `knows_indices`
        at = loader.samples_processed
        starts = [at + n * plan.step_size for n in range(min(plan.num_steps(at), most))]
        coming = [loader.contents_at(loader.epoch, start) for start in starts]
        for _ in ResumableDataLoader(
            loader.dataset,
            loader.batch_size,
            sampler=[int(index) for batch in coming for index in batch.indices],
            collate_fn=_dropped,
            seed=_OTHER_SEED,
        ):
            pass
        self._restore()

    @contextlib.contextmanager
    def _in_worker(self) -> Iterator[None]:
        """Make the dataset believe that it is in a worker, if asked to."""
        if self._run.worker is None:
            yield
            return
        worker, count, seed = self._run.worker
        dataset = self._loader.dataset
        with announced(WorkerInfo(id=worker, num_workers=count, seed=seed, dataset=dataset)):
            if self._loader.worker_init_fn is not None:
                self._loader.worker_init_fn(worker)
            yield

    def _record(self, batch: Any) -> None:
        loader = self._loader
        known = loader.delivered if self._facts.follows_own_order else None
        contents = (
            tuple(pickle.loads(batch))  # noqa: S301  made by `_contents_by_sample`
            if self._run.by_sample
            else (contents_of(batch, None if known is None else len(known.positions)),)
        )
        self._result.delivered.append(
            Delivered(
                epoch=loader.epoch,
                number=loader.batches_processed,
                positions=None if known is None else tuple(map(int, known.positions)),
                indices=None if known is None else tuple(map(int, known.indices)),
                contents=contents,
            )
        )
        self._record_state()

    def _record_state(self) -> None:
        if not self._run.twice:
            self._result.states.append(pickle.dumps(self._loader.state_dict()))

    def _kill_if_due(self) -> None:
        if len(self._result.delivered) not in self._run.kills[self._result.killed :]:
            return
        for child in multiprocessing.active_children():
            is_new = child.pid not in self._other_children
            if is_new and child.name.startswith("dataporter worker"):
                os.kill(child.pid or 0, signal.SIGKILL)
                self._result.killed += 1
                return


def _dropped(_: Any) -> int:
    return 0


def _contents_by_sample(samples: list[Any]) -> bytes:
    """Collate samples into the contents of each."""
    return pickle.dumps([contents_of(sample) for sample in samples])


_BY_SAMPLE = {
    "collate_fn": _contents_by_sample,
    "converter": None,
    "device": None,
    "device_converter": None,
    "pin_memory": False,
}


def run_in(
    sandbox: Sandbox, run: Run, conditions: Conditions = USUAL
) -> tuple[LoaderFacts, RunResult]:
    """Run the user's loader once, in a new process of a sandbox."""
    facts, result = sandbox.run(run, conditions)
    return facts, RunResult(problem=result) if isinstance(result, Problem) else result


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Batches as they come without an interruption."""

    facts: LoaderFacts
    batches: list[Delivered]
    states: list[bytes]  # before each batch, and after the last

    @property
    def epochs(self) -> list[int]:
        """The epoch of each batch."""
        return [batch.epoch for batch in self.batches]

    def __str__(self) -> str:
        first, last = self.epochs[0], self.epochs[-1]
        per_pass = "" if self.facts.batches is None else f" of {self.facts.batches:,} a pass"
        which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        count = len(self.batches)
        return f"Compared with an uninterrupted run: {count} batches{per_pass}, {which}"


def run_uninterrupted(sandbox: Sandbox, batches: int, seconds: float) -> Reference:
    """Run the loader without an interruption; raise if there is nothing to compare with."""
    try:
        run = Run(batches=batches, seconds=seconds * _SHARE_OF_REFERENCE, passes=_PASSES)
        facts, result = run_in(sandbox, run)
    except TimeUpError:
        msg = (
            f"the loader has delivered too little after {seconds:g} seconds. Find out what it "
            "waits for, or give it more time."
        )
        raise FactoryError(msg) from None
    except ProcessEndedError:
        msg = "a process of the verification ended by itself, or was killed. Verify again."
        raise FactoryError(msg) from None
    if result.problem is not None:
        result.problem.fail("the loader failed")
    if not result.delivered:
        msg = f"the loader over {facts.dataset} delivered no batch. Give it some data."
        raise FactoryError(msg)
    if len(result.delivered) == 1:
        msg = (
            f"the loader over {facts.dataset} delivered a single batch"
            f"{' before its time was up' if result.out_of_time else ''}, so there is no resume to "
            "compare. Give it more data, smaller batches or more seconds."
        )
        raise FactoryError(msg)
    return Reference(facts=facts, batches=result.delivered, states=result.states)
