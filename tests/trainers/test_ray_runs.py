"""Long runs of Ray Train: a whole run that is killed, and lanes of which a worker is lost."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from launching import EXAMPLES, RAY, finished, started
from two_ranks import kept, steps_of


@pytest.mark.soak
def test_a_run_that_was_killed_with_all_its_processes_goes_on_in_a_new_one(tmp_path):
    command = (EXAMPLES / "ray_train.py", "--folder", tmp_path)
    with started(*command, "--kill-after", 13, **RAY) as process:
        deadline = time.monotonic() + 120
        while len(steps_of(tmp_path, 1)) < 13:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)  # while Ray is about to start its workers again
    before = [len(steps_of(tmp_path, rank)) for rank in (0, 1)]
    with started(*command, **RAY) as process:
        finished(process)
    ids: list[int] = []
    for rank in (0, 1):
        steps = steps_of(tmp_path, rank)
        assert steps[before[rank]]["step"] in {6, 11}
        ids += kept(steps)
    assert sorted(Counter(ids).values()) == [1] * 498 + [2]


@pytest.mark.soak
def test_lanes_are_restored_to_workers_of_which_one_was_killed(tmp_path):
    with started(Path(__file__).with_name("lanes_on_ray.py"), tmp_path, **RAY) as process:
        finished(process)
    ids: list[int] = []
    for rank in (0, 1):
        steps = steps_of(tmp_path, rank)
        assert len(steps) > len({step["step"] for step in steps})  # some were made again
        ids += kept(steps)
    assert Counter(ids) == Counter(range(200))
