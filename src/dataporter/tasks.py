"""Tasks: one pass as a stream of batches to fetch, each with the state it leads to.

A pass follows dataporter's own order (`PlannedTasks`) or a sampler of the user's own
(`SampledTasks`). Both start from any progress without touching the data.
"""

from __future__ import annotations

import base64
import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from dataporter.generators import Captured, capture, restore, seed_all
from dataporter.order import Plan, Topology
from dataporter.order.keys import key_as_int
from dataporter.randomness import Stream
from dataporter.samplers import ResumableSampler
from dataporter.utils.state_dict import Progress


class Task(NamedTuple):
    """One batch to fetch."""

    indices: Sequence[Any] | NDArray[np.int64]
    positions: NDArray[np.int64]
    stream: Stream
    progress: Progress  # where the run stands once this batch has been delivered


class Tasks(Protocol):
    """What a loader's passes are made of."""

    def fresh(self, epoch: int) -> Progress:
        """Say where the run stands at the start of an epoch."""
        ...

    def restore(self, progress: Progress) -> None:
        """Go back to where a loaded progress was taken."""
        ...

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        """Yield the tasks that remain of the epoch after `progress`."""
        ...

    def end(self, progress: Progress) -> Progress:
        """Say where the run stands once the epoch of `progress` has run to its end."""
        ...

    def num_batches(self) -> int:
        """Batches in a full epoch."""
        ...


class PlannedTasks:
    """Tasks of dataporter's own order, shared among ranks by a plan."""

    def __init__(self, sampler: ResumableSampler, plan: Plan) -> None:
        self._sampler = sampler
        self._plan = plan

    def fresh(self, epoch: int) -> Progress:
        return Progress(epoch=epoch)

    def restore(self, progress: Progress) -> None:
        pass  # an order has no position of its own

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        plan, size = self._plan, self._plan.batch_size
        order = self._sampler.order  # of now: loading a state may have changed its seed
        stream = Stream(seed, progress.epoch)
        epoch, start, done = progress.epoch, progress.samples_processed, progress.batches_processed
        step = 0
        for positions in plan.blocks(start):
            indices = order.indices(epoch, positions)
            for first in range(0, len(positions), size):
                step += 1
                after = Progress(
                    epoch=epoch,
                    samples_processed=plan.position_after(start, step),
                    batches_processed=done + step,
                )
                batch = slice(first, first + size)
                yield Task(indices[batch], positions[batch], stream, after)

    def end(self, progress: Progress) -> Progress:
        samples, batches = progress.samples_processed, progress.batches_processed
        if self._plan.tail != "drop" and samples < self._plan.length:
            # An uneven last step that this rank had no part in; the state is that of all.
            samples, batches = self._plan.length, batches + 1
        return replace(
            progress, samples_processed=samples, batches_processed=batches, finished=True
        )

    def num_batches(self) -> int:
        return self._plan.num_batches()


