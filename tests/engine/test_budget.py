"""The budget: how many tasks are ahead, and how much memory slots keep."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dataporter.engine import budget as limits
from dataporter.engine.budget import Budget
from dataporter.engine.wire import ISSUE

PIPE = 2**16  # bytes that a pipe holds


def made(prefetch: int = 2, workers: int = 4, size: int = 0, **options: Any) -> Budget:
    budget = Budget(prefetch, workers, **options)
    budget.note_size(size)
    return budget


def test_usually_the_prefetch_factor_times_the_workers_is_ahead():
    assert made(prefetch=3, workers=5).usual[:2] == (15, 15)


def test_the_usual_number_has_a_limit_that_an_engine_may_raise():
    assert made(workers=100).usual.ahead == 64
    assert made(workers=100, most_ahead=1000).usual.ahead == 200


def test_while_the_consumer_waits_more_is_ahead_once_the_size_of_a_batch_is_known():
    assert made().waiting[:2] == (8, 8)
    assert made(size=1000).waiting[:2] == (16 * 8, 4 * 8)


def test_a_budget_that_does_not_grow_stays_as_it_usually_is():
    budget = made(size=1000, grows=False)
    assert budget.waiting == budget.usual


@pytest.mark.parametrize(("mebibytes", "expected"), [(8, (32, 32)), (16, (16, 16)), (64, (8, 8))])
def test_large_batches_take_at_most_so_many_bytes_but_the_usual_number_stays(mebibytes, expected):
    assert made(size=mebibytes * 2**20).waiting[:2] == expected


def test_without_bytes_the_usual_number_is_never_exceeded():
    budget = made(size=1000, most_bytes=0)
    assert budget.waiting == budget.usual


def test_the_largest_batch_counts():
    budget = made(size=16 * 2**20)
    budget.note_size(1000)
    assert budget.waiting[:2] == (16, 16)


def test_more_workers_have_more_ahead():
    budget = made(workers=2, size=1000)
    budget.note_workers(3)
    assert budget.usual == (6 + 2, 6 + 2, 3)
    assert budget.waiting[:2] == (96, 24)


def test_tasks_are_issued_together_if_the_bytes_allow_it_and_fewer_are_never_ahead():
    assert made(workers=4).usual == (8, 8, 1)
    assert made(workers=4, size=1000).usual == (8 + 3, 8 + 3, 4)
    assert made(workers=32, size=1000).usual == (64 + 7, 64 + 7, 8)
    assert made(workers=1, prefetch=1, size=1000).usual == (1, 1, 1)
    assert made(workers=4, size=2**28 // 9).usual == (8 + 1, 8 + 1, 2)
    assert made(workers=4, size=2**28).usual == (8, 8, 1)
    assert made(workers=4, size=1000).waiting.together == 8


def test_slots_of_small_batches_share_a_mark_and_those_of_large_ones_do_not():
    assert made(size=1000).marked_together == 16
    assert made(size=2**18).marked_together == 4
    assert made(size=2**20 + 1).marked_together == 1
    assert made().marked_together == 1


@given(
    prefetch=st.integers(1, 1000),
    workers=st.integers(1, 1000),
    size=st.integers(0, 2**40),
    most_bytes=st.integers(0, 2**40),
    grows=st.booleans(),
)
def test_limits_hold_whatever_is_asked_for(prefetch, workers, size, most_bytes, grows):
    budget = made(prefetch, workers, size, most_bytes=most_bytes, grows=grows)
    assert 1 <= budget.usual.unfinished <= budget.waiting.unfinished <= budget.waiting.ahead
    assert budget.usual.ahead <= budget.waiting.ahead
    depth = min(prefetch * workers, limits.MOST_ISSUED // limits.AHEAD_WHILE_WAITING)
    # Those that may be issued now are issued as soon as fewer than usual are ahead.
    assert budget.usual.ahead - budget.usual.together + 1 == depth
    assert 1 <= budget.waiting.together <= budget.waiting.unfinished
    if budget.usual.ahead > depth:
        assert budget.usual.ahead * size <= most_bytes
    # Issuing never blocks, since the pipe has room for all of them.
    assert budget.waiting.ahead * ISSUE.size < PIPE
    if budget.waiting.ahead > budget.usual.ahead:
        assert budget.waiting.ahead * size <= most_bytes
    # What is ahead and what devices read finds room among the slots that keep their memory.
    assert budget.most_free > budget.usual.ahead + budget.most_read
    assert budget.most_read >= 1
    assert budget.marked_together >= 1
    # With the newest mark, no more slots wait than may: only an older one is ever waited for.
    assert not size or 2 * budget.marked_together <= budget.most_read
