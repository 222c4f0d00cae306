"""The porter's client: messages that are sent without waiting."""

import socket

import pytest

from dataporter.law import SequentialOrder
from dataporter.shards.porter import _sent_at_once

ORDER = SequentialOrder(4, 0)


@pytest.mark.parametrize("order", [None, ORDER])
def test_a_message_that_goes_whole_is_sent(order):
    here, there = socket.socketpair()
    with here, there:
        assert _sent_at_once(here, b"message", order)
        assert there.recv(100) == b"message"


@pytest.mark.parametrize("order", [None, ORDER])
@pytest.mark.parametrize("why", ["full", "left"])
def test_a_message_that_cannot_go_is_not_sent_and_nobody_waits(order, why):
    here, there = socket.socketpair()
    with here, there:
        if why == "left":
            there.close()
        else:
            while _sent_at_once(here, b"x" * 10_000, None):
                pass
        assert not _sent_at_once(here, b"message", order)
        assert here.getblocking()  # answers are waited for
