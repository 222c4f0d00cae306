"""`dataporter demo`: a training is killed, resumed on other processes, and compared."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from dataporter.tools.cli.files import check_folder, write_whole
from dataporter.tools.cli.terminal import make_console, say

if TYPE_CHECKING:
    from dataporter.tools.demo import Story
    from dataporter.tools.demo.runs import OnStep
    from dataporter.tools.demo.verdict import Verdict

_RUNS = {"whole": "1. uninterrupted", "killed": "2. killed", "resumed": "3. resumed"}
_SECONDS_BETWEEN_LINES = 5.0


def demo(
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Seed of data and kill; random if not given."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for demo.html and demo.png.")] = Path(
        "dataporter-demo"
    ),
) -> None:
    """Kill a real training at a random step, resume it on other processes, and compare.

    Two processes train a small network on the CPU. They do it again until SIGKILL ends them at a
    random step, and three processes with other workers and batches continue from the last
    checkpoint. Every sample and every loss is compared with the uninterrupted run, bit by bit. The
    demo takes less than a minute. Exit status: 0 identical, 1 different.
    """
    from dataporter.tools.demo import run_demo
    from dataporter.tools.demo.page import page_of, picture_of
    from dataporter.tools.demo.verdict import judge
    from dataporter.tools.pages import check_matplotlib

    check_matplotlib()
    check_folder(out)
    seed = random.randrange(1000) if seed is None else seed
    console = make_console()
    say(console, f"A training that is killed in mid-epoch, resumed and compared (seed {seed}).\n")
    with tempfile.TemporaryDirectory(prefix="dataporter-") as folder, _bars(console) as on_step:
        story = run_demo(Path(folder), seed, on_step=on_step)
    verdict = judge(story)
    _show(console, story, verdict)
    write_whole(out / "demo.html", page_of(story, verdict))
    write_whole(out / "demo.png", picture_of(story, verdict))
    say(console, f"\nPictures: {out / 'demo.html'} and {out / 'demo.png'}\n")
    say(console, verdict.words, "bold green" if verdict.is_exact else "bold red")
    if not verdict.is_exact:
        raise typer.Exit(1)


@contextlib.contextmanager
def _bars(console: Console) -> Iterator[OnStep]:
    """Show a bar for each run that has begun; a line every few seconds if this is no terminal."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (TextColumn("{task.description:<20}"), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        bars: dict[str, TaskID] = {}

        def on_step(name: str, made: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(_RUNS[name], total=total)
            progress.update(bars[name], completed=made)

        yield on_step


def _lines(console: Console) -> OnStep:
    last_name, last_time = "", 0.0

    def on_step(name: str, made: int, total: int) -> None:
        nonlocal last_name, last_time
        now = time.monotonic()
        if name != last_name or now - last_time > _SECONDS_BETWEEN_LINES:
            last_name, last_time = name, now
            say(console, f"{_RUNS[name]}: step {made} of {total}", "dim")

    return on_step


def _show(console: Console, story: Story, verdict: Verdict) -> None:
    from dataporter.tools.demo.verdict import HOW, beside_torch, topology, waits

    first, last = story.whole[0].loss, story.whole[-1].loss
    kill = f"SIGKILL to all after step {story.killed_after}, in epoch {story.epoch + 1}"
    start = f"from the checkpoint of step {story.resumed_from}"
    say(console, f"{_RUNS['whole']}: {topology(story.before)}, loss {first:.2f} -> {last:.2f}")
    say(console, f"{_RUNS['killed']}: {kill}")
    say(console, f"{_RUNS['resumed']}: {topology(story.after)}, {start}\n")
    findings = Table("compared with the uninterrupted run", "", box=SIMPLE, show_edge=False)
    for finding in verdict.findings:
        findings.add_row(*finding[:2], style="" if finding.is_good else "bold red")
    console.print(findings)
    say(console, f"{beside_torch(story)}\n\n{HOW}\n{waits(story)}", "dim")
