"""`dataporter inspect`: what a checkpoint says of its loaders."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from dataporter.errors import StateError, StateFormatError
from dataporter.law.explanation import WIDTH, Explains, counted, explain, laid_out, printable
from dataporter.tools.inspect import Findings, SavedState, find_states

_SHOWN = 5  # places and things not read


def inspect(
    path: Annotated[
        Path, typer.Argument(help="A checkpoint: a file or a folder of any framework, or JSON.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find the loader states in a checkpoint, and say where each stands and what comes next.

    Nothing of the checkpoint is run, and its weights are not read.
    """
    found = find_states(path)
    explained = [(saved, _explained(saved)) for saved in found.states]
    shown = _as_json(path, found, explained) if as_json else _as_text(path, found, explained)
    typer.echo(shown)
    if all(isinstance(words, StateError) for _, words in explained):
        raise typer.Exit(2)


_Explained = tuple[SavedState, Explains | StateError]


def _explained(saved: SavedState) -> Explains | StateError:
    try:
        return explain(saved.state)
    except StateError as error:
        return error
    except (ValueError, OverflowError, RecursionError, RuntimeError) as error:
        # Numbers beyond all bounds, depths without end: it is no state that was ever saved.
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
    heading = f"{path}: {counted(len(explained), 'loader state')}"
    blocks = [_wrapped(heading, breaks_words=False)]  # a path is to be copied
    for saved, words in explained:
        places = [place or "the whole file" for place in saved.places]
        shown = places[:_SHOWN] + ([f"and {len(places) - _SHOWN} more"] if places[_SHOWN:] else [])
        rows = [("cannot be read", str(words))] if isinstance(words, StateError) else words.rows()
        lines = [*map(_wrapped, shown), _indented(laid_out(rows, WIDTH - 2))]
        blocks.append("\n".join(lines))
    if found.unread:
        lines = [f"{left.place or 'the file'}: {left.why}" for left in found.unread[:_SHOWN]]
        if more := len(found.unread) - len(lines):
            lines.append(f"and {more} more")
        blocks.append("\n".join(["Not read:", *(_indented(_wrapped(line, 2)) for line in lines)]))
    return "\n\n".join(blocks)


def _indented(text: str) -> str:
    return textwrap.indent(text, "  ")


def _wrapped(text: str, less: int = 0, *, breaks_words: bool = True) -> str:
    """Text in lines that fit, as many as it had at least."""
    return "\n".join(
        textwrap.fill(
            printable(line),
            WIDTH - less,
            break_on_hyphens=False,
            break_long_words=breaks_words,
        )
        for line in text.splitlines()
    )
