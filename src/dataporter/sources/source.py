"""A source: what the passes of a loader consist of.

It knows which data this is, in which order and for which ranks (`identity`), where epochs begin
and end (`fresh`, `ended`), the tasks that remain of one (`begin`), and what a saved progress means
here (`admit`, `restore`). There are three: `planned` follows dataporter's own order, `sampled` a
sampler of the user's own, `lanes` reads iterables and datasets with a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError
from dataporter.fetch import Fetches
from dataporter.fetch.tasks import Renew, Samples, Task
from dataporter.law import Plan, Tail, Topology
from dataporter.law.epochs import Cursor
from dataporter.law.explanation import Explanation
from dataporter.law.rest import Excluded
from dataporter.law.state import Identity, Progress, parse_state
from dataporter.sources.delivered import Delivered
from dataporter.sources.fingerprint import Fingerprint, dataset_length
from dataporter.sources.users_sampler import epoch_of

# Says what a batch consists of; asked only if somebody wants to know. None for a stream.
Contents: TypeAlias = tuple[Callable[[Task], Delivered], Task] | None
# A batch, where the run stands once it is delivered, and what it consists of.
Result: TypeAlias = tuple[tuple[Progress, Contents], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The rest of an epoch: its tasks, their fetcher, and the progress after each delivery."""

    tasks: Iterator[Task]
    fetch: Fetches
    progress: Progress  # where the run stands before the first of them
    received: Callable[[Task, Any], Result]  # called for each result of an engine, in its order
    renew: Renew | None = None


class Resumption(NamedTuple):
    """The place where a run goes on, fitted to the source, and the seed to take over."""

    progress: Progress
    seed: int
    length: int | None = None  # positions of this epoch, where the dataset has changed since
    order: str | None = None  # the saved name of the order, where there is one
    excluded: Excluded = ()
    rank: int | None = None  # the one that the state is of, where ranks have different states


class Source(ABC):
    """The source of a loader's passes over one dataset."""

    world_may_change = False  # whether a state goes on with another number of ranks
    states_differ = False  # from rank to rank
    rank_may_differ = True  # whether one rank goes on from another's state
    has_lanes = False
    shuffle = False
    tail: Tail = "uneven"  # what becomes of samples that do not fill a step

    def __init__(self, dataset: Any, *, batch_size: int | None, seed_is_given: bool) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed_is_given = seed_is_given
        self._fingerprint = Fingerprint(dataset)
        self._num_samples = dataset_length(dataset)
        self._epoch_mark: int | None = None

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
    @abstractmethod
    def order_id(self) -> str:
        """The name of the order, with everything that decides it but the seed."""

    def order_id_from(self, saved: str) -> str:
        """Return the name of the order once it has taken over the parameters in a saved name."""
        return self.order_id

    @property
    def order_names_data(self) -> bool:
        """True if the name of the order names the data too."""
        return False

    @property
    def plan(self) -> Plan | None:
        """The plan by which ranks share an epoch; None if the order is not dataporter's."""
        return None

    @property
    def length(self) -> int | None:
        """Positions of the epoch that the state speaks of, None where that is not known."""
        return self._num_samples

    @property
    def num_samples(self) -> int | None:
        """Samples of the dataset, None where it does not say."""
        return self._num_samples

    def identity(self) -> Identity:
        """The source's half of a state."""
        num_samples, length = self.num_samples, self.length
        rank, world_size = self.topology.rank, self.topology.world_size
        return Identity(
            seed=self.seed,
            shuffle=self.shuffle,
            order=self.order_id,
            num_samples=num_samples,
            fingerprint=self._fingerprint(),
            batch_size=self.batch_size,
            world_size=world_size,
            rank=rank if self.states_differ and world_size > 1 else None,
            length=None if length == num_samples else length,
        )

    def explained(self, progress: Progress) -> Explanation:
        """Put where the run stands into words."""
        return Explanation(identity=self.identity(), progress=progress, tail=self.tail)

    @property
    def comes_in_order(self) -> bool:
        """True if batches are delivered in order, not as they come."""
        return True

    def join_process_group(self) -> None:
        """Agree with the ranks of a process group that came up after this source was made."""

    def look_again(self) -> None:
        """Take note that a pass begins: the dataset may have changed since the last."""
        self._fingerprint.look_again()

    # Epochs

    @abstractmethod
    def fresh(self, epoch: int) -> Progress:
        """Return the progress at the start of an epoch that begins now."""

    @abstractmethod
    def ended(self, progress: Progress) -> Progress:
        """Return the progress once the epoch of `progress` has run to its end."""

    def at(self, start: Progress, position: int) -> Progress:
        """Return the progress at a position of the epoch that begins with `start`, or raise."""
        msg = (
            f"position={position} cannot be sought: only the state of {self._holder_of_state} says "
            "where its samples are. Seek the start of an epoch (position=0), or load a state."
        )
        raise OptionError(msg)

    _holder_of_state = "the dataset"

    def start_of(self, progress: Progress) -> Progress:
        """Return the progress at the start of the epoch of a saved one, or raise."""
        return progress._replace(samples_processed=0, batches_processed=0, finished=False, ahead=())

    def samples_at(self, epoch: int, positions: NDArray[np.int64]) -> Samples:
        """Return what is fetched at positions of an epoch, or raise."""
        raise OptionError(self._no_positions)

    def contents_at(self, epoch: int, position: int) -> Delivered:
        """Say what this rank's batch of the step that begins at a position holds, or raise."""
        raise OptionError(self._no_positions)

    def others_at(self, epoch: int, position: int) -> Iterator[Samples]:
        """Yield the other ranks' batches of the step that begins at a position, or raise."""
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

    def together(self, results: Iterator[Result]) -> Iterator[Result]:
        """Return results as all ranks deliver them."""
        return results

    # Loading

    def parse(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Any:
        """Read a state: its identity and its progress."""
        return parse_state(state)

    @property
    def what_a_place_lacks(self) -> str | None:
        """The state that a position alone lacks here; None if a position says all."""
        return None

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

    # Who is told the epoch

    @property
    def epoch_holder(self) -> Any:
        """The sampler or dataset that wants to be told the epoch, None if there is none."""
        return None

    def follow_sampler(self, cursor: Cursor) -> None:
        """Begin where the sampler or dataset was put before the loader was built."""
        if epoch := epoch_of(self.epoch_holder):
            cursor.set_epoch(epoch)

    def tell_epoch(self, epoch: int, cursor: Cursor) -> None:
        """Tell the sampler or dataset the epoch, as torch's DistributedSampler has to be told.

        The cursor knows the rest of where the run stands.
        """
        if self.epoch_holder is not None:
            self.epoch_holder.set_epoch(epoch)
        self.note_epoch_told()

    def note_epoch_told(self) -> None:
        """Take note that the sampler or dataset has the loader's epoch."""
        self._epoch_mark = self._mark()

    def epoch_told(self) -> int | None:
        """The epoch that somebody else has told the sampler or dataset since, None if nobody."""
        return None if self._epoch_mark == self._mark() else epoch_of(self.epoch_holder)

    def _mark(self) -> int | None:
        """A value that changes when the sampler or dataset is told an epoch."""
        return epoch_of(self.epoch_holder)
