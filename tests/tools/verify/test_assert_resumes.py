"""`assert_resumes_exactly` in a test, and what `verify` takes and refuses."""

import contextlib
import re
import time

import planted
import pytest
import torch

from dataporter import FactoryError, NotExactError, OptionError, OptionTypeError
from dataporter.stateful_dataloader import StatefulDataLoader
from dataporter.tools.sandbox import Sandbox, sandbox
from dataporter.tools.verify import (
    Check,
    Present,
    Report,
    assert_resumes_exactly,
    verify,
)
from dataporter.tools.verify.runs import Run, run_in

QUICK = {"batches": 4, "points": 0, "workers": (1,), "batch_sizes": (), "world_sizes": ()}


def test_it_returns_the_report_of_a_loader_that_does():
    report = assert_resumes_exactly(planted.make_clean("tensors"), **QUICK)
    assert report.is_exact
    assert report.as_dict()["exact"] is True
    assert "EXACT" in str(report)
    assert max(map(len, str(report).splitlines())) <= 80


def test_checks_are_counted_before_each_of_them():
    noted = []
    report = verify(
        planted.make_clean("tensors"),
        **QUICK,
        on_progress=lambda done, of: noted.append((done, of)),
    )
    assert noted == [(done, len(report.checks)) for done in range(len(report.checks))]


def test_the_failure_of_one_that_does_not_is_an_assertion_that_reads_well():
    with pytest.raises(AssertionError) as failed:
        assert_resumes_exactly(planted.make_wrong("OwnGenerator"), **QUICK)
    assert type(failed.value) is NotExactError
    lines = str(failed.value).splitlines()
    assert lines[:2] == [
        "",
        "ResumableDataLoader over OwnGenerator, 40 samples, batches of 4, shuffled, 0",
    ]
    text = " ".join(str(failed.value).split())
    assert re.search(r"DIFFERS the same run in a new interpreter: epoch 0, batch 1", text)
    assert "Likely cause: the dataset draws from a generator of its own: OwnGenerator.rng" in text
    assert max(map(len, lines)) <= 80
    # pytest shows the line of the test, not ours.
    assert not failed.traceback[-1].frame.code.path.name.startswith("test_")
    assert failed.traceback.filter(failed)[-1].frame.code.path.name == "test_assert_resumes.py"


def test_of_many_differences_the_first_are_told_and_the_others_counted():
    kinds = ["another time", *["numbers of workers"] * 5, "killed workers"]
    differing = [
        Check(name=f"check {number}", outcome="differs", words="expected 1, found 2", kind=kind)
        for number, kind in enumerate(kinds)
    ]
    equal = Check(name="equal", outcome="exact", batches=3, kind="numbers of workers")
    report = Report(loader="ours", reference="a run", checks=(*differing, equal))
    assert "\n".join(report.lines()) == (
        "  DIFFERS  check 0: expected 1, found 2\n"
        "  DIFFERS  check 1: expected 1, found 2\n"
        "  exact    equal (3 batches)\n"
        "  DIFFERS  5 more: numbers of workers (4 of 6), killed workers"
    )


def test_the_verdict_names_checks_that_are_impossible_for_the_loader():
    skipped = Check(name="killed workers", outcome="skipped", words="there are none")
    equal = Check(name="after 1 batch", outcome="exact", batches=3)
    report = Report(loader="ours", reference="a run", checks=(equal, skipped))
    assert report.is_exact
    assert report.verdict() == "EXACT: all 1 checks, bit by bit. Skipped: killed workers."


def test_an_error_at_a_resume_is_a_difference():
    report = verify(planted.make_wrong("falls over"), **QUICK)
    assert not report.is_exact
    assert "OSError: gone" in str(report)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batches": 1}, OptionError, "batches must be at least 2, found 1"),
        ({"batches": 2.5}, OptionTypeError, "batches must be an int"),
        ({"seconds": 0}, OptionError, "seconds must be finite and above 0"),
        ({"workers": [-1]}, OptionError, "workers must be at least 0, found -1"),
        ({"world_sizes": [0]}, OptionError, "world_sizes must be at least 1"),
    ],
)
def test_impossible_options_are_refused_before_anything_runs(options, error, words):
    with pytest.raises(error, match=words):
        verify(planted.make_clean("tensors"), **options)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (7, "cannot be called: its type is int"),
        (lambda: None, "returned None"),
        (lambda: torch.utils.data.DataLoader([1]), "delivered a single batch"),
        (lambda path: None, "must work without arguments, but it requires 'path'"),
        ("nowhere:make_loader", "no module 'nowhere'"),
    ],
)
def test_what_makes_no_loader_is_refused(factory, words):
    with pytest.raises(FactoryError, match=words):
        verify(factory)