class SampledTasks:
    """Tasks of a sampler or batch sampler of the user's own, taken as it is.

    A stateful one is restored by its state, as of the delivered batch. Of a stateless one
    the consumed indices are drawn again and dropped; its random numbers, from the global
    generators or its own `generator`, are made to be the same then.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        batch_size: int | None,
        drop_last: bool,
        yields_batches: bool,
        topology: Topology,
    ) -> None:
        self._sampler = sampler
        self._size = 1 if batch_size is None else batch_size
        self._drop_last = drop_last
        self._yields_batches = yields_batches
        self._topology = topology
        inner = getattr(sampler, "sampler", None) if yields_batches else None
        self._stateful: Any = next((s for s in (sampler, inner) if _is_stateful(s)), None)
        generators = (getattr(s, "generator", None) for s in (sampler, inner))
        self._generator = next((g for g in generators if isinstance(g, torch.Generator)), None)
        self._draws_at_start = _draws_only_at_start(inner if inner is not None else sampler)

    def fresh(self, epoch: int) -> Progress:
        return Progress(
            epoch=epoch, rng_state=self._generator_state(), sampler=self._sampler_state()
        )

    def restore(self, progress: Progress) -> None:
        if self._stateful is not None and progress.sampler is not None:
            self._stateful.load_state_dict(copy.deepcopy(progress.sampler["state"]))
        elif self._generator is not None and progress.rng_state is not None:
            state = bytearray(base64.b64decode(progress.rng_state))
            self._generator.set_state(torch.frombuffer(state, dtype=torch.uint8))

    def run(self, progress: Progress, seed: int) -> Iterator[Task]:
        world_size, rank = self._topology.world_size, self._topology.rank
        stream = Stream(seed, progress.epoch)
        done, drawn = progress.batches_processed, progress.samples_processed // world_size
        for indices in self._batches(progress, seed):
            first, drawn, done = drawn, drawn + len(indices), done + 1
            after = replace(
                progress,
                samples_processed=drawn * world_size,
                batches_processed=done,
                # A short batch is the last one, and the sampler may have reset itself since.
                sampler=self._sampler_state(ended=self._is_short(indices)),
            )
            # Interleaved, as ranks share an order: no two ranks have a sample's key in common.
            positions = np.arange(first, drawn, dtype=np.int64) * world_size + rank
            yield Task(indices, positions, stream, after)

    def end(self, progress: Progress) -> Progress:
        # The next pass goes on from where sampler and generator are now.
        return replace(
            progress,
            finished=True,
            rng_state=self._generator_state(),
            sampler=self._sampler_state(),
        )

    def num_batches(self) -> int:
        count = len(self._sampler)  # type: ignore[arg-type]
        if self._yields_batches:
            return count
        return count // self._size if self._drop_last else -(-count // self._size)

    def _sampler_state(self, *, ended: bool = False) -> dict[str, Any] | None:
        if self._stateful is None:
            return None
        # Copied, since a sampler may go on changing what it returned.
        return {"state": copy.deepcopy(self._stateful.state_dict()), "ended": ended}

    def _is_short(self, indices: Sequence[Any]) -> bool:
        return not self._yields_batches and len(indices) < self._size

    def _generator_state(self) -> str | None:
        if self._generator is None or self._stateful is not None:
            return None
        return base64.b64encode(self._generator.get_state().numpy().tobytes()).decode("ascii")

    def _batches(self, progress: Progress, seed: int) -> Iterator[Sequence[Any]]:
        """Draw the indices of each batch, those already consumed left out."""
        if progress.sampler is not None and progress.sampler["ended"]:
            return
        isolated: AbstractContextManager[None] = nullcontext()
        skipped = 0
        if self._stateful is None:
            key = key_as_int("sampler", seed, progress.epoch)
            isolated = _Isolated(key, once=self._draws_at_start)
            samples = progress.samples_processed // self._topology.world_size
            skipped = progress.batches_processed if self._yields_batches else samples
        count = 1 if self._yields_batches else self._size
        with isolated:
            drawing = iter(self._sampler)
            next(itertools.islice(drawing, skipped, skipped), None)  # drops so many
            drawn = list(itertools.islice(drawing, count))
        while drawn and not (self._drop_last and len(drawn) < count):
            yield list(drawn[0]) if self._yields_batches else drawn
            with isolated:
                drawn = list(itertools.islice(drawing, count))


class _Isolated(AbstractContextManager[None]):
    """Global generators of a sampler's own, seeded by a key, in place of the caller's.

    So its draws are the same at every replay, and neither take from nor give to the
    numbers that the caller draws in between. With `once`, only the first time.
    """

    def __init__(self, key: int, *, once: bool) -> None:
        self._once = once
        self._callers = capture()
        seed_all(key)
        self._own: Captured | None = capture()
        restore(self._callers)

    def __enter__(self) -> None:
        if self._own is not None:
            self._callers = capture()
            restore(self._own)

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own = None if self._once else capture()
            restore(self._callers)


def _is_stateful(sampler: object) -> bool:
    return all(callable(getattr(sampler, name, None)) for name in ("state_dict", "load_state_dict"))


def _draws_only_at_start(sampler: object) -> bool:
    """Whether a sampler is known to use the global generators for its first index only."""
    return type(sampler) in (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
