"""Lanes under kills, errors and states that do not fit: same data, or an error that says why."""

import os
import signal
import threading
import warnings
from typing import Any

import pytest
import torch
from streamed import (
    OwnIterator,
    Shards,
    StatefulShards,
    in_turn,
)
from support import one_pass, plain
from torch.utils.data import IterableDataset, get_worker_info
from watching import until

from dataporter import ResumableDataLoader
from dataporter.errors import (
    FastForwardWarning,
    LaneError,
    StateMismatchError,
    WorkerDiedError,
    WorkerRestartWarning,
)

LENGTHS = [14, 3, 22, 0, 9, 6]
RESTARTS = pytest.mark.filterwarnings("ignore::dataporter.errors.WorkerRestartWarning")
MANY = {"max_restarts": 10**6, "seed": 3, "batch_size": 2}


def test_too_many_deaths_are_an_error():
    class Deadly(Shards):
        def shown(self, sample):
            if sample == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return sample

    loader = ResumableDataLoader(Deadly([9]), num_workers=1, max_restarts=2, prefetch_factor=1)
    delivered = []
    with (
        pytest.raises(WorkerDiedError, match=r"SIGKILL.*batch 5 of epoch 0"),
        pytest.warns(WorkerRestartWarning),
    ):
        delivered += map(plain, loader)
    assert loader.state_dict()["samples_processed"] == 4


class BadSampleError(Exception):
    def __init__(self, sample: int, why: str) -> None:
        super().__init__(f"{sample}: {why}")


class FailsOnce(StatefulShards):
    """Fails at a sample as long as a file is there."""

    def __init__(self, lengths: list[int], file: Any, at: int) -> None:
        super().__init__(lengths)
        self.file, self.at = file, at

    def shown(self, sample: int) -> int:
        if sample == self.at and self.file.exists():
            self.file.unlink()
            raise BadSampleError(sample, "cannot be read")
        return sample


class FailsOnceWithoutState(FailsOnce):
    __iter__ = Shards.__iter__
    state_dict = load_state_dict = None


@pytest.mark.parametrize("kind", [FailsOnce, FailsOnceWithoutState])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("at", [1, 4, 103])
def test_an_error_names_its_lane_and_the_batch_is_tried_again(kind, num_workers, at, tmp_path):
    lengths = [7, 6]
    options = {"batch_size": 2, "lanes": 2, "num_workers": num_workers}
    options["persistent_workers"] = num_workers > 0
    expected = in_turn(lengths, 2, 2)
    (tmp_path / "bad").touch()
    loader = ResumableDataLoader(kind(lengths, tmp_path / "bad", at), seed=3, **options)
    delivered = []
    running = iter(loader)
    while len(delivered) < len(expected):
        try:
            delivered.append(plain(next(running)))
        except BadSampleError as error:
            bad = error
            state = loader.state_dict()
    assert str(bad) == f"{at}: cannot be read"
    assert f"lane {at // 100} of 2" in "".join(bad.__notes__)
    assert delivered == expected
    assert one_pass(loader) == expected
    resumed = ResumableDataLoader(kind(lengths, tmp_path / "none", at), seed=3, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FastForwardWarning)
        resumed.load_state_dict(state)
    assert one_pass(resumed) == expected[state["batches_processed"] :]


class Failing(StatefulShards):
    """Its methods do what they are told."""

    def __init__(self, lengths: list[int], **methods: Any) -> None:
        super().__init__(lengths)
        self.methods = methods

    def state_dict(self) -> Any:
        return self.methods["state_dict"](self)

    def __iter__(self) -> Any:
        self.methods.get("iter", lambda _: None)(self)
        return super().__iter__()


def raises(dataset: Failing) -> None:
    raise BadSampleError(dataset.i, "no state")


def raises_later(dataset: Failing) -> Any:
    return raises(dataset) if dataset.i > 3 else {"i": dataset.i}


def unpicklable(dataset: Failing) -> Any:
    return {"i": dataset.i, "lock": threading.Lock()}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("state_dict", [raises, raises_later, unpicklable])
