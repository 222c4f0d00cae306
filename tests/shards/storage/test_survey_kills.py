"""The process that indexes files in a storage is killed: an error says what to do, nothing is lost.

What was indexed before stays in the journal, and the next one goes on from there.
"""

import contextlib
import gc
import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from faulty_proxy import FaultyProxy
from porters import tidy
from watching import environment, is_running, until

from dataporter.errors import ShardError
from dataporter.shards import ShardedDataset
from dataporter.system.files import whole_records

FILES = 60


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
    """Open the files through the proxy."""

    def open_one() -> ShardedDataset:
        options = many.through(proxy.url).options
        folders = {"index": tmp_path / "index", "cache": tmp_path / "cache"}
        return ShardedDataset("s3://survey-bucket/many/", storage_options=options, **folders)

    return open_one


def journalled(folder: Path) -> set[str]:
    """The files that a journal has kept."""
    found = [
        json.loads(bytes(record))
        for path in folder.glob("*.part")
        for record in whole_records(path.read_bytes())
    ]
    return {record["path"] for record in found if "path" in record}


def surveys(process: psutil.Process) -> list[psutil.Process]:
    """The processes that index files for one."""
    found = []
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "dataporter.shards.surveying" in child.cmdline():
                found.append(child)
    return found


def requested(proxy: FaultyProxy) -> set[str]:
    """The files that were asked for."""
    return {path.rpartition("/")[2] for path in proxy.requests if path.endswith(".jsonl")}


def assert_complete(corpus: ShardedDataset, folder: Path) -> None:
    assert [sample["id"] for sample in corpus] == list(range(FILES))
    assert [path.suffix for path in (folder / "index").iterdir()] == [".arrow"]


def killed_after(open_many, proxy: FaultyProxy, folder: Path, files: int) -> None:
    """Open the files, and kill the survey when it has indexed some. No others are answered."""
    proxy.fault("hold", path=".jsonl", after_paths=files)
    known = len(journalled(folder))
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(open_many)
        until(lambda: len(journalled(folder)) == known + files, seconds=60)
        (survey,) = surveys(psutil.Process())
        survey.kill()
        with pytest.raises(ShardError, match=r"died.* Open the dataset again: what was .* is kept"):
            opened.result(timeout=60)
    proxy.faults.clear()
    until(lambda: not proxy.running)


def test_a_killed_survey_is_an_error_and_the_next_one_goes_on(open_many, proxy, tmp_path):
    killed_after(open_many, proxy, tmp_path / "index", 20)
    kept = journalled(tmp_path / "index")
    assert len(kept) == 20
    proxy.heal()
    corpus = open_many()
    assert requested(proxy) == {f"{number:02}.jsonl" for number in range(FILES)} - kept
    assert_complete(corpus, tmp_path)


def test_surveys_killed_at_random_places_lose_only_files_in_flight(open_many, proxy, tmp_path):
    chance, folder = random.Random(3), tmp_path / "index"
    kept: set[str] = set()
    for _ in range(3):
        killed_after(open_many, proxy, folder, chance.randrange(1, 18))
        assert not requested(proxy) & kept
        kept = journalled(folder)
        proxy.heal()
    corpus = open_many()
    assert requested(proxy) == {f"{number:02}.jsonl" for number in range(FILES)} - kept
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
    proxy.fault("hold", path=".jsonl", after_paths=20)  # else it might end by itself
    job = subprocess.Popen(
        [sys.executable, "-c", OPENING, tmp_path / "index", *given], env=environment()
    )
    until(lambda: len(journalled(tmp_path / "index")) == 20, seconds=60)
    (survey,) = surveys(psutil.Process(job.pid))
    job.kill()
    job.wait()
    until(lambda: not is_running(survey.pid), seconds=60)
    kept = journalled(tmp_path / "index")
    proxy.heal()
    corpus = open_many()
    assert not requested(proxy) & kept
    assert_complete(corpus, tmp_path)
