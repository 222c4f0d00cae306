"""Workers are killed: what they did is done again, and nobody sees it in the data."""

import ctypes
import functools
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support import Augmented, Ids, one_pass, passes, plain
from watching import is_running, state_of, until, worker_pids

from dataporter import ResumableDataLoader
from dataporter.engine import worker_shutdown
from dataporter.errors import WorkerDiedError, WorkerRestartWarning

LENGTH, BATCH = 120, 4

# Only the usual number of batches is fetched ahead, however long the consumer waits or sleeps. So
# a pass cannot be over before the death of a worker is noticed.
FEW_AHEAD = {"prefetch_bytes": 1}


class Working(Augmented):
    """Takes about a millisecond a sample, so that a kill finds somebody at work."""

    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass
        return super().__getitem__(index)


def make(workers: int, dataset: Any = None, **options: Any) -> ResumableDataLoader:
    dataset = Working(LENGTH) if dataset is None else dataset
    options = {"batch_size": BATCH, "shuffle": True, "seed": 5, "max_restarts": 10**6, **options}
    return ResumableDataLoader(dataset, num_workers=workers, **options)


@functools.cache
def reference() -> list[list[Any]]:
    return passes(make(0, Augmented(LENGTH)), 3)


@contextmanager
def killing(seed: int, pause: float, most: int = 30) -> Iterator[list[int]]:
    """Kill a random worker at random moments; the pids so far.

    At most so many, or no worker would live to its first batch where starting one takes long. Each
    costs a fork; `make soak` kills 200 times.
    """
    killed: list[int] = []
    stop, chance = threading.Event(), random.Random(seed)

    def kill() -> None:
        while len(killed) < most and not stop.wait(chance.expovariate(1 / pause)):
            if pids := [pid for pid in worker_pids() if pid not in killed]:
                with suppress(ProcessLookupError):  # it has ended by itself since
                    os.kill(pid := chance.choice(pids), signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def deaths(caught: Any) -> list[Any]:
    """The warnings of workers, not those of forks beside threads that newer Pythons give."""
    return [warning for warning in caught if warning.category is WorkerRestartWarning]


def messages(caught: Any) -> list[str]:
    return [str(warning.message) for warning in deaths(caught)]


# At random moments


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_kills_at_random_moments_change_nothing(workers, persistent):
    with warnings.catch_warnings(record=True), killing(workers, 0.03) as killed:
        warnings.simplefilter("always", WorkerRestartWarning)
        while not killed:  # a quick machine may be done before the first
            loader = make(workers, persistent_workers=persistent)
            assert passes(loader, 3) == reference()


def test_kills_while_a_consumer_holds_batches_change_nothing():
    with warnings.catch_warnings(record=True), killing(9, 0.02) as killed:
        warnings.simplefilter("always", WorkerRestartWarning)
        while not killed:
            batches = list(make(2))
            assert [plain(batch) for batch in batches] == reference()[0]


def test_kills_of_workers_that_just_start_change_nothing():
    loader = make(4, Augmented(LENGTH), batch_size=1)
    with warnings.catch_warnings(record=True), killing(3, 0.002):
        warnings.simplefilter("always", WorkerRestartWarning)
        found = one_pass(loader)
    assert found == one_pass(make(0, Augmented(LENGTH), batch_size=1))


def test_a_kill_under_a_fork_server_changes_nothing():
    iterator = iter(make(2, multiprocessing_context="forkserver", **FEW_AHEAD))
    batches = [plain(next(iterator))]
    pid = worker_pids()[0]
    os.kill(pid, signal.SIGKILL)
    with pytest.warns(WorkerRestartWarning, match=f"pid {pid}.*SIGKILL"):
        batches += map(plain, iterator)
    assert batches == reference()[0]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_many_kills_change_nothing(seed):
    workers = 1 + seed % 4
    pause = 0.01 + 0.01 * workers
    with warnings.catch_warnings(record=True), killing(seed, pause, most=200) as killed:
        warnings.simplefilter("always", WorkerRestartWarning)
        while len(killed) < 200:
            loader = make(workers, persistent_workers=seed % 2 == 0)
            assert passes(loader, 3) == reference()


# At chosen moments


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_wait_for_work_may_be_killed(workers, persistent):
    loader = make(workers, prefetch_factor=1, persistent_workers=persistent, **FEW_AHEAD)
    iterator = iter(loader)
    batches = [plain(next(iterator)) for _ in range(5)]
    until(lambda: all(state_of(pid) == "S" for pid in worker_pids()))
    for pid in worker_pids():
        os.kill(pid, signal.SIGKILL)
    with pytest.warns(WorkerRestartWarning) as caught:
        batches += map(plain, iterator)
    assert batches == reference()[0]
    assert len(deaths(caught)) == workers


def test_persistent_workers_may_be_killed_between_two_epochs():
    loader = make(2, persistent_workers=True)
    assert one_pass(loader) == reference()[0]
    for pid in worker_pids():
        os.kill(pid, signal.SIGKILL)
    with pytest.warns(WorkerRestartWarning, match="between two batches"):
        assert one_pass(loader) == reference()[1]
    assert one_pass(loader) == reference()[2]


def test_a_stopped_worker_that_is_killed_is_replaced():
    loader = make(1, **FEW_AHEAD)
    iterator = iter(loader)
    batches = [plain(next(iterator))]
    (pid,) = worker_pids()
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) == "T")
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.warns(WorkerRestartWarning, match=f"pid {pid}.*SIGKILL"):
        batches += map(plain, iterator)
    assert batches == reference()[0]


