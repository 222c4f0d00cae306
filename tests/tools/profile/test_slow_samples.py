"""Slow samples: named if they are slow again, and not for what else went on during a run."""

import pytest
from torch.utils.data import Dataset

from dataporter import sample_rng
from dataporter.fetch.timing import Made
from dataporter.tools.profile import measuring as module
from dataporter.tools.profile.measuring import longest, slow_samples

MS = 1_000_000  # ns
ORDINARY = range(95, 100)


class Clock:
    """Stands still but for the time that samples take: nothing else on the machine counts."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(module, name, clock)
    return clock


class Delays(Dataset):
    """Sample i, or of that name, takes so many milliseconds; lists its fetches."""

    def __init__(self, clock, delays):
        self.clock = clock
        self.delays = delays
        self.fetched = []

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.fetched.append(index)
        self.clock.now += self.delays.get(index, 0.01) / 1000
        return float(sample_rng().random())


def noted(*slowest, usual=1.0, most=1.0, middle=99):
    """A batch of a run whose slowest samples took so many milliseconds."""
    each = [(index, int(spent * MS)) for index, spent in slowest]
    return Made(1, 0, None, None, [(0, 0, MS)], 8, int(usual * MS), int(most * MS), middle, each)


def found(dataset, *slowest, seconds=60.0):
    made = [noted(*slowest), *(noted(middle=middle) for middle in ORDINARY)]
    return slow_samples(dataset, made, seconds)


def test_a_sample_is_slow_that_is_slow_again_each_time(clock):
    dataset = Delays(clock, {17: 200, 5: 100, "a": 150})
    slow = found(dataset, (17, 900.0), (4, 800.0), (5, 700.0), ("a", 600.0))
    assert [index for index, _ in slow] == [17, "'a'", 5]
    assert slow[0][1] == pytest.approx(0.2)  # not 0.9, as when something else ran too
    assert set(dataset.fetched) == {17, 4, 5, "a", *ORDINARY}


def test_no_sample_is_slow_where_all_are_slow_when_fetched_again(clock):
    assert found(Delays(clock, dict.fromkeys([17, *ORDINARY], 10)), (17, 300.0)) == ()


def test_what_is_within_the_spread_of_most_samples_is_not_fetched_again(clock):
    dataset = Delays(clock, {17: 30})
    for made in (
        [noted((17, 30.0), most=10.0)],
        [noted((17, 30.0), usual=usual) for usual in (1, 1, 10, 10)],
        [noted((17, 0.9), usual=0.05, most=0.05)],  # not worth naming
        [],
    ):
        assert slow_samples(dataset, made, 60.0) == ()
    assert dataset.fetched == []


def test_a_sample_that_cannot_be_fetched_here_or_in_time_is_not_called_slow(clock):
    assert found([1], (17, 300.0)) == ()
    dataset = Delays(clock, {17: 30, 5: 200})
    assert [index for index, _ in found(dataset, (17, 9e6), (5, 300.0), seconds=20)] == [5]
    assert 17 not in dataset.fetched


def test_the_longest_fetches_are_named_once_for_a_sample():
    made = [noted((17, 480.0), (4, 100.0)), noted((17, 90.0), ("key", 50.0))]
    assert longest(made) == [(17, 0.48), (4, 0.1), ("key", 0.05)]
