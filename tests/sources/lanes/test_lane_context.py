"""What a dataset in lanes is told: its epoch, and which worker of how many it is."""

import pytest
from streamed import (
    StatefulShards,
    in_turn,
    loaded,
    reference,
)
from support import flat, passes
from torch.utils.data import IterableDataset, get_worker_info

from dataporter import ResumableDataLoader

LENGTHS = [9, 0, 12, 2, 1]


class Told(StatefulShards):
    """Is told its epoch, and shows it."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def shown(self, sample):
        return self.epoch, sample


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_is_told_its_epoch(num_workers, persistent):
    options = {"num_workers": num_workers, "persistent_workers": persistent and num_workers > 0}
    dataset = Told([2, 2])
    loader = ResumableDataLoader(dataset, lanes=2, **options)

    def epochs():
        return {int(epoch) for epoch, _ in loader}

    assert [epochs(), epochs()] == [{0}, {1}]
    loader.set_epoch(7)
    assert [epochs(), epochs()] == [{7}, {8}]
    dataset.set_epoch(3)
    assert [epochs(), epochs()] == [{3}, {4}]
    running = iter(loader)
    next(running)
    resumed = ResumableDataLoader(Told([2, 2]), lanes=2, **options)
    resumed.load_state_dict(loader.state_dict())
    assert [int(epoch) for epoch, _ in resumed] == [5, 5, 5]


class Infos(IterableDataset):
    """What a dataset is told of itself."""

    def __iter__(self):
        info = get_worker_info()
        yield (-1, -1, True) if info is None else (info.id, info.num_workers, info.dataset is self)


def test_a_lane_sees_itself_as_a_worker():
    def seen(**options):
        return [tuple(batch) for batch in ResumableDataLoader(Infos(), batch_size=None, **options)]

    for options in ({}, {"num_workers": 1}, {"num_workers": 1, "engine": "threads"}):
        assert seen(**options) == [(0, 1, True)]
    three = [(0, 3, True), (1, 3, True), (2, 3, True)]
    for num_workers in (0, 2, 3, 4):
        assert seen(num_workers=num_workers, lanes=3) == three
    assert get_worker_info() is None


class TellsAlone(StatefulShards):
    """Reads backwards where it takes itself to be in no worker."""

    def samples(self):
        samples = super().samples()
        return samples[::-1] if get_worker_info() is None else samples


ONE_LANE = [{}, {"num_workers": 1}, {"num_workers": 2, "lanes": 1, "engine": "threads"}]


def test_a_dataset_that_asks_whether_it_is_in_a_worker_gives_the_same_in_one_lane():
    expected, (states, _) = reference(TellsAlone(LENGTHS), batch_size=4)
    assert flat(expected[0]) == flat(in_turn(LENGTHS, 1, 4))
    for options in ONE_LANE:
        options = {"batch_size": 4, **options}
        assert reference(TellsAlone(LENGTHS), **options)[0] == expected
        resumed = loaded(states[2], TellsAlone(LENGTHS), **options)
        assert passes(resumed, 2) == [expected[0][2:], expected[1]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_does_not_say_it_is_of_a_lane_that_was_told_in_workers_only(num_workers):
    forwards, (states, _) = reference(TellsAlone(LENGTHS), batch_size=4)
    del states[2]["lanes"]["has_worker_info"]
    backwards = flat(in_turn(LENGTHS, 1, 4))[::-1]
    whole = (
        forwards[0]
        if num_workers
        else [backwards[at : at + 4] for at in range(0, len(backwards), 4)]
    )
    old = loaded(states[2], TellsAlone(LENGTHS), batch_size=4, num_workers=num_workers)
    assert old.state_dict()["lanes"]["has_worker_info"] == bool(num_workers)
    for options in ONE_LANE:  # from here on the state says it
        resumed = loaded(old.state_dict(), TellsAlone(LENGTHS), batch_size=4, **options)
        assert passes(resumed, 2) == [whole[2:], whole]
