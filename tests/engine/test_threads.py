"""engine="threads": the same data, the same states, and a word about shared generators."""

import random
import threading

import pytest
import torch
from forked_scripts import run
from support import Augmented, Ids, one_pass, pass_with_states, passes, plain
from torch.utils.data import IterableDataset
from watching import until

from dataporter import (
    ResumableDataLoader,
    SharedGeneratorError,
    WorkerTimeoutError,
    sample_rng,
)
from dataporter.fetch.generators import capture


def make(num_workers: int, **options) -> ResumableDataLoader:
    return ResumableDataLoader(
        Augmented(30, "own own"),
        4,
        **{
            "shuffle": True,
            "seed": 1,
            "num_workers": num_workers,
            "engine": "threads",
            **options,
        },
    )


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_threads_deliver_what_one_process_delivers(num_workers):
    reference = passes(make(0), 3)
    loader = make(num_workers)
    assert passes(loader, 1) == reference[:1]
    batches, states = pass_with_states(loader)
    assert batches == reference[1]
    for done, state in enumerate(states[1:-1], start=1):
        resumed = make(num_workers)
        resumed.load_state_dict(state)
        assert one_pass(resumed) == batches[done:]


def test_a_collate_function_draws_from_the_batches_own_stream():
    def noisy(samples: list) -> list:
        return [*samples, float(sample_rng().random())]

    assert one_pass(make(2, collate_fn=noisy)) == one_pass(make(0, collate_fn=noisy))


@pytest.mark.parametrize("draws", ["python", "numpy", "torch"])
def test_a_dataset_that_draws_from_the_global_generators_is_told_about_sample_rng(draws):
    before = capture()
    loader = ResumableDataLoader(Augmented(8, draws), 2, num_workers=2, engine="threads", seed=1)
    with pytest.raises(SharedGeneratorError, match="sample_rng"):
        one_pass(loader)
    assert before.still_holds()
    allowed = ResumableDataLoader(
        Augmented(8, draws), 2, num_workers=2, engine="threads", seed=1, randomness=False
    )
    assert len(one_pass(allowed)) == 4


def test_an_error_arrives_and_the_pass_goes_on_after_it():
    class FailsOnce(Ids):
        failed = False

        def __getitem__(self, index: int) -> int:
            if index == 5 and not self.failed:
                self.failed = True
                raise LookupError("sample 5")
            return index

    batches = iter(ResumableDataLoader(FailsOnce(8), 2, num_workers=2, engine="threads", seed=1))
    assert [plain(next(batches)) for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="sample 5"):
        next(batches)
    assert [plain(batch) for batch in batches] == [[6, 7]]


def test_a_batch_that_takes_too_long_is_named():
    released = threading.Event()

    class Stuck(Ids):
        def __getitem__(self, index: int) -> int:
            if index == 4:
                released.wait(60)
            return index

    loader = ResumableDataLoader(Stuck(8), 2, num_workers=2, engine="threads", seed=1, timeout=0.1)
    with pytest.raises(WorkerTimeoutError, match=r"0\.1 s"):
        one_pass(loader)
    released.set()


def test_threads_end_with_their_pass():
    before = threading.active_count()
    for _ in make(4):
        break
    until(lambda: threading.active_count() <= before, seconds=60)
    random.random()


def test_an_iterator_that_is_alive_when_the_interpreter_exits_is_silent():
    run("""
import torch
from dataporter import ResumableDataLoader
batches = iter(ResumableDataLoader(torch.arange(100), 4, num_workers=2, engine="threads"))
next(batches)
""")


class Gated(Ids):
    """Fetches sample 1 once it may; keeps which samples were asked for."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.may, self.asked = threading.Event(), []

    def __getitem__(self, index):
        self.asked.append(index)
        if index == 1:
            assert self.may.wait(60)
        return super().__getitem__(index)


def test_a_pass_that_is_broken_off_fetches_nothing_but_the_batch_in_hand():
    dataset, before = Gated(64), set(threading.enumerate())
    loader = ResumableDataLoader(dataset, 1, num_workers=1, engine="threads", prefetch_factor=8)
    iterator = iter(loader)
    next(iterator)
    until(lambda: 1 in dataset.asked)
    del iterator
    dataset.may.set()
    until(lambda: not {thread for thread in threading.enumerate() if thread.is_alive()} - before)
    assert dataset.asked == [0, 1]


class Streamed(IterableDataset):
    """Draws its order as it begins, or each number as it is asked for."""

    def __init__(self, *, draws_first: bool) -> None:
        self.draws_first = draws_first

    def __iter__(self):
        if self.draws_first:
            return iter(torch.randperm(12).tolist())
        return (int(torch.randint(1000, ())) for _ in range(12))


@pytest.mark.parametrize("draws_first", [False, True])
@pytest.mark.parametrize("options", [{}, {"lanes": 2}], ids=str)
def test_a_stream_that_draws_is_told_about_sample_rng_whenever_it_draws(draws_first, options):
    stream, before = Streamed(draws_first=draws_first), capture()
    loader = ResumableDataLoader(stream, 4, num_workers=2, engine="threads", seed=1, **options)
    with pytest.raises(SharedGeneratorError, match="sample_rng"):
        one_pass(loader)
    assert before.still_holds()
    allowed = ResumableDataLoader(
        stream, 4, num_workers=2, engine="threads", randomness=False, **options
    )
    assert len(one_pass(allowed)) > 0


@pytest.mark.parametrize("draws_first", [False, True])
def test_without_threads_a_stream_is_seeded_whatever_the_engine_would_be(draws_first):
    found = []
    for engine in ("processes", "threads"):
        torch.rand(3)
        stream = Streamed(draws_first=draws_first)
        found.append(one_pass(ResumableDataLoader(stream, 4, seed=3, engine=engine)))
    assert found[0] == found[1]
