"""A state may be taken in a signal handler, at any instruction."""

import signal
import time

import pytest
from support import Ids, flat, one_pass, plain

from dataporter import ResumableDataLoader


class Slow(Ids):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.0002)
        return super().__getitem__(index)


@pytest.fixture
def alarms():
    """States taken by a timer in the middle of whatever the loop is doing."""
    taken = []
    loaders: list[ResumableDataLoader] = []

    def take(_signal, _frame):
        if loaders:
            taken.append(loaders[0].state_dict())

    previous = signal.signal(signal.SIGALRM, take)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
    yield loaders, taken
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def test_a_state_from_a_signal_handler_is_a_state_between_two_batches(alarms):
    loaders, taken = alarms
    loader = ResumableDataLoader(Slow(60), 4, shuffle=True, seed=1)
    loaders.append(loader)
    reference = [plain(batch) for _ in range(2) for batch in loader]
    assert len(taken) > 10
    loaders.clear()
    for state in {str(state): state for state in taken}.values():
        assert state["samples_processed"] == min(4 * state["batches_processed"], 60)
        resumed = ResumableDataLoader(Ids(60), 4, shuffle=True, seed=1)
        resumed.load_state_dict(state)
        rest = one_pass(resumed)
        done = state["epoch"] * 15 + state["batches_processed"]
        expected = reference[done : (state["epoch"] + 1) * 15]
        if state["finished"]:
            assert sorted(flat(rest)) == list(range(60))
        else:
            assert rest == expected
