"""`loader.stats()` counts what is delivered, whoever fetches it, and disturbs nothing."""

import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from support import Ids, one_pass, passes, plain
from torch.utils.data import BatchSampler, ConcatDataset, IterableDataset, Subset, TensorDataset
from watching import until, worker_pids

from dataporter import ResumableDataLoader
from dataporter.errors import OptionTypeError, WorkerRestartWarning
from dataporter.sources.tally import weight_of
from dataporter.views import where

ENGINES = {
    "inline": {},
    "threads": {"num_workers": 2, "engine": "threads"},
    "processes": {"num_workers": 2},
}
ROWS = 50


class Stream(IterableDataset):
    """Rows in turn, each worker its own."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (torch.full((3,), float(row)) for row in range(first, ROWS, step))


def rows() -> torch.Tensor:
    return torch.arange(3.0 * ROWS).reshape(ROWS, 3)


def made(source: str, engine: str) -> ResumableDataLoader:
    options = ENGINES[engine]
    if source == "sampled":
        batches = BatchSampler(range(ROWS - 1, -1, -1), 4, drop_last=False)
        return ResumableDataLoader(rows(), batch_sampler=batches, **options)
    dataset = rows() if source == "planned" else Stream()
    return ResumableDataLoader(dataset, batch_size=4, seed=3, **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", ["planned", "sampled", "stream"])
def test_batches_samples_and_bytes_are_counted_as_they_are_delivered(source, engine):
    loader = made(source, engine)
    assert loader.stats().as_dict()["total_batches"] == 0
    for delivered in range(1, 3):  # passes
        batches, samples, size = 0, 0, 0
        for batch in loader:
            batches, samples, size = batches + 1, samples + len(batch), size + batch.nbytes
            stats = loader.stats()  # has the next batch measured, however fast it comes
            assert (stats.batches, stats.samples) == (batches, samples)
            assert stats.bytes == size
            assert 0 <= stats.waited_seconds <= stats.seconds
            assert 0 <= stats.waiting <= 1
        assert samples == ROWS
        assert loader.stats().total_samples == ROWS * delivered
        assert loader.stats().total_batches == batches * delivered
    assert loader.stats().workers == 0


def test_samples_are_exact_if_few_of_many_fast_batches_are_measured():
    loader = ResumableDataLoader(range(10_007), batch_size=8)
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (1251, 10_007)
    assert (stats.total_batches, stats.total_samples) == (2502, 20_014)


def test_a_pass_that_is_broken_off_loaded_or_sought_counts_what_it_delivered():
    loader = ResumableDataLoader(range(40), batch_size=4, shuffle=True, seed=1)
    batches = iter(loader)
    next(batches), next(batches), next(batches)
    state = loader.state_dict()
    next(batches)
    assert loader.stats().batches == 4

    loader.load_state_dict(state)
    assert loader.stats().batches == 4  # nothing was delivered since
    next(batches)
    assert (loader.stats().batches, loader.stats().total_batches) == (1, 5)

    loader.seek(2, 36)
    assert [len(batch) for batch in loader] == [4]
    stats = loader.stats()
    assert (stats.epoch, stats.batches, stats.total_batches, stats.total_samples) == (2, 1, 6, 24)

    loader.exclude(3, 4, 32)
    assert len(list(loader)) == 3
    assert (loader.stats().batches, loader.stats().samples) == (3, 12)

    resumed = ResumableDataLoader(range(40), batch_size=4, shuffle=True, seed=1)
    resumed.load_state_dict(state)
    list(resumed)
    assert resumed.stats().batches == resumed.stats().total_batches == 7


def test_samples_are_exact_after_every_load_that_a_pass_follows():
    loader = ResumableDataLoader(range(400), batch_size=4, shuffle=True, seed=1)
    batches = iter(loader)
    for delivered in range(10, 60, 10):
        for _ in range(7):
            next(batches)
        state = loader.state_dict()
        for _ in range(3):
            next(batches)
        loader.load_state_dict(state)
        stats = loader.stats()
        assert (stats.total_batches, stats.total_samples) == (delivered, 4 * delivered)


def test_batches_that_fail_or_are_empty_are_not_counted():
    class Damaged(Ids):
        def __getitem__(self, index):
            if index in (4, 5, 9):
                raise ValueError(index)
            return index

    loader = ResumableDataLoader(Damaged(12), batch_size=2, on_error="skip")
    assert len(list(loader)) == 5
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.skipped) == (5, 9, 3)

    loader = ResumableDataLoader(Damaged(12), batch_size=4)
    batches, came = iter(loader), 0
    for _ in range(3):
        try:
            next(batches)
            came += 1
        except ValueError:
            pass
    assert loader.stats().batches == came == 1
    assert loader.stats().samples == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_left_out_are_not_counted(workers):
    kept = where(torch.arange(4000), lambda number: bool(number % 3), "some", lazy=True)
    loader = ResumableDataLoader(kept, batch_size=4, shuffle=True, num_workers=workers)
    for samples in (2666, 5332):
        assert sum(map(len, loader)) == 2666
        assert loader.stats().total_samples == samples


def test_time_in_next_is_waiting_and_time_between_is_not():
    class Slow(Ids):
        def __getitem__(self, index):
            time.sleep(0.02)
            return index

    loader = ResumableDataLoader(Slow(4), batch_size=1)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats.waited_seconds >= 0.08
    assert stats.waiting == pytest.approx(stats.waited_seconds / stats.seconds)

    loader = ResumableDataLoader(range(6), batch_size=1)
    for _ in loader:
        time.sleep(0.02)
    stats = loader.stats()
    assert stats.seconds - stats.waited_seconds >= 0.1  # five times between two batches


def test_a_look_ahead_counts_as_waiting():
    class Slow(Ids):
        def __getitem__(self, index):
            time.sleep(0.02)
            return index

    loader = ResumableDataLoader(Slow(3), batch_size=1)
    batches: Any = iter(loader)
    next(batches)
    assert not batches.is_last()
    next(batches)
    assert loader.stats().waited_seconds >= 0.04


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_batches_that_are_ready_are_counted_without_being_taken(engine):
    loader = ResumableDataLoader(rows(), 4, prefetch_bytes=0, **ENGINES[engine])
    reference = plain(list(ResumableDataLoader(rows(), 4)))
    batches = iter(loader)
    got = [next(batches)]
    until(lambda: loader.stats().ready == 4, seconds=60)
    assert loader.stats().workers == 2
    got.append(next(batches))
    until(lambda: loader.stats().ready == 4, seconds=60)
    assert plain([*got, *batches]) == reference
    assert loader.stats().ready == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_another_thread_may_read_at_any_time(engine):
    reference = passes(made("planned", "inline"), 3)
    loader, stop, seen, failed = made("planned", engine), threading.Event(), [], []

    def read() -> None:
        try:
            while not stop.is_set():
                stats = loader.stats()
                seen.append((stats.total_batches, stats.total_samples))
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: seen)
    got = passes(loader, 3)
    stop.set()
    thread.join()
    assert not failed
    assert got == reference
    assert seen == sorted(seen)
    assert loader.stats().total_samples == 3 * ROWS


@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_handler_may_read(engine):
    reference = one_pass(made("planned", "inline"))
    loader, seen = made("planned", engine), []
    previous = signal.signal(signal.SIGUSR1, lambda *_: seen.append(loader.stats().total_batches))
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.001):
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=send)
    try:
        thread.start()
        loader.seek(0)
        deadline = time.monotonic() + 60
        while len(seen) < 20 and time.monotonic() < deadline:
            loader.seek(0)
            assert one_pass(loader) == reference
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, previous)
    assert len(seen) >= 20
    assert seen == sorted(seen)


def test_a_lost_worker_is_missed_at_once_and_counted_once_it_is_replaced():
    loader = ResumableDataLoader(rows(), 4, num_workers=2, prefetch_bytes=0, max_restarts=9)
    batches = iter(loader)
    next(batches)
    assert loader.stats().workers == 2
    os.kill(worker_pids()[0], signal.SIGKILL)
    until(lambda: loader.stats().workers == 1, seconds=60)
    os.kill(worker_pids()[0], signal.SIGKILL)
    until(lambda: loader.stats().workers == 0, seconds=60)
    assert loader.stats().replaced == 0
    with pytest.warns(WorkerRestartWarning):
        rest = list(batches)
    assert len(rest) == 12
    assert loader.stats().replaced == 2
    list(loader)
    assert loader.stats().replaced == 2  # of all passes


# The numbers


def test_the_numbers_are_frozen_flat_and_readable():
    loader = ResumableDataLoader(rows(), 4)
    batches = iter(loader)
    next(batches)
    before = loader.stats()
    next(batches), next(batches)
    stats = loader.stats()
    with pytest.raises(FrozenInstanceError):
        stats.batches = 0
    numbers = stats.as_dict("loader/")
    assert json.loads(json.dumps(numbers)) == numbers
    assert all(name.startswith("loader/") for name in numbers)
    assert {type(number) for number in numbers.values()} == {int, float}
    assert numbers["loader/samples_per_second"] == stats.samples / stats.seconds
    assert numbers["loader/bytes_per_second"] == stats.bytes / stats.seconds
    assert numbers["loader/batches_per_second"] == stats.batches / stats.seconds
    assert numbers["loader/waiting"] == stats.waiting
    assert str(stats).startswith("epoch 0: 3 batches, 12 samples in 0.0 s, ")
    between = stats.since(before)
    assert (between.batches, between.samples, between.bytes) == (2, 8, 96)
    assert between.total_batches == 3
    assert between.seconds == pytest.approx(stats.total_seconds - before.total_seconds)
    with pytest.raises(OptionTypeError, match="earlier must be LoaderStats, found dict"):
        stats.since({})


def test_a_copy_of_a_loader_begins_anew():
    loader = ResumableDataLoader(rows(), 4)
    list(loader)
    copied = pickle.loads(pickle.dumps(loader))
    assert copied.stats().total_batches == 0
    assert len(list(copied)) == 13
    assert copied.stats().total_batches == 13


def test_reading_changes_no_state_and_no_generator():
    loader = ResumableDataLoader(rows(), 4)
    next(iter(loader))
    state, generator = loader.state_dict(), torch.get_rng_state()
    loader.stats()
    assert loader.state_dict() == state
    assert torch.equal(torch.get_rng_state(), generator)


def test_bytes_of_containers_are_counted_and_nobodys_code_is_run():
    class Lazy(dict):
        def __getitem__(self, key):
            raise AssertionError("read")

        __iter__ = values = items = keys = __getitem__

    part = torch.zeros(5)
    assert weight_of(Lazy(x=part)) == 20
    assert weight_of([(part, b"abc"), {"y": part.numpy()}, "text", 7, None]) == 43
    assert weight_of(part.to_sparse()) == 0
    nested: list[Any] = [part]
    nested.append(nested)
    loader = ResumableDataLoader(range(4), batch_size=2, collate_fn=lambda _: nested)
    assert len(list(loader)) == 2


# Counters of datasets


class Cached(Ids):
    """Counts, as a dataset of the user's may."""

    def __init__(self, length: int, hits: int = 1) -> None:
        super().__init__(length)
        self.hits = hits

    def stats(self) -> dict[str, Any]:
        return {"hits": self.hits, "place": "here"}


