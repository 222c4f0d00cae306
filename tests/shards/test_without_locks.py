"""A cache on a file system without locks: a SIMULATION, since none can be mounted here.

Locks below one folder fail in all processes, as they do on Lustre without its option for them.
Each run then has blocks of its own, says so, and leaves nothing behind.
"""

import fcntl
import gc
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from porters import porter_pids, tidy, until_no_porter_is_left
from support import one_pass
from watching import run_script, until

from dataporter import ResumableDataLoader
from dataporter.errors import ShardWarning
from dataporter.shards import ShardedDataset

# Python runs a module of this name in each process before all else.
TAKING_AWAY = """
import errno, fcntl, os

def flock(file, how, lock=fcntl.flock):
    descriptor = file if isinstance(file, int) else file.fileno()
    if os.readlink(f"/proc/self/fd/{descriptor}").startswith(os.environ["WITHOUT_LOCKS"]):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    lock(file, how)

fcntl.flock = flock
"""

# It ends while its porter is decoding.
HASTY_JOB = """
import sys
import warnings
from pathlib import Path
from numbers_format import Numbers, written
from tracks_order import SideBySide
from dataporter.law import Plan
from dataporter.shards.porter import Porter
warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
index = written(folder / "source", 24)
porter = Porter(index, Numbers(seconds=0.1), folder=folder / "cache")
porter.announce(SideBySide(24, 16, 2), 0, 0, 4, Plan(length=len(index), batch_size=4))
porter.path(0)
print(porter._folder)
"""


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose files have no locks, in this process and those that it starts."""
    (tmp_path / "sitecustomize.py").write_text(TAKING_AWAY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("WITHOUT_LOCKS", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(fcntl, "flock", fcntl.flock)  # to be put back
    exec(TAKING_AWAY, {})  # noqa: S102  as in the others
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def own_folders(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*/*"))


def test_each_run_has_blocks_of_its_own_says_so_and_removes_them(folder, texts):
    expected = one_pass(ResumableDataLoader(ShardedDataset(texts), 8, shuffle=True, seed=3))
    runs = []
    for number in range(2):
        with pytest.warns(ShardWarning, match="has no locks.*Pass cache= a folder on") as caught:
            corpus = ShardedDataset(texts, cache=folder / "cache", index=folder / "index")
        assert len(caught) == 1
        loader = ResumableDataLoader(corpus, 8, shuffle=True, seed=3, num_workers=number)
        assert one_pass(loader) == expected
        runs.append(loader)
    assert len(own_folders(folder)) == 2
    assert all(list(each.glob("*.block")) for each in own_folders(folder))
    del corpus, loader, runs
    gc.collect()  # a loader is part of a cycle
    assert own_folders(folder) == []


def _read_one(folder: Path, texts: Path, out: Connection) -> None:
    warnings.simplefilter("ignore", ShardWarning)
    corpus = ShardedDataset(texts, cache=folder / "cache", index=folder / "index")
    out.send(corpus[0]["id"])
    out.recv()


@contextmanager
def begun(folder: Path, texts: Path) -> Iterator[BaseProcess]:
    """A job that has read a sample. It ends after this."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    job = context.Process(target=_read_one, args=(folder, texts, there))
    job.start()
    there.close()
    try:
        assert here.recv() == 0
        yield job
    finally:
        with suppress(OSError):  # it was killed
            here.send(None)
        job.join()


def test_the_next_run_removes_the_blocks_of_a_killed_one_and_no_others(folder, texts):
    with begun(folder, texts) as running:
        others = set(porter_pids())
        with begun(folder, texts) as killed:
            assert len(own_folders(folder)) == 2
            (porter,) = set(porter_pids()) - others
            killed.kill()
            killed.join()
            os.kill(porter, signal.SIGKILL)  # it would wait for some seconds for its run
        until(lambda: len(porter_pids()) == 1, seconds=60)  # else its blocks might come again
        assert len(own_folders(folder)) == 2
        with begun(folder, texts) as following:
            found = {int(path.name.split("-")[2]) for path in own_folders(folder)}
            assert found == {running.pid, following.pid}
        assert [int(path.name.split("-")[2]) for path in own_folders(folder)] == [running.pid]


def test_a_run_that_ends_while_its_porter_decodes_leaves_nothing(folder):
    for _ in range(3):
        printed = run_script(HASTY_JOB, folder)
        assert str(folder / "cache") in printed
        until_no_porter_is_left()
        assert own_folders(folder) == []
