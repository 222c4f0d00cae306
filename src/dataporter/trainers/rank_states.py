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
    as_many = len(states) == here.world_size
    # A rank that has finished waits for the others, so it needs their states.
    together = not as_many or len({state["finished"] for state in states}) > 1
    if together and _are_split(states):
        loader.load_state_dict(list(states))
    else:  # if the number of ranks matters, the loader refuses rank 0's state
        loader.load_state_dict(states[here.rank if as_many else 0])


def _are_split(states: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if no two ranks have a lane in common."""
    lanes = [set(state["lanes"]["each"]) for state in states if "lanes" in state]
    return len(lanes) == len(states) and sum(map(len, lanes)) == len(set().union(*lanes))


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
