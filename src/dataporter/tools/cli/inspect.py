"""`dataporter inspect`: the loader states in a checkpoint, explained."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dataporter.errors import StateError, StateFormatError
from dataporter.law.explanation import WIDTH, Explains, counted, explain, laid_out
from dataporter.tools.cli.terminal import make_console, wrap
from dataporter.tools.inspect import Findings, SavedState, find_states

_SHOWN = 5  # places, and parts that were not read


def inspect(
    path: Annotated[
        Path, typer.Argument(help="A checkpoint: a file or a folder of any framework, or JSON.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the states as JSON.")] = False,
) -> None:
    """Find the loader states in a checkpoint, and show their position and what comes next.

    No code in the checkpoint is run, and its weights are not read. Exit status: 0, or 2 if no
    state can be read.
    """
    found = find_states(path)
    explained = [(saved, _explained(saved)) for saved in found.states]
    if as_json:
        typer.echo(_as_json(path, found, explained))
    else:
        make_console().print(Text(_as_text(path, found, explained)))
    if all(isinstance(words, StateError) for _, words in explained):
        raise typer.Exit(2)


_Explained = tuple[SavedState, Explains | StateError]


def _explained(saved: SavedState) -> Explains | StateError:
    try:
        return explain(saved.state)
    except StateError as error:
        return error
    except (ValueError, OverflowError, RecursionError, RuntimeError) as error:
        # Numbers out of range or endless nesting: no loader saved this.
        return StateFormatError(f"the state cannot be read: {type(error).__name__}: {error}")


def _as_json(path: Path, found: Findings, explained: list[_Explained]) -> str:
    states = [
        {"places": list(saved.places)}
        | ({"error": str(words)} if isinstance(words, StateError) else words.as_dict())
        for saved, words in explained
    ]
    unread = [{"place": left.place, "why": left.why} for left in found.unread]
    return json.dumps({"path": str(path), "states": states, "unread": unread}, indent=2)


def _as_text(path: Path, found: Findings, explained: list[_Explained]) -> str:
    blocks = [wrap(f"{path}: {counted(len(explained), 'loader state')}")]
    for saved, words in explained:
        places = [wrap(place or "the whole file", breaks_words=True) for place in saved.places]
        rows = [("cannot be read", str(words))] if isinstance(words, StateError) else words.rows()
        blocks.append("\n".join([*_first(places), _indented(laid_out(rows, WIDTH - 2))]))
    if found.unread:
        lines = [f"{left.place or 'the file'}: {left.why}" for left in found.unread]
        wrapped = [wrap(line, WIDTH - 2, breaks_words=True) for line in _first(lines)]
        blocks.append("\n".join(["Not read:", *map(_indented, wrapped)]))
    return "\n\n".join(blocks)


def _first(lines: list[str]) -> list[str]:
    """The first few lines, and how many more there are."""
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {more} more"] if more > 0 else [])


def _indented(text: str) -> str:
    return textwrap.indent(text, "  ")
