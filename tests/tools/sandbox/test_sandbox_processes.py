"""Processes that fork on request: they wait for their own, and end with those above them."""

import functools
import os
import subprocess
import sys
import time

import pytest
from watching import is_running, until

from dataporter.tools.sandbox.conditions import Conditions, establish
from dataporter.tools.sandbox.processes import (
    ProcessEndedError,
    TimeUpError,
    fork_here,
    receive,
    serve,
)

SOON = 60


def serving(channel, context, *, idle):
    channel.poll(SOON)  # it is idle from the first request on, however late that comes
    serve(channel, "what it has", idle=idle)


def answer(channel, context, *, after):
    time.sleep(after)
    channel.send((os.getpid(), context))
    receive(channel)


def until_ended(process):
    with pytest.raises(ProcessEndedError):
        process.receive(time.monotonic() + SOON)


def test_one_that_has_nothing_to_do_waits_for_those_it_has_forked():
    above = fork_here(functools.partial(serving, idle=0.1))
    below = above.fork(functools.partial(answer, after=0.5), time.monotonic() + SOON)
    pid, context = below.receive(time.monotonic() + SOON)
    assert context == "what it has"
    assert is_running(pid)
    below.kill()
    until_ended(above)
    above.kill()
    with pytest.raises(ChildProcessError):  # it was collected
        os.waitpid(above.pid, os.WNOHANG)


def test_a_fork_dies_with_what_it_was_forked_from():
    above = fork_here(functools.partial(serving, idle=None))
    below = above.fork(functools.partial(answer, after=0), time.monotonic() + SOON)
    pid, _ = below.receive(time.monotonic() + SOON)
    above.kill()
    until_ended(below)
    until(lambda: not is_running(pid), seconds=SOON)
    below.kill()


def test_an_answer_that_does_not_come_is_waited_for_until_the_deadline():
    above = fork_here(functools.partial(serving, idle=None))
    below = above.fork(functools.partial(answer, after=100), time.monotonic() + SOON)
    with pytest.raises(TimeUpError):
        below.receive(time.monotonic() + 0.05)
    below.kill()
    above.kill()


def serving_as_another(channel, context):
    establish(Conditions(process_id="fixed"))
    serve(channel, None)


def test_where_the_process_id_stands_still_a_fork_is_known_by_its_own():
    above = fork_here(serving_as_another)
    below = above.fork(functools.partial(answer, after=0), time.monotonic() + SOON)
    told, _ = below.receive(time.monotonic() + SOON)
    assert told != below.pid
    assert is_running(below.pid)
    below.kill()
    above.kill()


PARALLEL = """
import time, torch
from dataporter.tools.sandbox.processes import fork_here

def add(channel, _):
    torch.ones(4_000_000).exp().sum()
    channel.send(torch.get_num_threads())

def threads_of_a_fork():
    fork = fork_here(add)
    try:
        return fork.receive(time.monotonic() + 60)
    finally:
        fork.kill()

assert threads_of_a_fork() == torch.get_num_threads()
torch.ones(4_000_000).exp().sum()
assert threads_of_a_fork() == 1
"""


def test_a_fork_of_what_has_computed_in_parallel_computes_alone():
    subprocess.run([sys.executable, "-c", PARALLEL], check=True)
