"""The whole comparison, in processes of its own, so that nothing of it is left afterwards."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dataporter.errors import DataPorterError, OptionError
from dataporter.tools.child_processes import started
from dataporter.tools.comparison.contenders import installed
from dataporter.tools.comparison.racing import Race
from dataporter.tools.comparison.report import Comparison
from dataporter.tools.comparison.resuming import RESUMES, SIZES, SWEPT, Point, Resumed

_SHARE = 0.7  # of the time that is for delivery
_ROUNDS = 5
_PATIENCE = 60.0  # seconds beyond the budget, for workers that start and turns that end


def compare(
    folder: Path,
    seconds: float,
    on_race: Callable[[Race], None] = lambda _race: None,
    on_resumed: Callable[[Resumed], None] = lambda _resumed: None,
) -> Comparison:
    """Compare all that is installed, in about so many seconds, with files in an empty folder."""
    if not 0 < seconds < float("inf"):
        msg = f"seconds must be finite and above 0, found {seconds}."
        raise OptionError(msg)
    began = time.monotonic()
    races, resumes = [], []
    with closing(_races(folder, seconds * _SHARE)) as found_races:
        for race in found_races:
            races.append(race)
            on_race(race)
    contenders = [who for who in installed() if who in RESUMES]
    for who in contenders:
        limit = seconds * (1 - _SHARE) / len(contenders) / 4
        with closing(resumed(folder, who, _points(), _ROUNDS, limit)) as found_resumes:
            for found in found_resumes:
                resumes.append(found)
                on_resumed(found)
    return Comparison(
        versions=installed(),
        machine=machine(),
        races=tuple(races),
        resumes=tuple(resumes),
        seconds=time.monotonic() - began,
    )


def _points() -> list[Point]:
    """Several positions of one size, then the middle of several sizes."""
    along = {Point(samples=SWEPT, position=SWEPT // 100 * share) for share in (0, 10, 50, 90)}
    middles = {Point(samples=size, position=size // 2) for size in SIZES}
    return sorted(along | middles, key=lambda point: (point.samples, point.position))


def _races(folder: Path, seconds: float) -> Generator[Race, None, None]:
    command = ["dataporter.tools.comparison.racing", str(folder / "races"), str(seconds)]
    with closing(_lines(folder / "races", command, seconds + _PATIENCE)) as lines:
        for line in lines:
            yield Race(**line)


def resumed(
    folder: Path, who: str, points: Sequence[Point], rounds: int, limit: float
) -> Generator[Resumed, None, None]:
    """Measure one contender's resumes in a new process."""
    file = folder / f"resumes-{who}"
    listed = json.dumps([asdict(point) for point in points])
    module = "dataporter.tools.comparison.resuming"
    command = [module, str(file), who, str(rounds), str(limit), listed]
    # A point may take as long as the limit before it is known to; none follows then.
    with closing(_lines(file, command, len(points) * rounds * limit + _PATIENCE)) as lines:
        for line in lines:
            yield Resumed(**{**line, "seconds": tuple(line["seconds"])})


def _lines(
    file: Path, command: Sequence[str], patience: float
) -> Generator[dict[str, Any], None, None]:
    """Run a child, and yield the lines that it writes while it does."""
    folder = file.with_suffix(".files")
    folder.mkdir()
    deadline = time.monotonic() + patience
    read = 0
    with started([command], folder) as (child,):
        ended = False
        while not ended:
            ended = child.poll() is not None  # before the lines are read
            for line in _whole_lines(file)[read:]:
                read += 1
                yield json.loads(line)
            if time.monotonic() > deadline:
                return  # what was measured until here is worth something
            time.sleep(0.05)
        _check(child, folder, command[0])


def _whole_lines(file: Path) -> list[str]:
    if not file.exists():
        return []
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _check(child: subprocess.Popen[bytes], folder: Path, module: str) -> None:
    if child.returncode != 0:
        errors = (folder / "0.err").read_text(errors="replace").strip().splitlines()
        last = errors[-1] if errors else "nothing"
        msg = f"{module} ended with status {child.returncode}; what it said last: {last}"
        raise DataPorterError(msg)


def machine() -> str:
    """What it was measured on."""
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}; load over 1, 5 and 15 minutes: {load}"
    )
