"""Recovery without a process: what is issued again, and when a run gives up."""

import re
import warnings
from typing import Any

import numpy as np
import pytest

from dataporter.engine.board import Board
from dataporter.engine.recovery import Loss, Losses, lost_by_any_worker, lost_by_lane_workers
from dataporter.errors import WorkerDiedError, WorkerRestartWarning, WorkerStartError
from dataporter.fetch.randomness import keys_of
from dataporter.fetch.tasks import Samples, Task

NONE = np.array([], np.int64)


def task(number: int, place: int | None = None) -> Task:
    return Task(number, Samples([number], NONE, keys_of(seed=0, epoch=0)), place)


def with_issues(tasks: list[Any], replied: set[int] = frozenset()) -> Board[Any]:
    """Issue tasks under the numbers 1, 2, …; some have a reply."""
    board = Board(free=lambda _: None)
    for slot, each in enumerate(tasks):
        board.issue(each, slot)
    for number in replied:
        board.note_reply(number, 0, 0, 1)
    return board


# Any worker may run a task


def test_what_a_living_worker_has_or_has_done_is_not_issued_again():
    board = with_issues(["a", "b"], replied={1})
    assert not lost_by_any_worker(board, nobody_has=set(), somebody_has={2})


def test_what_a_dead_worker_had_is_issued_again_and_its_slot_is_free():
    board = with_issues(["a", "b"])
    lost = lost_by_any_worker(board, nobody_has={1}, somebody_has={2})
    assert lost == [(1, "a", False)]


def test_what_a_living_worker_may_just_have_read_is_issued_again_but_its_slot_is_not_free():
    board = with_issues(["a", "b"])
    lost = lost_by_any_worker(board, nobody_has=set(), somebody_has={1})
    assert lost == [(2, "b", True)]


def test_what_a_dead_worker_noted_after_a_living_one_is_issued_again():
    board = with_issues(["a"])
    assert lost_by_any_worker(board, nobody_has={1}, somebody_has={1}) == [(1, "a", False)]


# Only the lane's worker may


def test_all_that_is_undelivered_of_lost_places_is_made_anew_and_nothing_else():
    tasks = [task(number, place=number % 3) for number in range(1, 7)]
    board = with_issues(tasks, replied={1, 2, 4})
    seen = []

    def renew(lost: Any, is_lost: Any) -> Any:
        seen.append(([each.place for each in lost], [is_lost(place) for place in range(3)]))
        return (each._replace(place=each.place + 3) for each in lost)

    lost = lost_by_lane_workers(board, lambda place: place == 1, renew)
    assert seen == [([1, 1], [False, True, False])]
    assert [(number, each.place, in_use) for number, each, in_use in lost] == [
        (1, 4, False),
        (4, 4, False),
    ]


# When a run gives up


def killed(at: Task | None, *, has_begun: bool = True, exitcode: int = -9) -> Loss:
    return Loss(worker=0, pid=123, exitcode=exitcode, task=at, has_begun=has_begun)


def lose(losses: Losses, *lost: Loss, awaited: int = 1) -> None:
    with pytest.warns(WorkerRestartWarning):
        losses.note(lost, task(awaited))


def test_a_task_that_kills_more_workers_than_may_be_replaced_ends_the_run():
    losses = Losses(most=2)
    for delivered in range(2):
        lose(losses, killed(task(5)))
        losses.note_delivery(task(delivered))
    message = (
        "fetching batch 5 of epoch 0 (the samples at indices 5). 3 workers have died while "
        "fetching this batch; at most 2"
    )
    with pytest.raises(WorkerDiedError, match=re.escape(message)):
        losses.note([killed(task(5))], task(2))


def test_a_task_that_was_delivered_starts_from_no_deaths():
    losses = Losses(most=1)
    for _ in range(5):
        lose(losses, killed(task(5)))
        losses.note_delivery(task(5))


def test_deaths_with_nothing_delivered_in_between_end_the_run():
    losses = Losses(most=2)
    for number in (5, 6):
        lose(losses, killed(task(number)))
    message = "3 workers have died with no batch delivered in between, while waiting for batch 1 of"
    with pytest.raises(WorkerDiedError, match=message):
        losses.note([killed(task(7))], task(1))


def test_deaths_with_deliveries_in_between_never_do():
    losses = Losses(most=1)
    for number in range(50):
        lose(losses, killed(task(number)))
        losses.note_delivery(task(number))


def test_idle_workers_may_have_died_one_by_one_between_deliveries():
    losses = Losses(most=1)
    for number in range(3):
        losses.note_delivery(task(number))
    lose(losses, *[killed(None)] * 3, awaited=4)


def test_workers_that_die_with_others_count_once_and_those_in_their_place_again():
    losses = Losses(most=2)
    together = [killed(None)] + [killed(None)._replace(is_first=False)] * 5
    lose(losses, *together)
    lose(losses, *together[1:])  # noticed later
    lose(losses, *together)
    with pytest.raises(WorkerDiedError, match="3 workers have died with no batch delivered"):
        losses.note(together, task(1))


def test_after_a_run_was_given_up_the_next_may_lose_as_many():
    losses = Losses(most=1)
    lose(losses, killed(None))
    with pytest.raises(WorkerDiedError):
        losses.note([killed(None)], task(1))
    losses.begin_run()
    lose(losses, killed(None))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            killed(task(3)),
            "(pid 123) is killed by signal: SIGKILL; it was worker 0, while fetching",
        ),
        (killed(None), "it was worker 0, between two batches."),
        (killed(None, has_begun=False), "it was worker 0, before its first batch."),
        (killed(None, exitcode=3), "(pid 123) ended with status 3; it was worker 0, between two"),
        (killed(None, exitcode=-35), "is killed by signal: signal 35;"),
        (killed(None)._replace(how="is lost"), "(pid 123) is lost; it was worker 0, between two"),
    ],
)
def test_the_warning_says_who_died_how_and_when(loss, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Losses(most=3).note([loss], task(1))
    assert message in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_worker_that_cannot_start_ends_the_run_at_once():
    with pytest.raises(WorkerStartError, match=r"before its first batch\. It could not start"):
        Losses(most=3).note([killed(None, has_begun=False, exitcode=1)], task(1))