# Time


@pytest.fixture
def hurry(monkeypatch):
    """Make the time up when called."""
    ahead = [0.0]
    monkeypatch.setattr(sandbox, "monotonic", lambda: time.monotonic() + ahead[0])
    return lambda _: ahead.__setitem__(0, 1e6)


def hurry_after_a_resume(hurry):
    """Make the time up after the first resume, which is the third check."""
    return lambda check: hurry(check) if check.name.startswith("after") else None


def test_a_part_of_the_checks_is_incomplete_and_says_what_was_not_tried(hurry):
    options = {**QUICK, "workers": (1, 2), "points": 1}
    clean = planted.make_clean("tensors")
    report = verify(clean, on_check=hurry_after_a_resume(hurry), **options)
    outcomes = [check.outcome for check in report.checks]
    assert outcomes == ["exact"] * 3 + ["not run"] * 9
    assert (report.outcome, report.is_exact, report.would_be_exact) == ("incomplete", False, False)
    told = report.as_dict()
    assert (told["outcome"], told["exact"]) == ("incomplete", False)
    assert " ".join(report.verdict().split()) == (
        "INCOMPLETE: 3 of 12 checks ran, all equal. Not tried: numbers of workers (2 of 3), "
        "killed workers, new interpreters (2 of 3), resumes in one process. Use --seconds 480, in "
        "Python seconds=480."
    )
    assert {check.words for check in report.checks} == {"", "the time was up"}


def test_a_part_of_the_checks_is_no_proof_to_a_test(hurry):
    clean = planted.make_clean("tensors")
    with pytest.raises(NotExactError, match="INCOMPLETE: 3 of 11 checks ran, all equal"):
        assert_resumes_exactly(clean, on_check=hurry_after_a_resume(hurry), **QUICK)


def test_a_loader_of_another_library_that_was_not_tried_is_not_exact():
    untried = Check(name="the loader as it is", outcome="not run", words="the time was up")
    equal = Check(name="after 1 batch", outcome="exact", batches=3)
    report = Report(
        loader="ours",
        reference="a run",
        checks=(equal,),
        present=Present(loader="torch's DataLoader", checks=(untried,)),
    )
    assert (report.outcome, report.would_be_exact) == ("incomplete", True)
    assert report.verdict().startswith("As it is, INCOMPLETE: some checks were not run.")


@pytest.mark.parametrize("when", ["on_start", "on_check"])
def test_where_there_was_no_time_for_a_resume_nothing_is_claimed(when, hurry):
    with pytest.raises(FactoryError, match="no resume could be compared within 120 seconds"):
        verify(planted.make_clean("tensors"), **{when: hurry}, **QUICK)


@pytest.mark.parametrize(
    ("batches", "advice"), [(3, "seconds, or fewer than 3"), (2, r"seconds\.")]
)
def test_no_fewer_batches_are_advised_than_there_can_be(batches, advice, hurry):
    with pytest.raises(FactoryError, match=f"Give more {advice}"):
        verify(planted.make_clean("tensors"), batches=batches, on_start=hurry)


def test_a_loader_of_one_batch_has_nothing_to_resume():
    with pytest.raises(FactoryError, match="delivered a single batch, so there is no resume"):
        verify(lambda: StatefulDataLoader(planted.OnlyOnce(), 8))


def test_a_run_whose_time_is_up_ends_after_the_batch_in_hand():
    with contextlib.closing(Sandbox(planted.make_clean("tensors"), Run, seconds=60)) as here:
        _, result = run_in(here, Run(batches=5, seconds=0))
    assert result.out_of_time
    assert len(result.delivered) == 1


# What is left out, and how things are called


def test_the_loaders_own_batch_size_and_a_single_rank_are_named_as_what_they_are():
    sizes = {"batch_sizes": (4, 5), "world_sizes": (1, 2)}
    report = verify(planted.make_clean("tensors"), **{**QUICK, **sizes})
    own, *others = [each for each in report.checks if re.search("batches of|rank", each.name)]
    assert (own.name, own.outcome) == ("batches of 4", "skipped")
    assert own.words == "that is the loader's own batch size"
    names = [check.name.partition(", ")[2] for check in others]
    assert names == ["with batches of 5", "on 1 rank", "on 2 ranks, then on 1"]
    assert {check.outcome for check in others} == {"exact"}
