"""The process that indexes files in a storage is killed: an error says what to do, nothing is lost.

What was indexed before stays in the journal, and the next one goes on from there.
"""

import contextlib
import gc
import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from faulty_proxy import FaultyProxy
from porters import tidy
from watching import environment, until

from dataporter.errors import ShardError
from dataporter.shards import ShardedDataset

FILES = 60
THREADS = 16  # that index files at a time
LATENCY = 0.05  # seconds of each request


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield
        gc.collect()  # an error that was caught holds what it came through in a cycle


@pytest.fixture(scope="session")
def many(server):
    files = {f"many/{number:02}.jsonl": b'{"id": %d}\n' % number for number in range(FILES)}
    server.upload("survey-bucket", files)
    return server


@pytest.fixture
def open_many(many, proxy: FaultyProxy, tmp_path):
    """Open the files through the proxy, which is slow enough to kill somebody meanwhile."""
    proxy.latency = LATENCY

    def open_one() -> ShardedDataset:
        options = many.through(proxy.url).options
        folders = {"index": tmp_path / "index", "cache": tmp_path / "cache"}
        return ShardedDataset("s3://survey-bucket/many/", storage_options=options, **folders)

    return open_one


def journalled(folder: Path) -> set[str]:
    """The files that a journal has kept."""
    lines = [line for path in folder.glob("*.journal") for line in path.read_text().splitlines()]
    records = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):  # cut short by the kill
            records.append(json.loads(line.partition(" ")[2]))
    return {record["path"] for record in records if "path" in record}


def surveys(process: psutil.Process) -> list[psutil.Process]:
    """The processes that index files for one."""
    found = []
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "dataporter.shards.surveying" in child.cmdline():
                found.append(child)
    return found


def requested(proxy: FaultyProxy) -> dict[str, int]:
    """How often each file was asked for."""
    return {
        path.rpartition("/")[2]: count
        for path, count in proxy.requests.items()
        if path.endswith(".jsonl")
    }


def assert_complete(corpus: ShardedDataset, folder: Path) -> None:
    assert [sample["id"] for sample in corpus] == list(range(FILES))
    assert [path.suffix for path in (folder / "index").iterdir()] == [".arrow"]


def test_a_killed_survey_is_an_error_and_the_next_one_goes_on(open_many, proxy, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(open_many)
        until(lambda: len(journalled(tmp_path / "index")) >= 10)
        (survey,) = surveys(psutil.Process())
        survey.kill()
        with pytest.raises(ShardError, match=r"died.* Open the dataset again: what was .* is kept"):
            opened.result(timeout=30)
    kept = journalled(tmp_path / "index")
    assert 10 <= len(kept) < FILES
    proxy.heal()
    corpus = open_many()
    assert requested(proxy).keys() == {f"{number:02}.jsonl" for number in range(FILES)} - kept
    assert_complete(corpus, tmp_path)


def test_surveys_killed_at_random_moments_lose_only_files_in_flight(open_many, proxy, tmp_path):
    chance, kills, stop = random.Random(3), 0, threading.Event()

    def kill() -> None:
        nonlocal kills
        while not stop.wait(chance.uniform(0.2, 0.6)):  # the moment is what is drawn
            for survey in surveys(psutil.Process()) if kills < 3 else []:
                survey.kill()
                kills += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        deadline, corpus = time.monotonic() + 60, None
        while corpus is None and time.monotonic() < deadline:
            with contextlib.suppress(ShardError):
                corpus = open_many()
    finally:
        stop.set()
        thread.join()
    counts = requested(proxy)
    assert kills > 0
    assert len(counts) == FILES
    assert sum(counts.values()) <= FILES + kills * THREADS
    assert_complete(corpus, tmp_path)


OPENING = """
import sys
from dataporter.shards import ShardedDataset
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
ShardedDataset("s3://survey-bucket/many/", index=sys.argv[1], storage_options=options)
"""


def test_a_survey_ends_with_the_process_that_it_works_for(open_many, many, proxy, tmp_path):
    options = many.through(proxy.url).options
    given = [text for pair in options.items() for text in pair]
    job = subprocess.Popen(
        [sys.executable, "-c", OPENING, tmp_path / "index", *given], env=environment()
    )
    until(lambda: len(journalled(tmp_path / "index")) >= 10)
    (survey,) = surveys(psutil.Process(job.pid))
    proxy.fault("stall")  # else it might end by itself
    job.kill()
    job.wait()
    until(lambda: not survey.is_running(), seconds=5)
    kept = journalled(tmp_path / "index")
    proxy.heal()
    corpus = open_many()
    assert not requested(proxy).keys() & kept
    assert_complete(corpus, tmp_path)
