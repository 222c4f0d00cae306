"""`show`: a batch of a run, found by a state and fetched again in a process of its own.

A state says how far the run is, not where its batches began. With the batch size and the ranks of
the state they follow from that, unless those changed within the epoch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dataporter.arguments import check_int, check_number
from dataporter.errors import DataPorterWarning, FactoryError, OptionError, StateError
from dataporter.law import Plan
from dataporter.law.rest import Excluded, Rest, excluded_in, rest_of
from dataporter.law.state import Identity, Progress, parse_state
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.delivered import Delivered
from dataporter.tools.sandbox import Sandbox
from dataporter.tools.sandbox.factories import Factory
from dataporter.tools.sandbox.factories import make_loader as made_by
from dataporter.tools.show.parts import Images, Part, images_in, parts_in

# The loader of the run fetches here, on this machine, in one process.
_HERE = {"num_workers": 0, "device": "cpu", "pin_memory": False, "pin_memory_device": ""}
_NO_POSITIONS = (
    "the loader reads an iterable, or has a sampler of your own, and only the state of that says "
    "where its samples are. Batches are found in an order of dataporter's own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchToShow:
    """The batch to show: so many before the last one of a state, or at a position."""

    state: Mapping[str, Any] | None = None
    back: int | None = None  # 0 is the batch delivered last
    epoch: int | None = None  # by default the state's
    position: int | None = None
    rank: int = 0

    def __post_init__(self) -> None:
        check_int("--back", self.back, least=0, optional=True)
        check_int("--epoch", self.epoch, least=0, optional=True)
        check_int("--position", self.position, least=0, optional=True)
        check_int("--rank", self.rank, least=0)
        if self.back is not None and (self.position is not None or self.epoch is not None):
            msg = "--back counts from the state; --epoch and --position do not. Pass one or other."
            raise OptionError(msg)
        if self.back is not None and self.state is None:
            msg = f"--back {self.back} counts from a state. Name a checkpoint by --state."
            raise OptionError(msg)
        saved = self._identity()
        ranks = 1 if saved is None else saved.world_size
        if self.rank >= ranks:
            msg = f"--rank must be below {ranks}, the ranks of the state, found {self.rank}."
            raise OptionError(msg)

    def changes(self) -> dict[str, Any]:
        """Say which options the loader needs to fetch this batch as it was delivered."""
        saved = self._identity()
        if saved is None:
            return _HERE
        if saved.world_size == 1:
            changed: dict[str, Any] = {"rank": None, "world_size": None}
        else:
            changed = {"rank": self.rank, "world_size": saved.world_size, "strategy": None}
        if saved.batch_size is not None:
            changed["batch_size"] = saved.batch_size
        return _HERE | changed

    def _identity(self) -> Identity | None:
        """Return the loader that the state is of; None if it does not say."""
        try:
            return None if self.state is None else parse_state(self.state)[0]
        except StateError:  # torchdata's, or a position alone; loading it says the rest
            return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """A batch of a run."""

    dataset: str
    length: int  # of an epoch
    rank: int
    world_size: int
    contents: Delivered
    left_out: list[bool]  # of each sample: now in an excluded span
    excluded: list[tuple[int, int]]  # spans of this epoch
    parts: list[Part]
    images: list[Images]
    notes: list[str]


def show(
    make_loader: Factory | str,
    wanted: BatchToShow,
    *,
    seconds: float = 120,
    shows_output: bool = False,
) -> Shown:
    """Fetch a batch again, as the factory's loader delivered it.

    `make_loader` is a function, "package.module:function" or "path/to/file.py:function". It is
    called in another process.
    """
    check_number("seconds", seconds, above=0)
    with closing(Sandbox(make_loader, _Job, seconds=seconds, shows_output=shows_output)) as sandbox:
        time_up = f"the batch was not fetched within {seconds:g} seconds. Allow more (--seconds)."
        return sandbox.result(_Job(wanted), "no batch can be shown", time_up)


@dataclass(frozen=True, slots=True)
class _Job:
    """A job for the sandbox: make the loader of the run, and fetch a batch."""

    wanted: BatchToShow

    def make(self, factory: Factory) -> tuple[Any, str | None]:
        """Make the loader as the run had it; a note, if it has no seed."""
        loader, given = made_by(factory, self.wanted.changes())
        if not isinstance(loader, ResumableDataLoader) or given is None:
            msg = (
                f"the factory returned a {type(loader).__name__}, which finds no batch by its "
                "position. Return a ResumableDataLoader, or one of its subclasses."
            )
            raise FactoryError(msg)
        is_unknown = self.wanted.state is None and given["seed"] is None and loader.plan is not None
        note = "The loader has no seed=, so a run has another order. Name its --state."
        return loader, note if is_unknown else None

    def use(self, loader: Any, note: str | None) -> Shown:
        """Find the batch and fetch it."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataPorterWarning)
            found = _shown(loader, self.wanted)
        ours = [each for each in caught if issubclass(each.category, DataPorterWarning)]
        found.notes.extend(str(each.message) for each in ours)
        found.notes.extend([note] if note else [])
        return found


