"""Figures are what the stamps say, whatever they say."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented import MS, measured

from dataporter.fetch.timing import CONSUMER, Handed, Made
from dataporter.tools.profile.figures import figures_of, judge
from dataporter.tools.profile.measuring import Measured, Step
from dataporter.tools.profile.profiles import Profile


def test_shares_rates_and_stages_are_those_of_the_stamps():
    figures = figures_of(measured(wait=10, step=30, bytes_by_dtype={"float32": 900, "int64": 100}))
    assert figures.waiting == pytest.approx(0.25)
    assert figures.batches_per_second == pytest.approx(25)
    assert figures.samples_per_second == pytest.approx(800)
    assert figures.bytes_per_second == pytest.approx(25_000)
    assert figures.bytes_by_dtype == {"float32": 0.9, "int64": 0.1}
    assert figures.stages["fetch"].mean == pytest.approx(0.05)
    assert figures.making == pytest.approx(0.053)
    assert figures.take.p90 == pytest.approx(0.0001)
    assert list(figures.stages) == ["fetch", "collate", "write"]


def test_the_start_of_a_pass_is_told_apart_from_what_follows():
    figures = figures_of(measured(passes=2, first=500, wait=10))
    assert figures.passes == 2
    assert figures.first == pytest.approx(0.5)
    assert figures.wait.longest == pytest.approx(0.01)


def test_a_run_of_one_batch_has_figures():
    figures = figures_of(measured(steps=1, first=40))
    assert figures.batches == 1
    assert figures.wait.p50 == pytest.approx(0.04)


def test_workers_are_shown_one_by_one_with_how_busy_they_are():
    run = measured(num_workers=2, wait=33, step=20)
    workers = figures_of(run).workers
    assert [(each.worker, each.batches) for each in workers] == [(0, 20), (1, 20)]
    assert all(0.4 < each.busy < 0.6 for each in workers)
    assert workers[0].stages["collate"] == pytest.approx(0.002)


def test_occupancy_is_how_many_batches_were_there_when_asked():
    run = measured(steps=4)
    run.handed = [
        each._replace(ready=ready) for each, ready in zip(run.handed, [0, 0, 0, 2], strict=True)
    ]
    assert figures_of(run).ready == {0: 0.75, 2: 0.25}


@st.composite
def any_run(draw):
    """Stamps of any kind that a run can leave."""
    of = measured(
        steps=1,
        num_workers=draw(st.sampled_from([0, 1, 3])),
        is_ours=draw(st.booleans()),
        batch_size=draw(st.sampled_from([None, 1, 32])),
        has_lanes=draw(st.booleans()),
        way=draw(st.sampled_from(["one by one", "gathered", "iterated"])),
        cores=draw(st.integers(1, 64)),
    ).subject
    ns = st.integers(0, 10**11)
    run = Measured(subject=of, step_seconds=draw(st.sampled_from([0.0, 1e-3, 0.02])))
    clock = draw(ns)
    for number in range(draw(st.integers(1, 12))):
        asked, got, done = clock, clock + draw(ns), 0
        clock = done = got + draw(ns)
        sizes = draw(st.dictionaries(st.sampled_from(["float32", "int64"]), st.integers(0, 10**9)))
        run.steps.append(Step(asked, got, done, number == 0 or draw(st.booleans()), sizes))
    for number in range(draw(st.integers(0, 12)) if of.is_ours else 0):
        start, spans = draw(ns), []
        for stage in draw(st.lists(st.integers(0, 5), max_size=4)):
            spans.append((stage, start, start + draw(ns)))
            start = spans[-1][2]
        looked = draw(st.booleans())
        run.made.append(
            Made(
                number,
                draw(st.integers(CONSUMER, 2)),
                draw(ns) if looked else None,
                draw(ns) if looked else None,
                spans,
                draw(st.integers(0, 64)),
                draw(ns),
                draw(ns),
                number,
                draw(st.lists(st.tuples(st.one_of(st.integers(), st.text()), ns), max_size=4)),
            )
        )
    for number in range(draw(st.integers(0, 5))):
        asked = draw(ns)
        there = asked + draw(ns)
        run.handed.append(Handed(number, asked, there, there + draw(ns), draw(st.integers(0, 30))))
    return run


@given(any_run())
@settings(max_examples=60)
def test_any_run_has_figures_a_verdict_text_in_80_columns_and_json(run):
    figures = figures_of(run)
    assert 0 <= figures.waiting <= 1
    assert figures.batches == len(run.steps)
    for spread in (figures.wait, *figures.stages.values()):
        assert spread.p50 <= spread.p90 <= spread.p99 <= spread.longest * (1 + 1e-9)
        assert spread.mean <= spread.longest * (1 + 1e-9)
    assert not figures.ready or math.isclose(sum(figures.ready.values()), 1)
    assert figures.computing is None or 0 <= figures.computing <= 1
    profile = Profile(measured=run, figures=figures, verdict=judge(run.subject, figures))
    assert (profile.verdict.bound == "step") == (figures.waiting < 0.05)
    assert all(len(line) <= 80 for line in str(profile).splitlines())
    json.loads(json.dumps(profile.as_dict(), allow_nan=False))


def test_a_batch_that_stands_for_others_counts_as_many():
    run = measured(steps=4, num_workers=1)
    run.made = [run.made[0]._replace(stands_for=3), run.made[3]]
    start = run.made[1].spans[0][1]
    run.made[1] = run.made[1]._replace(spans=[(0, start, start + 13 * MS)])
    figures = figures_of(run)
    assert figures.workers[0].batches == 4
    assert figures.making == pytest.approx((3 * 0.053 + 0.013) / 4)


def test_of_many_stages_those_that_take_longest_are_shown_by_worker():
    stages = [("fetch", 50), ("collate", 4), ("convert", 3), ("state", 1), ("write", 2)]
    run = measured(stages=stages)
    figures = figures_of(run)
    text = str(Profile(measured=run, figures=figures, verdict=judge(run.subject, figures)))
    (heading,) = [line for line in text.splitlines() if line.startswith("by worker")]
    assert heading.split()[6:10] == ["fetch", "collate", "convert", "write"]
    assert re.search(r"worker 1 +20 ", text)


def test_stamps_are_nanoseconds_and_figures_seconds():
    assert figures_of(measured(wait=20)).wait.mean == pytest.approx(20 * MS / 1e9)
