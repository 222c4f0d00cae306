"""Signals that must not break off what an engine is doing."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from watching import until

from dataporter.system.signals import EVERY_SIGNAL, delayed


@pytest.fixture
def other_thread() -> Iterator[None]:
    """A thread that blocks no signal, as a notebook's kernel has several."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals for which handlers were called; that of SIGUSR1 raises."""
    seen: list[int] = []

    def note(number, _frame):
        seen.append(number)
        if number == signal.SIGUSR1:
            raise LookupError("as asked for")

    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(number, note) for number in numbers]
    yield seen
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def was_received(number: int) -> bool:
    """Whether no thread has yet to receive a signal that was sent to the process."""
    return number not in signal.sigpending()


def test_a_signal_that_another_thread_receives_waits_for_the_end_of_the_block(
    other_thread, handled
):
    reached = False
    with pytest.raises(LookupError), delayed(EVERY_SIGNAL):
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: was_received(signal.SIGUSR1))
        assert not handled
        reached = True
    assert reached
    assert handled == [signal.SIGUSR1]


def test_a_handler_that_raises_does_not_keep_the_others_from_being_called(other_thread, handled):
    with pytest.raises(LookupError), delayed(EVERY_SIGNAL):
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: was_received(signal.SIGUSR1))
        with delayed(EVERY_SIGNAL):
            os.kill(os.getpid(), signal.SIGUSR2)
            until(lambda: was_received(signal.SIGUSR2))
    assert handled == [signal.SIGUSR1, signal.SIGUSR2]


def test_handlers_are_back_after_the_block(handled):
    before = signal.getsignal(signal.SIGUSR2)
    with delayed(EVERY_SIGNAL):
        assert signal.getsignal(signal.SIGUSR2) != before
    assert signal.getsignal(signal.SIGUSR2) is before
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_without_other_threads_a_signal_is_pending_until_the_end(handled):
    with pytest.raises(LookupError), delayed({signal.SIGUSR1}):
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        assert not was_received(signal.SIGUSR1)
        assert not handled
    assert handled == [signal.SIGUSR1]
