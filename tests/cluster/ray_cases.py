"""Workers on a Ray cluster deliver what worker processes deliver. `test_ray_workers.py` runs this.

In a process of its own: it connects to one cluster, and a process that does must not fork.
"""

import gc
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from clusters import QUIET, Stream, cluster_of, free_all_cpus, members_of
from support import Augmented, Ids, flat, one_pass, plain
from torch.utils.data import get_worker_info
from watching import until

from dataporter import ResumableDataLoader
from dataporter.engine.ray import pool as ray_pool
from dataporter.errors import (
    ClusterRoomWarning,
    OptionError,
    WorkerDiedError,
    WorkerRestartWarning,
    WorkerStartError,
    WorkerTimeoutError,
)
from dataporter.fetch.timing import Timing


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with cluster_of(1, 2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _all_cpus_are_free_again(cluster):
    """No actor of one case takes a CPU that the next one counts on, even if the case failed."""
    yield
    gc.collect()  # an error that was caught as a name holds a loader in a cycle
    until(free_all_cpus, seconds=60)


def on_ray(dataset, batch_size=4, **options):
    options = {"num_workers": 2, "seed": 3, **options}
    return ResumableDataLoader(dataset, batch_size, engine="ray", **options)


class Mixed(Augmented):
    """Samples of many kinds, over arrays large and small."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.large = np.arange(length * 2000).reshape(length, 2000)  # in the object store
        self.small = np.zeros(3)

    def __getitem__(self, index: int):
        self.small[0] = index  # is the worker's own
        number, drawn = super().__getitem__(index)
        return {
            "image": torch.from_numpy(self.large[index] + number),
            "drawn": drawn,
            "name": f"sample {index}",
            "raw": bytes([index % 7]) * 50,
        }


class WithArray(Ids):
    def __getitem__(self, index: int):
        return index


def as_arrays(samples):
    return {"array": np.array(samples), "worker": get_worker_info().id}


class Damaged(Ids):
    def __getitem__(self, index: int) -> int:
        if index in (5, 9):
            raise OSError(5, f"sample {index} is damaged")
        return super().__getitem__(index)


class Noted(Ids):
    """Leaves a file for each sample that is fetched."""

    def __init__(self, length: int, folder: Path) -> None:
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index: int) -> int:
        (self.folder / str(index)).touch()
        return super().__getitem__(index)


class Held(Ids):
    """The first batch waits for a file."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def __getitem__(self, index: int) -> int:
        while index == 0 and not self.path.exists():
            time.sleep(0.01)
        return super().__getitem__(index)


class Opened(Ids):
    def __reduce__(self):
        return os.open, ("/nowhere at all", os.O_RDONLY)


class Slow(Ids):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return super().__getitem__(index)


class Deadly(Augmented):
    def __getitem__(self, index: int):
        if index == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_batches_are_those_of_this_process_and_the_consumers_own():
    expected = ResumableDataLoader(Mixed(60), 4, shuffle=True, seed=3)
    loader = on_ray(Mixed(60), shuffle=True, persistent_workers=True)
    assert one_pass(loader) == one_pass(expected)
    actors = members_of(loader)
    second = []
    for batch in loader:
        second.append(plain(batch))
        batch["image"].zero_()  # in place, and nobody minds
    assert second == one_pass(expected)
    assert actors  # perhaps not all of them yet
    assert set(actors) <= set(members_of(loader))  # they stayed
    batches = iter(loader)
    seen = [plain(next(batches)) for _ in range(5)]
    state = loader.state_dict()
    loader._runner.close()
    local = ResumableDataLoader(Mixed(60), 4, shuffle=True, seed=3)
    local.load_state_dict(state)
    assert seen + one_pass(local) == one_pass(expected)


def test_arrays_of_a_batch_can_be_written_and_workers_know_their_number():
    started = []
    loader = on_ray(
        WithArray(8), collate_fn=as_arrays, worker_init_fn=started.append, num_workers=1
    )
    for batch in loader:
        batch["array"] += 1
        assert batch["worker"] == 0
    assert not started  # not here


def test_lanes_live_in_actors_and_resume_anywhere():
    expected = one_pass(ResumableDataLoader(Stream(31), 3, seed=3, lanes=2))
    loader = on_ray(Stream(31), 3)  # two lanes, one for each worker
    batches = iter(loader)
    seen = [plain(next(batches)) for _ in range(4)]
    state = loader.state_dict()
    assert seen + [plain(batch) for batch in batches] == expected
    local = ResumableDataLoader(Stream(31), 3, seed=3)
    local.load_state_dict(state)
    assert one_pass(local) == expected[4:]


def test_an_error_arrives_with_its_type_and_traceback_and_can_be_skipped():
    loader = on_ray(Damaged(16), num_workers=1)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="sample 5 is damaged") as raised:
        next(batches)
    assert raised.value.errno == 5
    assert "in __getitem__" in str(raised.value.__cause__)
    loader = on_ray(Damaged(16), on_error="skip", num_workers=1)
    assert flat(one_pass(loader)) == [0, 1, 2, 3, 4, 6, 7, 8, *range(10, 16)]
    assert [skipped.index for skipped in loader.skipped] == [5, 9]


