"""The states of all ranks out of one checkpoint, and how each of the present ranks goes on.

Ranks of a map-style loader have one state between them. Those of an iterable have one each,
of which a rank takes its own, or all: with `lanes=`, on another number of ranks.
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
    """Make a loader continue at what the ranks of a run have saved, in their order."""
    if len(states) == 1:
        loader.load_state_dict(states[0])
        return
    as_many = len(states) == here.world_size
    # A rank that had come to its end waits for the others', and so needs their states.
    together = not as_many or len({state["finished"] for state in states}) > 1
    if together and _are_split(states):
        loader.load_state_dict(list(states))
    else:  # where another number of ranks matters, the loader refuses the first one's
        loader.load_state_dict(states[here.rank if as_many else 0])


def _are_split(states: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each rank has lanes that no other rank has."""
    lanes = [set(state["lanes"]["each"]) for state in states if "lanes" in state]
    return len(lanes) == len(states) and sum(map(len, lanes)) == len(set().union(*lanes))


def check_missing(missing: Missing) -> None:
    """Raise unless this says what a checkpoint without a state is to lead to."""
    if missing not in {"raise", "begin"}:
        msg = f"missing must be 'raise' or 'begin', found {missing!r}."
        raise OptionError(msg)


def without_state(missing: Missing, where: str, found: Iterable[str]) -> Literal[False]:
    """Raise for a checkpoint that has no state there, or say so to a loader that begins anew.

    >>> without_state("begin", "under 'loader'", ["model"])
    False
    """
    if missing == "begin":
        return False
    msg = (
        f"the checkpoint has no state of a loader {where}, it holds "
        f"{', '.join(sorted(found)) or 'nothing'}. Say where it is, or give missing='begin' to "
        "begin the epoch anew."
    )
    raise StateMissingError(msg)
