"""Putting a loader of a trainer to a position, after it has begun to iterate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from dataporter.law.ahead import size_of
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import is_own
from dataporter.trainers.lightning import loops
from dataporter.trainers.lightning.framework import Trainer

State: TypeAlias = Any  # a loader's state, or the list of those of all ranks


def place(trainer: Trainer, loader: Any, state: State, epoch: int, *, goes_on: bool) -> None:
    """Have a trainer's loader go on where it stood in `epoch`, or begin it after an earlier one."""
    if has_order(loader):
        # Into a pass that has begun: at its next batch it takes note of what the trainer has told
        # the sampler since, which would have the next pass repeat this epoch.
        go_on(loader, state)
        if not goes_on:  # that it could is a check of the state
            loader.load_state_dict(at_start(loader.state_dict(), epoch))
        return
    if not isinstance(loader, ResumableDataLoader):
        if goes_on:
            loader.load_state_dict(state)
    elif goes_on:
        go_on(loader, state)
    else:
        _end(loader, state)
    loops.begin_passes(trainer)


def go_on(loader: ResumableDataLoader[Any], state: State) -> None:
    """Have the next pass continue where a state was taken, or be empty if that was an end."""
    loader.load_state_dict(state)
    loader.set_epoch(loader.epoch)  # else one that has ended would begin the next


def has_order(loader: object) -> bool:
    """Whether a position is all that there is to say of where a loader stands."""
    if not isinstance(loader, ResumableDataLoader) or not is_own(loader.sampler):
        return False
    return "lanes" not in loader.state_dict()


def at_start(state: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """A state of the same order at the start of an epoch."""
    start = {"epoch": epoch, "samples_processed": 0, "batches_processed": 0, "finished": False}
    return {name: value for name, value in {**state, **start}.items() if name != "ahead"}


def batches_done(trainer: Trainer, loaders: Sequence[Any], states: Sequence[State]) -> int | None:
    """Batches of the epoch that loaders have behind them, if they count other ones than before."""
    moved = [
        loader
        for loader, state in zip(loaders, states, strict=True)
        if has_order(loader) and _size(state) != _size(loader.state_dict())
    ]
    if not moved or trainer.num_training_batches == float("inf"):
        return None  # the same as before, or as many as there are
    choose = min if loops.ends_with_the_shortest(trainer) else max
    loader = choose(moved, key=len)
    return len(loader) - _batches_left(loader)


def _size(state: Mapping[str, Any]) -> tuple[Any, Any]:
    return state["batch_size"], state["world_size"]


def _batches_left(loader: ResumableDataLoader[Any]) -> int:
    plan: Any = loader.plan  # of a loader that has an order
    state = loader.state_dict()
    left = replace(plan, length=plan.length - size_of(state.get("ahead", ())))
    return int(left.num_batches(state["samples_processed"]))


def _end(loader: ResumableDataLoader[Any], state: State) -> None:
    """Have the next pass follow the one that a state is of, whether that had ended or not."""
    loader.load_state_dict(state)
    if not loader.state_dict()["finished"]:
        iter(loader)
