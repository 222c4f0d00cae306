"""Trace files are what Perfetto and Chrome take: every event whole, in order, nested and named."""

import json
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented import measured

from dataporter.tools.profile import profile
from dataporter.tools.profile.timeline import trace_of

COMMON = {"ph": str, "name": str, "pid": int, "tid": int, "ts": (int, float), "args": dict}
FIELDS = {
    "M": COMMON,
    "X": {**COMMON, "cat": str, "dur": (int, float)},
    "C": COMMON,
}
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def checked(text):
    """The events of a trace that keeps to the format; what does not fails."""
    trace = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    for event in events:
        fields = FIELDS[event["ph"]]
        assert set(event) == set(fields)
        for name, kind in fields.items():
            assert isinstance(event[name], kind), (name, event)
            assert not isinstance(event[name], bool)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
    phases = "".join(event["ph"] for event in events)
    assert phases.lstrip("M").count("M") == 0  # names come before what they name
    _check_names(events)
    stamps = [event["ts"] for event in events]
    assert stamps == sorted(stamps)
    for event in events:
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
    _check_nesting(events)
    return events


def _check_names(events):
    names = [event for event in events if event["ph"] == "M"]
    for event in names:
        assert list(event["args"]) == [METADATA[event["name"]]]
    assert max(Counter((each["name"], each["tid"]) for each in names).values()) == 1
    assert sum(event["name"] == "process_name" for event in names) == 1
    named = {event["tid"] for event in names if event["name"] == "thread_name"}
    assert {event["tid"] for event in events if event["ph"] != "M"} <= named
    assert len({event["pid"] for event in events}) == 1


def _check_nesting(events):
    """Spans of one thread lie in each other or beside each other, never across."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["tid"]].append(event)
    for spans in threads.values():
        ends = []
        for span in spans:
            while ends and ends[-1] <= span["ts"] + 1e-6:
                ends.pop()
            end = span["ts"] + span["dur"]
            assert not ends or end <= ends[-1] + 1e-3, span
            ends.append(end)


@pytest.mark.parametrize("name", ["slow", "inline", "threads", "lanes", "torchs"])
def test_a_real_run_makes_a_trace_that_keeps_to_the_format(name):
    found = profile(f"profiled_loaders:{name}", batches=10, step_ms=2)
    events = checked(trace_of(found.measured))
    spans = Counter(event["name"] for event in events if event["ph"] == "X")
    assert spans["wait"] == spans["step"] == 10
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert "consumer" in threads
    if name in ("slow", "lanes"):
        assert threads == {"consumer", "worker 0", "worker 1"}
        assert spans["fetch"] == spans["write"] >= 10
        assert sum(event["ph"] == "C" for event in events) >= 10


@given(
    steps=st.integers(1, 20),
    workers=st.integers(0, 3),
    wait=st.floats(0, 50),
    step=st.floats(0, 50),
    is_ours=st.booleans(),
)
@settings(max_examples=30)
def test_any_run_makes_a_trace_that_keeps_to_the_format(steps, workers, wait, step, is_ours):
    run = measured(
        steps=steps,
        num_workers=workers,
        # Without workers, batches are made while they are waited for.
        wait=wait + 1 if workers else 10,
        first=60,
        stages=[("fetch", 5), ("collate", 1)],
        step=step,
        is_ours=is_ours,
        dataset='Photos "of" <all>',
    )
    if workers:  # each in its turn
        for number, made in enumerate(run.made):
            spans = [(s, a + number * 10**9, b + number * 10**9) for s, a, b in made.spans]
            run.made[number] = made._replace(spans=spans)
    events = checked(trace_of(run))
    assert sum(event["ph"] == "X" and event["name"] == "wait" for event in events) == steps
