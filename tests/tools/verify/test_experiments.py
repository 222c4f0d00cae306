"""The tables of experiments fit together, and do without the extra as far as they can."""

import string
from importlib import metadata

import planted
import pytest

from dataporter.tools.sandbox.conditions import why_clock_must_run
from dataporter.tools.verify import verify
from dataporter.tools.verify.experiments import CAUSES, CHANGES, EXPERIMENTS, REMAINING

QUICK = {"batches": 4, "points": 0, "workers": (), "batch_sizes": (), "world_sizes": ()}


def placeholders(cause):
    return {name for _, name, _, _ in string.Formatter().parse(CAUSES[cause].finding) if name}


def test_each_experiment_has_a_cause_whose_text_can_be_filled_in():
    for experiment in EXPERIMENTS:
        assert placeholders(experiment.cause) <= {"where"}
    for cause, _ in CHANGES:
        assert placeholders(cause) <= {"dataset", "path", "kind", "description"}
    for cause, _, _ in REMAINING:
        assert placeholders(cause) <= {"dataset"}


@pytest.fixture
def _without_time_machine(monkeypatch):
    version = metadata.version

    def installed(name):
        if name == "time-machine":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", installed)
    why_clock_must_run.cache_clear()
    yield
    why_clock_must_run.cache_clear()


@pytest.mark.usefixtures("_without_time_machine")
def test_without_its_extra_the_proof_is_made_and_the_other_time_is_skipped():
    report = verify(planted.make_clean("tensors"), **QUICK)
    assert report.is_exact
    (check,) = [check for check in report.checks if "another time" in check.name]
    assert check.outcome == "skipped"
    assert 'pip install "torch-dataporter[cli]"' in check.words


@pytest.mark.usefixtures("_without_time_machine")
def test_without_its_extra_the_clock_is_said_not_to_have_been_tried():
    report = verify(planted.make_wrong("Clock"), fail_fast=True, **QUICK)
    assert report.cause.kind == "unknown"
    (evidence,) = [each for each in report.cause.evidence if "clock" in each]
    assert evidence.startswith("not tried with clock='stopped': time-machine")


def test_other_causes_are_found_without_its_extra(request):
    request.getfixturevalue("_without_time_machine")
    report = verify(planted.make_wrong("ProcessId"), fail_fast=True, **QUICK)
    assert report.cause.kind == "process"
