"""A profile as one HTML file: verdict, timeline, figures. It needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dataporter.tools.pages import page, section
from dataporter.tools.profile.report import (
    MEANING,
    WORKER_COLUMNS,
    Profile,
    worker_cells,
    worker_name,
)
from dataporter.tools.profile.timeline import stacked, timeline, waits_picture
from dataporter.tools.profile.tuning import Tuning
from dataporter.tools.profile.units import duration, percent, rate, size

_STYLE = """
body { overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem;
  margin: 1rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .8rem; }
.card b { display: block; font-size: 1.2rem; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: .85rem; }
ol.advice { padding-left: 1.4rem; } ol.advice li { margin: .5rem 0; }
.lane { display: grid; grid-template-columns: 5.6rem 1fr; align-items: center; margin: 3px 0; }
.lane b { font-weight: 500; font-size: .85rem; white-space: nowrap; overflow: hidden; }
.lane svg { display: block; width: 100%; height: 26px; background: var(--card);
  border-radius: 3px; }
.ticks div { position: relative; height: 1.4em; font-size: .78rem;
  color: var(--soft); font-variant-numeric: tabular-nums; }
.ticks span { position: absolute; left: calc(var(--at) * 100%); white-space: nowrap;
  transform: translateX(calc(var(--at) * -100%)); }
svg.tall, .tall svg { display: block; width: 100%; height: 120px; background: var(--card);
  border-radius: 3px; }
