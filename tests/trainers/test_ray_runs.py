"""Long runs of Ray Train: a whole run that is killed, and runs of which a worker is lost."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from launching import EXAMPLES, RAY, finished, started
from tracked import numbered_rows
from two_ranks import kept, steps_of
from watching import environment, until

ray_takes_time = pytest.mark.long(400, reason="Ray starts a controller and workers, twice")


@pytest.mark.soak
@ray_takes_time
def test_a_run_that_was_killed_with_all_its_processes_goes_on_in_a_new_one(tmp_path):
    command = (EXAMPLES / "ray_train.py", "--folder", tmp_path)
    with started(*command, "--kill-after", 13, **RAY) as process:
        until(lambda: len(steps_of(tmp_path, 1)) >= 13 or process.poll() is not None, seconds=120)
        assert process.poll() is None
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
@ray_takes_time
@pytest.mark.parametrize("kind", ["lanes", "files"])
def test_data_is_restored_to_workers_of_which_one_was_killed(kind, tmp_path):
    numbered_rows(tmp_path / "rows.parquet", 200, rows=2)
    script = Path(__file__).with_name("lost_worker_on_ray.py")
    path = environment()["PYTHONPATH"]
    with started(script, tmp_path, kind, PYTHONPATH=path, **RAY) as process:
        finished(process)
    ids: list[int] = []
    for rank in (0, 1):
        steps = steps_of(tmp_path, rank)
        assert len(steps) > len({step["step"] for step in steps})  # some were made again
        ids += kept(steps)
    assert Counter(ids) == Counter(range(200))
