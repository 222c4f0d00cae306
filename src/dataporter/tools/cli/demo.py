"""`dataporter demo`: a training is killed, resumed on other processes, and compared."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from dataporter.tools.cli import output

if TYPE_CHECKING:
    from dataporter.tools.demo.runs import OnStep

_RUNS = {"whole": "1. uninterrupted", "killed": "2. killed", "resumed": "3. resumed"}


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
    from dataporter.tools.demo.report import judge, page_of, parts_of, picture_of
    from dataporter.tools.pictures import check_matplotlib

    check_matplotlib()
    output.check_folder(out)
    seed = random.randrange(1000) if seed is None else seed
    console = output.make_console()
    output.say(
        console, f"A training that is killed in mid-epoch, resumed and compared (seed {seed}).\n"
    )
    with tempfile.TemporaryDirectory(prefix="dataporter-") as folder, _bars(console) as on_step:
        story = run_demo(Path(folder), seed, on_step=on_step)
    verdict = judge(story)
    output.write_whole(out / "demo.html", page_of(story, verdict))
    output.write_whole(out / "demo.png", picture_of(story, verdict))
    *parts, headline = parts_of(story, verdict)
    pictures = f"Pictures: {out / 'demo.html'} and {out / 'demo.png'}"
    output.print_parts(console, parts)
    output.say(console, f"\n{pictures}\n")
    output.print_parts(console, [headline])
    if not verdict.is_exact:
        raise typer.Exit(1)


@contextlib.contextmanager
def _bars(console: Console) -> Iterator[OnStep]:
    """Show a bar for each run that has begun; its name alone if this is no terminal."""
    columns = (TextColumn("{task.description:<20}"), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {}

        def on_step(name: str, made: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(_RUNS[name], total=total)
                if not console.is_terminal:
                    output.say(console, f"{_RUNS[name]}: {total} steps", "soft")
            progress.update(bars[name], completed=made)

        yield on_step
