"""A porter decodes each block once, ahead of its use, for every process of a rank."""

import copy
import json
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numbers_format import Numbers, expected, written
from porters import leaves_no_zombie, porter_pids, tidy, until_no_porter_is_left
from tracks_order import SideBySide
from watching import environment, run_script, until

from dataporter.errors import (
    ShardCacheError,
    ShardChangedError,
    ShardError,
    ShardFormatError,
    StorageError,
)
from dataporter.law import Plan
from dataporter.law.tracks import ShuffledBlocks
from dataporter.shards.porter import Porter

BLOCKS = 24


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


@pytest.fixture
def index(tmp_path):
    return written(tmp_path / "source", BLOCKS)


def make(tmp_path: Path, index, format_=None, **options) -> Porter:
    format_ = format_ or Numbers(tmp_path / "log")
    return Porter(index, format_, folder=tmp_path / "cache", **options)


def decodings(tmp_path: Path) -> list[int]:
    """The blocks that were decoded, as often as they were."""
    lines = (tmp_path / "log").read_text().splitlines()
    return [int(line.split()[0]) for line in lines]


def test_blocks_arrive_decoded(tmp_path, index):
    porter = make(tmp_path, index)
    for block in (3, 0, 3, BLOCKS - 1):
        assert porter.path(block).read_bytes() == expected(index, block)
        assert porter.map(block)[:] == expected(index, block)
    assert sorted(decodings(tmp_path)) == [0, 3, BLOCKS - 1]
    assert porter.stats()["decoded"] == 3
    porter.close()


def test_a_warm_cache_needs_no_porter(tmp_path, index):
    porter = make(tmp_path, index)
    porter.path(1)
    porter.close()
    until_no_porter_is_left()
    again = make(tmp_path, index)
    assert again.map(1)[:] == expected(index, 1)
    assert not porter_pids()


def test_other_columns_have_a_folder_of_their_own(tmp_path, index):
    from dataporter.shards.formats.format import ReadOptions

    class Other(Numbers):
        def __init__(self):
            super().__init__()
            self.options = ReadOptions(columns=("a",))

    assert make(tmp_path, index)._folder != make(tmp_path, index, Other())._folder


def test_all_of_an_announced_order_is_decoded_ahead(tmp_path, index):
    porter = make(tmp_path, index)
    plan = Plan(length=len(index), batch_size=4)
    porter.announce(ShuffledBlocks(len(index), rows=index.rows), 0, 0, len(index), plan)
    until(lambda: porter.stats().get("decoded") == BLOCKS, seconds=60)
    assert sorted(decodings(tmp_path)) == list(range(BLOCKS))
    assert porter.stats()["waits"] == 0
    porter.close()


