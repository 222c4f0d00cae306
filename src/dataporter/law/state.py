"""The state: what `state_dict()` returns and `load_state_dict()` takes.

One flat, versioned dict of builtins, the same on every rank. It has two halves: the
`Identity` says which data in which order this is, the `Progress` how much of it has been
delivered. A load compares the identities (`sources/loading`).

    version            1
    epoch              which epoch, from 0
    samples_processed  positions of that epoch delivered by all ranks together
    batches_processed  batches of that epoch delivered by each rank
    finished           whether that epoch ran to its end
    seed               of the order and of the samples' randomness
    shuffle, order     the order's name and parameters
    num_samples        length of the dataset, None where it has none
    length             only where the dataset has changed its length since this epoch began: the
                       positions that this epoch has
    fingerprint        what is known of the dataset's contents, None if nothing
    batch_size         as saved; free to change, None with a batch sampler
    world_size         as saved; free to change, except with a sampler of the user's own
    rank               only where several ranks have different states (each has a stream, a dataset
                       or a batch sampler with a state of its own): the one that this state is of
    rng_state          where a sampler of the user's own draws from a torch.Generator: that
                       generator's state at the start of the epoch, else None
    sampler            only with a stateful sampler of the user's own: its state, and whether
                       it had ended, since it may begin anew by itself
    ahead              ranges of positions beyond samples_processed that were delivered ahead of
                       their turn; only with in_order=False are there any
    excluded           spans of positions that are left out, each [epoch, start, stop]
    lanes              only where a dataset is read in lanes (an iterable, or one with a state):
                       how many, whose turn was last, and of each how far it was delivered

A dict of `epoch`, `samples_processed`, `batches_processed` and `rng_state` alone is a place in
whatever order the loader has; there is nothing to compare it with.

Pure: nothing here knows a loader, a process or a file.
"""

from __future__ import annotations

import copy
import itertools
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from os import PathLike
from typing import Any, NamedTuple

from dataporter.errors import StateFormatError, StateMismatchError, StateVersionError
from dataporter.law import located
from dataporter.law.keys import MAX_SEED
from dataporter.law.lane_states import Lanes, LaneState, lanes_from_state, lanes_to_state
from dataporter.law.ranges import Ranges
from dataporter.law.rest import Excluded, excluded_in
from dataporter.law.torchdata_state import is_torchdata_state

VERSION = 1


