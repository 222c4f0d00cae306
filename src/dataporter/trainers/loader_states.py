"""The states of a run's loaders on all ranks: in one file of a checkpoint, and loaded again.

Only rank 0 writes and reads the file, and sends its contents to the other ranks. So no rank
overwrites another's file, and ranks without a shared disk agree. Equal states are stored once: all
ranks of a map-style loader share one. Ranks of an iterable have one each. Each rank loads its own,
or with `lanes=` and another number of ranks the states of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import torch

from dataporter.errors import OptionError, StateFormatError, StateMissingError
from dataporter.law import Topology
from dataporter.resumable_dataloader import ResumableDataLoader
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


Missing = Literal["raise", "begin"]


def load_states(
    loader: ResumableDataLoader[Any], states: Sequence[Mapping[str, Any]], here: Topology
) -> None:
    """Make a loader continue from the states of a run's ranks, in rank order."""
    if len(states) == 1:
        loader.load_state_dict(states[0])
        return
    if are_split(states):
        loader.load_state_dict(list(states))  # it knows which lanes are its own
    elif len(states) == here.world_size:
        loader.load_state_dict(states[here.rank])
    else:  # if the number of ranks matters, the loader refuses the state
        rank = loader.state_dict().get("rank")
        own = (state for state in states if state.get("rank") == rank)
        loader.load_state_dict(next(own, states[0]))


def are_split(states: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the ranks share lanes: those of two are the same, as on a mesh, or apart."""
    if not all("lanes" in state for state in states):
        return False
    shares = {frozenset(state["lanes"]["each"]) for state in states}
    return len(shares) > 1 and sum(map(len, shares)) == len(frozenset().union(*shares))


def check_missing(missing: Missing) -> None:
    """Raise unless `missing` is 'raise' or 'begin'."""
    if missing not in {"raise", "begin"}:
        msg = f"missing must be 'raise' or 'begin', found {missing!r}."
        raise OptionError(msg)


def without_state(missing: Missing, where: str, found: Iterable[str]) -> Literal[False]:
    """Return False for a checkpoint without a loader state, or raise if `missing` is 'raise'.

    >>> without_state("begin", "under 'loader'", ["model"])
    False
    """
    if missing == "begin":
        return False
    msg = (
        f"the checkpoint has no loader state {where}. It holds "
        f"{', '.join(sorted(found)) or 'nothing'}. Pass the right location, or missing='begin' to "
        "restart the epoch."
    )
    raise StateMissingError(msg)
