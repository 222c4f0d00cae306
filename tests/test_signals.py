"""A state may be taken in a signal handler, at any instruction."""

import signal
import time

from support import Ids, flat, one_pass, plain

from dataporter import ResumableDataLoader


class Slow(Ids):
    """Says when it is at work."""

    fetching = False

    def __getitem__(self, index: int) -> int:
        Slow.fetching = True
        time.sleep(0.0002)
        Slow.fetching = False
        return super().__getitem__(index)


def test_a_state_from_a_signal_handler_counts_what_was_handed_over_and_nothing_else():
    loader = ResumableDataLoader(Slow(60), 4, shuffle=True, seed=1)
    received, taken = [0], []

    def take(_signal, _frame):
        taken.append((loader.state_dict(), received[0], Slow.fetching))

    reference = []
    previous = signal.signal(signal.SIGALRM, take)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
    try:
        for _ in range(2):
            received[0] = 0
            for batch in loader:
                received[0] += 1
                reference.append(plain(batch))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

    assert sum(fetching for _, _, fetching in taken) > 10
    for state, seen, fetching in taken:
        # Between the hand-over and the loop's own count, the batch is counted already; before
        # the second pass begins, the loop has begun to count anew and the state has not.
        ahead = state["batches_processed"] - seen
        others = (0, 1, -15, 15 * state["finished"])
        assert ahead == 0 if fetching and not state["finished"] else ahead in others
    for state in {str(state): state for state, _, _ in taken}.values():
        resumed = ResumableDataLoader(Ids(60), 4, shuffle=True, seed=1)
        resumed.load_state_dict(state)
        rest = one_pass(resumed)
        done = state["epoch"] * 15 + state["batches_processed"]
        if state["finished"]:
            assert sorted(flat(rest)) == list(range(60))
        else:
            assert rest == reference[done : (state["epoch"] + 1) * 15]
