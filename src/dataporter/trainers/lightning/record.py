"""The record that `ResumeCallback` adds to a Lightning checkpoint.

epoch       the epoch of the batches that the loaders deliver
ranks       for each rank: the states of its loaders, which of them have ended (if they are
            repeated until all have), and its random generators
validation  the states of the validation loaders
gradients   the gradients of an unfinished accumulation, averaged over the ranks

All ranks make it together, like any Lightning checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dataporter.errors import DataPorterWarning
from dataporter.trainers.lightning.framework import LightningModule, Trainer
from dataporter.trainers.lightning.placing import Snapshot
from dataporter.trainers.loader_states import are_split
from dataporter.training.loadable import get_rng_state
from dataporter.training.ranks import on_every_rank, topology

KEY = "dataporter"

# Each rank has all parameters, so their gradients can be averaged one by one.
_REPLICATING = ("SingleDeviceStrategy", "DDPStrategy")


def make_record(
    trainer: Trainer,
    module: LightningModule,
    *,
    snapshot: Snapshot,
    validation: Sequence[Any],
    epoch: int,
    accumulates: bool,
) -> dict[str, Any]:
    """Make a record of all ranks."""
    part = {"loaders": snapshot.states, "ended": snapshot.ended, "generators": get_rng_state()}
    return {
        "epoch": epoch,
        "ranks": on_every_rank(lambda: part),
        "validation": list(validation),
        "gradients": _gradients(trainer, module) if accumulates else {},
    }


def bare_record(states: Sequence[Any], checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Make a record from a checkpoint that was saved without the callback."""
    epochs = [state["epoch"] for state in states if isinstance(state, dict) and "epoch" in state]
    return {
        "epoch": min(epochs, default=checkpoint.get("epoch", 0)),
        "ranks": [{"loaders": list(states), "ended": [], "generators": None}],
        "validation": [],
        "gradients": {},
    }


def snapshot_in(record: Mapping[str, Any]) -> Snapshot:
    """Return the states for this rank's loaders, or those of all ranks if their number changed."""
    own = _own_part(record)
    if own is not None:
        return Snapshot(states=own["loaders"], ended=own["ended"])
    each = zip(*(rank["loaders"] for rank in record["ranks"]), strict=True)
    return Snapshot(
        # If the number of ranks matters, the loader refuses rank 0's state.
        states=[list(states) if are_split(states) else states[0] for states in each],
        ended=[
            all(ranks) for ranks in zip(*(rank["ended"] for rank in record["ranks"]), strict=True)
        ],
    )


def generators_in(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return this rank's random generators, or None if the number of ranks changed."""
    own = _own_part(record)
    return None if own is None else own["generators"]


def put_gradients(module: LightningModule, gradients: Mapping[str, torch.Tensor]) -> None:
    """Restore the gradients of an unfinished accumulation."""
    for name, parameter in module.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.device, parameter.dtype)


def _own_part(record: Mapping[str, Any]) -> dict[str, Any] | None:
    here = topology()
    ranks: list[dict[str, Any]] = record["ranks"]
    return ranks[here.rank] if len(ranks) == here.world_size else None


def _gradients(trainer: Trainer, module: LightningModule) -> dict[str, torch.Tensor]:
    strategy = type(trainer.strategy).__name__
    if strategy not in _REPLICATING:
        msg = (
            f"accumulated gradients are not in the checkpoint: it was saved between two optimizer "
            f"steps, and {strategy} does not support saving them. Save after a multiple of "
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} batches."
        )
        warnings.warn(msg, DataPorterWarning, stacklevel=2)
        return {}
    return {
        name: trainer.strategy.reduce(parameter.grad.clone(), reduce_op="mean")
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