class Progress(NamedTuple):
    """The delivered part of an epoch. Immutable, so a snapshot is the value itself.

    One is made for every batch, and a tuple is made in a quarter of a dataclass's time.
    """

    epoch: int = 0
    samples_processed: int = 0
    batches_processed: int = 0
    finished: bool = False
    rng_state: str | None = None
    sampler: dict[str, Any] | None = None
    ahead: Ranges = ()
    lanes: Lanes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The data, its order, and the ranks that share it."""

    seed: int
    shuffle: bool
    order: str
    num_samples: int | None
    fingerprint: str | None
    batch_size: int | None
    world_size: int
    rank: int | None = None
    length: int | None = None
    excluded: Excluded = ()


_PROGRESS_FIELDS = Progress._fields
_IDENTITY_FIELDS = tuple(field.name for field in fields(Identity))


def build_state(identity: Identity, progress: Progress) -> dict[str, Any]:
    """Lay both halves out as the dict that users save.

    >>> same = Identity(seed=1, shuffle=True, order="shuffled-1", num_samples=10,
    ...                 fingerprint=None, batch_size=2, world_size=1)
    >>> state = build_state(same, Progress(epoch=3, samples_processed=4, batches_processed=2))
    >>> state["epoch"], state["samples_processed"]
    (3, 4)
    >>> parse_state(state) == (same, Progress(epoch=3, samples_processed=4, batches_processed=2))
    True
    """
    state: dict[str, Any] = {"version": VERSION}
    for half, names in ((progress, _PROGRESS_FIELDS), (identity, _IDENTITY_FIELDS)):
        state.update(zip(names, attrgetter(*names)(half), strict=True))
    if progress.sampler is None:
        del state["sampler"]
    else:
        state["sampler"] = copy.deepcopy(progress.sampler)
    # There even where it is empty: torch.distributed.checkpoint loads only the keys that the
    # state of the loader before the load has.
    state["ahead"] = [list(run) for run in progress.ahead]
    state["excluded"] = [list(span) for span in identity.excluded]
    for name in ("rank", "length"):
        if state[name] is None:
            del state[name]
    if progress.lanes is None:
        del state["lanes"]
    else:
        state["lanes"] = lanes_to_state(progress.lanes)
    return state


def parse_state(state: object) -> tuple[Identity, Progress]:
    """Read a state, or say exactly what is wrong with it."""
    if not isinstance(state, Mapping):
        raise StateFormatError(_no_dict(state))
    if "samples_processed" not in state:
        _check_is_no_other(state)
    _check_version(state)
    values = {name: _field(state, name, check) for name, check in _CHECKS.items()}
    values["sampler"] = copy.deepcopy(values["sampler"])
    lanes = values["lanes"]
    values["lanes"] = None if lanes is None else lanes_from_state(lanes)
    for name in ("ahead", "excluded"):
        values[name] = tuple(tuple(run) for run in values[name] or ())
    progress = Progress(**{name: values[name] for name in _PROGRESS_FIELDS})
    identity = Identity(**{name: values[name] for name in _IDENTITY_FIELDS})
    _check_excluded(identity, progress)
    return identity, progress


def _check_excluded(identity: Identity, progress: Progress) -> None:
    """Refuse spans that lie outside of the epoch that the state itself describes."""
    length = identity.num_samples if identity.length is None else identity.length
    spans = excluded_in(identity.excluded, progress.epoch)
    furthest = max((stop for _, stop in spans), default=0)
    if length is not None and furthest > length:
        msg = (
            f"the state excludes positions up to {furthest:,} of epoch {progress.epoch:,}, which "
            f"has {length:,}. It was changed or damaged after state_dict() returned it."
        )
        raise StateFormatError(msg)


PLACE_FIELDS = ("epoch", "samples_processed", "batches_processed", "rng_state")


def is_place(state: object) -> bool:
    """Return True if a state has a position but not the identity of its run."""
    return isinstance(state, Mapping) and state.keys() == set(PLACE_FIELDS)


def parse_place(state: Mapping[Any, Any]) -> Progress:
    """Read a state that is only a place; a `rng_state` that is not ours stands for nothing."""
    epoch, samples, batches = (_field(state, name, _is_count) for name in PLACE_FIELDS[:3])
    kept = state["rng_state"]
    return Progress(
        epoch=epoch,
        samples_processed=samples,
        batches_processed=batches,
        rng_state=kept if isinstance(kept, str) else None,
    )


def merged(parsed: Sequence[tuple[Identity, Progress]]) -> tuple[Identity, Progress]:
    """Put the states of several ranks together, each of which has lanes of its own.

    The counters are those of a rank that has delivered most batches.
    """
    identity, progress = parsed[0]
    each: dict[int, LaneState] = {}
    for other, at in parsed:
        if at.lanes is None or progress.lanes is None:
            msg = "one of the states has no lanes. Pass a single state, not a list."
            raise StateFormatError(msg)
        first = (identity.seed, progress.epoch, progress.lanes.count)
        found = (other.seed, at.epoch, at.lanes.count)
        if found != first or any(each.get(lane, one) != one for lane, one in at.lanes.each.items()):
            msg = (
                "the states are of different runs or moments: one is of (seed, epoch, lanes) = "
                f"{first}, another of {found}, or they disagree on a lane. Pass the states that "
                "the ranks of one run saved at one step."
            )
            raise StateFormatError(msg)
        each.update(at.lanes.each)
    identity, progress = max(parsed, key=lambda one: one[1].batches_processed)
    lanes = (progress.lanes or Lanes(1, {}))._replace(each=each)
    finished = all(at.finished for _, at in parsed)
    return identity, progress._replace(lanes=lanes, finished=finished)


def _no_dict(found: object) -> str:
    """Say what to pass in place of something that is no dict."""
    if isinstance(found, str | PathLike):
        path = os.fspath(found)
        return (
            f"a state is a dict, found the path {path!r}. Load the file first, and pass the state "
            f"in it, such as torch.load({path!r})['loader']."
        )
    if isinstance(found, type):
        return (
            f"a state is a dict, found the class {found.__name__}. Pass what state_dict() returned."
        )
    return (
        f"a state is the dict that state_dict() returned, found {_shown(found)}. "
        "Pass that dict; if it was saved in a checkpoint, pass its entry of the checkpoint."
    )


def _check_is_no_other(state: Mapping[Any, Any]) -> None:
    """Refuse a state of torchdata, and a checkpoint that has a state somewhere in it."""
    if is_torchdata_state(state):
        msg = (
            "this is a state of torchdata's StatefulDataLoader. The StatefulDataLoader of "
            "dataporter.stateful_dataloader continues it; its own states can be loaded here."
        )
        raise StateFormatError(msg)
    places = list(itertools.islice(_places_of_states(state), _NAMED))
    if places:
        found = " or ".join(f"checkpoint{place}" for place in places)
        msg = (
            f"this is a whole checkpoint, which holds {_keys(state)}. Pass the loader's state in "
            f"it: {found}."
        )
        raise StateFormatError(msg)


_NAMED = 3  # places of states
_DEEPEST = 4  # of a state in a checkpoint


def _places_of_states(found: object, place: str = "", depth: int = 0) -> Iterator[str]:
    if isinstance(found, Mapping):
        if {"epoch", "samples_processed"} <= found.keys() or is_torchdata_state(found):
            yield place
            return
        parts: Iterable[tuple[object, object]] = found.items()
    elif isinstance(found, list | tuple):
        parts = enumerate(found)
    else:
        return
    if depth < _DEEPEST:
        for name, part in parts:
            yield from _places_of_states(part, f"{place}[{name!r}]", depth + 1)


def _keys(state: Mapping[Any, Any]) -> str:
    keys = sorted(map(str, state))
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return (", ".join(keys[:_SHOWN]) or "nothing") + more


_SHOWN = 12  # keys


def _check_version(state: Mapping[Any, Any]) -> None:
    if "version" not in state:
        msg = (
            f"this is not a state of dataporter: it has no 'version', it holds {_keys(state)}. "
            "Pass the dict that state_dict() returned."
        )
        raise StateFormatError(msg)
    version = _field(state, "version", _is_count)
    if version > VERSION:
        msg = (
            f"the state has version {version}, this dataporter reads versions up to {VERSION}. "
            "Resume with the dataporter that saved it, or a newer one."
        )
        raise StateVersionError(msg)
    if version < 1:
        msg = f"the state's version must be at least 1, found {version}. The state is damaged."
        raise StateFormatError(msg)


_Check = tuple[Callable[[Any], bool], str]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_MOST = 2**63  # what positions and numbers of batches are kept in ends here
_is_count: _Check = (
    lambda value: _is_int(value) and 0 <= value < _MOST,
    "an int of at least 0 and below 2**63",
)
_is_positive: _Check = (
    lambda value: _is_int(value) and 1 <= value < _MOST,
    "an int of at least 1 and below 2**63",
)
_is_seed: _Check = (
    lambda value: _is_int(value) and 0 <= value <= MAX_SEED,
    "an int in [0, 2**64)",
)
_is_flag: _Check = (lambda value: isinstance(value, bool), "True or False")
_is_text: _Check = (lambda value: isinstance(value, str), "a string")
_is_sampler: _Check = (
    lambda value: isinstance(value, Mapping) and {"state", "ended"} <= value.keys(),
    "a dict with 'state' and 'ended'",
)
_is_lanes: _Check = (lambda value: isinstance(value, Mapping), "a dict")
_is_ranges: _Check = (
    lambda value: isinstance(value, list) and _are_ranges(value),
    "a list of pairs [start, stop] in ascending order",
)


_is_excluded: _Check = (
    lambda value: isinstance(value, list) and all(_is_span(span) for span in value),
    "a list of spans [epoch, start, stop]",
)


def _is_span(span: object) -> bool:
    if not isinstance(span, list | tuple) or len(span) != 3:  # noqa: PLR2004
        return False
    return all(_is_count[0](number) for number in span) and span[1] < span[2]


def _are_ranges(pairs: list[Any]) -> bool:
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):  # noqa: PLR2004
        return False
    ends = [end for pair in pairs for end in pair]
    return all(_is_count[0](end) for end in ends) and ends == sorted(ends)


def _or_none(check: _Check) -> _Check:
    return (lambda value: value is None or check[0](value), f"{check[1]}, or None")


_CHECKS: dict[str, _Check] = {
    "epoch": _is_count,
    "samples_processed": _is_count,
    "batches_processed": _is_count,
    "finished": _is_flag,
    "rng_state": _or_none(_is_text),
    "sampler": _or_none(_is_sampler),
    "ahead": _or_none(_is_ranges),
    "lanes": _or_none(_is_lanes),
    "seed": _is_seed,
    "shuffle": _is_flag,
    "order": _is_text,
    "num_samples": _or_none(_is_count),
    "fingerprint": _or_none(_is_text),
    "batch_size": _or_none(_is_positive),
    "world_size": _is_positive,
    "rank": _or_none(_is_count),
    "length": _or_none(_is_count),
    "excluded": _or_none(_is_excluded),
}
_OPTIONAL = {"sampler", "ahead", "lanes", "rank", "length", "excluded"}


def _field(state: Mapping[Any, Any], name: str, check: _Check) -> Any:
    if name not in state:
        if name in _OPTIONAL:
            return None
        found = ", ".join(sorted(map(str, state)))
        msg = (
            f"the state has no {name!r}; it holds {found}. "
            "It was changed after state_dict() returned it: pass it unchanged."
        )
        raise StateFormatError(msg)
    accepts, expected = check
    value = state[name]
    if not accepts(value):
        msg = (
            f"the state's {name!r} must be {expected}, found {_shown(value)}. "
            "It was changed or damaged after state_dict() returned it."
        )
        raise StateFormatError(msg)
    return value


def _shown(value: object) -> str:
    return f"{type(value).__name__} {reprlib.repr(value)}"


def within(
    progress: Progress, length: int, *, step: int, same_data: bool, strict: bool = True
) -> Progress:
    """Return a progress that lies in an epoch of `length` positions, `step` of them at a time.

    A position past the end is one of a later epoch. What cannot be that is refused; if not
    `strict`, it is cut off at the end, and so is a position over other data.

    >>> moved = within(Progress(epoch=2, samples_processed=250), 100, step=10, same_data=True)
    >>> moved.epoch, moved.samples_processed, moved.batches_processed
    (4, 50, 5)
    """
    furthest = max([progress.samples_processed, *(stop for _, stop in progress.ahead)])
    if furthest <= length:
        return progress
    if same_data and length and not progress.ahead:
        epoch, position = located(progress.epoch, progress.samples_processed, length)
        batches = -(-position // step)
        return Progress(epoch=epoch, samples_processed=position, batches_processed=batches)
    if strict:
        msg = (
            f"the state is past the end: found position {furthest:,} in an epoch of {length:,} "
            "samples. The state is damaged or belongs to other data."
        )
        raise StateMismatchError(msg)
    kept = tuple((start, min(stop, length)) for start, stop in progress.ahead if start < length)
    return progress._replace(samples_processed=min(progress.samples_processed, length), ahead=kept)


def past_the_end(progress: Progress, length: int, moved: Progress) -> str:
    """Say where a position past the end of its epoch was moved to."""
    return (
        f"samples_processed is past the end: found {progress.samples_processed:,} in an epoch of "
        f"{length:,} samples. Counted on from there, the run continues at epoch {moved.epoch}, "
        f"position {moved.samples_processed:,}. If that is wrong, the state is damaged or belongs "
        "to other data."
    )


def dropped(progress: Progress, epoch: int, *, counts: str, instead: str) -> str:
    """Say that `set_epoch(epoch)` drops a loaded position; `counts` holds its epoch."""
    return (
        f"set_epoch({epoch}) drops the loaded position: epoch {progress.epoch} after "
        f"{progress.samples_processed:,} samples. The next pass starts epoch {epoch} anew. To "
        f"continue where the state was saved, count on from its epoch: for epoch in "
        f"range({counts}, ...). {instead}"
    )
