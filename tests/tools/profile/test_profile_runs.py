"""Real loaders, profiled in processes of their own."""

import sys

import numpy as np
import pytest
import torch

from dataporter.errors import FactoryError, OptionError, OptionTypeError
from dataporter.fetch.timing import CONSUMER
from dataporter.tools.profile import profile


def profiled(name, **options):
    return profile(f"profiled_loaders:{name}", **{"batches": 24, "step_ms": 2, **options})


def with_enough_time(run):
    """The result of a run with seconds that suffice, as on a busy machine the first do not."""
    for seconds in (1, 5):
        try:
            return run(seconds)
        except (AssertionError, FactoryError):
            continue
    return run(25)


@pytest.mark.parametrize(
    ("name", "stages", "makers"),
    [
        ("inline", ["fetch", "collate"], {CONSUMER}),
        ("threads", ["fetch", "collate"], {CONSUMER, 0, 1}),
        ("slow", ["fetch", "collate", "write"], {0, 1}),
        ("lanes", ["fetch", "collate", "state", "write"], {0, 1}),
        ("tokens", ["fetch", "write"], {0}),
        ("torchs", [], set()),
    ],
)
def test_every_kind_of_loader_shows_what_can_be_seen_of_it(name, stages, makers):
    found = profiled(name)
    figures = found.figures
    assert figures.batches == 24
    assert list(figures.stages) == stages
    assert {each.worker for each in figures.workers} <= makers
    assert bool(figures.workers) == bool(makers)
    assert (figures.take is None) == (name in ("inline", "threads", "torchs"))
    assert bool(figures.ready) == (name not in ("inline", "torchs"))
    assert figures.samples_per_batch == 8
    assert figures.bytes_per_batch > 0
    assert all(step.asked <= step.got <= step.done for step in found.measured.steps)
    assert ("only waits and steps" in str(found)) == (name == "torchs")


def test_generators_that_are_read_by_calls_are_named_with_their_cost_and_releases():
    shown = " ".join(str(profiled("with_hidden_generators", batches=4)).split())
    assert "takes about 40 µs a batch" in shown
    assert f"by torch {torch.__version__}, NumPy {np.__version__} or Python" in shown
    assert "takes about 40 µs" not in str(profiled("inline", batches=4))


@pytest.mark.upset_by_load(reason="it measures steps, and a process that is paused makes long ones")
def test_a_loader_that_takes_longer_than_a_step_is_loader_bound_and_its_slow_sample_named():
    found = profiled("inline", step_ms=1)
    assert found.verdict.bound == "loader"
    assert found.figures.waiting > 0.5  # 8 ms of 9
    assert found.figures.stages["fetch"].p50 >= 0.008
    assert 7 in [index for index, _ in found.figures.slowest]
    assert "7 (1" in str(found)
    assert found.measured.subject.way == "one by one"


def test_what_was_slow_once_is_no_slow_sample():
    found = profiled("hiccups", step_ms=0)
    assert found.figures.stages["fetch"].longest >= 0.03
    assert found.figures.slowest == ()
    assert "slowest" not in str(found)


def test_a_step_takes_as_long_as_it_is_said_to():
    found = profiled("tokens", step_ms=30, batches=8)
    pauses = [(step.done - step.got) / 1e9 for step in found.measured.steps]
    assert min(pauses) >= 0.03
    assert found.measured.subject.way == "gathered"


def test_seconds_bound_the_run():
    # A million batches take hours.
    found = with_enough_time(lambda seconds: profiled("inline", batches=10**6, seconds=seconds))
    assert 0 < found.figures.batches < 10**4


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory of a process")
def test_memory_that_samples_leave_behind_is_seen():
    found = profiled("hoarding", batches=40, step_ms=0)
    assert found.figures.growth == pytest.approx(2**20, rel=0.2)
    assert found.verdict.advice[0].change == "memory that grows with each sample"


def test_more_batches_than_a_pass_has_come_from_the_next_passes():
    found = profiled("lanes", batches=50, step_ms=0)
    assert found.figures.batches == 50
    assert found.figures.passes == 3


def test_tuning_tries_settings_on_the_loader_itself():
    trials = []
    found = profiled("inline", batches=8, step_ms=3, tune=True, on_trial=trials.append)
    tuning = found.tuning
    assert tuning.now.settings.num_workers == 0
    assert all(trial.rates or trial.refused for trial in tuning.trials)
    # Which of them is the best depends on the machine.
    assert any(trial.settings.num_workers > 0 and trial.rates for trial in trials)
    assert tuning.best in [tuning.now, *tuning.trials]
    assert "batches/s" in str(found)


def test_settings_that_the_loader_refuses_are_told_with_its_reason():
    found = profiled("drawing", batches=4, step_ms=1, tune=True)
    (refused,) = [trial for trial in found.tuning.trials if trial.refused]
    assert refused.settings.engine == "threads"
    assert "global random generators" in refused.refused


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "the loader failed: LookupError: the ninth is missing"),
        ("empty", "delivered no batch"),
        ("nothing", "returned None, not a loader"),
        ("not_new", "a loader that it had not made"),
        ("failing", "the factory failed: RuntimeError: no such disk"),
        ("crashing", "the process ended while the factory ran"),
        ("number", "cannot be called: its type is int"),
        ("choosy", "must work without arguments"),
        ("slaw", "Did you mean 'slow'"),
    ],
)
def test_a_loader_that_cannot_be_profiled_is_refused_in_words(name, words):
    with pytest.raises(FactoryError, match=words.replace("(", r"\(")):
        profiled(name)


def test_a_factory_that_hangs_is_given_up_when_the_time_is_up():
    with pytest.raises(FactoryError, match=r"has not returned after 0\.3"):
        profiled("hanging", seconds=0.3)


def test_a_batch_that_hangs_is_given_up_when_the_time_is_up():
    def given_up(seconds):
        with pytest.raises(FactoryError, match=f"busy with a batch when its {seconds} seconds"):
            profiled("endless", seconds=seconds)

    with_enough_time(given_up)


def test_torchs_loader_cannot_be_tuned_from_outside():
    with pytest.raises(FactoryError, match="cannot be tuned from outside"):
        profiled("torchs", tune=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batches": 0}, OptionError),
        ({"batches": 2.5}, OptionTypeError),
        ({"seconds": 0}, OptionError),
        ({"step_ms": -1}, OptionError),
        ({"step_ms": float("nan")}, OptionError),
        ({"step_ms": "20"}, OptionTypeError),
    ],
)
def test_budgets_that_make_no_sense_are_refused(options, error):
    with pytest.raises(error):
        profiled("slow", **options)