def test_batches_may_come_as_they_arrive_and_in_time(tmp_path):
    path = tmp_path / "go on"
    loader = on_ray(Held(24, path), in_order=False, persistent_workers=True)
    batches = iter(loader)
    first = next(batches).tolist()
    assert 0 not in first
    state = loader.state_dict()
    path.touch()
    rest = [index for batch in batches for index in batch.tolist()]
    assert sorted(first + rest) == list(range(24))
    loader._runner.close()
    local = ResumableDataLoader(Ids(24), 4, seed=3)
    local.load_state_dict(state)
    assert sorted(first + flat(one_pass(local))) == list(range(24))


def test_a_late_batch_is_an_error_and_can_be_waited_for(tmp_path):
    path = tmp_path / "go on"
    loader = on_ray(Held(8, path), timeout=0.5, num_workers=1)
    batches = iter(loader)
    with pytest.raises(WorkerTimeoutError, match=r"timed out after 0\.5 seconds"):
        next(batches)
    path.touch()

    def waited_for():
        try:
            return [next(batches).tolist()]
        except WorkerTimeoutError:
            return None

    found = [until(waited_for, seconds=60)[0] for _ in range(2)]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_more_is_fetched_ahead_than_asked_for_and_times_are_noted(tmp_path):
    loader = on_ray(Noted(80, tmp_path), prefetch_factor=2, prefetch_bytes=0, num_workers=1)
    loader._fetch.timing = timing = Timing()
    for number, _ in enumerate(loader, start=1):
        assert len(list(tmp_path.iterdir())) <= 4 * (number + 2)  # two beyond those delivered
    assert number == 20
    assert {made.worker for made in timing.made} == {0}
    assert 0 < len(timing.made) == len(timing.handed)
    for made in timing.made:
        assert made.spans[0][1] < made.spans[-1][2] <= time.monotonic_ns()


def test_what_cannot_be_sent_or_started_is_said():
    with pytest.raises(OptionError, match="cannot be sent to a Ray cluster"):
        one_pass(on_ray([threading.Lock()]))
    with pytest.raises(OptionError, match=r"Ray refuses ray_options=.*num_cpu"):
        one_pass(on_ray(Ids(8), ray_options={"num_cpu": 1}))
    with pytest.raises(WorkerStartError, match=r"cannot rebuild the dataset.*runtime_env"):
        one_pass(on_ray(Opened(8), num_workers=1))


def test_a_cluster_without_room_is_an_error_and_without_cpus_shares_them(monkeypatch, cluster):
    import ray

    monkeypatch.setattr(ray_pool, "_LEND_AFTER", 0.2)
    monkeypatch.setattr(ray_pool, "_GIVE_UP_AFTER", 0.5)
    loader = on_ray(Ids(8), ray_options={"resources": {"decoders": 1}}, num_workers=1)
    batches = iter(loader)
    with pytest.raises(WorkerStartError, match=r"needs 1 CPU, 1 decoders.*keep waiting"):
        next(batches)
    del batches
    taken = ray.util.placement_group([{"CPU": 1}] * 3)
    ray.get(taken.ready(), timeout=60)
    try:
        with pytest.warns(ClusterRoomWarning, match="no free CPU for a worker .0 of 3 CPU free"):
            assert one_pass(on_ray(Ids(8), num_workers=1)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    finally:
        ray.util.remove_placement_group(taken)


def test_a_sample_that_kills_its_worker_ends_the_run():
    loader = on_ray(Deadly(40), num_workers=1, max_restarts=1)
    seen = []
    with (
        pytest.raises(WorkerDiedError, match="2 workers have died while fetching this batch"),
        pytest.warns(WorkerRestartWarning),
    ):
        seen.extend(plain(batch) for batch in loader)
    # A consumer that was slow is told before it has all that came before that sample.
    assert loader.batches_processed == len(seen) <= 4


@pytest.mark.soak
@pytest.mark.long(300, reason="a node starts, and an actor on it")
def test_auto_uses_nodes_that_join(cluster):
    loader = on_ray(Slow(10**6), num_workers="auto", persistent_workers=True)
    batches = iter(loader)
    joined = None
    deadline = time.monotonic() + 120
    while len(members_of(loader)) < 4:  # of the 3 CPUs that there were
        next(batches)
        assert time.monotonic() < deadline
        if joined is None and len(members_of(loader)) == 3:
            joined = cluster.add_node(num_cpus=1, **QUIET)
    del batches
    loader._runner.close()
    cluster.remove_node(joined)


def tuned(config):
    """A trial that goes on from the checkpoint that it has written."""
    from dataporter.trainers.ray import load_loader, save_loader, topology

    folder = Path(config["folder"])
    loader = ResumableDataLoader(Ids(30), 4, shuffle=True, **topology())
    batches = iter(loader)
    ids = [next(batches).tolist() for _ in range(3)]
    save_loader(loader, folder)
    resumed = ResumableDataLoader(Ids(30), 4, shuffle=True)
    assert load_loader(resumed, folder)
    ids += one_pass(resumed)
    (folder / "ids.json").write_text(json.dumps([topology(), flat(ids)]))


@pytest.mark.filterwarnings("default::DeprecationWarning")  # of Ray's own
def test_a_trial_of_ray_tune_is_one_rank_and_goes_on_from_its_checkpoint(tmp_path):
    from ray.tune import RunConfig, Tuner

    run = RunConfig(storage_path=str(tmp_path / "runs"), verbose=0)
    results = Tuner(tuned, param_space={"folder": str(tmp_path)}, run_config=run).fit()
    assert not results.errors
    place, ids = json.loads((tmp_path / "ids.json").read_text())
    assert place == {"rank": 0, "world_size": 1}
    assert sorted(ids) == list(range(30))
