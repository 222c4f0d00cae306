"""on_error="skip": failing samples are left out, everything else is as it was."""

import logging
import multiprocessing
import os
import signal

import pytest
from forked_scripts import run_to_end
from support import Augmented, Ids, flat, one_pass

from dataporter import ResumableDataLoader
from dataporter.errors import TooManySkippedError, WorkerRestartWarning


class Damaged(Augmented):
    """Some samples cannot be read."""

    def __init__(self, length: int, damaged: set[int]) -> None:
        super().__init__(length)
        self.damaged = damaged

    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        if index in self.damaged:
            raise OSError(f"sample {index} is damaged")
        return super().__getitem__(index)


class Fatal(Ids):
    """Some samples cannot be read, and one kills the first worker that reads it."""

    def __init__(self, length: int, damaged: set[int]) -> None:
        super().__init__(length)
        self.damaged = damaged
        self.killed = multiprocessing.Value("b", 0)

    def __getitem__(self, index: int) -> int:
        if index in self.damaged:
            raise OSError(f"sample {index} is damaged")
        if index == 20 and not self.killed.value:
            self.killed.value = 1
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_failing_samples_are_left_out_listed_and_logged(num_workers, caplog):
    def make(damaged: set[int]) -> ResumableDataLoader:
        return ResumableDataLoader(
            Damaged(12, damaged), 3, seed=1, num_workers=num_workers, on_error="skip"
        )

    whole = {
        sample: [column[place] for column in columns]
        for ids, columns in one_pass(make(set()))
        for place, sample in enumerate(ids)
    }
    loader = make({1, 6, 7, 8})  # 6, 7 and 8 are a whole batch
    with caplog.at_level(logging.WARNING, "dataporter"):
        batches = iter(loader)
        first, second, third = (next(batches) for _ in range(3))
    assert [ids.tolist() for ids, _ in (first, second, third)] == [[0, 2], [3, 4, 5], [9, 10, 11]]
    assert loader.samples_processed == 12
    assert [skipped.index for skipped in loader.skipped] == [1, 6, 7, 8]
    assert [skipped.position for skipped in loader.skipped] == [1, 6, 7, 8]
    assert "sample 1 is damaged" in loader.skipped[0].error
    assert "sample 8 is damaged" in caplog.text
    for ids, columns in (first, second, third):
        for place, sample in enumerate(ids.tolist()):
            assert [column[place].item() for column in columns] == whole[sample]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_positions_stay_exact_after_a_resume(num_workers):
    def make() -> ResumableDataLoader:
        return ResumableDataLoader(
            Damaged(12, {2, 3}), 3, seed=1, num_workers=num_workers, on_error="skip"
        )

    loader = make()
    batches = iter(loader)
    seen = [next(batches)[0].tolist(), next(batches)[0].tolist()]
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert flat([*seen, *(ids for ids, _ in one_pass(resumed))]) == [0, 1, 4, 5, *range(6, 12)]


@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "engine": "threads", "randomness": False},
    ],
    ids=str,
)
def test_one_more_than_max_skipped_is_an_error_and_its_batch_stays_the_next(workers):
    def make(damaged: set[int], max_skipped: int) -> ResumableDataLoader:
        options = {"seed": 1, "on_error": "skip", "max_skipped": max_skipped, **workers}
        return ResumableDataLoader(Damaged(12, damaged), 3, **options)

    loader = make({1, 7}, 1)
    seen = []
    with pytest.raises(TooManySkippedError, match=r"max_skipped=1 .* index 7: OSError"):
        for ids, _ in loader:
            seen += ids.tolist()
    assert seen == [0, 2, 3, 4, 5]
    assert [skipped.index for skipped in loader.skipped] == [1]
    resumed = make({1}, 1)
    resumed.load_state_dict(loader.state_dict())
    assert flat(ids for ids, _ in one_pass(resumed)) == [6, 7, 8, 9, 10, 11]
    enough = make({1, 7}, 2)
    for _ in range(2):  # a bound of each epoch
        assert len(flat(ids for ids, _ in one_pass(enough))) == 10


@pytest.mark.parametrize("num_workers", [0, 2])
def test_by_default_an_error_is_raised_and_names_the_sample(num_workers):
    loader = ResumableDataLoader(Damaged(12, {7}), 3, seed=1, num_workers=num_workers)
    with pytest.raises(OSError, match="sample 7 is damaged") as raised:
        one_pass(loader)
    assert any("index 7" in note for note in raised.value.__notes__)


def test_a_dataset_where_everything_fails_gives_no_batch():
    loader = ResumableDataLoader(Damaged(6, set(range(6))), 2, seed=1, on_error="skip")
    assert one_pass(loader) == []
    assert len(loader.skipped) == 6
    assert one_pass(ResumableDataLoader(Ids(6), 2, on_error="skip")) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "workers",
    [
        {"num_workers": 0},
        {"num_workers": 3},
        {"num_workers": 3, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "forkserver"},
        {"num_workers": 2, "engine": "threads", "randomness": False},
    ],
    ids=str,
)
def test_a_sample_is_listed_and_logged_once_for_each_epoch(workers, caplog):
    dataset = Damaged(12, {1, 7})
    loader = ResumableDataLoader(dataset, 3, seed=1, on_error="skip", **workers)
    with caplog.at_level(logging.WARNING, "dataporter"):
        for _ in range(3):
            one_pass(loader)
    expected = [(epoch, index) for epoch in range(3) for index in (1, 7)]
    assert sorted((skipped.epoch, skipped.index) for skipped in loader.skipped) == expected
    assert len(caplog.records) == len(expected)


_LOGS = """
import logging
logging.basicConfig()
from dataporter import ResumableDataLoader

class Damaged(list):
    def __getitem__(self, index):
        return 1 // super().__getitem__(index)

loader = ResumableDataLoader(
    Damaged([1, 0, 1, 1]), 2, num_workers=2, on_error="skip", multiprocessing_context="fork")
list(loader)
"""


def test_the_workers_own_logs_do_not_repeat_the_loaders():
    done = run_to_end(_LOGS)
    assert done.status == 0
    assert done.err.count("left out the sample at index 1") == 1


def test_a_replaced_worker_reports_only_what_it_has_left_out_itself():
    loader = ResumableDataLoader(Fatal(40, {1, 30}), 2, seed=1, num_workers=1, on_error="skip")
    with pytest.warns(WorkerRestartWarning):
        batches = one_pass(loader)
    assert sorted(flat(batches)) == [index for index in range(40) if index not in {1, 30}]
    assert [skipped.index for skipped in loader.skipped] == [1, 30]


def test_a_batch_that_is_fetched_again_lists_its_samples_once():
    loader = ResumableDataLoader(Damaged(12, {4}), 3, seed=1, num_workers=2, on_error="skip")
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(batches)
    loader.load_state_dict(state)
    next(batches)
    assert [skipped.index for skipped in loader.skipped] == [4]
