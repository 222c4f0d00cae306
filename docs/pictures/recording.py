"""Real terminal output as an SVG: a command runs in a terminal, and its screen is drawn.

pyte keeps the screen, so that progress bars and colours come out as a person sees them. A moving
recording shows every line at its time, faster than it was: long waits are shortened first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
import time
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyte
from jinja2 import Environment, FileSystemLoader, StrictUndefined

COLUMNS, ROWS = 80, 60
_LONGEST_WAIT = 0.5  # seconds that nothing happens
_FRAME = 0.2  # seconds, at least
_PLAYED = 6.0  # seconds until the last frame
_HOLD = 12.0  # seconds of the last frame, before a moving recording begins again
_SPACE = "\u00a0"  # which no browser drops
_COLOURS = {
    "default": "#d6deeb",
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",  # pyte's name for yellow
    "cyan": "#79c0ff",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
}


class Span(NamedTuple):
    """A piece of a line in one style."""

    column: int
    text: str
    colour: str
    is_bold: bool


Line = tuple[Span, ...]
Screen = list[Line]


class Frame(NamedTuple):
    """The screen from one time on, in seconds of the recording."""

    start: float
    screen: Screen


class Shown(NamedTuple):
    """A line that stands in a row from one time to another."""

    row: int
    spans: Line
    start: float
    stop: float


def record(arguments: list[str], folder: Path) -> list[Frame]:
    """Run a command in a terminal of its own and return its screens."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    descriptor = _started(arguments, folder)
    frames = [Frame(0.0, [])]
    last = time.monotonic()
    with contextlib.suppress(OSError):  # by which a terminal tells that it is closed
        while piece := os.read(descriptor, 4096):
            stream.feed(piece)
            waited = time.monotonic() - last
            if waited >= _FRAME:
                last += waited
                start = frames[-1].start + min(waited, _LONGEST_WAIT)
                frames.append(Frame(start, _seen(screen)))
    os.close(descriptor)
    os.wait()
    frames.append(Frame(frames[-1].start + _FRAME, _seen(screen)))
    pace = _PLAYED / frames[-1].start
    return [frame._replace(start=frame.start * pace) for frame in frames]


def drawn(command: str, frames: list[Frame]) -> str:
    """Draw a recording, or one screen if there is only one frame."""
    end = frames[-1].start + _HOLD
    rows = max(len(frame.screen) for frame in frames)
    lines = [line for row in range(rows) for line in _times_of(row, frames, end)]
    spans = sorted({(line.start, line.stop) for line in lines})
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("recording.svg.jinja")
    values: dict[str, Any] = {
        "command": command,
        "rows": rows,
        "columns": COLUMNS,
        "lines": lines,
        "spans": spans,
        "seconds": end,
        "is_moving": len(frames) > 1,
    }
    return template.render(values)


def _started(arguments: list[str], folder: Path) -> int:
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(folder)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        command = [sys.executable, "-m", "dataporter", *arguments]
        os.execve(sys.executable, command, variables)  # noqa: S606  our own command
    return descriptor


def _seen(screen: pyte.Screen) -> Screen:
    """The lines of a screen, without empty ones at its end."""
    lines = [_spans(screen.buffer[row]) for row in range(ROWS)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _spans(row: Any) -> Line:
    """The pieces of a line, each of one style, without spaces around them."""
    found = []
    cells = groupby(range(COLUMNS), key=lambda column: (row[column].fg, row[column].bold))
    for (colour, is_bold), columns in cells:
        first, *_ = places = list(columns)
        text = "".join(row[column].data for column in places)
        bare = text.strip()
        if bare:
            column = first + len(text) - len(text.lstrip())
            shown = _COLOURS.get(colour, f"#{colour}")
            found.append(Span(column, bare.replace(" ", _SPACE), shown, is_bold))
    return tuple(found)


def _times_of(row: int, frames: list[Frame], end: float) -> list[Shown]:
    """What stands in one row, in the order of time."""
    found: list[Shown] = []
    texts = [
        (frame.start, frame.screen[row] if row < len(frame.screen) else ()) for frame in frames
    ]
    for spans, same in groupby(texts, key=lambda text: text[1]):
        start = next(same)[0]
        if found and found[-1].stop == end:
            found[-1] = found[-1]._replace(stop=start)
        found.append(Shown(row, spans, start, end))
    return [shown for shown in found if shown.spans]