def _shown(loader: ResumableDataLoader[Any], wanted: BatchToShow) -> Shown:
    if wanted.state is not None:
        loader.load_state_dict(wanted.state)
    plan = loader.plan
    if plan is None:
        raise OptionError(_NO_POSITIONS)
    epoch, position, notes = _place(loader, plan, wanted)
    contents = loader.contents_at(epoch, position)
    parts = parts_in(loader.batch_at(epoch, position))
    spans = list(excluded_in(loader.excluded, epoch))
    positions = contents.positions.tolist()
    order = loader.explain().order
    if order is not None and order.of_batches:  # one position is a whole batch
        positions = [contents.position] * len(positions)
    return Shown(
        dataset=type(loader.dataset).__name__,
        length=plan.length,
        rank=plan.topology.rank,
        world_size=plan.topology.world_size,
        contents=contents,
        left_out=[any(start <= at < stop for start, stop in spans) for at in positions],
        excluded=spans,
        parts=[described for _, described in parts],
        images=images_in(parts, len(contents.positions)),
        notes=notes,
    )


def _place(
    loader: ResumableDataLoader[Any], plan: Plan, wanted: BatchToShow
) -> tuple[int, int, list[str]]:
    """Return the epoch and the position of the batch, and what to say about them."""
    if wanted.state is None or wanted.position is not None or wanted.epoch is not None:
        epoch = loader.epoch if wanted.epoch is None else wanted.epoch
        return epoch, wanted.position or 0, []
    words = loader.explain()
    standing = Standing(
        plan=plan,
        progress=words.progress,
        excluded=words.identity.excluded,
        lengths_differ=words.identity.length is not None,
    )
    epoch, position = standing.back(wanted.back or 0)
    notes = []
    if words.progress.ahead:
        notes.append(
            "Batches were delivered as they came (in_order=False); --back counts them in the order "
            "of their positions."
        )
    elif epoch == loader.epoch and not standing.is_aligned:
        notes.append(
            "Batch size or ranks changed within this epoch. Batches are shown with those of the "
            "state, so earlier ones may have begun elsewhere. Each sample is as it was."
        )
    return epoch, position, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A run that stands somewhere: how ranks share an epoch, and what is left out of it.

    >>> at = Standing(plan=Plan(length=10, batch_size=4), progress=Progress(2, 8, 2), excluded=())
    >>> [at.back(steps) for steps in range(5)]
    [(2, 4), (2, 0), (1, 8), (1, 4), (1, 0)]
    """

    plan: Plan
    progress: Progress
    excluded: Excluded
    lengths_differ: bool = False  # earlier epochs had fewer samples, and nobody knows how many

    def back(self, steps: int) -> tuple[int, int]:
        """Return the epoch and the position of the step so many before the last one."""
        epoch, rest = self.progress.epoch, self._rest(self.progress.epoch)
        made, left = self._made(rest), steps
        while left >= -(-made // self.plan.step_size):
            left -= -(-made // self.plan.step_size)
            epoch -= 1
            if epoch < 0:
                msg = (
                    f"--back {steps} is before the beginning of the run: only {steps - left:,} "
                    f"{'batch was' if steps - left == 1 else 'batches were'} delivered before the "
                    "state was saved. --back counts from 0, the batch delivered last."
                )
                raise OptionError(msg)
            if self.lengths_differ:
                msg = (
                    f"--back {steps} is in epoch {epoch:,}, and the dataset has grown since. The "
                    f"state does not say how long that epoch was. Stay in epoch {epoch + 1:,}."
                )
                raise OptionError(msg)
            rest = self._rest(epoch)
            made = rest.remaining
        return epoch, int(rest.around([self._start(rest, made, left)])[0])

    @property
    def is_aligned(self) -> bool:
        """True if all batches of this epoch had the size and the ranks of the state."""
        rest = self._rest(self.progress.epoch)
        made, steps = self._made(rest), self.progress.batches_processed
        is_whole = made == min(steps * self.plan.step_size, rest.remaining)
        return is_whole and steps == -(-made // self.plan.step_size)

    def _rest(self, epoch: int) -> Rest:
        """Return all of an epoch, counted around what is left out."""
        return rest_of(self.plan, 0, excluded_in(self.excluded, epoch))

    def _made(self, rest: Rest) -> int:
        """Count the positions of the state's epoch that were delivered."""
        if self.progress.finished:
            return rest.remaining
        position = self.progress.samples_processed
        return rest_of(self.plan, position, rest.gaps).start

    def _start(self, rest: Rest, made: int, back: int) -> int:
        """Return where a step began, counted around what is left out."""
        step = self.plan.step_size
        is_short = made >= rest.remaining and made % step
        last = made - (made % step if is_short else step)
        return max(last - back * step, 0)
