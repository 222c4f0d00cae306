"""The place of a user's own sampler in a state of torchdata.

torchdata keeps the state of a sampler, and that of its iterator, if they have one. Else a resume
draws what was delivered again. Here a sampler is put back likewise; no data is read. What would
lead to other data is refused: states of iterators, which we do not load, and samplers that draw
from a global generator, whose state nobody has saved.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, NamedTuple

import torch

from dataporter.errors import StateMismatchError
from dataporter.fetch.generators import capture
from dataporter.law.state import Progress
from dataporter.law.torchdata_state import TorchdataState
from dataporter.sources.source import Source
from dataporter.sources.users_sampler import (
    chain_of,
    has_state,
    is_put_back_by_state,
    is_torchs_batch_sampler,
)


class GivenSampler(NamedTuple):
    """A sampler or batch sampler of the user's own; `batch_size` is None if it yields batches."""

    outermost: Any
    yields_batches: bool
    batch_size: int | None


def progress_of_sampler(found: TorchdataState, source: Source, sampler: GivenSampler) -> Progress:
    """Return the progress at which a state of torchdata was taken.

    The sampler is elsewhere then: the progress says where it has to be put. If this fails, it is
    where it was.
    """
    epoch = source.epoch_holder.epoch or 0  # torchdata counts none: the user has told it
    before = source.fresh(epoch)
    generators = capture()
    try:
        reached = _reached(found, source, sampler, epoch)
    except BaseException:
        source.restore(before)
        raise
    finally:
        generators.restore()
    return reached._replace(finished=found.finished)


def _reached(found: TorchdataState, source: Source, sampler: GivenSampler, epoch: int) -> Progress:
    by_state = is_put_back_by_state(sampler.outermost)
    since = 0 if source.has_lanes else found.steps_since  # lanes have to be read
    _check(found, sampler, found.steps + found.steps_since)
    samples, again = 0, since  # batches to draw again
    if found.sampler is None:
        _put_generator_back(found, sampler)
        start, again = source.fresh(epoch), found.steps + since
    else:
        start = _put_back(found, sampler, source, epoch)
        if by_state:  # else its samples are counted from here
            samples = _samples(found, sampler)
    reached = start._replace(batches_processed=found.steps + since)
    if found.finished:
        if found.sampler is None or found.has_workers:  # else its state is of after the end
            _draw(sampler, None)
            if found.has_workers:
                _skip_unused_shuffle(sampler)
            reached = source.fresh(epoch)
    elif again:
        drawn, is_short = _draw(sampler, again)
        samples += drawn
        if by_state:
            kept = source.fresh(epoch).sampler or {}
            reached = reached._replace(sampler={**kept, "ended": is_short})
    return reached._replace(samples_processed=samples * source.topology.world_size)


def _check(found: TorchdataState, sampler: GivenSampler, delivered: int) -> None:
    """Refuse a state of another sampler, or one that cannot be followed here."""
    if found.sampler is None and has_state(sampler.outermost):
        msg = (
            "this state of torchdata has no state of a sampler, and this loader's has one. Resume "
            "with the sampler that it was saved with."
        )
        raise StateMismatchError(msg)
    if found.sampler is not None and not any(map(has_state, chain_of(sampler.outermost))):
        msg = (
            "this state of torchdata has the state of a sampler, and this loader's sampler has no "
            "load_state_dict. Resume with the sampler that it was saved with."
        )
        raise StateMismatchError(msg)
    if found.iterator is not None and delivered and not found.finished:
        msg = (
            "this state of torchdata has the state of a sampler's iterator, and dataporter loads "
            "states of samplers only. Give the sampler itself state_dict and load_state_dict, or "
            "begin the epoch anew."
        )
        raise StateMismatchError(msg)


def _put_back(found: TorchdataState, sampler: GivenSampler, source: Source, epoch: int) -> Progress:
    """Load the state of a sampler; return the progress of an epoch that begins there."""
    parts = enumerate(chain_of(sampler.outermost))
    depth, part = next((depth, part) for depth, part in parts if has_state(part))
    part.load_state_dict(copy.deepcopy(found.sampler))
    start, kept = source.fresh(epoch), found.sampler  # which the sampler may not show yet
    if not is_put_back_by_state(sampler.outermost):
        kept = {**(start.sampler or {"state": {}})["state"], str(depth): kept}
    return start._replace(sampler={"state": kept, "ended": _is_short(found, sampler)})


def _put_generator_back(found: TorchdataState, sampler: GivenSampler) -> None:
    """Put the generator of a sampler that shuffles as torchdata does where its epoch began."""
    shuffling = [part for part in chain_of(sampler.outermost) if _shuffling(part)]
    if bool(shuffling) == (found.generator is not None):
        for part in shuffling:
            part.generator.set_state(found.generator)
    elif found.generator is not None or found.steps or found.steps_since:
        msg = (
            "this state of torchdata was shuffled by torchdata's RandomSampler and this loader's "
            "sampler does not shuffle like that, or the other way round. To continue a shuffled "
            "run, pass sampler=RandomSampler(dataset) of dataporter.stateful_dataloader."
        )
        raise StateMismatchError(msg)


def _skip_unused_shuffle(sampler: GivenSampler) -> None:
    """Draw once more: with workers torchdata makes two iterators an epoch, and uses the second."""
    for part in chain_of(sampler.outermost):
        for drawing in _shuffling(part):
            next(drawing, None)


def _shuffling(part: Any) -> list[Any]:
    """Return an iterator of torchdata's RandomSampler or ours, which has a state; else nothing.

    That of torchdata draws when it is made, ours with its first index.
    """
    if has_state(part) or not isinstance(getattr(part, "generator", None), torch.Generator):
        return []
    drawing = iter(part)
    return [drawing] if has_state(drawing) else []


def _samples(found: TorchdataState, sampler: GivenSampler) -> int:
    if found.samples is not None:
        return found.samples
    return found.steps * (sampler.batch_size or 1)  # of batches that only their sampler knows


def _is_short(found: TorchdataState, sampler: GivenSampler) -> bool:
    """Return True if the last batch was a short one: the sampler has ended, and may begin anew."""
    is_known = found.samples is not None and sampler.batch_size is not None
    return (
        is_known
        and not found.finished
        and _samples(found, sampler) < (found.steps * (sampler.batch_size or 1))
    )


def _draw(sampler: GivenSampler, batches: int | None) -> tuple[int, bool]:
    """Draw so many batches, or all; return how many indices, and True if there were no more."""
    before = capture()
    if sampler.yields_batches:
        sizes = [len(batch) for batch in itertools.islice(iter(sampler.outermost), batches)]
        drawn, is_short = sum(sizes), batches is None or len(sizes) < batches
        if is_torchs_batch_sampler(sampler.outermost) and sizes:
            is_short |= sizes[-1] < sampler.outermost.batch_size
    else:
        wanted = None if batches is None else batches * (sampler.batch_size or 1)
        drawn = sum(1 for _ in itertools.islice(iter(sampler.outermost), wanted))
        is_short = wanted is None or drawn < wanted
    if batches is not None and not before.still_holds():
        msg = (
            f"the {type(sampler.outermost).__name__} draws from a global random generator, whose "
            "state torchdata does not save: nobody knows the rest of this epoch. Begin the epoch "
            "anew, or give the sampler a state."
        )
        raise StateMismatchError(msg)
    return drawn, is_short
