"""A lane: one logical stream of a dataset, read and put back in whichever process it is.

It is restored in this order: the dataset's state, a new iterator, the iterator's state.
An iterator that is the dataset itself has one state, the iterator's.

Passes that one process reads side by side share the dataset: each puts it back to where it
has left it, as far as it has a state.

States are taken only after something was read: until then, what was loaded may not show.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch

from dataporter.errors import LaneError, add_note
from dataporter.fetch.randomness import LaneRandomness
from dataporter.fetch.tasks import Start
from dataporter.fetch.worker_info import WorkerInfo, call_announced
from dataporter.law.lane_states import LaneState
from dataporter.sources.users_sampler import has_state


@dataclass(slots=True)
class LaneContext:
    """The part of a lane that lasts from pass to pass."""

    name: str
    dataset: Any
    is_new: bool  # nothing was read from it
    first: bytes | None  # the dataset's state before anything was read
    info: WorkerInfo | None = None  # what its dataset is told of itself as a worker
    reader: weakref.ref[Lane] | None = None  # which pass read it last


class Lane:
    """One stream, in one pass."""

    def __init__(
        self,
        context: LaneContext,
        randomness: LaneRandomness,
        *,
        iterable: bool,
        batch_size: int,
    ) -> None:
        self._context = context
        self.randomness = randomness
        self._name = context.name
        self._dataset = context.dataset
        self._info = context.info
        self._iterable = iterable
        self._size = batch_size
        self._iterator: Iterator[Any] | None = None
        self.ended = False
        self._has_read = False
        # What it takes to go on where another pass has taken the dataset from. Not a method of
        # this lane: it would hold itself, and its iterator would outlive the pass.
        self._left: LaneState | None = None
        self._begins_again = False
        self._stateful: tuple[Any, Any] | None = None  # see `_with_state`
        self._sent: list[bytes | None] = [None, None]

    def begin(self, start: Start, epoch: int) -> None:
        """Go to where `start` says."""
        self._as_worker(self._take_over)
        self._as_worker(self._begin, start, epoch)
        self._began = start, epoch

    def _as_worker(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call something while `get_worker_info()` tells of this lane; errors name the lane."""
        try:
            return call_announced(self._info, call, *arguments)
        except Exception as error:
            add_note(error, f"dataporter was reading {self._name}")
            raise

    def _begin(self, start: Start, epoch: int) -> None:
        self.randomness.enter(-1)
        first = None if self._context.is_new else self._context.first
        if self._context.is_new:
            self._context.first, self._context.is_new = self._state_before(), False
        elif _stays_loaded(self._dataset):
            self._dataset.load_state_dict({})  # what was loaded is not for this pass
        self._epoch = epoch
        self._tell_epoch()
        if start.state is not None:
            self._resume(start.state, first)
        elif self._iterable:
            self._iterate()

    def _tell_epoch(self) -> None:
        tell = getattr(self._dataset, "set_epoch", None)
        says = isinstance(getattr(self._dataset, "epoch", None), int)
        if self._iterable and says and callable(tell):
            tell(self._epoch)

    def _take_over(self) -> None:
        """Go back to where this pass was, if another one has read the dataset since."""
        reader = None if self._context.reader is None else self._context.reader()
        if reader is self:
            return
        if reader is not None and not reader.ended:
            reader._leave()  # noqa: SLF001  our own
        self._context.reader = weakref.ref(self)
        if self._begins_again:
            self._begin(*self._began)
        elif self._left is not None:
            self.randomness.enter(-1)
            self._tell_epoch()
            self._resume(self._left, None)

    def _leave(self) -> None:
        """Keep what it takes to go on here."""
        self._begins_again = not self._has_read and _stays_loaded(self._dataset)
        if self._begins_again:
            return
        dataset, iterator = (
            None if owner is None else self._as_worker(self._packed, owner)
            for owner in self._with_state()
        )
        if dataset is not None or iterator is not None:
            # Batch 1 or any other: what follows was not read.
            self._left = LaneState(batches=1, at=1, dataset=dataset, iterator=iterator)

    def _state_before(self) -> bytes | None:
        """The dataset's state, so that the first pass over it can begin again."""
        # Before its first iter() a dataset may have none, whatever it raises then.
        with contextlib.suppress(Exception):
            if is_stateful(self._dataset) and not _stays_loaded(self._dataset):
                return pack(self._dataset.state_dict())
        return None

    def _resume(self, state: LaneState, first: bytes | None) -> None:
        self.ended = state.ended
        if self.ended:
            return
        before = state.dataset or first
        if _stays_loaded(self._dataset) and state.at == 0:
            before = None  # of the epoch before, or of nothing read: neither is of this pass
        if before is not None:
            self._load(self._dataset, before)
        if not self._iterable:
            return
        self._iterate()
        if state.iterator is not None:
            self._load(self._iterator, state.iterator)
        for number in range(state.at, state.batches):
            self.randomness.enter(number)
            if len(self._taken()) < self._size:
                msg = (
                    f"{self._name} ended after {number} batches, the state was taken after "
                    f"{state.batches}. The data has changed: resume with the same."
                )
                raise LaneError(msg)

    def _iterate(self) -> None:
        self._iterator, self._stateful = iter(self._dataset), None

    def _load(self, owner: Any, packed: bytes) -> None:
        if not is_stateful(owner):
            msg = (
                f"the state of {self._name} has one of a dataset or iterator of another kind: "
                f"{type(owner).__name__} has no load_state_dict. Resume with the same dataset."
            )
            raise LaneError(msg)
        try:
            owner.load_state_dict(pickle.loads(packed))  # noqa: S301  made by `pack`
        except Exception as error:
            msg = (
                f"{type(owner).__name__}.load_state_dict failed in {self._name}: "
                f"{type(error).__name__}: {error}. Was the state saved with another dataset?"
            )
            raise LaneError(msg) from error

    def draw(self, number: int) -> list[Any]:
        """Take the samples of batch `number`, the next one; fewer than its size at the end."""
        samples: list[Any] = self._as_worker(self._drawn, number)
        return samples

    def _drawn(self, number: int) -> list[Any]:
        self._take_over()
        self.randomness.enter(number)
        self._has_read = True
        return self._taken()

    def _taken(self) -> list[Any]:
        take: Any = self._iterator
        if type(take) is GeneratorType:
            samples = list(itertools.islice(take, self._size))  # saves 0.08 µs a sample
        else:
            # islice would ask it for an iterator once more. It may be the dataset itself, which
            # begins anew then.
            samples = list(map(next, itertools.repeat(take, self._size)))
        self.ended = len(samples) < self._size
        return samples

    def apply(self, fetch: Callable[[Any], Any], number: int) -> Any:
        """Give the dataset to `fetch`, for datasets that are read by index."""
        return self._as_worker(self._applied, fetch, number)

    def _applied(self, fetch: Callable[[Any], Any], number: int) -> Any:
        self._take_over()
        self.randomness.enter(number)
        return fetch(self._dataset)

    def capture(self) -> tuple[bytes | None, bytes | None]:
        """The states of dataset and iterator; an empty one is as it was at the last capture."""
        dataset, iterator = self._stateful or self._with_state()
        return (
            None if dataset is None else self._as_worker(self._news, 0, dataset),
            None if iterator is None else self._as_worker(self._news, 1, iterator),
        )

    def _news(self, place: int, owner: Any) -> bytes:
        packed = self._packed(owner)
        if packed == self._sent[place]:
            return b""
        self._sent[place] = packed
        return packed

    def _with_state(self) -> tuple[Any, Any]:
        """The dataset and the iterator, None for one without a state of its own."""
        is_own = self._iterator is not self._dataset
        self._stateful = (
            self._dataset if is_own and is_stateful(self._dataset) else None,
            self._iterator if is_stateful(self._iterator) else None,
        )
        return self._stateful

    def _packed(self, owner: Any) -> bytes:
        try:
            return pack(owner.state_dict())
        except Exception as error:
            msg = (
                f"the state of {self._name} cannot be kept: {type(owner).__name__}.state_dict() "
                f"failed, or what it returned cannot be pickled: {type(error).__name__}: {error}."
            )
            raise LaneError(msg) from error


