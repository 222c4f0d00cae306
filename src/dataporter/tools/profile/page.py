"""A profile as one HTML file: verdict, timeline, figures."""

from __future__ import annotations

from dataporter.tools.pages import render
from dataporter.tools.profile import pictures
from dataporter.tools.profile.report import (
    MEANING,
    WORKER_COLUMNS,
    Profile,
    worker_cells,
    worker_name,
)
from dataporter.tools.profile.units import duration, percent, rate, size

Table = list[list[str]]


def page_of(profile: Profile) -> str:
    """Render the page."""
    figures, measured = profile.figures, profile.measured
    return render(
        "profile",
        subject=measured.subject,
        verdict=profile.verdict,
        notes=profile.notes(),
        cards=_cards(profile),
        timeline=pictures.timeline(measured),
        timeline_caption=_timeline_caption(profile),
        costs=pictures.costs(_cost_rows(profile)),
        costs_caption=_costs_caption(profile),
        waits=pictures.waits(measured),
        waits_caption=_waits_caption(profile),
        stages=_stages(profile),
        worker_header=["", *WORKER_COLUMNS, *figures.stages],
        workers=_workers(profile) if profile.has_workers else [],
        ready=pictures.ready(profile) if figures.ready else "",
        slowest=[[str(index), duration(spent)] for index, spent in figures.slowest],
        usual=duration(figures.sample or 0),
        tuning=profile.tuning,
        trials=_trials(profile),
    )


def _cards(profile: Profile) -> list[tuple[str, str]]:
    figures = profile.figures
    cards = [
        (percent(figures.waiting), "of the time waiting"),
        (rate(figures.batches_per_second), "batches per second"),
    ]
    if figures.samples_per_second is not None:
        cards.append((rate(figures.samples_per_second), "samples per second"))
    if figures.bytes_per_batch:
        cards.append((f"{size(figures.bytes_per_second)}/s", "of tensors and arrays"))
    if profile.measured.step_seconds:
        cards.append((duration(profile.measured.step_seconds), "per simulated step"))
    return [*cards, (duration(figures.first), "to the first batch")]


def _timeline_caption(profile: Profile) -> str:
    caption = "A few steps from the middle of the run."
    if not profile.measured.made:
        return f"{caption} For this loader only waits and steps are visible."
    if not profile.measured.subject.num_workers:
        return f"{caption} Without workers, the consumer makes its batches while it waits."
    return caption


def _cost_rows(profile: Profile) -> list[tuple[str, list[tuple[str, float]]]]:
    figures, makers = profile.figures, profile.measured.subject.makers
    made = [(name, spread.mean / makers) for name, spread in figures.stages.items()]
    step = profile.measured.step_seconds
    return [
        *([("a batch", made)] if made else []),
        ("a wait", [("wait", figures.wait.mean)]),
        *([("a step", [("step", step)])] if step else []),
    ]


def _costs_caption(profile: Profile) -> str:
    making, makers = profile.figures.making, profile.measured.subject.makers
    if not making:
        return "Means of the whole run."
    one = duration(making / makers)
    who = "1 worker" if makers == 1 else f"{makers} workers"
    return f"A batch takes a worker {duration(making)}: {who} can make one every {one}."


def _waits_caption(profile: Profile) -> str:
    wait = profile.figures.wait
    return (
        f"From the first batch to the last: half of the waits are shorter than "
        f"{duration(wait.p50)}, 99 of 100 shorter than {duration(wait.p99)}."
    )


def _stages(profile: Profile) -> Table:
    table = []
    for name, each in profile.rows():
        times = (each.mean, each.p50, each.p90, each.p99, each.longest)
        table.append([name, *map(duration, times), MEANING[name]])
    return table


def _workers(profile: Profile) -> Table:
    stages = list(profile.figures.stages)
    return [
        [worker_name(each.worker), *worker_cells(each, stages)] for each in profile.figures.workers
    ]


def _trials(profile: Profile) -> list[dict[str, str]]:
    """Rows of the tuning's table."""
    tuning = profile.tuning
    if tuning is None:
        return []
    return [
        {
            "rate": "" if trial.refused else rate(trial.rate),
            "waiting": "refused" if trial.refused else percent(trial.waiting),
            "settings": f"{trial.settings}"
            + (" (now)" if trial.settings == tuning.now.settings else "")
            + (f": {trial.refused}" if trial.refused else ""),
            "mark": "best" if trial.settings == tuning.best.settings else "",
        }
        for trial in tuning.trials
    ]
