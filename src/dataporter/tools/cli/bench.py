"""`dataporter bench`: this loader and others on the same work, in one run."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import textwrap
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dataporter.law.explanation import WIDTH
from dataporter.tools.cli.files import check_folder, write_whole
from dataporter.tools.comparison import compare
from dataporter.tools.comparison.contenders import CONTENDERS, installed
from dataporter.tools.comparison.measure import count
from dataporter.tools.comparison.page import page_of
from dataporter.tools.comparison.racing import Race
from dataporter.tools.comparison.report import NOTE, ratio_words, resume_words, speed_words
from dataporter.tools.comparison.resuming import Resumed


def bench(
    seconds: Annotated[
        float, typer.Option(help="Time for all of it, about; from 240 on with full epochs.")
    ] = 60,
    out: Annotated[
        Path, typer.Option(help="Folder for bench.md, bench.html and bench.json.")
    ] = Path("dataporter-bench"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compare this loader with torch's, torchdata's, Grain and SPDL, as far as installed.

    All deliver the same datasets, in turns. Then each resumes a run, from a state to the first
    batch, which is checked: at several positions of an epoch and several sizes of the dataset.
    """
    check_folder(out)
    show = _Shower(Console(highlight=False, soft_wrap=True), quiet=as_json)
    show.beginning()
    with _temporary_folder() as folder, show.waiting():
        found = compare(Path(folder), seconds, on_race=show.race, on_resumed=show.resumed)
    data = json.dumps(found.as_dict(), indent=2)
    write_whole(out / "bench.md", found.markdown())
    write_whole(out / "bench.html", page_of(found))
    write_whole(out / "bench.json", f"{data}\n")
    if as_json:
        typer.echo(data)
    show.say(f"\n{NOTE}\n", "dim")
    show.say(f"Tables and plots: {', '.join(str(out / f'bench.{end}') for end in _ENDS)}")


_ENDS = ("md", "html", "json")

# torch's workers send batches through sockets in the temporary folder, and wait without end where
# their names are longer than a system allows: 104 bytes on macOS, 108 on Linux, with a 0.
_LONGEST_SOCKET = 103
_SOCKET = "/dataporter-12345678/races.files/pymp-12345678/listener-12345678"


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder whose path leaves room for sockets, in /tmp if the usual place does not."""
    is_short = len(os.fsencode(tempfile.gettempdir() + _SOCKET)) <= _LONGEST_SOCKET
    is_usual = is_short or not os.access("/tmp", os.W_OK)  # noqa: S108  a new folder in it
    return tempfile.TemporaryDirectory(
        prefix="dataporter-",
        dir=None if is_usual else "/tmp",  # noqa: S108  likewise
    )


class _Shower:
    """Shows each result as soon as it is there."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._resumes = 0

    def beginning(self) -> None:
        here = installed()
        missing = [who for who in CONTENDERS if who not in here]
        words = ", ".join(f"{who} {version}" for who, version in here.items())
        self.say(words + (f" (not installed: {', '.join(missing)})" if missing else ""))
        self.say("\nDelivery, samples a second, and how many times torch's:")

    def waiting(self) -> contextlib.AbstractContextManager[object]:
        """A sign of life, where somebody looks on."""
        if self._quiet or not self._console.is_terminal:
            return contextlib.nullcontext()
        return self._console.status("measuring ...")

    def race(self, race: Race) -> None:
        self.say(f"  {race.workload}")
        for who in [*race.times, *race.failed]:
            if who in race.failed:
                self.say(f"    {who:<12}failed: {race.failed[who]}")
            else:
                words = f"{speed_words(race, who):>20}{ratio_words(race, who):>9}"
                self.say(f"    {who:<12}{words}", "bold" if who == "dataporter" else "")

    def resumed(self, found: Resumed) -> None:
        if not self._resumes:
            self.say("\nFrom state to first correct batch, at a position of so many samples:")
        self._resumes += 1
        place = f"{found.position:,} of {count(found.samples)}"
        self.say(f"    {found.who:<12}{place:<26}{resume_words(found)}")

    def say(self, words: str, style: str = "") -> None:
        if self._quiet:
            return
        wrapped = (
            textwrap.fill(line, WIDTH) if len(line) > WIDTH else line for line in words.split("\n")
        )
        self._console.print(Text("\n".join(wrapped), style=style))
