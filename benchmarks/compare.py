"""Every installed loader on the same work: torch, torchdata, Grain, SPDL and dataporter.

    python benchmarks/compare.py [--seconds 60] [--out FOLDER]

The loaders deliver the same workloads in turns. Then each resumes a run at several positions and
sizes. The tables are printed, and written to FOLDER as bench.md and bench.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from contenders import installed
from measure import count, spread, table
from race import Race, race
from resume import RESUMES, ROUNDS, SIZES, SWEPT, Point, Resumed, measured_elsewhere
from workloads import WORKLOADS

SHARE = 0.7  # of the time that is for delivery
FULL_LENGTH = 165.0  # seconds of delivery that allow turns of a whole epoch

NOTE = (
    "Medians of turns on the same dataset. Workers stay from turn to turn and are suspended while "
    "other loaders run. ± is half of the range between the quartiles. Compare ratios with those of "
    "other runs, not times."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All measurements of one run."""

    versions: dict[str, str]
    machine: str
    races: tuple[Race, ...]
    resumes: tuple[Resumed, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """All of it as builtins, times in seconds."""
        races = [
            {
                **asdict(race),
                "samples_per_second": {who: race.speed(who) for who in self.versions},
                "to_torch": {who: race.ratio(who, "torch") for who in self.versions},
            }
            for race in self.races
        ]
        return {**asdict(self), "races": races}

    def markdown(self) -> str:
        """All of it as Markdown tables."""
        names = [f"{who} {version}" for who, version in self.versions.items()]
        rows = [
            (
                race.workload,
                *(_speed(race, who) for who in self.versions),
                _ratio(race.ratio("dataporter", "torch")),
            )
            for race in self.races
        ]
        parts = [
            f"# Loaders compared\n\n{self.machine}\n\n{NOTE}",
            table("Delivery, shuffled", ("samples/s", *names, "dataporter to torch"), rows),
            table("From state to first correct batch", *self._resume_rows()),
        ]
        return "\n".join(parts) + "\n"

    def _resume_rows(self) -> tuple[list[str], list[list[str]]]:
        contenders = [who for who in self.versions if any(r.who == who for r in self.resumes)]
        places = sorted({(found.samples, found.position) for found in self.resumes})
        found = {(each.who, each.samples, each.position): each for each in self.resumes}
        rows = [
            [
                count(samples),
                f"{position:,}",
                *(_resume(found.get((who, samples, position))) for who in contenders),
            ]
            for samples, position in places
        ]
        return ["samples", "position", *contenders], rows


def compare(seconds: float) -> Comparison:
    """Compare all installed loaders, in about so many seconds."""
    began = time.monotonic()
    return Comparison(
        versions=installed(),
        machine=machine(),
        races=tuple(_races(seconds * SHARE)),
        resumes=tuple(_resumes(seconds * (1 - SHARE))),
        seconds=time.monotonic() - began,
    )


def _races(seconds: float) -> list[Race]:
    deadline = time.monotonic() + seconds
    races: list[Race] = []
    for number, workload in enumerate(WORKLOADS):
        left = deadline - time.monotonic()
        if number and left <= 0:
            break
        share = left / (len(WORKLOADS) - number)
        races.append(race(workload, share, min(1, seconds / FULL_LENGTH)))
    return races


def _resumes(seconds: float) -> list[Resumed]:
    contenders = [who for who in installed() if who in RESUMES]
    limit = seconds / len(contenders) / 4
    return [
        found for who in contenders for found in measured_elsewhere(who, points(), ROUNDS, limit)
    ]


def points() -> list[Point]:
    """Several positions of one size, then the middle of several sizes."""
    along = {Point(samples=SWEPT, position=SWEPT // 100 * share) for share in (0, 10, 50, 90)}
    middles = {Point(samples=size, position=size // 2) for size in SIZES}
    return sorted(along | middles, key=lambda point: (point.samples, point.position))


def machine() -> str:
    """Describe the machine and how busy it is."""
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}; load over 1, 5 and 15 minutes: {load}"
    )


def _speed(race: Race, who: str) -> str:
    speed = race.speed(who)
    if speed is None:
        return "failed" if who in race.failed else "not run"
    return f"{speed:,.0f}{_spread(race.times[who])}"


def _spread(times: Sequence[float]) -> str:
    return f" ±{spread(times):.0%}" if len(times) > 1 else ""


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}x"


def _resume(found: Resumed | None) -> str:
    if found is None:
        return "not run"
    if found.why:
        return f"not run: {found.why}"
    middle = statistics.median(found.seconds) * 1e3
    memory = "" if found.megabytes is None else f", {found.megabytes:,.1f} MB"
    return f"{middle:,.1f} ms{_spread(found.seconds)}{memory}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print the tables, and write them."""
    parser = argparse.ArgumentParser(description="Compare all installed loaders.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")  # torch counts cores, torchdata calls deprecated functions
    torch.set_num_threads(1)
    found = compare(options.seconds)
    print(found.markdown())
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "bench.md").write_text(found.markdown())
        (options.out / "bench.json").write_text(json.dumps(found.as_dict(), indent=2))


if __name__ == "__main__":
    main()
