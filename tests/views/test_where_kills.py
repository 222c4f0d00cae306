"""Processes that evaluate a predicate at the same time, and are killed while they do."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dataporter.views.bitmap import packed
from dataporter.views.verdicts import Partial, Place

LENGTH = 4000
EVALUATE = """
import os, signal, sys, time
from pathlib import Path
from dataporter.views import where

class Data:
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        return index
    def fingerprint(self):
        return "data"

def threes(number):
    # What differs from process to process is in the environment: it is no part of the code.
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{number}\\n")
    if os.environ["KILLED"] == "main" and number == int(os.environ["AT"]):
        os.kill(int(os.environ["MAIN"]), signal.SIGKILL)
        time.sleep(60)
    flag = Path(os.environ["LOG"] + ".flag")
    if os.environ["KILLED"] == "worker" and number == int(os.environ["AT"]) and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number % 3 == 0

folder, os.environ["LOG"], os.environ["KILLED"], os.environ["AT"], workers = sys.argv[1:]
os.environ["MAIN"] = str(os.getpid())
print("ready", flush=True)
sys.stdin.read(1)
view = where(Data(), threes, folder=folder, num_workers=int(workers))
print(len(view), [view[n] for n in range(len(view))] == list(range(0, 4000, 3)), flush=True)
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def start(log, who="nobody", at=0, workers=0):
    folder = log.parent / "verdicts"
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            EVALUATE,
            *map(str, (folder, log, who, at, workers)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def begin(*children):
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("x")
        child.stdin.flush()


def end(child):
    try:
        return child.communicate(timeout=60)[0].strip()
    finally:
        child.kill()


def evaluated(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_evaluation_goes_on_where_it_was(log, workers):
    killed = start(log, "main", 3000, workers)
    begin(killed)
    end(killed)
    assert killed.returncode == -signal.SIGKILL
    before = set(evaluated(log))
    # A worker may live a little longer than its parent, and the others are ahead of the first.
    log.write_text("")
    again = start(log, workers=workers)
    begin(again)
    assert end(again) == "1334 True"
    after = evaluated(log)
    assert set(after) | before == set(range(LENGTH))
    assert min(after) > 1000
    assert [path.suffix for path in (log.parent / "verdicts").iterdir()] == [".bits"]


def test_a_killed_worker_changes_nothing(log):
    child = start(log, "worker", 1234, 2)
    begin(child)
    assert end(child) == "1334 True"
    assert set(evaluated(log)) == set(range(LENGTH))


def test_one_process_evaluates_while_others_wait(log):
    children = [start(log) for _ in range(4)]
    begin(*children)
    assert {end(child) for child in children} == {"1334 True"}
    assert Counter(evaluated(log)) == Counter(range(LENGTH))


def test_another_takes_over_from_one_that_is_killed(log):
    killed, *others = [start(log, "main", 3000), start(log), start(log)]
    begin(killed)
    killed.wait(60)
    begin(*others)
    assert {end(child) for child in others} == {"1334 True"}
    end(killed)
    counts = Counter(evaluated(log))
    assert set(counts) == set(range(LENGTH))
    assert sum(counts.values()) < 1.5 * LENGTH


def test_records_that_a_kill_cut_short_are_not_read(tmp_path):
    place = Place(tmp_path, "key", "code")
    verdicts = packed(np.arange(800) % 3 == 0)
    partial = Partial(place, "x")
    for first in range(0, 100, 10):
        partial.add(first, verdicts[first : first + 10].tobytes())
    partial.close()
    whole = place.partial.read_bytes()
    for size in range(0, len(whole) + 1, 7):
        place.partial.write_bytes(whole[:size])
        partial = Partial(place, "x")
        bits = np.zeros(128, np.uint8)
        known = partial.read(bits)
        assert known == size // 26 * 10
        assert bits[:known].tolist() == verdicts[:known].tolist()
        assert not bits[known:].any()
        partial.add(known, b"12")  # after what is whole
        partial.close()
        partial = Partial(place, "x")
        assert partial.read(bits) == known + 2
        partial.close()
    damaged = bytearray(whole)
    damaged[26 * 3 + 20] ^= 1
    place.partial.write_bytes(damaged)
    partial = Partial(place, "x")
    assert partial.read(np.zeros(128, np.uint8)) == 30
    partial.close()
