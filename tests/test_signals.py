"""A state may be taken in a signal handler, at any instruction."""

import signal
import threading
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
    stop, here = threading.Event(), threading.get_ident()

    def send() -> None:
        while not stop.wait(0.0005):
            signal.pthread_kill(here, signal.SIGUSR1)

    sender = threading.Thread(target=send)
    previous = signal.signal(signal.SIGUSR1, take)
    sender.start()
    try:
        while len(reference) < 30 or sum(fetching for _, _, fetching in taken) <= 10:
            received[0] = 0
            for batch in loader:
                received[0] += 1
                reference.append(plain(batch))
    finally:
        stop.set()
        sender.join()
        signal.signal(signal.SIGUSR1, previous)

    for state, seen, fetching in taken:
        # Between the hand-over and the loop's own count, the batch is counted already; before
        # another pass begins, the loop has begun to count anew and the state has not.
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
