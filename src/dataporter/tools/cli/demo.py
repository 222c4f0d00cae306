"""`dataporter demo`: a training is killed, resumed on other processes, and compared."""

from __future__ import annotations

import contextlib
import random
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from dataporter.law.explanation import WIDTH
from dataporter.tools.cli.files import check_folder, write_whole
from dataporter.tools.demo import Story, tell
from dataporter.tools.demo.page import page_of
from dataporter.tools.demo.picture import check_matplotlib, picture_of
from dataporter.tools.demo.runs import OnStep
from dataporter.tools.demo.verdict import (
    HOW,
    Verdict,
    around_the_kill,
    judge,
    topology,
    waits,
)

_RUNS = {
    "whole": "1. never interrupted",
    "killed": "2. to be killed",
    "resumed": "3. resumed",
}


def demo(
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**63 - 1, help="Of data and kill; another one each time if not given."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for demo.html and demo.png.")] = Path(
        "dataporter-demo"
    ),
) -> None:
    """Kill a real training at a random step, resume it on other processes, and compare.

    A small network is trained on the CPU by two processes; then again, until SIGKILL ends them at
    a random step; three others, with other workers and batches, go on from the last checkpoint.
    Every sample and every loss is compared with the run that was never interrupted, bit by bit.
    Takes under a minute. Exit status: 0 if all is identical, 1 if not.
    """
    check_matplotlib()
    check_folder(out)
    seed = random.randrange(1000) if seed is None else seed
    console = Console(highlight=False, soft_wrap=True)
    _say(console, f"A training that is killed in mid-epoch, resumed, and compared (seed {seed}).\n")
    with tempfile.TemporaryDirectory(prefix="dataporter-") as folder, _watched(console) as watch:
        story = tell(Path(folder), seed, on_step=watch)
    verdict = judge(story)
    _tell(console, story, verdict)
    write_whole(out / "demo.html", page_of(story, verdict))
    write_whole(out / "demo.png", picture_of(story, verdict))
    _say(console, f"\nPictures: {out / 'demo.html'} and {out / 'demo.png'}\n")
    _say(console, verdict.words, "bold green" if verdict.is_exact else "bold red")
    if not verdict.is_exact:
        raise typer.Exit(1)


@contextlib.contextmanager
def _watched(console: Console) -> Iterator[OnStep]:
    """Bars where somebody looks on; nothing where the output goes elsewhere."""
    if not console.is_terminal:
        yield lambda _name, _made, _total: None
        return
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars: dict[str, TaskID] = {}  # of the runs that have begun

        def watch(name: str, made: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(_RUNS[name], total=total)
            progress.update(bars[name], completed=made, total=total)

        yield watch


def _tell(console: Console, story: Story, verdict: Verdict) -> None:
    whole, killed, resumed = story.whole, story.killed, story.resumed
    losses = f"{whole[0].loss:.2f} -> {whole[-1].loss:.2f}"
    kill = f"SIGKILL to all after step {story.killed_after}, in epoch {killed[-1].epoch + 1}"
    steps = f"steps {resumed[0].step} to {resumed[-1].step}"
    how = f"{topology(story.before)}; {len(whole)} steps, loss {losses}"
    _say(console, f"{_RUNS['whole']}: {how}")
    _say(console, f"{_RUNS['killed']}: the same; {kill}")
    _say(console, f"{_RUNS['resumed']}: {topology(story.after)}; {steps}")
    _say(console, f"\n{around_the_kill(story)}\n")
    _say(console, f"Compared with the run that was never interrupted, in {story.seconds:.0f} s:")
    for finding in verdict.findings:
        style = "" if finding.is_good else "bold red"
        _say(console, f"  {finding.what:<37}{finding.words}", style)
    _say(console, f"\n{HOW}\n{waits(story)}", "dim")


def _say(console: Console, words: str, style: str = "") -> None:
    wrapped = (
        textwrap.fill(line, WIDTH, subsequent_indent="   " * line[:1].isdigit())
        if len(line) > WIDTH
        else line
        for line in words.split("\n")
    )
    console.print(Text("\n".join(wrapped), style=style))
