"""What a checkpoint has to hold beyond what Lightning puts into it: a record.

epoch      whose data the loaders were delivering
ranks      of each rank: the states of its loaders, which of them have come to their end if
           they are repeated until all have, and its random generators
gradients  of an accumulation that is not finished, averaged over the ranks

All ranks make it together, as any checkpoint of Lightning's.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dataporter.errors import DataPorterWarning
from dataporter.law import Topology
from dataporter.samplers import group_topology
from dataporter.trainers.lightning.framework import LightningModule, Trainer
from dataporter.trainers.lightning.several import Moment
from dataporter.training.rng_state import get_rng_state

KEY = "dataporter"

# Each rank has all parameters, so their gradients can be averaged one by one.
_REPLICATING = ("SingleDeviceStrategy", "DDPStrategy")


def make_record(
    trainer: Trainer,
    module: LightningModule,
    *,
    moment: Moment,
    validation: Sequence[Any],
    epoch: int,
    accumulates: bool,
) -> dict[str, Any]:
    """Put a record together, of all ranks."""
    part = {"loaders": moment.states, "ended": moment.ended, "generators": get_rng_state()}
    return {
        "epoch": epoch,
        "ranks": _gathered(part),
        "validation": list(validation),
        "gradients": _gradients(trainer, module) if accumulates else {},
    }


def bare_record(states: Sequence[Any], checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Make one of what a checkpoint holds that was saved without the callback."""
    epochs = [state["epoch"] for state in states if isinstance(state, dict) and "epoch" in state]
    return {
        "epoch": min(epochs, default=checkpoint.get("epoch", 0)),
        "ranks": [{"loaders": list(states), "ended": [], "generators": None}],
        "validation": [],
        "gradients": {},
    }


def moment_in(record: Mapping[str, Any]) -> Moment:
    """The states for this rank's loaders; all ranks' states of one where the ranks changed."""
    own = _own_part(record)
    if own is not None:
        return Moment(states=own["loaders"], ended=own["ended"])
    each = zip(*(rank["loaders"] for rank in record["ranks"]), strict=True)
    return Moment(
        states=[list(states) if "lanes" in states[0] else states[0] for states in each],
        ended=[
            all(ranks) for ranks in zip(*(rank["ended"] for rank in record["ranks"]), strict=True)
        ],
    )


def generators_in(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """This rank's random generators; None where the ranks are not those that were saved."""
    own = _own_part(record)
    return None if own is None else own["generators"]


def put_gradients(module: LightningModule, gradients: Mapping[str, torch.Tensor]) -> None:
    """Go on with an accumulation."""
    for name, parameter in module.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter.device, parameter.dtype)


def _own_part(record: Mapping[str, Any]) -> dict[str, Any] | None:
    here = group_topology() or Topology()
    ranks: list[dict[str, Any]] = record["ranks"]
    return ranks[here.rank] if len(ranks) == here.world_size else None


def _gathered(part: dict[str, Any]) -> list[dict[str, Any]]:
    here = group_topology() or Topology()
    if here.world_size == 1:
        return [part]
    parts: list[Any] = [None] * here.world_size
    dist.all_gather_object(parts, part)
    return parts


def _gradients(trainer: Trainer, module: LightningModule) -> dict[str, torch.Tensor]:
    strategy = type(trainer.strategy).__name__
    if strategy not in _REPLICATING:
        msg = (
            f"a checkpoint was saved between two optimizer steps, and {strategy} does not let the "
            "gradients that wait for the next one be saved. Save where "
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} batches are complete."
        )
        warnings.warn(msg, DataPorterWarning, stacklevel=2)
        return {}
    return {
        name: trainer.strategy.reduce(parameter.grad.clone(), reduce_op="mean")
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
