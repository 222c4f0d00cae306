"""Loading a state: what it says is compared with what a source has, and fitted to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dataporter.errors import (
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    UncheckedStateWarning,
)
from dataporter.law.state import (
    Identity,
    Mismatch,
    Progress,
    is_place,
    mismatches,
    parse_place,
    unchecked,
)
from dataporter.sources.source import Resumption, Source
from dataporter.user_warnings import warn_user

_LANES_UNREAD = Mismatch(
    "lanes",
    "the state has lanes, of an iterable or a dataset with a state; this dataset is read by index "
    "and has none.",
    "Resume with the dataset that it was saved with.",
    may_pass=False,
)


def resumption(
    source: Source, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, strict: bool
) -> Resumption:
    """Return where a state leads to in a source; nothing has changed yet.

    A state of other data, another order or another seed is refused. If not `strict`, that is a
    warning.
    """
    found: list[Mismatch] = []
    if is_place(state):
        saved, progress = _from_place(source, state)
    else:
        saved, progress = source.parse(state)
        present = source.identity_after(saved)
        found += mismatches(saved, present, world_may_change=source.world_may_change)
    if progress.lanes is not None and not source.has_lanes:
        found.append(_LANES_UNREAD)
        progress = progress._replace(lanes=None)
    if found and strict:
        msg = "\n".join(each.as_error(progress) for each in found)
        raise StateMismatchError(msg, mismatches=found)
    for each in found:
        warn_user(each.as_warning(progress), StateMismatchWarning)
    progress, length = source.admit(progress, saved, same_data=not found, strict=strict)
    if is_place(state):
        is_drawn = source.shuffle and not source.seed_is_given
        message = unchecked(progress, seed=source.seed if is_drawn else None)
        warn_user(message, UncheckedStateWarning)
    seed = source.seed if source.seed_is_given else saved.seed
    order = None if is_place(state) else saved.order
    rank = None if is_place(state) else saved.rank
    return Resumption(progress, seed, length, order, saved.excluded, rank)


def _from_place(source: Source, state: Any) -> tuple[Identity, Progress]:
    """Read a position in the source's own order: there is nothing to compare it with."""
    if source.place_lacks is not None:
        msg = (
            f"the state holds only a position, and this loader needs the state of "
            f"{source.place_lacks} too. Pass the whole dict that state_dict() returned, or "
            "begin the epoch anew."
        )
        raise StateFormatError(msg)
    return replace(source.identity(), length=None), parse_place(state)
