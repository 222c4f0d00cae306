"""Builders that are killed at random moments, several at once: nothing is lost, nothing is half."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lines_format import SUFFIXES, LinesFormat, write_lines
from test_index import assert_same

from dataporter.shards.building import open_index
from dataporter.shards.files import list_files

FILES = 60
HERE = Path(__file__).parent
BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from lines_format import LinesFormat, SUFFIXES
from dataporter.shards.building import open_index
from dataporter.shards.files import list_files
listing = list_files(sys.argv[2], SUFFIXES)
print("ready", flush=True)
sys.stdin.read(1)
print(open_index(listing, LinesFormat(seconds=0.02, log=Path(sys.argv[3]))).fingerprint, flush=True)
"""


@pytest.fixture
def data(tmp_path):
    for number in range(FILES):
        write_lines(tmp_path / "data" / f"{number}.lines", range(number))
    (tmp_path / "scans").touch()
    return tmp_path / "data"


def start(data: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, *map(str, (HERE, data, data.parent / "scans"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def begin_together(children: list[subprocess.Popen]) -> None:
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("x")
        child.stdin.flush()


@pytest.mark.filterwarnings("ignore:0.lines")  # it is empty
@pytest.mark.parametrize("seed", range(3))
def test_killed_builders_lose_only_files_in_flight(data, seed):
    rng = random.Random(seed)
    children = [start(data) for _ in range(6)]
    try:
        begin_together(children)
        # The builder, whoever it is, dies with some of the others; the last ones finish.
        for child in children[:4]:
            time.sleep(rng.uniform(0, 0.12))  # the moment is what is drawn
            child.send_signal(signal.SIGKILL)
        finished = {child.communicate(timeout=60)[0].strip() for child in children[4:]}
    finally:
        for child in children:
            child.kill()
            child.communicate()
    fresh = open_index(
        list_files(data, SUFFIXES), LinesFormat(), folder=data.parent / "fresh", rebuild=True
    )
    assert finished == {fresh.fingerprint}
    assert_same(open_index(list_files(data, SUFFIXES), LinesFormat()), fresh)
    assert [path.suffix for path in (data / ".dataporter").iterdir()] == [".arrow"]
    # A builder scans at most as many files at once as it has threads.
    scans = (data.parent / "scans").read_text().splitlines()
    assert FILES <= len(scans) <= FILES + 4 * (4 + os.cpu_count())
