"""Several threads that ask one iterator: each batch comes once, or the second thread is refused."""

import sys
import threading

import pytest
from support import Ids, flat

from dataporter import ResumableDataLoader
from dataporter.errors import SharedIteratorError


def test_a_second_thread_is_refused_while_the_first_waits_for_a_batch():
    begun, may_go_on = threading.Event(), threading.Event()

    class Held(Ids):
        def __getitem__(self, index: int) -> int:
            begun.set()
            assert may_go_on.wait(60)
            return index

    batches = iter(ResumableDataLoader(Held(8), 4))
    got: list = []
    first = threading.Thread(target=lambda: got.append(next(batches).tolist()))
    first.start()
    assert begun.wait(60)
    with pytest.raises(SharedIteratorError, match=r"another thread .* threading\.Lock"):
        next(batches)
    assert not batches.is_last()
    may_go_on.set()
    first.join()
    assert got == [[0, 1, 2, 3]]
    assert next(batches).tolist() == [4, 5, 6, 7]  # nothing was lost by that
    assert batches.is_last()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_threads_that_ask_again_when_they_are_refused_get_every_batch_once(num_workers):
    batches = iter(ResumableDataLoader(Ids(3000), 4, num_workers=num_workers))
    got: list[list] = [[] for _ in range(4)]

    def take(own: list) -> None:
        while True:
            try:
                own.append(next(batches).tolist())
            except SharedIteratorError:
                continue
            except StopIteration:
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=take, args=(own,)) for own in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(flat(flat(own) for own in got)) == list(range(3000))
