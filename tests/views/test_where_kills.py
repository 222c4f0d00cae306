"""Processes that evaluate a predicate at the same time, and are killed while they do."""

import multiprocessing
import os
import signal
import time
import warnings
from collections import Counter
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from locks import waits_for_a_lock
from watching import until

from dataporter.errors import WorkerRestartWarning
from dataporter.system.files import Records
from dataporter.views import where

LENGTH = 4000
EXPECTED = list(range(0, LENGTH, 3))


class Data:
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return index

    def fingerprint(self):
        return "data"


def threes(number):
    # What differs from process to process is in the environment: it is no part of the code.
    log = Path(os.environ["LOG"])
    with log.open("a") as file:
        file.write(f"{number}\n")
    if number == 3000:
        what = os.environ["AT_3000"]
        if what == "wait":
            until(log.with_suffix(".gate").exists, seconds=100)
        if what == "kill the main process":
            os.kill(int(os.environ["MAIN"]), signal.SIGKILL)
            time.sleep(60)
        once = log.with_suffix(".once")
        if what == "kill the worker" and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return number % 3 == 0


def _evaluate(log: Path, at_3000: str, workers: int) -> None:
    warnings.simplefilter("ignore", WorkerRestartWarning)
    os.environ |= {"LOG": str(log), "AT_3000": at_3000, "MAIN": str(os.getpid())}
    view = where(Data(), threes, version=1, folder=log.parent / "verdicts", num_workers=workers)
    assert [view[n] for n in range(len(view))] == EXPECTED


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def start(log: Path, at_3000: str = "go on", workers: int = 0) -> BaseProcess:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_evaluate, args=(log, at_3000, workers))
    process.start()
    return process


def end(process: BaseProcess) -> int:
    try:
        process.join(100)
        return process.exitcode
    finally:
        process.kill()
        process.join()


def evaluated(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_evaluation_goes_on_where_it_was(log, workers):
    assert end(start(log, "kill the main process", workers)) == -signal.SIGKILL
    before = set(evaluated(log))
    # A worker may live a little longer than its parent, and the others are ahead of the first.
    after = log.with_name("after")
    assert end(start(after, workers=workers)) == 0
    # All of a batch is evaluated again if one of it was not.
    assert set(evaluated(after)) | before == set(range(LENGTH))
    assert min(evaluated(after)) > 1000
    assert [path.suffix for path in (log.parent / "verdicts").iterdir()] == [".bits"]


def test_a_killed_worker_changes_nothing(log):
    assert end(start(log, "kill the worker", 2)) == 0
    assert log.with_suffix(".once").exists()
    assert set(evaluated(log)) == set(range(LENGTH))


def test_one_process_evaluates_while_others_wait(log):
    one = start(log, "wait")
    until(lambda: len(evaluated(log)) > 3000, seconds=60)
    others = [start(log) for _ in range(3)]
    until(lambda: all(waits_for_a_lock(other.pid) for other in others), seconds=60)
    log.with_suffix(".gate").touch()
    assert [end(process) for process in (one, *others)] == [0] * 4
    assert Counter(evaluated(log)) == Counter(range(LENGTH))


def test_another_takes_over_from_one_that_is_killed(log):
    killed = start(log, "wait")
    until(lambda: len(evaluated(log)) > 3000, seconds=60)
    others = [start(log) for _ in range(2)]
    until(lambda: all(waits_for_a_lock(other.pid) for other in others), seconds=60)
    killed.kill()
    assert [end(other) for other in others] == [0, 0]
    end(killed)
    counts = Counter(evaluated(log))
    assert set(counts) == set(range(LENGTH))
    assert sum(counts.values()) < 1.5 * LENGTH


def test_records_that_a_kill_cut_short_are_not_read(tmp_path):
    def opened():
        return closing(Records(tmp_path / "x.bits", "another"))

    parts = [bytes([number]) * 10 for number in range(10)]
    with opened() as records:
        for part in parts:
            records.add(part)
    whole = records.path.read_bytes()
    for size in range(0, len(whole) + 1, 7):
        records.path.write_bytes(whole[:size])
        with opened() as records:
            assert records.read() == parts[: size // 18]
            records.add(b"12")  # after what is whole
            assert records.read() == [*parts[: size // 18], b"12"]
    damaged = bytearray(whole)
    damaged[18 * 3 + 12] ^= 1
    records.path.write_bytes(damaged)
    with opened() as records:
        assert records.read() == parts[:3]
