"""A source: what the passes of a loader consist of.

It knows which data this is, in which order and for which ranks (`identity`), where epochs begin
and end (`fresh`, `ended`), the tasks that remain of one (`begin`), and what a saved progress means
here (`admit`, `restore`). There are three: `planned` follows dataporter's own order, `sampled` a
sampler of the user's own, `lanes` reads iterables and datasets with a state.

A cursor asks a source where passes begin and end. A source knows no cursor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dataporter.errors import OptionError
from dataporter.law import Plan, Tail, Topology
from dataporter.law.epochs import Place
from dataporter.law.explanation import Explanation
from dataporter.law.rest import Excluded
from dataporter.law.state import Identity, Progress, parse_state
from dataporter.sources.fingerprint import Fingerprint, dataset_length
from dataporter.sources.readings import Reading
from dataporter.sources.shared_epoch import SharedEpoch
from dataporter.sources.users_sampler import epoch_of


class Resumption(NamedTuple):
    """The place where a run goes on, fitted to the source, and the seed to take over."""

    progress: Progress
    seed: int
    length: int | None = None  # positions of this epoch, where the dataset has changed since
    order: str | None = None  # the saved name of the order, where there is one
    excluded: Excluded = ()
    rank: int | None = None  # the one that the state is of, where ranks have different states


class EpochHolder:
    """The sampler or dataset that wants to be told the epoch, as torch's DistributedSampler does.

    Others may tell it one too: users and trainers do. `find` returns it, None if there is none.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._mark: int | None = None

    @property
    def epoch(self) -> int | None:
        """The epoch that it was told last, None if it does not say."""
        return epoch_of(self._find())

    def start(self) -> tuple[int, int | None]:
        """Return the epoch, and the position if it has one, to which it was put before."""
        return self.epoch or 0, None

    def attach(self, place: Place) -> None:
        """Take note of the place where the run stands from now on."""

    def tell(self, epoch: int) -> None:
        """Tell it the epoch of the run."""
        holder = self._find()
        if holder is not None:
            holder.set_epoch(epoch)
        self.note_told()

    def note_told(self) -> None:
        """Take note that it has the loader's epoch."""
        self._mark = self._seen()

    def told_by_others(self) -> int | None:
        """The epoch that somebody else has told it since, None if nobody."""
        return None if self._mark == self._seen() else self.epoch

    def _seen(self) -> int | None:
        """A value that changes when it is told an epoch."""
        return self.epoch


class Source(ABC):
    """The source of a loader's passes over one dataset."""

    world_may_change = False  # whether a state goes on with another number of ranks
    states_differ = False  # from rank to rank
    has_lanes = False
    shuffle = False
    tail: Tail = "uneven"  # what becomes of samples that do not fill a step
    place_lacks: str | None = None  # the state that a position alone lacks here

    _rank_may_differ = True  # whether one rank goes on from another's state
    _holder_of_state = "the dataset"

    def __init__(
        self, dataset: Any, *, batch_size: int | None, seed_is_given: bool, epochs: EpochHolder
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed_is_given = seed_is_given
        self.epoch_holder = epochs
        self._fingerprint = Fingerprint(dataset)
        self._num_samples = dataset_length(dataset)

    # Which data, in which order, for whom

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the order and of the samples' randomness."""

    @property
    @abstractmethod
    def topology(self) -> Topology:
        """This rank, and how many there are."""

    @property
    def plan(self) -> Plan | None:
        """The plan by which ranks share an epoch; None if the order is not dataporter's."""
        return None

    @property
    def length(self) -> int | None:
        """Positions of the epoch that the state speaks of, None where that is not known."""
        return self._num_samples

    @abstractmethod
    def identity(self) -> Identity:
        """The source's half of a state."""

    def _identity(self, order: str) -> Identity:
        """The identity by an order's name, which tells all that decides it but the seed."""
        num_samples, length = self._num_samples, self.length
        rank, world_size = self.topology.rank, self.topology.world_size
        return Identity(
            seed=self.seed,
            shuffle=self.shuffle,
            order=order,
            num_samples=num_samples,
            fingerprint=self._fingerprint(),
            batch_size=self.batch_size,
            world_size=world_size,
            rank=rank if self.states_differ and world_size > 1 else None,
            length=None if length == num_samples else length,
        )

    def identity_after(self, saved: Identity) -> Identity:
        """The identity once this source has taken over what it may of a saved one."""
        identity = self.identity()
        return replace(
            identity,
            seed=self.seed if self.seed_is_given else saved.seed,
            rank=saved.rank if self._rank_may_differ else identity.rank,
        )

    def explained(self, progress: Progress) -> Explanation:
        """Put where the run stands into words."""
        return Explanation(identity=self.identity(), progress=progress, tail=self.tail)

    # Epochs

    def prepare(self) -> None:
        """Take note that a pass is about to begin: ranks and data may have changed.

        All ranks of a process group that came up since agree on a drawn seed.
        """
        self._fingerprint.look_again()

    @abstractmethod
    def fresh(self, epoch: int) -> Progress:
        """Return the progress at the start of an epoch that begins now."""

    @abstractmethod
    def ended(self, progress: Progress) -> Progress:
        """Return the progress once the epoch of `progress` has run to its end."""

    def at(self, progress: Progress, position: int) -> Progress:
        """Return the progress at a position of the epoch of another one, or raise."""
        if position:
            msg = (
                f"position={position} cannot be sought: only the state of {self._holder_of_state} "
                "says where its samples are. Seek the start of an epoch (position=0), or load a "
                "state."
            )
            raise OptionError(msg)
        return progress._replace(samples_processed=0, batches_processed=0, finished=False, ahead=())

    def shared_epoch(self, epoch: int, position: int) -> SharedEpoch:
        """Return what remains of an epoch from a position on, or raise."""
        raise OptionError(self._no_positions)

    def exclude(self, epoch: int, start: int, stop: int) -> None:
        """Leave out a span of positions from now on, or raise."""
        raise OptionError(self._no_positions)

    @property
    def _no_positions(self) -> str:
        return (
            f"only the state of {self._holder_of_state} says where its samples are, so none can be "
            "found by position. A loader with an order of dataporter's own (a dataset with a "
            "length, and no sampler or batch_sampler of yours) finds any sample by its position."
        )

    def settle(self, progress: Progress) -> None:
        """Forget what was drawn ahead of `progress`, where a pass was broken off."""

    def take_back(self, progress: Progress) -> None:
        """Forget what was drawn for a pass that was to begin at `progress`, and could not."""

    @abstractmethod
    def num_batches(self) -> int:
        """Batches that this rank delivers in a full epoch."""

    @abstractmethod
    def begin(self, progress: Progress, *, same_workers: bool) -> Reading:
        """Begin to read what remains of an epoch.

        `same_workers` says that the worker processes which ran the last pass run this one.
        """

    # Loading

    def parse(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Any:
        """Read a state: its identity and its progress."""
        return parse_state(state)

    def admit(
        self, progress: Progress, saved: Identity, *, same_data: bool, strict: bool
    ) -> tuple[Progress, int | None]:
        """Return what a saved progress means here, and the length of its epoch if that differs.

        Raise where it cannot be read here.
        """
        return progress, None

    def restore(self, progress: Progress) -> None:
        """Go back to where a progress was taken. If that fails, nothing has changed."""

    def undo_restore(self) -> None:
        """Go back to before the last `restore`."""

    @abstractmethod
    def resume(self, at: Resumption) -> None:
        """Take over a state: `restore` its progress, its seed and its length."""
