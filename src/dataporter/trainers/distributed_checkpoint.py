"""A loader in checkpoints of torch.distributed.checkpoint, whatever its state holds.

`dcp.save` takes a state apart: each value becomes an entry of its own, written by whichever
rank has least to write, and `dcp.load` reads only those entries that the state has before
the load. A loader over a map-style dataset bears that as it is, since its state is flat,
has the same keys always, and is the same on every rank. States of iterables and of samplers
of the user's own do not. `WholeState` makes one entry of any state, and keeps all ranks'.
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
from dataporter.trainers.rank_states import Missing, check_missing, load_states, without_state

_ENTRY = "state"


class WholeState:
    """A loader as `dcp.save`, `dcp.async_save` and `dcp.load` should see it.

    >>> from dataporter import ResumableDataLoader
    >>> loader = ResumableDataLoader(range(10), batch_size=2, shuffle=True)
    >>> parts = {"loader": WholeState(loader)}  # beside the model and the optimizer
    >>> first = next(iter(loader))
    >>> saved = parts["loader"].state_dict()  # dcp.save(parts, checkpoint_id=folder) does this
    >>> parts["loader"].load_state_dict(saved)  # and this dcp.load(parts, checkpoint_id=folder)
    >>> sum(len(batch) for batch in loader)
    8

    With a process group its ranks exchange their states in `state_dict()`, so each of them has
    to call it, as each has to call `dcp.save`. Where only some ranks do, give their
    `process_group`.
    """

    def __init__(
        self, loader: ResumableDataLoader[Any], *, process_group: dist.ProcessGroup | None = None
    ) -> None:
        self._loader = loader
        self._group = process_group

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks as bytes; of one, where they are the same."""
        own = self._loader.state_dict()
        states: list[Any] = [own]
        ranks = _topology(self._group).world_size
        if ranks > 1:
            states = [None] * ranks
            dist.all_gather_object(states, own, group=self._group)
        packed = [pack(state) for state in states]
        return {_ENTRY: pack(packed if len(set(packed)) > 1 else packed[:1])}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where the ranks were that saved this, on as many or on others."""
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
    """Load only a loader out of a checkpoint, saved as it is or as a `WholeState`.

    For checkpoints that may have none, where `dcp.load` fails with an error of its own. With
    `missing="begin"` the loader is then left as it is, a new one at the beginning of its first
    epoch; whether a state was there is what is returned. Every rank has to call this.
    """
    check_missing(missing)
    reader = FileSystemReader(checkpoint_id) if checkpoint_id is not None else storage_reader
    if reader is None:
        msg = "load_loader needs a checkpoint_id or a storage_reader, found neither."
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
            f"a WholeState was saved as a dict with bytes under {_ENTRY!r}, found {state!r:.80}. "
            "Load what dcp.save wrote of a WholeState; a loader that was saved as it is, is loaded "
            "as it is, or by load_loader."
        )
        raise StateFormatError(msg)
    # Bytes of `pack`. What dcp.load reads it has unpickled itself already.
    return [pickle.loads(one) for one in pickle.loads(packed)]  # noqa: S301