def test_a_stopped_worker_holds_nobody_up_but_its_batch():
    loader = make(2, timeout=60)
    iterator = iter(loader)
    batches = [plain(next(iterator))]
    stopped = worker_pids()[0]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: state_of(stopped) == "T")
    threading.Timer(0.2, os.kill, (stopped, signal.SIGCONT)).start()
    batches += map(plain, iterator)
    assert batches == reference()[0]


# By what they do themselves


class Dies(Ids):
    """Ends its worker at one sample; only once if it is told where to note that."""

    def __init__(self, length: int, how: Callable[[], Any], once: Path | None = None) -> None:
        super().__init__(length)
        self.how, self.once = how, once

    def __getitem__(self, index: int) -> int:
        if index == 9 and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            self.how()
        return super().__getitem__(index)


def segfault() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # pytest's faulthandler would print a trace
    ctypes.string_at(0)


def abort() -> None:
    signal.signal(signal.SIGABRT, signal.SIG_DFL)  # likewise
    os.abort()


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


DEATHS: dict[str, tuple[Callable[[], Any], str]] = {
    "exits": (lambda: os._exit(7), "status 7"),
    "exits with 0": (lambda: os._exit(0), "status 0"),
    "raises SystemExit": (lambda: sys.exit(3), "status 3"),
    "crashes": (segfault, "SIGSEGV"),
    "aborts": (abort, "SIGABRT"),
    "is killed": (kill_oneself, "SIGKILL"),
    "is killed by a nameless signal": (lambda: os.kill(os.getpid(), 40), "40"),
}
quiet = pytest.mark.usefixtures("capfd")  # a crash may leave a word on the worker's stderr


@quiet
@pytest.mark.parametrize("kind", DEATHS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_once_is_replaced_with_one_warning(kind, workers, tmp_path):
    how, named = DEATHS[kind]
    dataset = Dies(24, how, once=tmp_path / "died")
    loader = make(workers, dataset, shuffle=False, max_restarts=1)
    with pytest.warns(WorkerRestartWarning) as caught:
        assert one_pass(loader) == one_pass(make(0, Ids(24), shuffle=False))
    (message,) = messages(caught)
    assert re.search(rf"pid \d+.*{named}.*batch 3 of epoch 0", message)


@quiet
@pytest.mark.parametrize("kind", DEATHS)
def test_past_the_limit_of_restarts_the_error_names_pid_and_signal(kind):
    how, named = DEATHS[kind]
    loader = make(2, Dies(24, how), shuffle=False, max_restarts=2)
    iterator = iter(loader)
    batches: list[Any] = []
    with (
        pytest.warns(WorkerRestartWarning) as caught,
        pytest.raises(WorkerDiedError, match=rf"pid \d+.*{named}.*batch 3 of epoch 0") as error,
    ):
        batches.extend(map(plain, iterator))
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "max_restarts" in str(error.value)
    assert len(messages(caught)) == 2
    assert loader.state_dict()["samples_processed"] == 8


def test_without_restarts_the_first_death_is_an_error():
    loader = make(2, max_restarts=0, **FEW_AHEAD)
    iterator = iter(loader)
    next(iterator)
    pid = worker_pids()[0]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=f"pid {pid}.*SIGKILL"):
        list(iterator)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(pid))


