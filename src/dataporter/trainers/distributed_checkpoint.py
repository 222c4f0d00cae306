"""Loaders of every kind in checkpoints of torch.distributed.checkpoint.

`dcp.save` splits a state: each value becomes its own entry, written by the rank with the least
to write. `dcp.load` reads only the entries that the present state has. This works for a loader
over a map-style dataset: its state is flat, always has the same keys, and is the same on every
rank. It fails for states of iterables and of user-defined samplers. `WholeState` stores any
state as one entry, with the states of all ranks.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader

from dataporter.errors import OptionError, StateFormatError
from dataporter.law import Topology
from dataporter.law.lane_states import pack
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.trainers.loader_states import Missing, check_missing, load_states, without_state

_ENTRY = "state"


class WholeState:
    """A wrapper that stores a loader's state as one entry of a `dcp` checkpoint.

    >>> from dataporter import ResumableDataLoader
    >>> loader = ResumableDataLoader(range(10), batch_size=2, shuffle=True)
    >>> parts = {"loader": WholeState(loader)}  # beside the model and the optimizer
    >>> first = next(iter(loader))
    >>> saved = parts["loader"].state_dict()  # dcp.save(parts, checkpoint_id=folder) does this
    >>> parts["loader"].load_state_dict(saved)  # and this dcp.load(parts, checkpoint_id=folder)
    >>> sum(len(batch) for batch in loader)
    8

    In a process group the ranks exchange their states in `state_dict()`, so every rank must call
    it, as every rank must call `dcp.save`. If only some ranks do, pass their `process_group`.
    """

    def __init__(
        self, loader: ResumableDataLoader[Any], *, process_group: dist.ProcessGroup | None = None
    ) -> None:
        self._loader = loader
        self._group = process_group

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks as bytes, or one state if they are equal."""
        own = self._loader.state_dict()
        states: list[Any] = [own]
        ranks = _topology(self._group).world_size
        if ranks > 1:
            states = [None] * ranks
            dist.all_gather_object(states, own, group=self._group)
        packed = [pack(state) for state in states]
        return {_ENTRY: pack(packed if len(set(packed)) > 1 else packed[:1])}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where the saving ranks stood. The number of ranks may differ."""
        load_states(self._loader, _unpacked(state_dict), _topology(self._group))


def load_loader(
    loader: ResumableDataLoader[Any],
    checkpoint_id: str | os.PathLike[str] | None = None,
    *,
    key: str = "loader",
    missing: Missing = "raise",
    storage_reader: StorageReader | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> bool:
    """Load only a loader from a checkpoint, whether saved directly or as a `WholeState`.

    Return True if the checkpoint has a state of the loader. If not, raise an error, or with
    `missing="begin"` return False and leave the loader as it is: a new loader starts its first
    epoch. Every rank must call this.
    """
    check_missing(missing)
    reader = FileSystemReader(checkpoint_id) if checkpoint_id is not None else storage_reader
    if reader is None:
        msg = "load_loader requires a checkpoint_id or a storage_reader, found neither."
        raise OptionError(msg)
    try:
        found = reader.read_metadata().state_dict_metadata
    except FileNotFoundError:
        return without_state(missing, f"in {checkpoint_id}", ())
    if f"{key}.{_ENTRY}" in found:
        part: Any = WholeState(loader, process_group=process_group)
    elif f"{key}.version" in found:
        part = loader
    else:
        names = {name.rpartition(".")[0] or name for name in found}
        return without_state(missing, f"under the key {key!r}", names)
    load({key: part}, storage_reader=reader, process_group=process_group)
    return True


def _topology(group: dist.ProcessGroup | None) -> Topology:
    if not (dist.is_available() and dist.is_initialized()):
        return Topology()
    return Topology(rank=dist.get_rank(group), world_size=dist.get_world_size(group))


def _unpacked(state: object) -> list[Mapping[str, Any]]:
    packed = state.get(_ENTRY) if isinstance(state, Mapping) else None
    if not isinstance(packed, bytes):
        msg = (
            f"a WholeState must be a dict with bytes under {_ENTRY!r}, found {state!r:.80}. Load a "
            "checkpoint that holds a WholeState. Load a loader that was saved directly by "
            "load_loader, or without WholeState."
        )
        raise StateFormatError(msg)
    # Bytes written by `pack`. dcp.load has already unpickled the rest of the file.
    return [pickle.loads(one) for one in pickle.loads(packed)]  # noqa: S301
