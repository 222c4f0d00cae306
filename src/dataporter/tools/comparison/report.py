"""What a comparison has found: values, JSON, Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataporter.tools.comparison.measure import count, spread, table
from dataporter.tools.comparison.racing import Race
from dataporter.tools.comparison.resuming import Resumed

NOTE = (
    "Medians of turns that the loaders took on the same dataset, one after the other, with workers "
    "that stay, and stand still while others have their turn; ± is half the way between the "
    "quartiles. Ratios can be compared with those of other runs, times cannot."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that was measured."""

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
        return {
            "versions": self.versions,
            "machine": self.machine,
            "seconds": self.seconds,
            "races": races,
            "resumes": [asdict(found) for found in self.resumes],
        }

    def markdown(self) -> str:
        """All of it as Markdown tables."""
        names = [f"{who} {version}" for who, version in self.versions.items()]
        header = ("samples/s", *names, "dataporter to torch")
        rows = [
            (
                race.workload,
                *(speed_words(race, who) for who in self.versions),
                ratio_words(race, "dataporter"),
            )
            for race in self.races
        ]
        parts = [
            f"# Loaders compared\n\n{self.machine}\n\n{NOTE}",
            table("Delivery, shuffled", header, rows),
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
                *(resume_words(found.get((who, samples, position))) for who in contenders),
            ]
            for samples, position in places
        ]
        return ["samples", "position", *contenders], rows


def speed_words(race: Race, who: str) -> str:
    """A speed and its spread."""
    speed = race.speed(who)
    if speed is None:
        return "failed" if who in race.failed else "not run"
    return f"{speed:,.0f}{spread_words(race.times[who])}"


def spread_words(times: Sequence[float]) -> str:
    """How far values lie apart, where there are several."""
    return f" ±{spread(times):.0%}" if len(times) > 1 else ""


def ratio_words(race: Race, who: str) -> str:
    """How many times torch's speed."""
    ratio = race.ratio(who, "torch")
    return "-" if ratio is None else f"{ratio:.1f}x"


def resume_words(found: Resumed | None) -> str:
    """A time and its spread, and the memory that it took; or why there is none."""
    if found is None:
        return "not run"
    if found.why:
        return f"not run: {found.why}"
    middle = statistics.median(found.seconds) * 1e3
    memory = "" if found.megabytes is None else f", {found.megabytes:,.1f} MB"
    return f"{middle:,.1f} ms{spread_words(found.seconds)}{memory}"
