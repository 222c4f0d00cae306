"""The search for loader states in a file or folder.

A state is recognised by its fields, so it does not matter which framework wrote the checkpoint. A
state that every rank saved is one finding with several places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataporter.errors import CheckpointError, CheckpointNotFoundError, StateMissingError
from dataporter.law.explanation import is_state
from dataporter.tools.inspect.files import METADATA, read_bytes, read_file, read_folder

# Files of a folder that may hold a state, as frameworks and people name them.
_SUFFIXES = {".bin", ".ckpt", ".json", ".pickle", ".pkl", ".pt", ".pth", ".tar"}
_SHOWN = 5  # parts not read that a message lists


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state and the places where it was found."""

    state: Mapping[str, Any]
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unread:
    """A part that was not read, and the reason."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Findings:
    """The loader states in a checkpoint."""

    states: list[SavedState]
    unread: list[Unread]


def find_states(path: Path) -> Findings:
    """Find every loader state in a checkpoint; raise if there is none or it cannot be read.

    No code in the checkpoint is run; parts that would need that are refused.
    """
    if not os.path.lexists(path):
        msg = f"there is no {path}. Name a checkpoint: a file or a folder."
        raise CheckpointNotFoundError(msg)
    unread: list[Unread] = []
    found: list[tuple[str, Mapping[str, Any]]] = []
    if path.is_dir():
        for place, contents in _in_folder(path, unread):
            found += [(f"{place}{at}", state) for at, state in _walk(contents, unread, place)]
    else:
        try:
            found += _walk(read_file(path), unread, "")
        except CheckpointError as error:
            msg = f"{path} was not read: {error}"
            raise type(error)(msg) from error
    if not found:
        raise StateMissingError(_nothing_in(path, unread))
    return Findings(_merged(found), unread)


def _merged(found: list[tuple[str, Mapping[str, Any]]]) -> list[SavedState]:
    """Merge equal states."""
    merged: list[SavedState] = []
    for place, state in found:
        for number, other in enumerate(merged):
            if _equal(state, other.state):
                merged[number] = SavedState(other.state, (*other.places, place))
                break
        else:
            merged.append(SavedState(state, (place,)))
    return merged


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError, RecursionError):  # it contains tensors, or is too deep
        return False


def _in_folder(folder: Path, unread: list[Unread]) -> Iterator[tuple[str, Any]]:
    """Yield the place and contents of every file in a folder; note those not read."""

    def note(error: OSError) -> None:
        unread.append(Unread(str(error.filename), f"it cannot be read: {error.strerror}."))

    for root, folders, names in os.walk(folder, onerror=note):
        folders.sort(key=_by_number)
        here = Path(root)
        at = "" if here == folder else f"{here.relative_to(folder)}/"
        if METADATA in names:
            try:
                contents, left = read_folder(here)
            except CheckpointError as error:
                unread.append(Unread(f"{at}{METADATA}", str(error)))
            else:
                unread += [Unread(f"{at}{name}", why) for name, why in left]
                yield at, contents
        elif any(name.endswith(".distcp") for name in names):
            why = "it is incomplete: there is no .metadata, which is written last."
            unread.append(Unread(at or "the folder", why))
        for name in sorted(names, key=_by_number):
            if Path(name).suffix not in _SUFFIXES:
                continue
            try:
                yield f"{at}{name}", read_file(here / name)
            except CheckpointError as error:
                unread.append(Unread(f"{at}{name}", str(error)))


def _by_number(name: str) -> list[Any]:
    """Sort step-9 before step-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _walk(
    contents: Any, unread: list[Unread], place: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each state in contents and the keys that lead to it.

    No recursion, and every object once: contents may be deep and contain themselves.
    """
    waiting: list[tuple[str, Any]] = [("", contents)]
    seen: set[int] = set()
    kept = []  # objects read from bytes must live on, or another object gets their id
    while waiting:
        at, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, bytes | bytearray | str):
            if not _may_hold_a_state(value):
                continue
            raw = value.encode() if isinstance(value, str) else bytes(value)
            try:
                value = read_bytes(raw)
            except CheckpointError as error:
                unread.append(Unread(f"{place}{at}", str(error)))
                continue
            kept.append(value)
        if is_state(value):
            yield at, value
        else:
            parts = [(f"{at}[{key!r}]", part) for key, part in _parts(value)]
            waiting += reversed(parts)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _may_hold_a_state(value: bytes | bytearray | str) -> bool:
    """Look for the fields of a state in bytes or text, before they are read."""
    if isinstance(value, str):
        return value.lstrip().startswith("{") and '"samples_processed"' in value
    return b"samples_processed" in value or b"_num_yielded" in value or b"_snapshot" in value


def _nothing_in(path: Path, unread: list[Unread]) -> str:
    msg = (
        f"there is no loader state in {path}. A checkpoint has one if the result of the loader's "
        "state_dict() was saved in it."
    )
    if unread:
        lines = [f"  {left.place}: {left.why}" for left in unread[:_SHOWN]]
        if more := len(unread) - len(lines):
            lines.append(f"  and {more} more")
        msg += "\n".join([" Not read:", *lines])
    return msg
