"""A loader in a Ray Train run: its place among the workers, and its state in Ray's checkpoints.

Under `TorchTrainer` a loader needs nothing of this to share the data: Ray sets up a process
group, which it finds. Ray restarts workers that died from the newest checkpoint that was
reported, a folder into which those of all workers are merged; so each rank has a file of its
own in it.
"""

from __future__ import annotations

import glob
import io
import os
from pathlib import Path
from typing import Any

import torch

from dataporter.errors import TopologyError
from dataporter.law import Topology
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.trainers.loader_states import loaded
from dataporter.trainers.rank_states import Missing, check_missing, load_states, without_state
from dataporter.trainers.requirement import require
from dataporter.training.loadable import explain

# The oldest that was tried and does what is promised; 2.30 takes any process for rank 0 of 1.
require("ray", at_least="2.51", extra="ray")

from ray import train  # noqa: E402  after it is known to be there

_NAME = "{key}-rank{rank:05}.pt"
_REMEDY = "Load an older checkpoint, or begin without one."


def topology() -> dict[str, int]:
    """This worker's rank and the number of workers, as arguments of a loader.

    For trainers that set up no process group of torch: `ResumableDataLoader(data, **topology())`.
    """
    here = _here()
    return {"rank": here.rank, "world_size": here.world_size}


def save_loader(
    loader: ResumableDataLoader[Any], folder: str | os.PathLike[str], *, key: str = "loader"
) -> None:
    """Write a loader's state into a folder, to be reported to Ray as a checkpoint.

    Of a map-style dataset the state of one worker will do; of an iterable each worker has to
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
    """Make a loader continue at what the workers saved into a checkpoint, were they more or fewer.

    If no state is there, that is an error; with `missing="begin"` the loader is left as it is.
    Whether one was there is what is returned.
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
        return Topology(rank=context.get_world_rank(), world_size=context.get_world_size())
    except RuntimeError as error:
        msg = (
            f"this is no worker of Ray Train, so Ray knows no rank of it ({error}). Call it in the "
            "function that is given to the trainer, or pass rank= and world_size= to the loader."
        )
        raise TopologyError(msg) from error
