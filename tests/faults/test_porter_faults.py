"""Porters, workers and whole jobs are killed, disks fill up: nobody sees it in the data."""

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forked_scripts import mounting, run
from numbers_format import Numbers, expected, written
from porters import porter_pids, tidy, until_no_porter_is_left
from test_environment import may_mount
from tracks_order import SideBySide
from watching import environment, until

from dataporter.law import Plan
from dataporter.shards.cache import BlockCache
from dataporter.shards.porter import Porter

BLOCKS = 24


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


@pytest.fixture
def index(tmp_path):
    return written(tmp_path / "source", BLOCKS)


def make(tmp_path: Path, index, **options) -> Porter:
    seconds = options.pop("seconds", 0)
    format_ = Numbers(tmp_path / "log", seconds=seconds)
    return Porter(index, format_, folder=tmp_path / "cache", **options)


def test_a_killed_porter_is_replaced(tmp_path, index):
    porter = make(tmp_path, index)
    for block in range(4):
        assert porter.map(block)[:] == expected(index, block)
        (pid,) = porter_pids()
        os.kill(pid, signal.SIGKILL)
    assert porter.map(9)[:] == expected(index, 9)
    assert len(porter_pids()) == 1
    porter.close()


def test_a_porter_killed_while_it_decodes_is_replaced_and_its_part_is_used_or_removed(
    tmp_path, index
):
    porter = make(tmp_path, index, seconds=0.1)
    killed = threading.Event()

    def kill() -> None:
        until(lambda: list(porter._folder.glob("*.tmp")), seconds=60)
        for pid in porter_pids():
            os.kill(pid, signal.SIGKILL)
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    blocks: list[int] = []
    while not killed.is_set() or not blocks:  # a busy machine may miss it at the first ones
        blocks.append(len(blocks))
        assert porter.map(blocks[-1])[:] == expected(index, blocks[-1])
    thread.join()
    assert not list(porter._folder.glob("*.tmp"))
    assert np.fromfile(porter._folder / "sizes", np.int64, BLOCKS).nonzero()[0].tolist() == blocks
    porter.close()


def test_an_announcement_reaches_the_porter_that_replaces_a_killed_one(tmp_path, index):
    porter, order = make(tmp_path, index), SideBySide(BLOCKS, 16, 2)
    plan = Plan(length=len(index), batch_size=4)
    for epoch in range(3):
        porter.announce(order, epoch, 0, len(index), plan)
        until(lambda: porter.stats().get("decoded", 0) >= BLOCKS * (epoch == 0))
        for pid in porter_pids():
            os.kill(pid, signal.SIGKILL)
    assert porter.map(0)[:] == expected(index, 0)
    porter.close()


def test_an_announcement_alone_replaces_a_killed_porter(tmp_path, index):
    porter, order = make(tmp_path, index), SideBySide(BLOCKS, 16, 2)
    plan = Plan(length=len(index), batch_size=4)
    porter.announce(order, 0, 0, 4, plan)
    (pid,) = until(porter_pids)
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in porter_pids())
    porter.announce(order, 0, 4, 8, plan)
    assert until(porter_pids) != [pid]
    porter.close()


def read_again_and_again(porter: Porter, seed: int, out: str, enough: Path) -> None:
    chance = random.Random(seed)
    for number in itertools.count():
        if number >= 120 and enough.exists():
            break
        block = chance.randrange(BLOCKS)
        assert porter.map(block)[:] == expected(porter._index, block)
    Path(out).write_text("done")


