"""What notebooks show: the same words as the text, escaped, and in no colours of its own."""

import torch
from shown_html import cells, words
from support import Ids

from dataporter import ResumableDataLoader
from dataporter.converters import KeyBasedDtypeConverter
from dataporter.law.explanation import explain
from dataporter.testing import Cause, Check, Present, Report

EVIL = "<script>alert('$x$')</script> & more"


def test_an_explanation_is_a_table_of_its_rows():
    loader = ResumableDataLoader(Ids(10), 4, shuffle=True, seed=3)
    next(iter(loader))
    assert cells(loader.explain()) == [list(row) for row in loader.explain().rows()]


def test_a_state_of_anybody_is_escaped():
    state = ResumableDataLoader(Ids(10), 4).state_dict() | {"order": EVIL}
    assert any(EVIL in row[1] for row in cells(explain(state)))


def test_a_delivered_batch_is_a_table_of_its_samples():
    loader = ResumableDataLoader(Ids(11), 4, shuffle=False, rank=1, world_size=2)
    list(loader)
    assert cells(loader.delivered) == [
        ["position", "index", ""],
        ["9", "9", ""],
        ["0", "0", "padding"],
    ]


def test_of_a_large_batch_the_first_samples_are_shown():
    loader = ResumableDataLoader(Ids(2000), 1000)
    next(iter(loader))
    assert len(cells(loader.delivered)) == 17
    assert words(loader.delivered)[-3:] == ["and", "984", "more"]


def test_a_verify_report_shows_checks_verdict_and_cause():
    report = Report(
        loader=f"a loader over {EVIL}",
        reference="Compared with an uninterrupted run",
        checks=(
            Check(name="after 1 batch", outcome="exact", batches=19),
            Check(name="after 2 batches", outcome="differs", batches=3, words=EVIL),
        ),
        cause=Cause(kind="clock", words="the clock", remedy="no clock", evidence=(EVIL,)),
    )
    assert cells(report)[1:] == [
        ["exact", "after 1 batch", "19", ""],
        ["differs", "after 2 batches", "3", EVIL],
    ]
    shown = " ".join(words(report))
    for text in (report.loader, report.reference, "NOT EXACT: 1 of 2", "What to do: no clock"):
        assert text in shown
    assert repr(report) == str(report)


def test_a_verify_report_of_another_loader_shows_both_loaders():
    lost = Check(name="other samples", outcome="differs", words=EVIL)
    report = Report(
        loader="ours",
        reference="Compared",
        checks=(Check(name="after 1 batch", outcome="exact", batches=19),),
        present=Present(loader="torch's DataLoader", checks=(lost,)),
    )
    assert cells(report) == [
        ["outcome", "check", "batches", ""],
        ["differs", "other samples", "", EVIL],
        ["outcome", "check", "batches", ""],
        ["exact", "after 1 batch", "19", ""],
    ]
    shown = " ".join(words(report))
    assert "torch's DataLoader As it is" in shown
    assert "With dataporter and the same arguments: ours" in shown


def test_a_conversion_report_shows_what_its_text_does():
    report = KeyBasedDtypeConverter({"x": "float16"}).report({"x": torch.ones(3), "<y>": 2})
    found = cells(report)
    assert found[0][0] == "key"
    assert " ".join(" ".join(row) for row in found).split() == str(report).split()