@pytest.mark.parametrize("workers", [1, 2])
def test_kills_spread_over_a_pass_end_nothing_and_change_no_bit(workers):
    loader = make(workers, persistent_workers=True, max_restarts=3, **FEW_AHEAD)
    for epoch in range(2):
        iterator, batches, killed = iter(loader), [], 0
        with pytest.warns(WorkerRestartWarning):
            for step in range(LENGTH // BATCH):
                batches.append(plain(next(iterator)))
                for pid in worker_pids()[:1] if step % 3 == 1 else ():
                    kill(pid)
                    killed += 1
        assert next(iterator, None) is None
        assert batches == reference()[epoch]
        assert killed > 4


def test_deaths_with_deliveries_in_between_may_be_noticed_together():
    iterator = iter(make(4, max_restarts=1, **FEW_AHEAD))
    batches = [plain(next(iterator))]
    for pid in worker_pids():
        until(lambda: all(state_of(pid) == "S" for pid in worker_pids()))  # all is fetched ahead
        kill(pid)
        batches.append(plain(next(iterator)))
    with pytest.warns(WorkerRestartWarning) as caught:
        batches += map(plain, iterator)
    assert batches == reference()[0]
    assert len(messages(caught)) == 4


@quiet
def test_a_batch_that_ends_worker_after_worker_ends_the_run_although_others_are_delivered(
    monkeypatch,
):
    monkeypatch.setattr(
        worker_shutdown, "_GRACE", 0.1
    )  # for one that tries the batch again in the end
    context = multiprocessing.get_context("fork")
    last_fetched, last_allowed = context.RawValue("i"), context.RawValue("i")

    class Deadly(Ids):
        def __getitem__(self, index: int) -> int:
            if index == 9:
                # More than may be ahead: the other worker's batches are delivered meanwhile.
                last_allowed.value = enough = last_fetched.value + 8 * BATCH
                until(lambda: last_fetched.value >= enough)
                kill_oneself()
            if index > 9:
                # Held between two tries, or the data could end before the last try does.
                until(lambda: index <= last_allowed.value)
                last_fetched.value = max(last_fetched.value, index)
            return super().__getitem__(index)

    loader = make(2, Deadly(400), shuffle=False, in_order=False, max_restarts=2, **FEW_AHEAD)
    batches: list[Any] = []
    words = re.escape(
        "while fetching batch 3 of epoch 0 (the samples at indices 8, 9, 10, 11). 3 workers have "
        "died while fetching this batch"
    )
    with (
        pytest.warns(WorkerRestartWarning) as caught,
        pytest.raises(WorkerDiedError, match=words),
    ):
        batches.extend(map(plain, loader))
    assert len(messages(caught)) == 2
    assert len(batches) > 2


def killed_at_once(_worker: int) -> None:
    kill_oneself()


def test_deaths_with_nothing_delivered_in_between_end_the_run_and_it_is_said_where():
    loader = make(2, worker_init_fn=killed_at_once, max_restarts=3)
    words = "4 workers have died with no batch delivered in between.*batch 1 of epoch 0"
    with (
        pytest.warns(WorkerRestartWarning) as caught,
        pytest.raises(WorkerDiedError, match=words),
    ):
        list(loader)
    assert len(messages(caught)) == 3


def test_after_too_many_deaths_the_next_call_tries_again(tmp_path):
    died = tmp_path / "died"
    loader = make(1, Dies(24, kill_oneself, once=died), shuffle=False, max_restarts=0)
    iterator, batches = iter(loader), []
    with pytest.raises(WorkerDiedError):
        batches.extend(plain(batch) for batch in iterator)
    state = loader.state_dict()
    rest = [plain(batch) for batch in iterator]
    expected = one_pass(make(0, Ids(24), shuffle=False))
    assert rest == expected[state["batches_processed"] :]


def test_a_warning_for_each_death_names_pid_signal_and_batch_and_points_to_the_loop():
    loader = make(1, **FEW_AHEAD)
    batches: list[Any] = []
    killed: list[int] = []

    def kill_and_step(iterator: Iterator[Any], times: int) -> None:
        for _ in range(times):
            killed.extend(worker_pids())
            os.kill(killed[-1], signal.SIGKILL)
            until(lambda: not is_running(killed[-1]))
            for _ in range(8):  # more than are fetched ahead
                batches.append(plain(next(iterator)))

    iterator = iter(loader)
    with pytest.warns(WorkerRestartWarning) as caught:
        kill_and_step(iterator, times=3)
    batches += map(plain, iterator)
    assert batches == reference()[0]
    for pid, warning in zip(killed, deaths(caught), strict=True):
        assert f"(pid {pid}) is killed by signal: SIGKILL" in str(warning.message)
        when = r"between two batches|before its first batch|while fetching batch \d+ of epoch 0"
        assert re.search(when, str(warning.message))
        assert warning.filename == __file__


def test_where_warnings_are_errors_a_death_is_one_and_nothing_is_lost():
    loader = make(2, **FEW_AHEAD)
    iterator = iter(loader)
    batches = [plain(next(iterator))]
    os.kill(worker_pids()[0], signal.SIGKILL)
    with pytest.raises(WorkerRestartWarning):
        batches.extend(plain(batch) for batch in iterator)
    batches[loader.batches_processed :] = map(plain, iterator)
    assert batches == reference()[0]
