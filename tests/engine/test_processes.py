"""The process engine: any number of workers, however started, deliver what none would."""

import contextlib
import functools
import itertools
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_scripts import run
from support import Augmented, Ids, Stateful, Stateless, one_pass, pass_with_states, passes, plain
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)
from watching import until, worker_pids

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, WorkerError, WorkerTimeoutError

LENGTH, BATCH = 37, 4
BATCHES = -(-LENGTH // BATCH)


def make(workers: int = 2, dataset: Any = None, **options: Any) -> ResumableDataLoader:
    dataset = Augmented(LENGTH) if dataset is None else dataset
    options = {"batch_size": BATCH, "shuffle": True, "seed": 5, **options}
    return ResumableDataLoader(dataset, num_workers=workers, **options)


@functools.cache
def reference() -> list[list[Any]]:
    """Four epochs without workers."""
    return passes(make(0), 4)


class Logged(Ids):
    """Notes in a file which samples were fetched, in whatever process."""

    def __init__(self, length: int, log: Path) -> None:
        super().__init__(length)
        self.log = log

    def __getitem__(self, index: int) -> int:
        with self.log.open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)

    def fetched(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


# The same data


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_several_epochs_are_those_without_workers(workers, persistent):
    assert passes(make(workers, persistent_workers=persistent), 4) == reference()


def test_the_fork_server_imports_what_workers_need_beside_what_the_user_has_it_import():
    shown = run("""
import multiprocessing, torch
from dataporter import ResumableDataLoader

multiprocessing.set_forkserver_preload(["tabnanny"])
list(ResumableDataLoader(
    torch.arange(8), 2, num_workers=1, multiprocessing_context="forkserver"))
with multiprocessing.get_context("forkserver").Pool(1) as pool:  # of what the server has
    print(*sorted(pool.apply(eval, ("{'tabnanny', 'torch'} & set(__import__('sys').modules)",))))
""")
    assert shown == "tabnanny torch\n"


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_several_epochs_are_those_without_workers_however_workers_are_started(method):
    loader = make(2, multiprocessing_context=method, persistent_workers=True)
    assert passes(loader, 2) == reference()[:2]


@pytest.mark.parametrize("prefetch", [1, 7])
def test_the_prefetch_depth_never_reaches_the_data(prefetch):
    assert passes(make(2, prefetch_factor=prefetch), 2) == reference()[:2]


@pytest.mark.parametrize("draws", ["", "python", "gauss", "numpy", "torch", "own"])
def test_augmentation_is_the_same_whatever_it_draws_from(draws):
    dataset = Augmented(LENGTH, draws)
    assert passes(make(2, dataset), 2) == passes(make(0, dataset), 2)


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(range(LENGTH), id="range"),
        pytest.param(torch.rand(LENGTH, 3), id="tensor"),
        pytest.param(np.arange(2 * LENGTH).reshape(LENGTH, 2), id="array"),
        pytest.param(TensorDataset(torch.rand(LENGTH, 2), torch.arange(LENGTH)), id="tensors"),
        pytest.param([{"a": i, "b": [str(i), i / 3]} for i in range(LENGTH)], id="dicts"),
        pytest.param([torch.full((2,), i) for i in range(LENGTH)], id="list of tensors"),
    ],
)
def test_plain_datasets_are_fetched_alike(dataset):
    assert passes(make(2, dataset), 2) == passes(make(0, dataset), 2)


# Samples of one batch that differ in dtype or in layout
MIXED = {
    "floats": [torch.zeros(2), torch.full((2,), 0.1, dtype=torch.float64)] * 4,
    "ints": [torch.tensor([1], dtype=torch.int32), torch.tensor([2**40])] * 4,
    "int first": [torch.tensor([1]), torch.tensor([0.5])] * 4,
    "channels last": [torch.rand(5, 6, 3).permute(2, 0, 1) for _ in range(8)],
    "arrays": [np.zeros(2, np.float32), np.full(2, 0.1)] * 4,
}