def test_porters_killed_at_random_moments_change_nothing(tmp_path, index):
    porter = make(tmp_path, index, cache_bytes=6 * 128, seconds=0.002)
    context = multiprocessing.get_context("fork")
    outs, enough = [tmp_path / f"out{n}" for n in range(2)], tmp_path / "enough"
    workers = [
        context.Process(target=read_again_and_again, args=(porter, n, str(out), enough))
        for n, out in enumerate(outs)
    ]
    for worker in workers:
        worker.start()
    chance, stop, killed = random.Random(7), threading.Event(), []

    def decoded_by(pid: int) -> bool:
        return f" {pid}\n" in (tmp_path / "log").read_text()

    def kill() -> None:
        while not stop.wait(chance.uniform(0, 0.1)):
            for pid in porter_pids():  # each lives long enough to do something
                with suppress(FileNotFoundError, ProcessLookupError):
                    if decoded_by(pid):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        enough.touch()

    thread = threading.Thread(target=kill)
    thread.start()
    for worker in workers:
        worker.join()
    stop.set()
    thread.join()
    assert [out.read_text() for out in outs] == ["done"] * 2
    porter.close()
    until_no_porter_is_left()
    cache = BlockCache(porter._folder, BLOCKS, 6 * 128)
    sizes = cache.sizes()
    assert [cache.holds(block) for block in range(BLOCKS)] == (sizes == 128).tolist()
    assert not set(sizes.tolist()) - {0, 128}
    assert not list(cache.folder.glob("*.tmp"))


JOB = """
import os, sys, time
from pathlib import Path
from numbers_format import Numbers, written
from dataporter.shards.porter import Porter
folder = Path(sys.argv[1])
index = written(folder / "source", 24)
porter = Porter(index, Numbers(folder / "log", seconds=0.05), folder=folder / "cache")
porter.path(0)
if os.fork() == 0:
    porter.path(1)
    os.kill(os.getpid(), 9)
os.wait()
print("ready", flush=True)
for block in range(2, 24):
    porter.path(block)
time.sleep(60)  # until it is killed
"""


@pytest.mark.parametrize("whom", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_job_leaves_no_porter_and_a_cache_that_the_next_one_uses(tmp_path, whom):
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, tmp_path],
        env=environment(),
        stdout=subprocess.PIPE,
    )
    assert job.stdout.readline() == b"ready\n"
    job.send_signal(whom)
    job.wait()
    assert job.stdout.read() == b""  # at once: the porter holds no pipe of the job
    job.stdout.close()
    until_no_porter_is_left()
    source = tmp_path / "source" / "data.numbers"
    modified = source.stat().st_mtime_ns
    index = written(source.parent, BLOCKS)  # the same bytes, so only the time has to be put back
    os.utime(source, ns=(modified, modified))
    index = replace(index, versions=[str(modified)])
    before = (tmp_path / "log").read_text().splitlines()
    porter = make(tmp_path, index)
    for block in range(BLOCKS):
        assert porter.map(block)[:] == expected(index, block)
    after = [int(line.split()[0]) for line in (tmp_path / "log").read_text().splitlines()]
    again = after[len(before) :]
    assert not {0, 1} & set(again)
    assert not list(porter._folder.glob("*.tmp"))
    porter.close()


def test_ctrl_c_ends_a_job_without_noise_of_the_porter(tmp_path):
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, tmp_path],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert job.stdout.readline() == b"ready\n"
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    _, errors = job.communicate()
    assert errors.count(b"Traceback") == 1
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    until_no_porter_is_left()


def test_a_worker_that_dies_while_it_waits_harms_nobody(tmp_path, index):
    porter = make(tmp_path, index, seconds=0.1)
    context = multiprocessing.get_context("fork")
    porter.path(0)
    for block in range(1, 4):
        worker = context.Process(target=porter.path, args=(block,))
        worker.start()
        until(lambda b=block: list(porter._folder.glob(f"{b:08}*")))  # it or its part
        worker.kill()
        worker.join()
    assert porter.map(5)[:] == expected(index, 5)
    assert len(porter_pids()) == 1
    porter.close()


# Disks