def is_stateful(thing: Any) -> bool:
    """Return True if an object has a state that puts it back exactly."""
    return has_state(thing) and not _forgets(thing)


def _forgets(dataset: Any) -> bool:
    """Return True for a Hugging Face stream with a shuffle buffer, which its state leaves out."""
    parts = [getattr(dataset, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        inner = (getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ()))
        parts += [each for each in inner if each is not None]
    return False


def _stays_loaded(dataset: Any) -> bool:
    """Return True for a Hugging Face stream.

    A state that was loaded into one holds for all its passes over the state's epoch, until
    another is loaded. Its state is that of the last row it yielded: before the first one it
    is not that of the lane, and loading it draws other rows.
    """
    return hasattr(dataset, "_starting_state_dict")


def keep_epoch_to_itself(dataset: Any) -> None:
    """Give a Hugging Face stream an epoch that no other process changes.

    Its number lies in memory that its copies in other processes share, and a pass beside
    this one may be of another epoch.
    """
    shared = getattr(dataset, "_epoch", None)
    if isinstance(shared, torch.Tensor):
        dataset._epoch = shared.clone()  # noqa: SLF001  see above


def pack(state: Any) -> bytes:
    """Make bytes of what somebody's `state_dict()` returned: after every batch, so quickly."""
    if type(state) is dict and _PLAIN.issuperset(map(type, state.values())):
        return pickle.dumps(state, 5)  # in half the time that a pickler of our own takes
    stream = io.BytesIO()
    _Pickler(stream, 5).dump(state)
    return stream.getvalue()


_PLAIN = {int, float, str, bool, bytes, type(None)}


class _Pickler(pickle.Pickler):
    """Tensors as arrays: torch's own way takes a hundred times as long."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is torch.Tensor and thing.dtype in _QUICK and _is_plain(thing):
            return torch.from_numpy, (thing.numpy(),)
        return NotImplemented


_QUICK = {torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool}


def _is_plain(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_nested
    return plain and not tensor.requires_grad and not tensor.is_conj() and not tensor.is_neg()