@pytest.mark.parametrize("estimated", [128, 40], ids=["rightly", "too low"])
def test_decoding_ahead_keeps_to_the_cache_however_blocks_are_estimated(tmp_path, index, estimated):
    order = SideBySide(BLOCKS, 16, tracks=2)
    index = replace(index, decoded=np.full(BLOCKS, estimated))
    porter = make(tmp_path, index, cache_bytes=8 * 128)
    plan = Plan(length=len(index), batch_size=4)
    for epoch in range(3):
        for first in range(0, len(index), 32):
            positions = np.arange(first, first + 32)
            porter.announce(order, epoch, first, first + 32, plan)
            for block in dict.fromkeys((order.indices(epoch, positions) // 16).tolist()):
                assert porter.map(block)[:] == expected(index, block)
            sizes = np.fromfile(porter._folder / "sizes", np.int64, BLOCKS)
            assert np.abs(sizes).sum() <= 8 * 128

    def is_counted() -> bool:
        stats, blocks = porter.stats(), list(porter._folder.glob("*.block"))
        return stats["evicted"] == stats["decoded"] - len(blocks)

    until(is_counted, seconds=60)
    assert porter.stats()["decoded"] < 3 * BLOCKS  # some of the data stays for the next epoch
    porter.close()


def test_a_run_with_a_smaller_cache_evicts_what_a_larger_one_has_left(tmp_path, index):
    larger = make(tmp_path, index)
    for block in range(BLOCKS):
        larger.path(block)
    larger.close()
    porter = make(tmp_path, index, cache_bytes=12 * 128)
    porter.announce(SideBySide(BLOCKS, 16, 2), 0, 0, 4, Plan(length=len(index), batch_size=4))
    until(lambda: porter.stats().get("evicted") == BLOCKS - 12, seconds=60)
    assert len(list(porter._folder.glob("*.block"))) == 12
    porter.close()


def test_a_cache_too_small_for_the_blocks_in_use_says_how_many_bytes_it_needs(tmp_path, index):
    porter = make(tmp_path, index, cache_bytes=3 * 128)
    plan = Plan(length=len(index), batch_size=4)
    porter.announce(ShuffledBlocks(len(index), rows=index.rows), 0, 0, len(index), plan)
    with pytest.raises(ShardCacheError, match=r"need 3,072 bytes.*cache_bytes=3072 or more"):
        for block in range(BLOCKS):
            porter.map(block)
    porter.close()


def test_without_an_order_the_oldest_are_evicted(tmp_path, index):
    porter = make(tmp_path, index, cache_bytes=3 * 128)
    for block in range(BLOCKS):
        assert porter.map(block)[:] == expected(index, block)
    assert sorted(path.name for path in porter._folder.glob("*.block")) == [
        f"{block:08}.block" for block in range(BLOCKS - 3, BLOCKS)
    ]
    porter.close()


def test_room_that_a_killed_process_reserved_is_found_again(tmp_path, index):
    porter = make(tmp_path, index, cache_bytes=2 * 128)
    porter.path(0)
    entries = np.fromfile(porter._folder / "sizes", np.int64)
    entries[20] = -2 * 128
    (porter._folder / "00000020.tmp").write_bytes(b"half")
    with (porter._folder / "sizes").open("r+b") as table:
        table.write(entries.tobytes())
    assert porter.map(1)[:] == expected(index, 1)
    assert not list(porter._folder.glob("*.tmp"))
    porter.close()


# Errors


def test_an_error_of_decoding_comes_with_its_type_and_message_and_only_for_its_block(
    tmp_path, index
):
    porter = make(tmp_path, index, Numbers(bad=5))
    for _ in range(2):
        with pytest.raises(ShardFormatError, match="is damaged at 640"):
            porter.path(5)
    assert porter.map(4)[:] == expected(index, 4)
    porter.close()


def test_a_block_that_a_storage_did_not_give_ahead_is_not_tried_for_as_long_again(tmp_path, index):
    order, plan = SideBySide(BLOCKS, 16, 1), Plan(length=len(index), batch_size=4)
    bad = int(order.indices(0, np.array([0]))[0]) // 16
    log, gate = tmp_path / "log", tmp_path / "gate"
    porter = make(tmp_path, index, Numbers(log, bad=bad, error=StorageError, gate=gate))
    porter.announce(order, 0, 0, 4, plan)
    until(lambda: log.exists() and bad in decodings(tmp_path), seconds=60)

    def open_gate() -> None:
        until(lambda: porter.stats().get("waits") == 1, seconds=60)
        gate.touch()

    thread = threading.Thread(target=open_gate)
    thread.start()
    with pytest.raises(StorageError):
        porter.path(bad)
    thread.join()
    assert decodings(tmp_path).count(bad) == 1
    porter.close()


def test_a_block_that_is_asked_for_does_not_wait_for_those_that_are_brought_ahead(tmp_path, index):
    order, plan = SideBySide(BLOCKS, 16, 1), Plan(length=len(index), batch_size=4)
    first, second = (int(order.indices(0, np.array([at]))[0]) // 16 for at in (0, 16))
    log, gate = tmp_path / "log", tmp_path / "gate"
    large = np.full(BLOCKS, 64 << 20)  # so large that one is brought ahead at a time
    format_ = Numbers(log, gate=gate, passing=second)
    porter = make(tmp_path, replace(index, decoded=large), format_, cache_bytes=1 << 40)
    porter.announce(order, 0, 0, 32, plan)
    until(lambda: log.exists() and first in decodings(tmp_path), seconds=60)
    assert porter.map(second)[:] == expected(index, second)
    gate.touch()
    assert porter.map(first)[:] == expected(index, first)
    assert decodings(tmp_path).count(second) == 1
    porter.close()


def test_a_source_that_was_changed_or_removed_is_an_error(tmp_path, index):
    porter = make(tmp_path, index)
    source = tmp_path / "source" / "data.numbers"
    os.utime(source, ns=(1, 1))
    with pytest.raises(ShardChangedError, match="written again since"):
        porter.path(0)
    source.unlink()
    with pytest.raises(ShardChangedError, match="it is gone"):
        porter.path(0)
    porter.close()


def test_a_folder_that_cannot_be_written_is_an_error_until_it_can(tmp_path, index):
    (tmp_path / "cache").write_bytes(b"")  # root may write to any folder, but not into a file
    porter = make(tmp_path, index)
    with pytest.raises(ShardCacheError, match="Pass cache="):
        porter.path(0)
    (tmp_path / "cache").unlink()
    assert porter.map(0)[:] == expected(index, 0)
    porter.close()


def test_a_format_that_cannot_be_loaded_in_the_porter_is_an_error(tmp_path):
    script = """
import sys
from pathlib import Path
from numbers_format import Numbers, written
from dataporter.errors import ShardError
from dataporter.shards.porter import Porter
class Mine(Numbers):
    pass
folder = Path(sys.argv[1])
porter = Porter(written(folder / "source", 2), Mine(), folder=folder / "cache")
try:
    porter.path(0)
except ShardError as error:
    print(error)
porter.close()
"""
    assert "Define it in a module" in run_script(script, tmp_path)


def test_a_porter_that_cannot_start_is_an_error(tmp_path, index, monkeypatch):
    porter = make(tmp_path, index)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(ShardError, match="cannot start: No such file"):
        porter.path(0)


def test_a_porter_that_dies_at_once_is_an_error_with_its_last_words(tmp_path, index, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho this is no python >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    porter = make(tmp_path, index)
    with pytest.raises(ShardError, match=r"died 10 times in a row.*block 0 of .*this is no python"):
        porter.path(0)
    porter.close()


# Processes


def read_all(porter: Porter, start: int, out: str) -> None:
    index = porter._index
    blocks = [(start + step) % BLOCKS for step in range(BLOCKS)]
    assert all(porter.map(block)[:] == expected(index, block) for block in blocks)
    Path(out).write_text("done")


@pytest.mark.parametrize(
    "method",
    ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.soak)],  # it pickles as spawn
)
def test_workers_share_the_porter_and_each_block_is_decoded_once(tmp_path, index, method):
    porter = make(tmp_path, index, Numbers(tmp_path / "log", seconds=0.01))
    porter.path(0)
    context = multiprocessing.get_context(method)
    outs = [tmp_path / f"out{n}" for n in range(3)]
    workers = [
        context.Process(target=read_all, args=(porter, 7 * n, str(out)))
        for n, out in enumerate(outs)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [out.read_text() for out in outs] == ["done"] * 3
    assert sorted(decodings(tmp_path)) == list(range(BLOCKS))
    assert len(porter_pids()) == 1
    porter.close()


def test_porters_of_several_ranks_decode_each_block_once(tmp_path, index):
    format_ = Numbers(tmp_path / "log", seconds=0.01)
    context = multiprocessing.get_context("fork")
    ranks = [make(tmp_path, index, format_) for _ in range(3)]
    outs = [tmp_path / f"out{n}" for n in range(3)]
    workers = [
        context.Process(target=read_all, args=(porter, 0, str(out)))
        for porter, out in zip(ranks, outs, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [out.read_text() for out in outs] == ["done"] * 3
    assert sorted(decodings(tmp_path)) == list(range(BLOCKS))
    for porter in ranks:
        porter.close()


def test_two_jobs_share_a_cache_that_is_too_small_for_both(tmp_path, index):
    context = multiprocessing.get_context("fork")
    jobs = [make(tmp_path, index, cache_bytes=2 * 128) for _ in range(2)]
    outs = [tmp_path / f"out{n}" for n in range(2)]
    workers = [
        context.Process(target=read_all, args=(porter, 12 * n, str(out)))
        for n, (porter, out) in enumerate(zip(jobs, outs, strict=True))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [out.read_text() for out in outs] == ["done"] * 2
    for porter in jobs:
        porter.close()


def test_threads_of_a_process_wait_for_their_own_blocks_only(tmp_path, index):
    porter = make(tmp_path, index, Numbers(tmp_path / "log"))
    found = []
    threads = [
        threading.Thread(target=lambda b=b: found.append(porter.map(b)[:] == expected(index, b)))
        for b in range(BLOCKS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * BLOCKS
    assert len(porter_pids()) == 1
    porter.close()


def test_a_request_comes_before_work_ahead(tmp_path):
    index = written(tmp_path / "source", 200)
    porter = make(tmp_path, index, Numbers(tmp_path / "log", gate=tmp_path / "gate"))
    plan = Plan(length=len(index), batch_size=4)
    order = SideBySide(200, 16, 1)
    last = int(order.indices(0, np.array([order.length - 1]))[0]) // 16
    porter.announce(order, 0, 0, order.length, plan)
    until((tmp_path / "log").exists, seconds=60)
    with ThreadPoolExecutor(1) as pool:
        path = pool.submit(porter.path, last)
        until(lambda: porter.stats().get("waits") == 1, seconds=60)  # the porter knows of it
        (tmp_path / "gate").touch()
        path.result(60)
    # Those that were begun come first, as many as the porter has threads, and then this one.
    assert decodings(tmp_path).index(last) < 100
    porter.close()


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def test_a_dropped_dataset_ends_its_porter_without_a_zombie(tmp_path, index):
    porter = make(tmp_path, index)
    porter.path(0)
    process = porter._state.process
    del porter
    until_no_porter_is_left()
    assert process.returncode == 0
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickled], ids=lambda each: each.__name__
)
def test_a_porter_that_a_copy_has_started_leaves_no_zombie(copied, tmp_path, index):
    original = make(tmp_path, index)
    another = copied(original)
    another.path(0)
    original.path(1)
    assert len(porter_pids()) == 1
    del another  # its porter goes on
    assert original.map(2)[:] == expected(index, 2)
    del original
    until_no_porter_is_left()
    until(leaves_no_zombie, seconds=60)  # the last one may still be ending


def read_all_and_stay(porter: Porter, out: str, may_end) -> None:
    read_all(porter, 0, out)
    may_end.wait(60)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_porter_that_a_worker_has_started_leaves_no_zombie(method, tmp_path, index):
    porter, done = make(tmp_path, index), tmp_path / "out"
    context = multiprocessing.get_context(method)
    may_end = context.Event()
    worker = context.Process(target=read_all_and_stay, args=(porter, str(done), may_end))
    worker.start()
    until(done.exists)
    (pid,) = porter_pids()
    assert porter.map(0)[:] == expected(index, 0)
    may_end.set()
    worker.join()
    assert porter_pids() == [pid]  # it outlives the worker, for whoever reads
    porter.close()
    until_no_porter_is_left()
    until(leaves_no_zombie, seconds=60)


def test_a_program_that_exits_leaves_nothing_half_written(tmp_path):
    script = """
import sys
from pathlib import Path
from numbers_format import Numbers, written
from tracks_order import SideBySide
from watching import until
from dataporter.law import Plan
from dataporter.shards.porter import Porter
folder = Path(sys.argv[1])
index = written(folder / "source", 24)
porter = Porter(index, Numbers(gate=folder / "never"), folder=folder / "cache")
porter.announce(SideBySide(24, 16, 2), 0, 0, 64, Plan(length=len(index), batch_size=4))
until(lambda: list((folder / "cache").rglob("*.tmp")))
print("begun")
sys.exit()
"""
    assert run_script(script, tmp_path) == "begun\n"
    until_no_porter_is_left()
    assert not list((tmp_path / "cache").rglob("*.tmp"))
    (table,) = (tmp_path / "cache").rglob("sizes")
    assert not np.fromfile(table, np.int64).any()


def test_a_porter_that_ends_while_its_dataset_lives_leaves_no_zombie(tmp_path, index):
    porter = make(tmp_path, index)
    porter.path(0)
    (pid,) = porter_pids()
    os.kill(pid, signal.SIGKILL)
    until_no_porter_is_left()
    until(leaves_no_zombie, seconds=60)  # the last one may still be ending
    porter.close()


def test_a_closed_porter_starts_again(tmp_path, index):
    porter = make(tmp_path, index)
    for block in range(3):
        assert porter.map(block)[:] == expected(index, block)
        porter.close()


def test_a_copy_that_is_dropped_does_not_end_the_porter(tmp_path, index):
    porter = make(tmp_path, index)
    porter.path(0)
    pids = porter_pids()
    another = pickled(porter)
    assert another.map(1)[:] == expected(index, 1)
    another.close()
    del another
    assert porter.map(2)[:] == expected(index, 2)
    assert porter_pids() == pids
    porter.close()


def test_the_porter_holds_no_descriptor_of_the_user_and_ignores_ctrl_c(tmp_path, index):
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # noqa: FBT003
    porter = make(tmp_path, index)
    porter.path(0)
    (pid,) = porter_pids()
    os.close(writing)
    assert os.read(reading, 1) == b""  # nobody else holds it
    os.close(reading)
    assert os.getsid(pid) != os.getsid(0)
    os.kill(pid, signal.SIGINT)
    assert porter.map(1)[:] == expected(index, 1)
    assert porter_pids() == [pid]
    porter.close()


def test_another_users_process_is_refused(tmp_path, index, monkeypatch):
    porter = make(tmp_path, index)
    porter.path(0)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    porter._state.disconnect()
    with pytest.raises(ShardError, match="Another user"):
        porter.path(1)
    monkeypatch.undo()
    porter.close()


def test_the_porter_imports_neither_torch_nor_a_network_client():
    script = """
import sys, json
import dataporter.shards.porting
print(json.dumps([name for name in ("torch", "obstore", "fsspec") if name in sys.modules]))
"""
    assert json.loads(run_script(script)) == []


def test_a_script_that_ends_without_closing_ends_in_silence(tmp_path):
    script = """
import sys
from pathlib import Path
from numbers_format import Numbers, written
from dataporter.shards.porter import Porter
folder = Path(sys.argv[1])
porter = Porter(written(folder / "source", 2), Numbers(), folder=folder / "cache")
print(len(porter.map(0)))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script, tmp_path],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "128\n", "")


def test_where_names_are_paths_a_stale_one_is_taken_over(tmp_path, index):
    porter = make(tmp_path, index)
    porter._address = str(tmp_path / "porter")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(porter._address)
    assert porter.map(0)[:] == expected(index, 0)
    (pid,) = porter_pids()
    os.kill(pid, signal.SIGKILL)
    assert porter.map(1)[:] == expected(index, 1)
    porter.close()