def test_a_state_that_cannot_be_kept_is_an_error_that_says_so(num_workers, state_dict):
    loader = ResumableDataLoader(Failing([9], state_dict=state_dict), num_workers=num_workers)
    with pytest.raises(LaneError, match=r"lane 0 of 1.*Failing\.state_dict\(\)"):
        one_pass(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_pass_that_cannot_begin_is_begun_again(num_workers, tmp_path):
    def once(_dataset):
        if (tmp_path / "bad").exists():
            (tmp_path / "bad").unlink()
            raise BadSampleError(0, "not yet")

    def make():
        dataset = Failing([9], iter=once, state_dict=lambda self: {"i": self.i})
        return ResumableDataLoader(dataset, 2, num_workers=num_workers, seed=3)

    loader = make()
    for at in (None, 2):
        if at:
            loader = make()
            running = iter(make_running := make())
            for _ in range(at):
                next(running)
            loader.load_state_dict(make_running.state_dict())
        (tmp_path / "bad").touch()
        with pytest.raises(BadSampleError):
            one_pass(loader)
        assert loader.epoch == 0
        if num_workers:  # its iterator was made: that pass has begun
            continue
        assert one_pass(loader) == in_turn([9], 1, 2)[at or 0 :]


class Another(StatefulShards):
    def load_state_dict(self, state):
        self.other = state["other"]


class AnotherIterator(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_of_another_dataset_is_an_error(num_workers):
    loader = ResumableDataLoader(StatefulShards([9]), seed=3)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match=r"StatefulShards.*Another"):
        ResumableDataLoader(Another([9]), seed=3).load_state_dict(state)
    other = ResumableDataLoader(Another([9]), seed=3, num_workers=num_workers)
    renamed = {**state, "order": other.state_dict()["order"]}
    other.load_state_dict(renamed)
    with pytest.raises(
        LaneError, match=r"Another\.load_state_dict failed in lane 0 of 1.*KeyError"
    ):
        one_pass(other)
    stateless = ResumableDataLoader(AnotherIterator(), seed=3, num_workers=num_workers)
    stateless.load_state_dict({**state, "order": stateless.state_dict()["order"]})
    with pytest.raises(LaneError, match="AnotherIterator has no load_state_dict"):
        one_pass(stateless)
    by_index = ResumableDataLoader(range(9), seed=3)
    with pytest.raises(StateMismatchError, match="lanes"):
        by_index.load_state_dict(state)


def test_lanes_that_are_read_again_need_their_batch_size():
    loader = ResumableDataLoader(StatefulShards([20]), 2, snapshot_every_n_steps=3, seed=3)
    running = iter(loader)
    for _ in range(4):
        next(running)
    other = ResumableDataLoader(StatefulShards([20]), 5, seed=3)
    with pytest.raises(StateMismatchError, match=r"batch_size changed.*batch_size=2.*batch_size=5"):
        other.load_state_dict(loader.state_dict())
    assert one_pass(other) == in_turn([20], 1, 5)


class Initialised(Shards):
    """Shows what worker_init_fn made of it."""

    marks: tuple[int, ...] = ()

    def shown(self, sample: int) -> Any:
        return sample, list(self.marks)


def initialise(worker: int) -> None:
    info = get_worker_info()
    assert info.id == worker
    info.dataset.marks = (*info.dataset.marks, worker)


@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_worker_init_fn_is_called_once_for_each_lane(num_workers):
    loader = ResumableDataLoader(
        Initialised([2, 2, 2]),
        batch_size=None,
        worker_init_fn=initialise,
        lanes=3,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    for _ in range(2):
        found = [tuple(sample) for sample in loader]
        assert [(sample // 100, marks) for sample, marks in found] == [
            (lane, [lane]) for lane in (0, 1, 2, 0, 1, 2)
        ]


def test_an_error_in_worker_init_fn_arrives():
    def fails(worker):
        raise BadSampleError(worker, "not ready")

    loader = ResumableDataLoader(Shards([2]), num_workers=1, worker_init_fn=fails)
    with pytest.raises(BadSampleError, match="not ready"):
        one_pass(loader)


def test_a_dataset_that_cannot_be_copied_needs_a_worker_for_each_lane():
    dataset = StatefulShards([4, 4, 4])
    dataset.lock = threading.Lock()
    for num_workers in (0, 2):
        loader = ResumableDataLoader(dataset, lanes=3, num_workers=num_workers)
        with pytest.raises(LaneError, match=r"cannot be copied.*num_workers=3"):
            one_pass(loader)
    loader = ResumableDataLoader(dataset, 4, lanes=3, num_workers=3)
    assert one_pass(loader) == in_turn([4, 4, 4], 3, 4)
    assert one_pass(ResumableDataLoader(dataset, 12)) == in_turn([4, 4, 4], 1, 12)


def test_interrupts_lose_nothing():
    class Interrupting(StatefulShards):
        def shown(self, sample):
            if sample == 3 and not hasattr(self, "done"):
                self.done = True
                raise KeyboardInterrupt
            return sample

    loader = ResumableDataLoader(Interrupting([8]), 2)
    running = iter(loader)
    assert plain(next(running)) == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(running)
    assert [plain(batch) for batch in running] == [[2, 3], [4, 5], [6, 7]]


def test_a_slow_consumer_and_what_was_read_ahead():
    loader = ResumableDataLoader(StatefulShards([40]), 2, num_workers=1, prefetch_factor=8, seed=3)
    running = iter(loader)
    next(running)
    until(lambda: loader.stats().ready >= 8)  # all that fits has been read ahead
    state = loader.state_dict()
    assert state["lanes"]["each"]["0"]["dataset"] == {"i": 2}
    resumed = ResumableDataLoader(StatefulShards([40]), 2, seed=3)
    resumed.load_state_dict(state)
    assert one_pass(resumed) == in_turn([40], 1, 2)[1:]


def test_workers_that_are_not_forked_read_lanes():
    options = {"num_workers": 1, "multiprocessing_context": "forkserver", "lanes": 2}
    loader = ResumableDataLoader(OwnIterator([6, 5], noisy=True), 2, seed=3, **options)
    inline = ResumableDataLoader(OwnIterator([6, 5], noisy=True), 2, seed=3, lanes=2)
    running = iter(loader)
    expected = one_pass(inline)
    assert plain(next(running)) == expected[0]
    resumed = ResumableDataLoader(OwnIterator([6, 5], noisy=True), 2, seed=3)
    resumed.load_state_dict(loader.state_dict())
    assert one_pass(resumed) == expected[1:]
    assert torch.utils.data.get_worker_info() is None
