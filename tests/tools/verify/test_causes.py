"""The cause that is named is the right one, also where another is near at hand."""

import contextlib

import planted_causes
import planted_seeded
import planted_table
import pytest
from planted import loader

from dataporter.tools.sandbox import Conditions, Sandbox
from dataporter.tools.verify import verify
from dataporter.tools.verify.causes import find_cause
from dataporter.tools.verify.runs import Run, run_in

QUICK = {"batches": 6, "points": 0, "workers": (), "batch_sizes": (), "world_sizes": ()}


def cause_in(factory):
    """What is named as the cause, of batches of which it is known that they differ."""
    with contextlib.closing(Sandbox(factory, Run, seconds=300)) as sandbox:
        facts, result = run_in(sandbox, Run(batches=3))
        return find_cause(sandbox, facts, result.states[0], 3)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("ShuffledByPython", "entropy", "(in the samples of ShuffledByPython)"),
        ("ShuffledByTorch", "entropy", "(in the samples of ShuffledByTorch)"),
        ("sampler", "entropy", "(in the sampler)"),
        ("Seconds", "clock", "depends on the time"),
        ("Minutes", "clock", "depends on the time"),
        ("Days", "clock", "depends on the time"),
        ("Months", "clock", "depends on the time"),
        ("Uuids", "clock", "depends on the time"),
        ("Slotted", "call order", "Slotted.calls"),
        ("DiesOfAStoppedClock", "call order", "DiesOfAStoppedClock.calls"),
        ("FailsWithAStoppedClock", "call order", "FailsWithAStoppedClock.calls"),
    ],
)
def test_the_cause_is_named_and_not_another(name, kind, words):
    cause = cause_in(planted_causes.make(name))
    assert cause.kind == kind, cause
    assert words in cause.words


def test_the_order_of_a_set_of_objects_is_not_taken_for_one_of_strings():
    cause = cause_in(planted_causes.make("OrderOfClasses"))
    # Mostly "address"; but what memory happens to look like is chance in each experiment.
    assert cause.kind != "hash", cause


def test_a_cause_is_named_beside_pandas():
    cause = cause_in(planted_table.make_loader)
    assert (cause.kind, "Table.calls" in cause.words) == ("call order", True), cause


def test_random_numbers_that_nobody_has_seeded_are_found_in_a_function_in_a_function():
    cause = cause_in(lambda: loader(planted_causes.ShuffledByPython()))
    assert cause.kind == "entropy"


def test_what_a_module_has_seeded_at_its_import_is_the_same_in_every_process():
    report = verify(planted_seeded.make_loader, **QUICK)
    assert report.is_exact, str(report)


@pytest.mark.parametrize("name", ["Seconds", "Minutes", "Days", "Months"])
def test_what_depends_on_the_time_is_not_exact_however_seldom_it_changes(name):
    report = verify(planted_causes.make(name), **QUICK)
    (check,) = [check for check in report.checks if "another time" in check.name]
    assert check.outcome == "differs"
    assert report.cause.kind == "clock", str(report)


def test_what_cannot_be_read_at_another_time_is_not_taken_for_a_difference():
    report = verify(planted_causes.make("ValidForAnHour"), **QUICK)
    assert report.is_exact, str(report)
    (check,) = [check for check in report.checks if "another time" in check.name]
    assert (check.outcome, "not valid" in check.words) == ("skipped", True)


def test_what_measures_how_long_it_takes_does_not_differ_at_another_time():
    with contextlib.closing(Sandbox(planted_causes.make("Timed"), Run, seconds=300)) as sandbox:
        runs = [
            run_in(sandbox, Run(batches=3), conditions)[1]
            for conditions in (Conditions(), Conditions(clock="long ago"))
        ]
    assert runs[1].problem is None
    assert runs[0].delivered == runs[1].delivered
