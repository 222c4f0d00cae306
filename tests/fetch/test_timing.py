"""Noting times changes no batch, misses none, and where it is off nothing is noted."""

import os
import signal
import threading
import time
from itertools import pairwise

import pytest
import torch
from support import Augmented, Ids, plain
from torch.utils.data import IterableDataset
from watching import open_descriptors

from dataporter import ResumableDataLoader, sample_rng
from dataporter.errors import WorkerRestartWarning
from dataporter.fetch import timing
from dataporter.fetch.timing import CONSUMER, FETCH, STAGES, Clock, Timing

ENGINES = {
    "inline": {},
    "threads": {"num_workers": 2, "engine": "threads"},
    "processes": {"num_workers": 2},
    "any order": {"num_workers": 2, "in_order": False},
}


class Noisy(Ids):
    """Draws from its own generator; sample 7 takes long."""

    def __getitem__(self, index):
        time.sleep(0.03 if index == 7 else 0.0001)
        return {"index": super().__getitem__(index), "noise": float(sample_rng().random())}


class Counted(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(worker, 48, workers):
            time.sleep(0.0001)
            yield number


def doubled(batch):
    return {name: part * 2 for name, part in batch.items()}


def loader_over(dataset, **options):
    return ResumableDataLoader(dataset, 8, seed=3, **options)


def timed_pass(loader):
    noted = Timing()
    loader.note_times(noted)
    return [plain(batch) for batch in loader], noted


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_every_batch_is_noted_and_none_is_changed(options):
    batches, noted = timed_pass(loader_over(Noisy(64), converter=doubled, **options))
    expected = [plain(batch) for batch in loader_over(Noisy(64), converter=doubled)]
    assert sorted(batches, key=str) == sorted(expected, key=str)
    assert sorted(batch.number for batch in noted.made) == list(range(1, 9))
    for batch in noted.made:
        names = [STAGES[stage] for stage, _, _ in batch.spans]
        assert names[:3] == ["fetch", "collate", "convert"]
        assert all(start <= end for _, start, end in batch.spans)
        assert all(one[2] == other[1] for one, other in pairwise(batch.spans))
        assert batch.samples == 8
    slow = {index: spent for batch in noted.made for index, spent in batch.slowest}
    assert slow[7] >= 30_000_000  # others may be slower on a busy machine


def test_who_made_a_batch_and_how_it_was_handed_over_is_known():
    workers, handed = {}, {}
    for name, options in ENGINES.items():
        _, noted = timed_pass(loader_over(Noisy(64), **options))
        workers[name] = {batch.worker for batch in noted.made}
        handed[name] = [each.number for each in noted.handed]
        for each in noted.handed:
            assert each.asked <= each.there <= each.handed
            assert 0 <= each.ready <= 8
    assert workers["inline"] == {CONSUMER}
    assert workers["processes"] <= {0, 1}
    assert workers["threads"] <= {CONSUMER, 0, 1}
    assert handed["inline"] == []
    assert handed["processes"] == list(range(1, 9))
    assert handed["threads"] == list(range(2, 9))  # the first is made by who asks for it
    assert sorted(handed["any order"]) == list(range(1, 9))


def test_threads_have_the_same_numbers_in_every_pass():
    loader = loader_over(Noisy(64), **ENGINES["threads"])
    noted = Timing()
    loader.note_times(noted)
    for _ in range(3):
        for _ in loader:
            pass
    assert {batch.worker for batch in noted.made} <= {CONSUMER, 0, 1}


@pytest.mark.parametrize("workers", [0, 2])
def test_lanes_are_noted_with_the_taking_of_their_states(workers):
    batches, noted = timed_pass(ResumableDataLoader(Counted(), 8, num_workers=workers, seed=1))
    assert sorted(sample for batch in batches for sample in batch) == list(range(48))
    assert sum(batch.samples for batch in noted.made) == 48
    full = [batch for batch in noted.made if batch.samples]
    for batch in full:
        names = [STAGES[stage] for stage, _, _ in batch.spans]
        assert names[:3] == ["fetch", "collate", "state"]


class Faulty(Noisy):
    def __getitem__(self, index):
        if index % 10 == 3:
            raise ValueError(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_left_out_are_left_out_while_times_are_noted(workers):
    loader = loader_over(Faulty(32), num_workers=workers, on_error="skip")
    batches, noted = timed_pass(loader)
    assert [skipped.index for skipped in loader.skipped] == [3, 13, 23]
    assert [len(batch["index"]) for batch in batches] == [7, 7, 7, 8]
    assert [batch.samples for batch in sorted(noted.made)] == [7, 7, 7, 8]


def test_an_error_of_the_dataset_arrives_as_it_is_while_times_are_noted():
    for options in ENGINES.values():
        loader = loader_over(Faulty(32), **options)
        loader.note_times(Timing())
        with pytest.raises(ValueError, match="3"):
            list(loader)


class Lethal(Noisy):
    """Kills the first worker that reads sample 20."""

    def __init__(self, length, mark):
        super().__init__(length)
        self.mark = mark

    def __getitem__(self, index):
        if index == 20 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_killed_worker_loses_no_batch_while_times_are_noted(tmp_path):
    with pytest.warns(WorkerRestartWarning):
        batches, noted = timed_pass(loader_over(Lethal(64, tmp_path / "m"), num_workers=2))
    assert [index for batch in batches for index in batch["index"]] == list(range(64))
    assert [each.number for each in noted.handed] == list(range(1, 9))


def test_workers_that_stay_may_have_started_before_times_are_noted():
    loader = loader_over(Noisy(32), num_workers=2, persistent_workers=True)
    expected = [plain(batch) for batch in loader]
    batches, noted = timed_pass(loader)
    assert [batch["index"] for batch in batches] == [batch["index"] for batch in expected]
    assert noted.made == noted.handed == []


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_where_it_is_off_nothing_is_noted(monkeypatch, options):
    def never(*_, **__):
        raise AssertionError("this is only for loaders that are profiled")

    for name in ("begin", "end", "each", "note_made", "packed", "unpack", "note_handed"):
        monkeypatch.setattr(Timing, name, never)
    for name in ("monotonic_ns", "thread_time_ns"):
        monkeypatch.setattr(timing, name, never)
    assert len(list(loader_over(Noisy(32), **options))) == 4
    assert len(list(ResumableDataLoader(Counted(), 8, **options))) >= 6


def looks_at_the_clock(monkeypatch, nanoseconds):
    """How often it is read for each batch, if a sample takes so long."""
    clock, reads, counts, noted = [0], [], [], Timing()

    class Cheap(Ids):
        def __getitem__(self, index):
            clock[0] += nanoseconds
            return index

    def read():
        reads.append(clock[0])
        return clock[0]

    monkeypatch.setattr(timing, "monotonic_ns", read)
    loader = ResumableDataLoader(Cheap(64 * 18), 64)
    loader.note_times(noted)
    for _ in loader:
        counts.append(len(reads) - sum(counts))
    return counts, noted.made


def test_of_cheap_samples_the_clock_is_read_once_for_a_stage_and_not_for_a_sample(monkeypatch):
    # Begin, fetch and collate; before anything is known, samples are looked at as well.
    counts, made = looks_at_the_clock(monkeypatch, 10_000)
    assert counts == [3 + 2 * 64, *[3] * 17]
    assert [batch.stands_for for batch in made] == [1] * 18


def test_of_cheap_batches_one_in_several_is_noted_and_stands_for_all(monkeypatch):
    counts, made = looks_at_the_clock(monkeypatch, 500)  # 32 µs for a batch
    assert counts == [3 + 2 * 64, *[0] * 15, 3, 0]
    assert [batch.number for batch in made] == [1, 17]
    assert [batch.stands_for for batch in made] == [1, 16]


def test_dear_samples_are_timed_one_by_one_and_the_slowest_few_are_kept(monkeypatch):
    clock = [0]

    class Dear(Ids):
        def __getitem__(self, index):
            clock[0] += 1_000_000 if index == 13 else 30_000 + index
            return index

    monkeypatch.setattr(timing, "monotonic_ns", lambda: clock[0])
    _, noted = timed_pass(ResumableDataLoader(Dear(64), 16))
    first, *_, last = noted.made
    assert first.slowest[0] == (13, 1_000_000)
    assert last.slowest == [(63, 30_063), (62, 30_062), (61, 30_061), (60, 30_060)]
    assert last.usual == 30_055


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_the_first_sample_of_a_maker_is_none_of_the_slowest(options, monkeypatch):
    makers = threading.local()  # each has a clock that only samples move

    class WarmingUp(Ids):
        def __getitem__(self, index):
            makers.now = makers.now + 200_000 if hasattr(makers, "now") else 300_000_000
            return index

    monkeypatch.setattr(timing, "monotonic_ns", lambda: getattr(makers, "now", 0))
    _, noted = timed_pass(loader_over(WarmingUp(64), **options))
    spent = [spent for batch in noted.made for _, spent in batch.slowest]
    assert set(spent) == {200_000}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [Noisy(32), Augmented(32, "python"), Ids(32)])
def test_whether_samples_were_fetched_one_by_one_since_they_draw_is_noted(dataset, workers):
    _, noted = timed_pass(loader_over(dataset, num_workers=workers))
    assert {batch.draws for batch in noted.made} == {type(dataset) is not Ids}


def test_indices_are_named_that_can_be_sent_and_fetched_again():
    class Named(dict):
        def __getitem__(self, index):
            time.sleep(0.00005)
            return 1

    keys = ["first", "a" * 100, ("b", 1), torch.tensor(3), 4]
    noted = Timing()
    loader = ResumableDataLoader(Named(), sampler=keys, batch_size=5, num_workers=1)
    loader.note_times(noted)
    list(loader)
    names = {index for index, _ in noted.made[0].slowest}
    assert names == {"a" * 100, 3, 4}
    assert noted.made[0].middle in {*names, None}


def test_stamps_of_another_system_are_shifted_to_the_clock_of_the_process_that_asked():
    here = Clock.here()
    assert here.distance_from(Clock.here()) == 0
    elsewhere = Clock("another system", here.began + 5_000)  # it began 5 µs later
    noting, asking = Timing(), Timing()
    noting.shift = here.distance_from(elsewhere)
    before = time.monotonic_ns()
    noting.begin()
    noting.end(FETCH, 3)
    after = time.monotonic_ns()
    assert asking.unpack(1, noting.packed(0, 16, 8)) == (16, 8)
    ((stage, start, end),) = asking.made[0].spans
    assert stage == FETCH
    assert before + 5_000 <= start <= end <= after + 5_000


def test_reading_the_time_on_a_core_leaves_no_file_open():
    files = open_descriptors()
    timing._scheduled()
    assert open_descriptors() == files
