"""The loader states of a checkpoint, explained: as text, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dataporter.errors import CheckpointError, StateError, StateFormatError, StateMissingError
from dataporter.law.explanation import Explains, explain
from dataporter.layout import counted, laid_out, wrapped, wrapped_lines
from dataporter.tools.inspect.data import Data, KnownData
from dataporter.tools.inspect.search import SavedState, Unread, find_states

_SHOWN = 5  # places, and parts that were not read


class Explained(NamedTuple):
    """A state in words, or why it cannot be read, and its data where that is known."""

    saved: SavedState
    words: Explains | StateError
    data: Data | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """The states of one checkpoint, or why it was not read."""

    path: Path
    states: list[Explained]
    unread: list[Unread]
    error: CheckpointError | StateMissingError | None = None

    @property
    def is_readable(self) -> bool:
        """True if at least one state was read."""
        return any(not isinstance(one.words, StateError) for one in self.states)

    @property
    def is_of_data(self) -> bool:
        """True if at least one state is of the data that a user named."""
        return any(one.data is not None and one.data.matches for one in self.states)

    def as_dict(self) -> dict[str, Any]:
        """All of it as builtins, for JSON."""
        if self.error is not None:
            return {"path": str(self.path), "error": str(self.error)}
        states = [
            {"places": list(saved.places)}
            | ({"error": str(words)} if isinstance(words, StateError) else words.as_dict())
            | {"data": None if data is None else data.as_dict}
            for saved, words, data in self.states
        ]
        unread = [{"place": left.place, "why": left.why} for left in self.unread]
        return {"path": str(self.path), "states": states, "unread": unread}

    def text(self) -> str:
        """All of it in 80 columns."""
        if self.error is not None:
            return wrapped_lines(str(self.error))
        blocks = [wrapped_lines(f"{self.path}: {counted(len(self.states), 'loader state')}")]
        for saved, words, data in self.states:
            places = [wrapped(place or "the whole file", "", "") for place in saved.places]
            rows = (
                [("cannot be read", str(words))] if isinstance(words, StateError) else words.rows()
            )
            rows += [] if data is None else data.rows
            text = laid_out(rows, "  ", breaks_words=data is None)  # paths are to be copied
            blocks.append("\n".join([*_first(places), text]))
        if self.unread:
            lines = [f"{left.place or 'the file'}: {left.why}" for left in self.unread]
            left_out = [wrapped(line, "  ", "  ") for line in _first(lines)]
            blocks.append("\n".join(["Not read:", *left_out]))
        return "\n\n".join(blocks)


def inspected(path: Path, known: KnownData) -> Inspected:
    """Find and explain the states of a checkpoint; raise if there is none."""
    found = find_states(path)
    return Inspected(path, [_explained(saved, known) for saved in found.states], found.unread)


def inspected_or_not(path: Path, known: KnownData) -> Inspected:
    """Find and explain the states of one checkpoint of several, or say why there is none."""
    try:
        return inspected(path, known)
    except (CheckpointError, StateMissingError) as error:
        return Inspected(path, [], [], error)


def _explained(saved: SavedState, known: KnownData) -> Explained:
    try:
        return Explained(saved, *known.explained(explain(saved.state)))
    except StateError as error:
        return Explained(saved, error)
    except (ValueError, OverflowError, RecursionError, RuntimeError) as error:
        # Numbers out of range or endless nesting: no loader saved this.
        said = f"the state cannot be read: {type(error).__name__}: {error}"
        return Explained(saved, StateFormatError(said))


def _first(lines: list[str]) -> list[str]:
    """The first few lines, and how many more there are."""
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {more} more"] if more > 0 else [])
