"""The tally of a pass: how often it measures, by a clock that stands or runs as the test says."""

import itertools

import pytest
import torch

from dataporter.law.state import Progress
from dataporter.sources import tally as module
from dataporter.sources.tally import Tally

MILLISECOND = 1_000_000  # ns


class Clock:
    now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "monotonic_ns", clock)
    return clock


def measured(clock, took, batches):
    """The numbers of the batches that are measured if each one takes so long."""
    tally, numbers = Tally(Progress(), clock.now), []
    for number in range(1, batches + 1):
        asked, progress = clock.now, Progress(samples_processed=number, batches_processed=number)
        clock.now += took
        tally.last = progress, None
        tally.unmeasured -= 1
        if tally.unmeasured < 0:
            tally.measure(tally.last, None, asked)
            numbers.append(number)
    flow = tally.flow()
    assert (flow.batches, flow.samples, flow.spent) == (batches, batches, took * batches)
    return numbers


def test_of_batches_that_are_alike_bytes_are_counted_exactly(clock):
    tally = Tally(Progress(), clock.now)
    assert tally.flow().bytes == 0
    for number in (1, 2):
        clock.now += 26 * MILLISECOND
        tally.last = Progress(samples_processed=4 * number, batches_processed=number), None
        tally.measure(tally.last, torch.zeros(4, 2), clock.now)
        assert tally.flow().bytes == 32 * number


def test_fast_batches_are_measured_about_every_25_milliseconds(clock):
    numbers = measured(clock, MILLISECOND, 1000)
    assert numbers[:3] == [1, 2, 3]
    distances = [after - before for before, after in itertools.pairwise(numbers[8:])]
    assert all(16 <= distance <= 26 for distance in distances)
    assert len(set(distances)) > 1  # every eighth batch may be unlike the others


def test_slow_batches_are_all_measured(clock):
    assert measured(clock, 26 * MILLISECOND, 50) == list(range(1, 51))


def test_batches_in_no_time_at_all_are_measured_too(clock):
    numbers = measured(clock, 0, 4096)
    assert 8 <= len(numbers) <= 24


def test_the_time_that_a_consumer_waits_counts_for_the_batches_that_are_not_measured_too(clock):
    tally = Tally(Progress(), clock.now)
    clock.now += 10 * MILLISECOND  # the consumer's own work
    asked = clock.now
    clock.now += MILLISECOND
    tally.last = Progress(samples_processed=12, batches_processed=3), None
    tally.measure(tally.last, torch.zeros(4, 2), asked)
    flow = tally.flow()
    assert (flow.batches, flow.samples, flow.bytes) == (3, 12, 3 * 32)
    assert (flow.spent, flow.waited) == (11 * MILLISECOND, 3 * MILLISECOND)
