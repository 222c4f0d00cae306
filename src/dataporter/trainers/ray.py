"""A loader in a Ray Train run: its rank among the workers, and its state in Ray's checkpoints.

Under `TorchTrainer` a loader finds Ray's process group and shares the data by itself. Ray
restarts dead workers from the newest reported checkpoint. This is one folder that merges the
folders of all workers, so each rank has its own file in it.
"""

from __future__ import annotations

import glob
import io
import os
from pathlib import Path
from typing import Any

import torch

from dataporter.engine import OLDEST_RAY
from dataporter.errors import TopologyError
from dataporter.law import Topology
from dataporter.requirement import require
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.trainers.loader_states import (
    Missing,
    check_missing,
    load_states,
    loaded,
    without_state,
)
from dataporter.training.loadable import explain

# The oldest version that passes the tests. In 2.30 every process is rank 0 of 1.
require("ray", at_least=OLDEST_RAY, extra="ray")

from ray import train  # noqa: E402  only after `require`

_NAME = "{key}-rank{rank:05}.pt"
_REMEDY = "Load an older checkpoint, or start without one."


def topology() -> dict[str, int]:
    """Return this worker's rank and the number of workers, as arguments of a loader.

    For trainers without a torch process group: `ResumableDataLoader(data, **topology())`.
    """
    here = _here()
    return {"rank": here.rank, "world_size": here.world_size}


def save_loader(
    loader: ResumableDataLoader[Any], folder: str | os.PathLike[str], *, key: str = "loader"
) -> None:
    """Write a loader's state into a folder that is reported to Ray as a checkpoint.

    For a map-style dataset the state of one worker is enough. For an iterable each worker must
    save and report its own.
    """
    state = loader.state_dict()
    written = io.BytesIO()
    try:
        torch.save(state, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:
        explain(error, {"the loader's state": state})
        raise
    path = Path(folder, _NAME.format(key=key, rank=_here().rank))
    path.write_bytes(written.getvalue())


def load_loader(
    loader: ResumableDataLoader[Any],
    folder: str | os.PathLike[str],
    *,
    key: str = "loader",
    missing: Missing = "raise",
) -> bool:
    """Make a loader continue from a checkpoint of `save_loader`, of any number of workers.

    Return True if the checkpoint has a state. If not, raise an error, or with `missing="begin"`
    return False and leave the loader as it is.
    """
    check_missing(missing)
    paths = sorted(Path(folder).glob(f"{glob.escape(key)}-rank*.pt"))
    if not paths:
        names = [path.name for path in Path(folder).glob("*")]
        return without_state(missing, f"with the key {key!r} in {os.fspath(folder)}", names)
    load_states(loader, [loaded(path, _REMEDY) for path in paths], _here())
    return True


def _here() -> Topology:
    try:
        context = train.get_context()
        rank, world_size = context.get_world_rank(), context.get_world_size()
    except DeprecationWarning:  # raised in a trial of Ray Tune, which is one process
        return Topology()
    except RuntimeError as error:
        msg = (
            f"this process is not a Ray Train worker and has no rank ({error}). Call this inside "
            "the trainer's train_loop_per_worker or the function of a Tuner, or pass rank= and "
            "world_size= to the loader."
        )
        raise TopologyError(msg) from error
    # Without Ray Train's second version, a trial's context has ranks that are None.
    return Topology() if rank is None else Topology(rank=rank, world_size=world_size)
