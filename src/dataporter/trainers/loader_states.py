"""One file with the states of a run's loaders, for the checkpoint of a framework.

Only rank 0 writes and reads the file, and sends its contents to the other ranks. So no rank
overwrites another's file, and ranks without a shared disk agree. Equal states are stored once.
They are equal unless a dataset is read in lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from dataporter.errors import StateFormatError, StateMissingError
from dataporter.training.loadable import explain
from dataporter.training.ranks import on_every_rank, on_first_rank, without_repetition

FILE = "dataporter_loaders.pt"  # its name in the folder of a checkpoint

States: TypeAlias = list[dict[str, Any]]  # of one loader: that of all ranks, or each rank's


class HasState(Protocol):
    """A loader, or an object with the state of one."""

    def state_dict(self) -> dict[str, Any]: ...


def write_states(path: Path, loaders: Sequence[HasState]) -> None:
    """Write the states of some loaders. All ranks must call this.

    >>> import tempfile
    >>> from dataporter import ResumableDataLoader
    >>> loader = ResumableDataLoader(range(10), batch_size=3)
    >>> first = next(iter(loader))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_states(Path(folder) / "loaders.pt", [loader])
    ...     [[state]] = read_states(Path(folder) / "loaders.pt", remedy="")
    >>> state == loader.state_dict()
    True
    """
    each_rank = on_every_rank(lambda: [loader.state_dict() for loader in loaders])
    contents = [without_repetition(states) for states in zip(*each_rank, strict=True)]
    on_first_rank(lambda: _write(path, contents))


def read_states(path: Path, *, remedy: str) -> list[States]:
    """Read a file of `write_states`. Errors end with `remedy`."""
    return on_first_rank(lambda: _read(path, remedy))


def _write(path: Path, contents: list[States]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(contents, path)
        torch.load(path, weights_only=True)  # raise now if it could not be loaded later
    except Exception as error:
        explain(error, {"loaders": contents})
        raise


def _read(path: Path, remedy: str) -> list[States]:
    if not path.exists():
        msg = (
            f"{path.parent} has no loader state: {path.name} is missing. The checkpoint was saved "
            f"without dataporter, or the folder is not a checkpoint. {remedy}"
        )
        raise StateMissingError(msg)
    contents: list[States] = loaded(path, remedy)
    return contents


def loaded(path: Path, remedy: str) -> Any:
    """Return the contents of a file of dataporter. Errors end with `remedy`."""
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:
        msg = f"{path} is damaged or not written by dataporter: {error!r:.200}. {remedy}"
        raise StateFormatError(msg) from error
