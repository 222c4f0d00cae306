"""The cursor: where a run stands and where its next pass begins, without a loader."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataporter.law.epochs import Cursor
from dataporter.law.state import Progress


class Epochs:
    """A source of epochs of ten positions that notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def fresh(self, epoch: int) -> Progress:
        return Progress(epoch=epoch)

    def at(self, start: Progress, position: int) -> Progress:
        return start._replace(samples_processed=position)

    def restore(self, progress: Progress) -> None:
        self.calls.append(("restore", progress))

    def undo_restore(self) -> None:
        self.calls.append("undo")

    def take_back(self, progress: Progress) -> None:
        self.calls.append(("take back", progress.samples_processed))

    def settle(self, progress: Progress) -> None:
        self.calls.append(("settle", progress.samples_processed))


def reached(cursor: Cursor, position: int) -> Progress:
    return cursor.progress._replace(samples_processed=position)


def ended(cursor: Cursor) -> None:
    cursor.deliver(cursor.progress._replace(finished=True), by=cursor.newest_pass)


def test_a_pass_is_the_next_epoch():
    cursor = Cursor(Epochs())
    assert [cursor.begin_pass().epoch for _ in range(3)] == [0, 1, 2]


@given(st.integers(0, 5), st.integers(0, 9), st.booleans())
def test_a_loaded_place_is_where_the_next_pass_begins(epoch, position, finished):
    cursor = Cursor(Epochs())
    cursor.load(Progress(epoch=epoch, samples_processed=position, finished=finished))
    begun = cursor.begin_pass()
    if finished:
        assert (begun.epoch, begun.samples_processed) == (epoch + 1, 0)
    else:
        assert (begun.epoch, begun.samples_processed) == (epoch, position)


def test_set_epoch_keeps_a_place_loaded_for_that_epoch():
    cursor = Cursor(Epochs())
    cursor.load(Progress(epoch=2, samples_processed=5))
    cursor.set_epoch(2)
    assert cursor.begin_pass().samples_processed == 5
    cursor.load(Progress(epoch=2, samples_processed=5))
    cursor.set_epoch(3)
    assert cursor.begin_pass() == Progress(epoch=3)


def test_an_epoch_that_ran_to_its_end_is_not_run_again_by_set_epoch():
    cursor = Cursor(Epochs())
    cursor.load(Progress(epoch=2, samples_processed=10, finished=True))
    cursor.set_epoch(2)
    assert cursor.begin_pass().finished


@given(st.integers(0, 5), st.integers(0, 9))
def test_a_seek_says_where_the_next_pass_begins_whatever_was_before(epoch, position):
    source = Epochs()
    cursor = Cursor(source)
    cursor.load(Progress(epoch=epoch, samples_processed=7))
    cursor.seek(epoch, position)
    place = Progress(epoch=epoch, samples_processed=position)
    assert source.calls == ["undo", ("restore", place)]
    assert cursor.progress == place
    assert cursor.begin_pass() == place
    assert cursor.begin_pass().epoch == epoch + 1


def test_only_the_newest_pass_moves_the_run():
    cursor = Cursor(Epochs())
    cursor.begin_pass()
    older = cursor.newest_pass
    cursor.begin_pass()
    cursor.deliver(reached(cursor, 4), by=cursor.newest_pass)
    cursor.deliver(cursor.progress._replace(samples_processed=9), by=older)
    assert cursor.progress.samples_processed == 4


def test_what_was_broken_off_is_settled_once_and_what_ended_is_not():
    source = Epochs()
    cursor = Cursor(source)
    cursor.begin_pass()
    cursor.deliver(reached(cursor, 4), by=cursor.newest_pass)
    cursor.begin_pass()
    ended(cursor)
    cursor.begin_pass()
    assert source.calls == [("settle", 4)]


def test_a_pass_that_could_not_begin_is_begun_again():
    source = Epochs()
    cursor = Cursor(source)
    cursor.load(Progress(epoch=1, samples_processed=5))
    before = cursor.newest_pass
    begun = cursor.begin_pass()
    for _ in range(2):
        cursor.take_back(before)
        assert cursor.has_loaded_start
    assert source.calls == []  # as soon as it matters
    assert cursor.begin_pass() == begun
    assert source.calls == [("take back", 5)]
    cursor.take_back(cursor.newest_pass)  # nothing has begun since
    assert cursor.begin_pass().epoch == 2


@pytest.mark.parametrize(
    "choose", [lambda cursor: cursor.set_epoch(3), lambda cursor: cursor.seek(3, 0)]
)
def test_what_could_not_begin_is_undone_before_another_epoch_is_chosen(choose):
    source = Epochs()
    cursor = Cursor(source)
    cursor.load(Progress(epoch=1, samples_processed=5))
    before = cursor.newest_pass
    cursor.begin_pass()
    cursor.take_back(before)
    choose(cursor)
    assert source.calls[:2] == [("take back", 5), "undo"]


@given(st.integers(0, 4), st.integers(0, 3))
def test_a_trainer_that_looks_ahead_is_told_where_the_run_stood_before(delivered, back):
    cursor = Cursor(Epochs())
    cursor.begin_pass()
    for position in range(1, delivered + 1):
        cursor.deliver(reached(cursor, position), by=cursor.newest_pass)
    kept = min(back, 2, delivered)
    assert cursor.before(min(back, 2)).samples_processed == delivered - kept
