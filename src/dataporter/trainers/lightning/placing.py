"""Moving a trainer's loader to a position after the trainer has started to iterate over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dataporter.law.rest import excluded_in, rest_of
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import is_own
from dataporter.trainers.lightning import loops
from dataporter.trainers.lightning.framework import Trainer

State: TypeAlias = Any  # a loader's state, or the list of those of all ranks


def place(trainer: Trainer, loader: Any, state: State, epoch: int, *, continues: bool) -> None:
    """Make a trainer's loader continue within `epoch`, or start `epoch` after an earlier one."""
    if is_seekable(loader):
        # The running pass moves to the state. Otherwise it would see at its next batch that the
        # trainer has called set_epoch on the sampler, and the next pass would repeat this epoch.
        continue_from(loader, state)
        if not continues:  # the load before was only a check of the state
            loader.seek(epoch)
        return
    if not isinstance(loader, ResumableDataLoader):
        if continues:
            loader.load_state_dict(state)
    elif continues:
        continue_from(loader, state)
    else:
        _skip_to_next_epoch(loader, state)
    loops.begin_passes(trainer)


def continue_from(loader: ResumableDataLoader[Any], state: State) -> None:
    """Make the next pass continue from a state. It is empty if the state is at an epoch's end."""
    loader.load_state_dict(state)
    loader.set_epoch(loader.epoch)  # otherwise a finished epoch would be followed by the next


def is_seekable(loader: object) -> bool:
    """Return True if a loader's place in its epoch is given by a position alone."""
    if not isinstance(loader, ResumableDataLoader) or not is_own(loader.sampler):
        return False
    return "lanes" not in loader.state_dict()


def batches_done(trainer: Trainer, loaders: Sequence[Any], states: Sequence[State]) -> int | None:
    """Return the finished batches of the epoch in the present batch size, or None if unchanged."""
    moved = [
        loader
        for loader, state in zip(loaders, states, strict=True)
        if is_seekable(loader) and _size(state) != _size(loader.state_dict())
    ]
    if not moved or trainer.num_training_batches == float("inf"):
        return None  # the same batches as before, or an unknown number
    choose = min if loops.ends_with_the_shortest(trainer) else max
    loader = choose(moved, key=len)
    return len(loader) - _batches_left(loader)


def _size(state: Mapping[str, Any]) -> tuple[Any, Any]:
    return state["batch_size"], state["world_size"]


def _batches_left(loader: ResumableDataLoader[Any]) -> int:
    plan: Any = loader.plan  # of a loader that has an order
    state = loader.state_dict()
    excluded = excluded_in(state["excluded"], state["epoch"])
    ahead = tuple(map(tuple, state["ahead"]))
    return rest_of(plan, state["samples_processed"], ahead, excluded).num_batches


def _skip_to_next_epoch(loader: ResumableDataLoader[Any], state: State) -> None:
    """Make the next pass start the epoch after a state's, even if that epoch is unfinished."""
    loader.load_state_dict(state)
    if not loader.state_dict()["finished"]:
        iter(loader)
