"""Batches with samples left out: samples that failed (`on_error="skip"`) or pass no lazy filter.

All ranks make the same steps and have the same state, whatever is left out, and none has to ask
the others. So in place of a batch of which nothing is left, a rank delivers what another rank has
in that step, as padding. A step of which no sample passes a filter is passed over, since all ranks
find that. If samples of it have failed, other ranks may have read them, and that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dataporter.errors import EmptyStepError, TooManySkippedError
from dataporter.fetch import EMPTY, Failed, Fetcher, Partial, Skipped
from dataporter.fetch.randomness import current_key, leave_for
from dataporter.fetch.tasks import Samples, Task
from dataporter.law import Topology
from dataporter.layout import counted
from dataporter.sources.delivered import Delivered
from dataporter.sources.readings import Contents

# The batches of the other ranks in a step; None where a sampler of the user's own decides.
Others: TypeAlias = Iterator[Samples] | None


def without_left_out(
    found: Partial,
    task: Task,
    fetch: Fetcher,
    contents: Callable[[Task], Delivered],
    others: Callable[[Task], Others],
    topology: Topology,
) -> tuple[Contents, Any]:
    """Return what a batch with samples left out consists of, and the batch that is delivered."""
    try:
        for skipped in found.skipped:
            fetch.note_skipped(skipped)
        if found.batch is EMPTY and topology.world_size > 1:
            other = of_another_rank(found, fetch, others(task), topology, contents(task))
            if other is not None:
                samples, batch = other
                return (partial(_as_padding, contents, samples), task), batch
    except (TooManySkippedError, EmptyStepError) as error:
        # Raised by us, so that its traceback says nothing; and its frames would hold the batch,
        # which is this error, and with it the workers until garbage is collected.
        return (contents, task), Failed(error.with_traceback(None))
    except Exception as error:  # noqa: BLE001  of the dataset; the caller raises it
        return (contents, task), Failed(error)
    return (Without(contents, found), task), found.batch


def of_another_rank(
    found: Partial, fetch: Fetcher, others: Others, topology: Topology, missed: Delivered
) -> tuple[Samples, Any] | None:
    """Fetch a batch of another rank in place of `missed`, of which nothing is left.

    Its samples, and the batch; None if no sample of the step passes a filter.
    """
    key, failed, wanted = current_key(), [*found.skipped], len(missed.positions)
    try:
        for samples in others or ():
            wanted += len(samples.positions)
            batch = fetch(samples)
            if type(batch) is not Partial:
                return samples, batch
            if batch.batch is not EMPTY:
                return _remaining(samples, batch), batch.batch
            failed += batch.skipped
    except BaseException:
        leave_for(key)  # the interrupt may have come while a sample was being left
        raise
    if others is not None and not failed:
        return None
    raise EmptyStepError(_nothing_left(missed, topology.rank, wanted, failed, others))


def _nothing_left(
    missed: Delivered, rank: int, wanted: int, failed: list[Skipped], others: Others
) -> str:
    why = f" The last error, at index {failed[-1].index!r}: {failed[-1].error}." if failed else ""
    remedy = (
        "A sampler of your own decides what other ranks have, so nothing of theirs is repeated "
        "here. Use larger batches, or leave the order to dataporter."
        if others is None
        else "Repair the data, or leave these positions out on all ranks: "
        f"loader.exclude({missed.epoch}, {missed.position}, {missed.position + wanted})."
    )
    return (
        f"rank {rank} has nothing to deliver in the step at position {missed.position:,} of epoch "
        f"{missed.epoch:,}, which other ranks may make: none of {counted(wanted, 'sample')} is "
        f"left.{why} {remedy}"
    )


def _remaining(samples: Samples, found: Partial) -> Samples:
    """Return the samples that a batch has."""
    out = {*found.left_out}
    return Samples(
        [index for number, index in enumerate(samples.indices) if number not in out],
        np.delete(samples.positions, found.left_out),
        samples.keys,
    )


class Without:
    """Says what is left of a task, and how many samples are not."""

    __slots__ = ("_contents", "_found", "left_out")

    def __init__(self, contents: Callable[[Task], Delivered], found: Partial) -> None:
        self._contents = contents
        self._found = found
        self.left_out = len(found.left_out)

    def __call__(self, task: Task) -> Delivered:
        samples: Any = task.payload
        whole, rest = self._contents(task), _remaining(samples, self._found)
        padding = np.delete(whole.padding, self._found.left_out)
        return replace(whole, positions=rest.positions, indices=rest.indices, padding=padding)


def left_out_of(contents: Contents) -> int:
    """Count the samples that are missing in a batch."""
    said_by = None if contents is None else contents[0]
    return said_by.left_out if type(said_by) is Without else 0


def _as_padding(contents: Callable[[Task], Delivered], samples: Samples, task: Task) -> Delivered:
    """Say what a rank has delivered in place of a task of its own."""
    return replace(
        contents(task),
        positions=samples.positions,
        indices=samples.indices,
        padding=np.ones(len(samples.positions), dtype=np.bool_),
    )