.level { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 6 5; }
.fetch { fill: #0072b2; background: #0072b2; } .collate { fill: #009e73; background: #009e73; }
.convert { fill: #f0e442; background: #f0e442; } .state { fill: #cc79a7; background: #cc79a7; }
.write { fill: #e69f00; background: #e69f00; } .pin { fill: #56b4e9; background: #56b4e9; }
.wait { fill: #d55e00; background: #d55e00; } .step { fill: var(--pale); }
i.step { background: var(--pale); } .ready { fill: #0072b2; }
th, td { white-space: nowrap; } td.words { text-align: left; white-space: normal;
  min-width: 14rem; overflow-wrap: normal; } tr.best td { font-weight: 650; }
th.words { text-align: left; } td.meaning { color: var(--soft); min-width: 8rem; }
@media (max-width: 40rem) { .meaning { display: none; } table { font-size: .8rem; }
  th, td { padding-right: .45rem; } td.words { min-width: 0; } }
"""


def page_of(profile: Profile) -> str:
    """The whole page."""
    figures, subject = profile.figures, profile.measured.subject
    body = [
        f'<p class="soft">dataporter profile · {escape(str(subject))}</p>',
        f'<h1 class="{_news(profile)}">{escape(profile.verdict.words)}</h1>',
        *(f"<p>{escape(note)}</p>" for note in profile.notes()),
        _cards(profile),
        _advice(profile),
        section("Timeline", _timeline(profile)),
        '<div class="two">',
        section("What a batch costs, beside a step", _costs(profile)),
        section("Wait for each batch", _waits(profile)),
        "</div>",
        '<div class="two">',
        section("Time by stage", _stages(profile)),
        section("By worker", _workers(profile)) if profile.has_workers else "",
        "</div>",
        '<div class="two">',
        section("Ready when asked", _ready(profile)) if figures.ready else "",
        section("Slowest samples", _slowest(profile)) if figures.slowest else "",
        "</div>",
        "" if profile.tuning is None else section("Tuning", _tuning(profile.tuning)),
    ]
    title = f"Profile of {subject.loader} over {subject.dataset}"
    return page(title, body, _STYLE)


def _news(profile: Profile) -> str:
    return "good" if profile.verdict.bound == "step" else "bad"


def _cards(profile: Profile) -> str:
    figures = profile.figures
    cards = [
        (percent(figures.waiting), "of the time waiting"),
        (rate(figures.batches_per_second), "batches a second"),
    ]
    if figures.samples_per_second is not None:
        cards.append((rate(figures.samples_per_second), "samples a second"))
    if figures.bytes_per_batch:
        cards.append((f"{size(figures.bytes_per_second)}/s", "of tensors and arrays"))
    if profile.measured.step_seconds:
        cards.append((duration(profile.measured.step_seconds), "a step, simulated"))
    cards.append((duration(figures.first), "to the first batch"))
    shown = "".join(f'<div class="card"><b>{a}</b><span>{b}</span></div>' for a, b in cards)
    return f'<div class="cards">{shown}</div>'


def _advice(profile: Profile) -> str:
    items = "".join(
        f"<li><b>{escape(each.change)}</b>: {escape(each.why)}</li>"
        for each in profile.verdict.advice
    )
    return section("What to change", f'<ol class="advice">{items}</ol>') if items else ""


def _keys(kinds: Sequence[str]) -> str:
    spans = "".join(f'<span><i class="{kind}"></i>{kind}</span>' for kind in kinds)
    return f'<div class="keys">{spans}</div>'


def _timeline(profile: Profile) -> str:
    kinds = ["wait", "step", *profile.figures.stages]
    caption = "A few steps from the middle of the run."
    if not profile.measured.made:
        caption += " Of this loader only waits and steps can be seen."
    elif not profile.measured.subject.num_workers:
        caption += " Without workers, the consumer makes its batches itself while it waits."
    return (
        f"{_keys(kinds)}<figure id='timeline'>{timeline(profile.measured)}"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _costs(profile: Profile) -> str:
    figures, makers = profile.figures, profile.measured.subject.makers
    made = [(name, spread.mean / makers) for name, spread in figures.stages.items()]
    step = profile.measured.step_seconds
    whole = max(sum(seconds for _, seconds in made), step, figures.wait.mean, 1e-9)
    rows = [("a batch", made)] if made else []
    rows += [("a wait", [("wait", figures.wait.mean)])]
    rows += [("a step", [("step", step)])] if step else []
    lanes = "".join(
        f'<div class="lane"><b>{name}</b>{stacked(parts, whole, name)}</div>'
        for name, parts in rows
    )
    caption = f"All is {duration(whole)} wide. "
    if made:
        caption += (
            f"A batch takes {duration(figures.making or 0)} of its maker; with {makers} at work, "
            f"one comes every {duration((figures.making or 0) / makers)} at best."
        )
    return f"<figure id='costs'>{lanes}<figcaption>{caption}</figcaption></figure>"


def _waits(profile: Profile) -> str:
    step = " The dashed line is a step." if profile.measured.step_seconds else ""
    wait = profile.figures.wait
    return (
        f"<figure id='waits' class='tall'>{waits_picture(profile.measured)}<figcaption>"
        f"From the first batch to the last; half of them within {duration(wait.p50)}, 99 of 100 "
        f"within {duration(wait.p99)}.{step}</figcaption></figure>"
    )


def _stages(profile: Profile) -> str:
    rows = [
        [
            f"<td>{name}</td>",
            *(
                f"<td>{duration(each)}</td>"
                for each in (spread.mean, spread.p50, spread.p90, spread.p99, spread.longest)
            ),
            f'<td class="words meaning">{MEANING[name]}</td>',
        ]
        for name, spread in profile.rows()
    ]
    return _table(["", "mean", "p50", "p90", "p99", "longest", ""], rows)


def _workers(profile: Profile) -> str:
    names = list(profile.figures.stages)
    rows = [
        [
            f"<td>{worker_name(worker.worker)}</td>",
            *(f"<td>{cell}</td>" for cell in worker_cells(worker, names)),
        ]
        for worker in profile.figures.workers
    ]
    return _table(["", *WORKER_COLUMNS, *names], rows)


def _ready(profile: Profile) -> str:
    lanes = "".join(
        f'<div class="lane"><b>{name}: {percent(share)}</b>'
        f"{stacked([('ready', share)], 1.0, name)}</div>"
        for name, share in profile.ready_rows()
    )
    caption = "How many batches were there when one was asked for, and how often."
    return f"<figure id='ready'>{lanes}<figcaption>{caption}</figcaption></figure>"


def _slowest(profile: Profile) -> str:
    rows = [
        [f"<td>{escape(str(index))}</td>", f"<td>{duration(spent)}</td>"]
        for index, spent in profile.figures.slowest
    ]
    usual = duration(profile.figures.sample or 0)
    return f"<p class='soft'>The usual one takes {usual}.</p>{_table(['index', 'time'], rows)}"


def _tuning(tuning: Tuning) -> str:
    rows = []
    for trial in tuning.trials:
        mark = " (now)" if trial.settings == tuning.now.settings else ""
        words = f"{escape(str(trial.settings))}{mark}"
        cells = [f"<td>{rate(trial.rate)}</td>", f"<td>{percent(trial.waiting)}</td>"]
        if trial.refused:
            cells = ['<td colspan="2">refused</td>']
            words += f": {escape(trial.refused)}"
        rows.append([*cells, f'<td class="words">{words}</td>'])
    best = [trial.settings == tuning.best.settings for trial in tuning.trials]
    table = _table(["batches/s", "waiting", "settings"], rows, best)
    return f"<p>{escape(tuning.words)}</p>{table}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[bool] = ()) -> str:
    marks = best or [False] * len(rows)
    head = "".join(
        f'<th class="words">{name}</th>' if name == "settings" else f"<th>{name}</th>"
        for name in header
    )
    body = "".join(
        f"<tr{' class=best' if mark else ''}>{''.join(row)}</tr>"
        for row, mark in zip(rows, marks, strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{body}</table></div>'
