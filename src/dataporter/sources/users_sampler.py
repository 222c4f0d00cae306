"""A sampler or batch sampler of the user's own: what it is made of, and how to put it back.

Samplers wrap samplers (`BatchSampler(RandomSampler(...))`); the chain from the outermost
inwards is looked at as a whole. There are two ways back to a position:

- by *state*, if the outermost sampler has `state_dict` and `load_state_dict`, or is torch's
  BatchSampler, which reads nothing ahead, around one that has;
- by *replay* otherwise: what the chain was at the start of the epoch (the states of its
  stateful parts, the random generators that it owns) is put back, and the consumed part is
  drawn again and dropped. Draws from the global generators are made to be the same then.

Not seen: random generators hidden deeper than in an attribute of a sampler.
"""

from __future__ import annotations

import base64
import copy
import json
import operator
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from dataporter.errors import StateFormatError, StateMismatchError
from dataporter.law import Topology

# These draw from the global generators for their first index, if at all, and never later.
_DRAW_AT_START = (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
_CONTAINERS = (list, tuple, range)
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


class Drawer:
    """A pass that draws from a sampler, and the state it left when another one drew."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: tuple[dict[str, Any] | None, str | None] | None = None


class UsersSampler:
    """A sampler chain; `yields_batches` if it was given as a batch sampler."""

    def __init__(self, sampler: Any, *, yields_batches: bool) -> None:
        self.outermost = sampler
        self.yields_batches = yields_batches
        self._chain = list(chain_of(sampler))
        self._stateful = _by_state(sampler)
        self._left_at: Any = None  # its state when it was captured last
        self._before_restore: Any = None
        self._between = Drawer()  # owns it while no pass draws: what the next one starts from
        self._drawer = self._between

    @property
    def is_stateful(self) -> bool:
        """True if the sampler is put back by its state."""
        return self._stateful is not None

    @property
    def draws_nothing(self) -> bool:
        """True if iterating the sampler runs no user code."""
        return type(self.outermost) in _CONTAINERS

    @property
    def draws_at_start_only(self) -> bool:
        """True if the global generators are used, if at all, for the first index only."""
        return all(type(part) in _DRAW_AT_START for part in self._chain)

    def order_id(self) -> str:
        """Name the sampler and the way it is put back, for the state."""
        role = "batch_sampler" if self.yields_batches else "sampler"
        names = " of ".join(type(part).__qualname__ for part in self._chain)
        way = "state" if self.is_stateful else "replay"
        owned = ", ".join(name for name, _ in self._generators())
        return f"{role} {names}, by {way}" + (f", with {owned}" if owned else "")

    def topology(self) -> Topology | None:
        """The rank and number of ranks that the sampler was made for, if it says so."""
        for part in self._chain:
            rank, ranks = getattr(part, "rank", None), getattr(part, "num_replicas", None)
            if isinstance(rank, int) and isinstance(ranks, int):
                return Topology(rank=rank, world_size=ranks)
        return None

    def capture(self, *, ended: bool = False) -> dict[str, Any] | None:
        """Its state now, copied, since a sampler may go on changing what it returned."""
        if self._stateful is None:
            return None
        self._left_at = copy.deepcopy(self._stateful.state_dict())
        return {"state": self._left_at, "ended": ended}

    def was_moved(self) -> bool:
        """Return True if somebody has loaded another state into it since it was captured last."""
        return self._stateful is not None and not _equal(self._left_at, self._stateful.state_dict())

    def capture_start(self) -> tuple[dict[str, Any] | None, str | None]:
        """Capture everything an epoch is drawn from: states of parts, and generators."""
        if self._stateful is not None:
            return self.capture(), None
        states = {
            str(depth): copy.deepcopy(part.state_dict())
            for depth, part in enumerate(self._chain)
            if has_state(part)
        }
        generators = {name: _generator_state(owned) for name, owned in self._generators()}
        kept = {"state": states, "ended": False} if states else None
        return kept, json.dumps(generators) if generators else None

    def draw_for(self, drawer: Drawer | None) -> bool:
        """Put back what `drawer` left, if somebody else has drawn since; None: between passes.

        Say whether that was so. So passes that are read side by side do not take each other's
        random numbers.
        """
        drawer = drawer or self._between
        if drawer is self._drawer:
            return False
        self._drawer.left = self.capture_start()
        self._drawer = drawer
        if drawer.left is None:
            return False
        self._put_back(*drawer.left)
        return True

    def handed_over(self) -> Drawer:
        """Begin a pass from where the sampler is now; who draws for it."""
        self._between.left = None
        self._drawer = Drawer()
        return self._drawer

    def left_by(self, drawer: Drawer) -> tuple[dict[str, Any] | None, str | None]:
        """Return the state that an ended pass leaves, from which the next one starts."""
        self.draw_for(drawer)
        self._drawer, self._between.left = self._between, None
        return self.capture_start()

    def restore(self, kept: dict[str, Any] | None, rng_state: str | None) -> None:
        """Put back what was captured. If that fails, all is as it was."""
        # Others are not asked: a sampler may draw as soon as it is iterated.
        if isinstance(self.outermost, Iterator) and iter(self.outermost) is self.outermost:
            msg = (
                f"the sampler is a {type(self.outermost).__name__}, which can be iterated only "
                "once: there is no way back into it. Pass something that can be iterated again."
            )
            raise StateMismatchError(msg)
        before = self.capture_start()
        self._drawer.left = before
        self._drawer, self._between.left = self._between, None
        try:
            self._put_back(kept, rng_state)
        except Exception as error:
            self._put_back(*before)
            msg = f"the sampler refused the state that was saved for it: {error!r}."
            raise StateFormatError(msg) from error
        self._before_restore = before

    def take_back(self, kept: dict[str, Any] | None, rng_state: str | None) -> None:
        """Put back where a pass was to begin that could not; `undo_restore` undoes the same."""
        before = self._before_restore
        self.restore(kept, rng_state)
        self._before_restore = before

    def undo_restore(self) -> None:
        """Go back to before `restore`: another epoch was chosen."""
        self.draw_for(None)
        if self._before_restore is not None:
            self._put_back(*self._before_restore)
            self._before_restore = None

    def _put_back(self, kept: dict[str, Any] | None, rng_state: str | None) -> None:
        if kept is not None:
            state = copy.deepcopy(kept["state"])
            if self._stateful is not None:
                self._stateful.load_state_dict(state)
            else:
                for depth, part_state in state.items():
                    self._chain[int(depth)].load_state_dict(part_state)
        if rng_state is not None:
            saved = json.loads(rng_state)
            for name, owned in self._generators():
                _set_generator_state(owned, saved[name])

    def _generators(self) -> Iterator[tuple[str, Any]]:
        for depth, part in enumerate(self._chain):
            for name, value in sorted(getattr(part, "__dict__", {}).items()):
                if isinstance(value, _GENERATORS):
                    yield f"{depth}.{name}", value

    def epoch_target(self) -> Any:
        """The part that wants to be told the epoch, as DistributedSampler does."""
        for part in self._chain:
            if callable(getattr(part, "set_epoch", None)):
                return part
        return None


def chain_of(sampler: Any) -> Iterator[Any]:
    """Yield a sampler, and the samplers in it, from the outermost inwards."""
    seen: list[Any] = []
    while sampler is not None and not any(sampler is part for part in seen):
        seen.append(sampler)
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def has_state(thing: object) -> bool:
    """Return True if an object has `state_dict` and `load_state_dict`."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def _by_state(sampler: Any) -> Any:
    """The part whose state says where the whole chain is; None if there is none."""
    while not has_state(sampler):
        if not is_torchs_batch_sampler(sampler):
            return None
        sampler = sampler.sampler
    return sampler


def _equal(one: Any, other: Any) -> bool:
    """Compare two states; True where that cannot be said."""
    try:
        if isinstance(one, Mapping):
            return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(_equal, one, other))
        return bool(np.all(np.asarray(one == other)))
    except Exception:  # noqa: BLE001  states can hold anything
        return True