def test_the_counters_of_a_dataset_are_among_the_numbers():
    loader = ResumableDataLoader(Cached(8))
    assert loader.stats().dataset == {"hits": 1}
    assert loader.stats().as_dict()["dataset_hits"] == 1
    assert str(loader.stats()).endswith("; dataset hits 1")
    both = ConcatDataset([Subset(Cached(8), [1, 2]), Cached(8, hits=4)])
    assert ResumableDataLoader(both).stats().dataset == {"hits": 5}
    assert ResumableDataLoader(TensorDataset(torch.zeros(3))).stats().dataset == {}


def test_views_have_the_counters_of_their_data():
    from dataporter.views import Mixture, packed, where

    data = Cached(8)
    mixture = Mixture({"a": (data, 1.0), "b": (Cached(8, hits=10), 1.0)})
    assert ResumableDataLoader(mixture).stats().dataset == {"hits": 11}
    kept = where(data, lambda number: number > 3, name="large", num_workers=0)
    assert ResumableDataLoader(kept).stats().dataset == {"hits": 1}
    lazily = where(data, lambda number: number > 3, name="large", lazy=True)
    assert ResumableDataLoader(lazily).stats().dataset == {"hits": 1}

    class Documents(Cached):
        def __getitem__(self, index):
            return {"tokens": [index] * 4}

    assert ResumableDataLoader(packed(Documents(8), 8)).stats().dataset == {"hits": 1}


@pytest.mark.parametrize("stats", [lambda _, column: column, lambda _: 7, 3.5, lambda _: 1 / 0])
def test_a_method_stats_for_another_purpose_is_left_alone(stats):
    dataset = type("Own", (Ids,), {"stats": stats})(4)
    assert ResumableDataLoader(dataset).stats().dataset == {}
