"""Pipes between an engine and its workers, read and written by one process."""

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator

import pytest

from dataporter.engine.connections import Connections, open_descriptors
from dataporter.engine.wire import ISSUE, REPLY, STOP


@pytest.fixture(params=[1, 3])
def connections(request: pytest.FixtureRequest) -> Iterator[Connections]:
    connections = Connections(request.param)
    yield connections
    connections.close()


def received(connections: Connections, worker: int) -> int:
    return ISSUE.unpack(os.read(connections.of_worker(worker).issues, ISSUE.size))[0]


def test_an_issue_reaches_the_worker_of_its_place(connections):
    for place in range(6):
        connections.add(place, number=place + 1, slot=1, size=10)
    connections.send()
    for place in range(6):
        assert received(connections, connections.worker_of(place)) == place + 1


def test_what_no_worker_has_read_is_taken_back(connections):
    for number in range(1, 7):
        connections.add(number, number, slot=1, size=10)
    connections.send()
    connections.add(7, 7, slot=1, size=10)  # and not sent
    read = received(connections, worker=0)
    assert connections.take_back() == set(range(1, 8)) - {read}
    assert connections.take_back() == set()


def test_what_is_taken_back_of_one_worker_leaves_that_of_others():
    connections = Connections(3)
    for place in range(3):
        connections.add(place, place + 1, slot=1, size=10)
    connections.send()
    assert connections.take_back([1]) == {2}
    assert [received(connections, worker) for worker in (0, 2)] == [1, 3]
    connections.close()


def test_a_worker_that_was_told_to_end_is_told_again_when_issues_are_taken_back():
    connections = Connections(1)
    connections.add(None, 1, slot=1, size=10)
    connections.send()
    connections.stop_one()
    assert connections.take_back() == {1}
    assert received(connections, 0) == STOP
    connections.close()


def test_all_workers_are_told_to_end_and_nothing_else(connections):
    connections.add(None, 1, slot=1, size=10)
    connections.send()
    connections.stop_all(workers=3)
    assert [received(connections, worker) for worker in range(3)] == [STOP] * 3
    assert connections.take_back() == set()


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="this system has no small pipes")
def test_messages_are_whole_in_a_pipe_that_has_no_room_for_all_of_them():
    connections = Connections(1)
    # As small as a pipe is for a user who has many of them.
    fcntl.fcntl(connections.of_worker(0).issues, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
    many = 2 * mmap.PAGESIZE // ISSUE.size
    for number in range(1, many + 1):
        connections.add(None, number, slot=1, size=10)
    sending = threading.Thread(target=connections.send)
    sending.start()
    found = [os.read(connections.of_worker(0).issues, ISSUE.size) for _ in range(many)]
    sending.join()
    connections.close()
    assert [ISSUE.unpack(message)[0] for message in found] == list(range(1, many + 1))


def test_replies_that_are_there_are_read_and_none_is_waited_for(connections):
    assert list(connections.read_replies()) == []
    sent = [(number, 1, 0, 64, 100) for number in range(600)]
    for worker, reply in enumerate(sent):
        os.write(connections.of_worker(worker).replies, REPLY.pack(*reply))
    assert list(connections.read_replies()) == sent


def test_what_is_closed_is_not_inherited_any_more():
    before = open_descriptors()
    connections = Connections(2)
    opened = open_descriptors() - before
    assert set(connections.of_worker(1)) < opened
    assert len(opened) == 3 + 2 * 3
    connections.close()
    assert open_descriptors() == before
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