@pytest.mark.parametrize("kind", MIXED)
def test_samples_that_differ_are_collated_as_without_workers(kind):
    expected = list(ResumableDataLoader(MIXED[kind], 4))
    found = list(ResumableDataLoader(MIXED[kind], 4, num_workers=1))
    assert [batch.dtype for batch in found] == [batch.dtype for batch in expected]
    assert [batch.stride() for batch in found] == [batch.stride() for batch in expected]
    assert one_pass(found) == one_pass(expected)


def test_a_loader_in_which_nothing_is_left_ends_at_once():
    assert one_pass(make(2, Ids(3), batch_size=4, drop_last=True)) == []


def test_more_workers_than_batches_deliver_each_once():
    assert one_pass(make(4, batch_size=30)) == one_pass(make(0, batch_size=30))


# Resuming


@pytest.mark.parametrize("persistent", [False, True])
def test_the_states_are_those_without_workers(persistent):
    expected, found = make(0), make(2, persistent_workers=persistent)
    for _ in range(2):
        assert pass_with_states(found) == pass_with_states(expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resume_at_every_batch_is_exact(workers):
    first, states = pass_with_states(make(workers))
    assert first == reference()[0]
    for done, state in enumerate(states[:-1]):
        resumed = make(workers, persistent_workers=done != 1)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert one_pass(resumed) == reference()[0][done:]
        assert one_pass(resumed) == reference()[1]
    after = make(workers)
    after.load_state_dict(states[-1])
    assert one_pass(after) == reference()[1]


def test_a_state_may_be_loaded_with_another_number_of_workers_in_the_middle_of_an_epoch():
    delivered: list[Any] = []
    state = None
    for workers in (0, 1, 4, 2, 0, 3):
        loader = make(workers)
        if state is not None:
            loader.load_state_dict(state)
        delivered += map(plain, itertools.islice(loader, 2))
        state = loader.state_dict()
    assert delivered == reference()[0][: len(delivered)]
    assert len(delivered) == BATCHES


@pytest.mark.parametrize("persistent", [False, True])
def test_a_live_iterator_goes_on_at_a_loaded_position(persistent):
    loader = make(2, persistent_workers=persistent)
    iterator = iter(loader)
    batches = [plain(next(iterator)) for _ in range(3)]
    state = loader.state_dict()
    batches += map(plain, itertools.islice(iterator, 4))
    loader.load_state_dict(state)
    batches[3:] = map(plain, iterator)
    assert batches == reference()[0]
    assert one_pass(loader) == reference()[1]


def test_loading_into_a_running_loader_keeps_its_persistent_workers():
    loader = make(2, persistent_workers=True)
    state = loader.state_dict()
    iterator = iter(loader)
    next(iterator)
    workers = worker_pids()
    loader.load_state_dict(state)
    assert plain(next(iterator)) == reference()[0][0]
    assert worker_pids() == workers


def test_persistent_workers_stay_over_epochs_breaks_and_loads():
    loader = make(2, persistent_workers=True)
    iterator = iter(loader)
    first, state, workers = plain(next(iterator)), loader.state_dict(), worker_pids()
    assert len(workers) == 2
    del iterator
    assert one_pass(loader) == reference()[1]
    loader.load_state_dict(state)
    assert [first, *one_pass(loader)] == reference()[0]
    assert worker_pids() == workers


@pytest.mark.parametrize("persistent", [False, True])
def test_breaking_off_and_iterating_again_is_the_next_epoch(persistent):
    loader = make(2, persistent_workers=persistent)
    for epoch in range(3):
        batches = []
        for batch in loader:
            batches.append(plain(batch))
            if len(batches) == 3:
                break
        assert batches == reference()[epoch][:3]
    assert one_pass(loader) == reference()[3]


@pytest.mark.parametrize("persistent", [False, True])
def test_two_live_iterators_do_not_disturb_each_other(persistent):
    loader = make(2, persistent_workers=persistent)
    first, second = iter(loader), iter(loader)
    batches = [(plain(a), plain(b)) for a, b in zip(first, second, strict=True)]
    assert batches == list(zip(*reference()[:2], strict=True))
    assert one_pass(loader) == reference()[2]


# Samplers and functions of the user's own


def samplers() -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    batches = [[0, 1], [7], [3, 3, 3, 5], [2] * 9, [6, 1]]
    return {
        "stateless": {"sampler": Stateless(LENGTH), "batch_size": 4},
        "stateful": {"sampler": Stateful(LENGTH, 30), "batch_size": 4},
        "random": {"sampler": RandomSampler(range(LENGTH), generator=generator), "batch_size": 4},
        "subset": {"sampler": SubsetRandomSampler([5, 9, 2, 11, 30]), "batch_size": 2},
        "list": {"sampler": [4, 2, 2, 9, 0, 1], "batch_size": 4},
        "batches": {"batch_sampler": BatchSampler(SequentialSampler(range(LENGTH)), 5, False)},  # noqa: FBT003
        "uneven batches": {"batch_sampler": batches},
        "single samples": {"batch_size": None},
        "single samples of a sampler": {"sampler": Stateful(LENGTH, 12), "batch_size": None},
    }


@pytest.mark.parametrize("kind", samplers())
def test_samplers_of_the_user_are_followed_and_resumed(kind):
    def fresh(workers, **more):
        options = {"shuffle": kind == "single samples", "seed": 5, **samplers()[kind], **more}
        return ResumableDataLoader(Augmented(LENGTH), num_workers=workers, **options)

    expected = passes(fresh(0), 2)
    loader = fresh(2)
    first, states = pass_with_states(loader)
    assert [first, one_pass(loader)] == expected
    for done in (0, 1, len(first) - 1, len(first)):
        resumed = fresh(1, persistent_workers=done > 0)
        resumed.load_state_dict(states[done])
        assert [first[:done] + one_pass(resumed), one_pass(resumed)] == expected


@pytest.mark.parametrize("kind", samplers())
def test_samplers_of_the_user_go_on_alike_after_a_break(kind):
    def broken_off(workers):
        options = {"shuffle": kind == "single samples", "seed": 5, **samplers()[kind]}
        loader = ResumableDataLoader(Ids(LENGTH), num_workers=workers, **options)
        for _ in range(2):
            yield [plain(batch) for batch in itertools.islice(loader, 2)]
        yield one_pass(loader)

    assert list(broken_off(2)) == list(broken_off(0))


def test_collation_and_conversion_of_the_user_happen_in_workers():
    def collate(samples):
        assert get_worker_info() is not None
        return {"samples": samples, "noise": torch.rand(2)}

    def convert(batch):
        return {**batch, "worker": os.getpid()}

    expected = make(0, collate_fn=lambda s: {"samples": s, "noise": torch.rand(2)})
    batches = one_pass(make(2, collate_fn=collate, converter=convert))
    assert os.getpid() not in {batch.pop("worker") for batch in batches}
    assert batches == one_pass(expected)


# What a worker knows of itself


class Informed(Ids):
    def __init__(self, length: int, folder: Path) -> None:
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        info = get_worker_info()
        # No worker can do all the work alone: each waits for the others.
        (self.folder / str(info.id)).touch()
        until(lambda: len(list(self.folder.iterdir())) == info.num_workers)
        return info.id, info.num_workers, info.seed, info.dataset is self, torch.initial_seed()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_dataset_is_told_which_worker_it_is_in(method, tmp_path):
    loader = make(
        2,
        Informed(20, tmp_path),
        batch_size=1,
        collate_fn=tuple,
        randomness=False,
        multiprocessing_context=method,
    )
    found = {sample for batch in loader for sample in batch}
    assert {(worker, count, same) for worker, count, _, same, _ in found} == {
        (0, 2, True),
        (1, 2, True),
    }
    assert len({seed for _, _, seed, _, _ in found}) == 1
    assert all(seed == initial for _, _, seed, _, initial in found)
    assert get_worker_info() is None


def test_worker_init_fn_is_called_once_in_each_worker_with_its_number(tmp_path):
    def init(worker):
        with (tmp_path / "calls").open("a") as file:
            file.write(f"{worker} {os.getpid()} {get_worker_info().id}\n")

    loader = make(3, worker_init_fn=init, persistent_workers=True)
    assert passes(loader, 2) == reference()[:2]
    until(lambda: len((tmp_path / "calls").read_text().splitlines()) == 3)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert sorted((int(worker), int(told)) for worker, _, told in calls) == [
        (i, i) for i in range(3)
    ]
    assert sorted(int(pid) for _, pid, _ in calls) == worker_pids()


def test_an_error_in_worker_init_fn_reaches_the_caller():
    def init(_worker):
        raise ZeroDivisionError("at the start")

    with pytest.raises(ZeroDivisionError, match="at the start") as caught:
        one_pass(make(2, worker_init_fn=init))
    assert "worker_init_fn failed" in str(caught.value.__cause__)


@pytest.mark.parametrize("persistent", [False, True])
def test_after_an_error_in_worker_init_fn_the_next_call_tries_again_and_nothing_is_left_out(
    persistent, tmp_path
):
    def init(_worker):
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ZeroDivisionError("at the start")

    iterator = iter(make(1, worker_init_fn=init, persistent_workers=persistent))
    with pytest.raises(ZeroDivisionError, match="at the start"):
        next(iterator)
    assert [plain(batch) for batch in iterator] == reference()[0]


# Run-ahead


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_a_state_counts_what_was_delivered_not_what_was_prefetched(taken, tmp_path):
    dataset = Logged(200, tmp_path / "log")
    loader = make(2, dataset, prefetch_factor=3)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    until(lambda: dataset.fetched() >= (taken + 6) * BATCH)
    state = loader.state_dict()
    assert state["samples_processed"] == taken * BATCH
    resumed = make(2, Ids(200))
    resumed.load_state_dict(state)
    assert one_pass(resumed) == one_pass(make(0, Ids(200)))[taken:]


def test_a_slow_consumer_bounds_what_is_fetched_ahead(tmp_path):
    dataset = Logged(400, tmp_path / "log")
    # One worker, so that what is ready is the next batch, and not those after a slow one.
    loader = make(1, dataset, prefetch_factor=6)
    iterator = iter(loader)
    for _ in range(60):
        next(iterator)
        # Only a consumer that waits has more fetched ahead; this one waits for the first alone.
        until(lambda: loader.stats().ready >= 6)
    # The six, and those that are worth a message.
    assert dataset.fetched() <= (60 + 6 + 2) * BATCH


# Ending


def test_workers_exit_after_the_last_batch():
    loader = make(2)
    iterator = iter(loader)
    assert [plain(batch) for batch in iterator] == reference()[0]
    until(lambda: not worker_pids())
    assert list(iterator) == []


def test_workers_of_an_iterator_that_is_dropped_unfinished_exit():
    iterator = iter(make(2))
    next(iterator)
    assert len(worker_pids()) == 2
    del iterator
    until(lambda: not worker_pids())


def test_persistent_workers_exit_with_their_loader():
    loader = make(2, persistent_workers=True)
    next(iter(loader))
    assert len(worker_pids()) == 2
    del loader
    until(lambda: not worker_pids())


# Errors


class Fails(Ids):
    """Raises at one sample."""

    def __init__(self, length: int, error: Any) -> None:
        super().__init__(length)
        self.error = error

    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise self.error()
        return super().__getitem__(index)


class Pair(Exception):  # noqa: N818
    def __init__(self, left: int, right: str) -> None:
        super().__init__(left, right)


class Composed(Exception):  # noqa: N818
    """As many exceptions are: made from other things than its message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class KeywordOnly(Exception):  # noqa: N818
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Unsendable(Exception):  # noqa: N818
    def __init__(self) -> None:
        super().__init__("holds what no pickle can")
        self.callback = lambda: None


ERRORS = {
    "builtin": (lambda: ValueError("no", 3), ("no", 3)),
    "key": (lambda: KeyError("name\nof two lines"), ("name\nof two lines",)),
    "system": (lambda: FileNotFoundError(2, "gone", "a.png"), (2, "gone")),
    "unicode": (lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "r"), ("utf-8", b"x", 0, 1, "r")),
    "two arguments": (lambda: Pair(1, "b"), (1, "b")),
    "composed message": (lambda: Composed(404, "not found"), ("404: not found",)),
    "keyword only": (lambda: KeywordOnly(code=7), ("code 7",)),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_in_a_dataset_arrives_as_it_is_with_the_workers_traceback(kind, persistent):
    error, arguments = ERRORS[kind]
    iterator = iter(make(2, Fails(16, error), shuffle=False, persistent_workers=persistent))
    batches = [plain(next(iterator)) for _ in range(2)]
    with pytest.raises(type(error())) as caught:
        next(iterator)
    assert caught.value.args == arguments
    told = {name: value for name, value in vars(caught.value).items() if name != "__notes__"}
    assert told == vars(error())
    assert "in __getitem__" in str(caught.value.__cause__)
    assert "raise self.error()" in str(caught.value.__cause__)
    assert "worker" in str(caught.value.__cause__)
    batches += map(plain, iterator)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [12, 13, 14, 15]]


def test_an_error_that_cannot_be_sent_is_told_in_words():
    iterator = iter(make(2, Fails(16, Unsendable), shuffle=False))
    next(iterator), next(iterator)
    with pytest.raises(WorkerError) as caught:
        next(iterator)
    for part in ("Unsendable", "holds what no pickle can", "in __getitem__", "worker"):
        assert part in str(caught.value)


class Unpicklable(Ids):
    def __getitem__(self, index: int) -> Any:
        return (lambda: index) if index == 9 else index


def test_a_batch_that_cannot_be_sent_is_an_error_and_the_state_stays_before_it():
    loader = make(2, Unpicklable(16), shuffle=False, collate_fn=list)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    refused = (AttributeError, TypeError, ValueError, pickle.PicklingError)  # by Python's version
    with pytest.raises(refused, match="lambda") as caught:
        next(iterator)
    assert "worker" in str(caught.value.__cause__)
    assert loader.state_dict()["samples_processed"] == 8


class Gated(Ids):
    """One sample is there once a file is."""

    def __init__(self, length: int, folder: Path) -> None:
        super().__init__(length)
        self.begun, self.gate = folder / "begun", folder / "gate"

    def __getitem__(self, index: int) -> int:
        if index == 9:
            self.begun.touch()
            until(self.gate.exists, seconds=60)
        return super().__getitem__(index)


def test_a_batch_that_is_late_is_an_error_that_names_the_worker(tmp_path):
    dataset = Gated(16, tmp_path)
    loader = make(2, dataset, shuffle=False, timeout=0.2)
    iterator = iter(loader)
    batches: list[Any] = []
    while len(batches) < 2:
        with contextlib.suppress(WorkerTimeoutError):  # workers may take longer to start
            batches.append(plain(next(iterator)))
    until(dataset.begun.exists)
    started = time.monotonic()
    with pytest.raises(WorkerTimeoutError, match=r"pid \d+") as caught:
        next(iterator)
    assert time.monotonic() - started > 0.15
    assert any(f"pid {pid})" in str(caught.value) for pid in worker_pids())
    assert loader.state_dict()["samples_processed"] == 8
    dataset.gate.touch()


class Slow(Ids):
    def __getitem__(self, index: int) -> int:
        if index == 9:
            time.sleep(0.1)
        return super().__getitem__(index)


def test_a_batch_that_is_in_time_is_no_error():
    assert one_pass(make(2, Slow(16), shuffle=False, timeout=60)) == one_pass(
        make(0, Ids(16), shuffle=False)
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_sent_to_a_spawned_worker_is_an_error_before_one_starts(method):
    class Local(Ids):
        pass

    for options in (
        {"dataset": Local(8)},
        {"collate_fn": lambda samples: samples},
        {"worker_init_fn": lambda worker: None},
    ):
        loader = make(2, multiprocessing_context=method, **options)
        with pytest.raises(OptionError, match=f"{method}.*(lambda|Local)"):
            iter(loader)
        assert not worker_pids()


def test_local_datasets_and_lambdas_work_where_workers_are_forked():
    class Local(Ids):
        pass

    loader = make(2, Local(8), collate_fn=lambda samples: samples, multiprocessing_context="fork")
    assert sorted(itertools.chain(*loader)) == list(range(8))
