"""Loading of the states that all ranks saved in one checkpoint.

All ranks of a map-style loader share one state. Ranks of an iterable have one each. Each rank
loads its own, or with `lanes=` and another number of ranks the states of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from dataporter.errors import OptionError, StateMissingError
from dataporter.law import Topology
from dataporter.resumable_dataloader import ResumableDataLoader

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