ON_A_SMALL_DISK = """
import logging, os, sys
from pathlib import Path
import numpy as np
from numbers_format import Numbers, expected, written
from tracks_order import SideBySide
from dataporter.errors import ShardCacheError
from dataporter.law import Plan
from dataporter.law.tracks import ShuffledBlocks
from dataporter.shards.porter import Porter
logging.basicConfig(format="LOG %(message)s", stream=sys.stdout)
folder, rows = Path(sys.argv[1]), 16384
index = written(folder / "source", 24, rows)
porter = Porter(index, Numbers(), folder=folder / "disk", cache_bytes=24 * rows * 8)
plan = Plan(length=len(index), batch_size=4)
if sys.argv[2] == "fits":
    order = SideBySide(24, rows, 2)
    for epoch in range(2):
        for start in range(0, len(index), 2 * rows):
            positions = np.arange(start, start + 2 * rows)
            porter.announce(order, epoch, start, start + 2 * rows, plan)
            for block in dict.fromkeys((order.indices(epoch, positions) // rows).tolist()):
                assert porter.map(block)[:] == expected(index, block)
    print("read all")
else:
    porter.announce(ShuffledBlocks(len(index), rows=index.rows), 0, 0, len(index), plan)
    try:
        for block in range(24):
            porter.map(block)
    except ShardCacheError as error:
        print(error.errno, error)
from watching import until
porter.announce(ShuffledBlocks(len(index), 5, rows=index.rows), 9, 0, 1, plan)
until(lambda: not list(porter._folder.glob("*.tmp")))
print("nothing half written is left")
porter.close()
"""


LOADERS_ON_A_SMALL_DISK = """
import logging, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from dataporter import ResumableDataLoader
from dataporter.shards import ShardedDataset, dataset
logging.basicConfig(format="LOG %(message)s", stream=sys.stdout, level=logging.WARNING)
dataset.SMALL = 0  # order small data by tracks too
folder, case = Path(sys.argv[1]), sys.argv[2]
(folder / "data").mkdir()
rng, rows = np.random.default_rng(0), 64
for file in range(4):
    table = pa.table({
        "id": range(file * 24 * rows, (file + 1) * 24 * rows),
        "x": [rng.bytes(1000) for _ in range(24 * rows)],
    })
    pq.write_table(table, folder / "data" / f"{file}.parquet", row_group_size=rows)
corpus = ShardedDataset(folder / "data", cache=folder / "disk", cache_bytes=2 << 20)
if case == "read before":
    assert [corpus[index]["id"] for index in range(0, len(corpus), 50)]
workers = {"0 workers": 0, "read before": 1}.get(case, 2)
loader = ResumableDataLoader(
    corpus, 8, shuffle=True, num_workers=workers, persistent_workers=case == "persistent"
)
for epoch in range(2):
    assert sorted(n for b in loader for n in b["id"].tolist()) == list(range(len(corpus)))
print("read all")
"""


def on_a_small_disk(
    tmp_path: Path, case: str, script: str = ON_A_SMALL_DISK, kilobytes: int = 1024
) -> str:
    """Run a script with a small file system in memory, in a namespace of its own."""
    if not may_mount():
        pytest.skip("this system lets nobody mount a file system of his own")
    (tmp_path / "disk").mkdir()
    mount = mounting(tmp_path / "disk", f"size={kilobytes}k")
    return run(mount + script, tmp_path, case)


def test_a_full_disk_makes_the_cache_smaller_and_warns_once(tmp_path):
    printed = on_a_small_disk(tmp_path, "fits")
    assert "read all" in printed
    assert printed.count("LOG The disk of") == 1
    assert "nothing half written is left" in printed


def test_a_disk_too_small_for_the_blocks_in_use_is_an_error(tmp_path):
    printed = on_a_small_disk(tmp_path, "does not fit")
    assert "28 [Errno 28] The disk of" in printed
    assert "pass cache= a folder on a larger disk" in printed
    assert "nothing half written is left" in printed


@pytest.mark.parametrize("case", ["0 workers", "2 workers", "persistent", "read before"])
def test_a_disk_that_holds_little_more_than_the_cache_is_enough(tmp_path, case):
    pytest.importorskip("pyarrow")
    printed = on_a_small_disk(tmp_path, case, LOADERS_ON_A_SMALL_DISK, kilobytes=2300)
    assert printed == "read all\n"
