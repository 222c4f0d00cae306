"""Bounds and budgets of requests, in an event loop of the test's own."""

import asyncio

import pytest

from dataporter.shards.storage.pacing import Bound, Budget


async def settled():
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def hold(bound, entered, name, leave, *, first=False):
    async with bound.first() if first else bound:
        entered.append(name)
        await leave.wait()


def test_requests_wait_for_a_place_and_the_first_goes_before_the_others():
    async def main():
        bound, entered, leave = Bound(1), [], asyncio.Event()
        tasks = [asyncio.create_task(hold(bound, entered, name, leave)) for name in "abc"]
        await settled()
        tasks.append(asyncio.create_task(hold(bound, entered, "urgent", leave, first=True)))
        await settled()
        assert (entered, bound.running) == (["a"], 1)
        leave.set()
        await asyncio.gather(*tasks)
        assert entered == ["a", "urgent", "b", "c"]
        assert bound.running == 0

    asyncio.run(main())


@pytest.mark.parametrize("has_place", [False, True])
def test_a_request_that_is_cancelled_while_it_waits_takes_no_place(has_place):
    async def main():
        bound, entered, leave = Bound(1), [], asyncio.Event()
        leave.set()
        async with bound:
            waiter = asyncio.create_task(hold(bound, entered, "cancelled", leave))
            await settled()
            if not has_place:
                waiter.cancel()
        waiter.cancel()  # it has been given a place by now, but has not gone on
        await asyncio.wait([waiter])
        assert waiter.cancelled()
        assert bound.running == 0
        await asyncio.wait_for(hold(bound, entered, "next", leave), timeout=10)
        assert entered == ["next"]

    asyncio.run(main())


def test_a_budget_without_requests_is_waited_for_in_vain():
    budget = Budget(burst=1, per_second=1e-9)
    assert asyncio.run(budget.wait(0))
    assert not asyncio.run(budget.wait(0))
    budget.earn(1)
    assert asyncio.run(budget.wait(0))


def test_a_budget_is_waited_for_until_it_has_a_request():
    budget = Budget(burst=1, per_second=100)
    assert budget.take()
    assert asyncio.run(budget.wait(60))


def test_a_budget_never_has_more_than_its_burst():
    budget = Budget(burst=2)
    budget.earn(5)
    assert [budget.take() for _ in range(3)] == [True, True, False]
