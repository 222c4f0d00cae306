"""`dataporter inspect`: the loader states in a checkpoint, explained."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from dataporter.errors import StateError, StateFormatError
from dataporter.law.explanation import WIDTH, Explains, counted, explain, laid_out
from dataporter.tools.cli.terminal import make_console, wrap
from dataporter.tools.inspect import Data, Findings, KnownData, SavedState, find_states

_SHOWN = 5  # places, and parts that were not read


def inspect(
    path: Annotated[
        Path, typer.Argument(help="A checkpoint: a file or a folder of any framework, or JSON.")
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="The data of a ShardedDataset: a folder, glob or URL, or the folder of its index; "
            "may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the states as JSON.")] = False,
) -> None:
    """Find the loader states in a checkpoint, and show their position and what comes next.

    If the index of a state's data is kept on this machine, show it and the files, rows and blocks
    that come next. No code in the checkpoint is run; neither its weights nor the data are read.
    Exit status: 0; 1 if no state is of the data named by --data; 2 if no state can be read.
    """
    known = KnownData(data or [])
    found = find_states(path)
    explained = [_explained(saved, known) for saved in found.states]
    if as_json:
        typer.echo(_as_json(path, found, explained))
    else:
        make_console().print(Text(_as_text(path, found, explained)))
    if all(isinstance(one.words, StateError) for one in explained):
        raise typer.Exit(2)
    if data and not any(one.data is not None and one.data.matches for one in explained):
        raise typer.Exit(1)


class _Explained(NamedTuple):
    saved: SavedState
    words: Explains | StateError
    data: Data | None = None


def _explained(saved: SavedState, known: KnownData) -> _Explained:
    try:
        return _Explained(saved, *known.explained(explain(saved.state)))
    except StateError as error:
        return _Explained(saved, error)
    except (ValueError, OverflowError, RecursionError, RuntimeError) as error:
        # Numbers out of range or endless nesting: no loader saved this.
        said = f"the state cannot be read: {type(error).__name__}: {error}"
        return _Explained(saved, StateFormatError(said))


def _as_json(path: Path, found: Findings, explained: list[_Explained]) -> str:
    states = [
        {"places": list(saved.places)}
        | ({"error": str(words)} if isinstance(words, StateError) else words.as_dict())
        | {"data": None if data is None else data.as_dict()}
        for saved, words, data in explained
    ]
    unread = [{"place": left.place, "why": left.why} for left in found.unread]
    return json.dumps({"path": str(path), "states": states, "unread": unread}, indent=2)


def _as_text(path: Path, found: Findings, explained: list[_Explained]) -> str:
    blocks = [wrap(f"{path}: {counted(len(explained), 'loader state')}")]
    for saved, words, data in explained:
        places = [wrap(place or "the whole file", breaks_words=True) for place in saved.places]
        rows = [("cannot be read", str(words))] if isinstance(words, StateError) else words.rows()
        rows += [] if data is None else data.rows()
        text = laid_out(rows, WIDTH - 2, breaks_words=data is None)  # paths are to be copied
        blocks.append("\n".join([*_first(places), _indented(text)]))
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
