"""Looking back and ahead: any batch or sample of a run by its position, fetched here and now.

Nothing of the run is touched: the order is a function, and a fetcher of its own fetches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.arguments import check_int
from dataporter.engine import Runner
from dataporter.errors import OptionError, OptionTypeError
from dataporter.fetch import EMPTY, Fetcher, Partial
from dataporter.fetch.randomness import EpochKeys
from dataporter.fetch.tasks import Samples
from dataporter.sources.delivered import Delivered
from dataporter.sources.left_out import of_another_rank
from dataporter.sources.source import Source


def contents_at(source: Source, epoch: int, position: int) -> Delivered:
    """Say which samples this rank has in the step that begins at a position."""
    check_int("position", position, least=0)
    contents = source.shared_epoch(epoch, position).first_contents(position)
    if not len(contents.positions):
        rank = source.topology.rank
        msg = (
            f"rank {rank} has no batch at position {position:,} of epoch {epoch:,}: with "
            f"tail={source.tail!r} the last samples of an epoch do not reach it. Choose an "
            "earlier position."
        )
        raise OptionError(msg)
    return contents


def batch_at(source: Source, fetch: Fetcher, runner: Runner, epoch: int, position: int) -> Any:
    """Fetch this rank's batch of the step that begins at a position, as a run delivers it."""
    contents = contents_at(source, epoch, position)
    wanted = Samples(contents.indices, contents.positions, EpochKeys(source.seed, epoch))
    fetch.begin_pass()
    batch = fetch(wanted)
    if type(batch) is Partial and batch.batch is EMPTY and source.topology.world_size > 1:
        shared = source.shared_epoch(epoch, position)
        others = shared.of_others(shared.rest.start)
        found = of_another_rank(batch, fetch, others, source.topology, contents)
        batch = batch if found is None else found[1]
    return runner.deliver(_there(batch, wanted))


def samples_at(
    source: Source, fetch: Fetcher, epoch: int, positions: int | Iterable[int]
) -> list[Any]:
    """Fetch samples by their positions; `fetch` makes lists of samples."""
    at = _checked(positions)
    if not len(at):
        return []
    shared, _ = (source.shared_epoch(epoch, int(end)) for end in (at.min(), at.max()))
    shared.check_are_there(at)
    wanted = shared.samples(at)
    numbers = range(len(wanted.positions))
    each = (_one_of(wanted, number) for number in numbers)
    return [_only(_there(fetch(one), one)) for one in each]


def _there(batch: Any, wanted: Samples) -> Any:
    """Return what is left of a batch, or raise if that is nothing."""
    if type(batch) is not Partial:
        return batch
    if batch.batch is EMPTY:
        at = ", ".join(map(str, wanted.positions[:4]))
        msg = (
            f"there is nothing at position {at} of epoch {wanted.keys.epoch}: the dataset leaves "
            "these samples out, or cannot read them (`loader.skipped`). Choose other positions."
        )
        raise OptionError(msg)
    return batch.batch


def _one_of(wanted: Samples, number: int) -> Samples:
    one = slice(number, number + 1)
    return Samples(wanted.indices[one], wanted.positions[one], wanted.keys)


def _only(fetched: Any) -> Any:
    """Return the sample of a list of one; a dataset's `__getitems__` may make a batch of it."""
    return fetched[0] if isinstance(fetched, list | tuple) else fetched


def _checked(positions: int | Iterable[int]) -> NDArray[np.int64]:
    listed = [positions] if isinstance(positions, int | np.integer) else list(positions)
    if any(isinstance(each, bool) or not isinstance(each, int | np.integer) for each in listed):
        msg = f"positions must be integers, found {positions!r}."
        raise OptionTypeError(msg)
    return np.array(listed, dtype=np.int64)