def is_put_back_by_state(sampler: Any) -> bool:
    """Say whether a sampler, or batch sampler, is put back by its own state."""
    return _by_state(sampler) is not None


def is_torchs_batch_sampler(sampler: object) -> bool:
    """Return True if a sampler makes batches exactly as torch's BatchSampler does."""
    return (
        isinstance(sampler, BatchSampler)
        and type(sampler).__iter__ is BatchSampler.__iter__
        and not has_state(sampler)
    )


def _generator_state(generator: Any) -> Any:
    """The state of a random generator as JSON can hold it."""
    if isinstance(generator, torch.Generator):
        return base64.b64encode(generator.get_state().numpy().tobytes()).decode("ascii")
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    return _plain(generator.bit_generator.state)


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        raw = bytearray(base64.b64decode(state, validate=True))
        generator.set_state(torch.frombuffer(raw, dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        version, words, waiting = state
        generator.setstate((version, tuple(words), waiting))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_as_arrays(state))
    else:
        generator.bit_generator.state = _as_arrays(state)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"dtype": str(state.dtype), "values": state.tolist()}
    if isinstance(state, np.generic):
        return state.item()
    return state


def _as_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        if state.keys() == {"dtype", "values"}:
            return np.array(state["values"], state["dtype"])
        return {name: _as_arrays(value) for name, value in state.items()}
    return state


def epoch_of(sampler: Any) -> int | None:
    """The epoch that a sampler was told, if it says so."""
    try:
        return operator.index(sampler.epoch)
    except (AttributeError, TypeError):
        return None
