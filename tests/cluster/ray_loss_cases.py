"""Actors, nodes and whole clusters are lost, and no batch is. `test_ray_workers.py` runs this."""

import os
import random
import signal
import time

import psutil
import pytest
from clusters import QUIET, Stream, cluster_of, members_of
from support import Augmented, one_pass, plain

from dataporter import ResumableDataLoader
from dataporter.engine.ray import cluster as ray_cluster
from dataporter.errors import ClusterLostError, WorkerRestartWarning

SECONDS = float(os.environ.get("DATAPORTER_SOAK_SECONDS", "600")) / 2
NOT_FORKED = {"multiprocessing_context": "forkserver"}  # threads of Ray's may hold locks
SEED = int(os.environ.get("DATAPORTER_SOAK_SEED", "1"))


class Slow(Augmented):
    def __getitem__(self, index: int):
        time.sleep(0.005)
        return super().__getitem__(index)


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def take_within(seconds: float, batches, seen: list | None = None) -> None:
    """Take batches, which an error is to end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = next(batches)
        if seen is not None:
            seen.append(plain(batch))


def kill_one(loader) -> None:
    os.kill(members_of(loader)[0].pid, signal.SIGKILL)


@pytest.mark.long(300, reason="nodes are started and lost, one after another")
# Ray may take a while to free the CPU of an actor that was killed before it had begun.
@pytest.mark.filterwarnings("ignore::dataporter.errors.ClusterRoomWarning")
def test_killed_actors_and_a_killed_node_change_nothing_and_a_lost_cluster_is_said():
    expected = one_pass(ResumableDataLoader(Augmented(200), 4, shuffle=True, seed=3))
    streamed = one_pass(ResumableDataLoader(Stream(60), 3, seed=3, num_workers=2))
    options = {"seed": 3, "engine": "ray", "num_workers": 2, "persistent_workers": True}
    with cluster_of(1, 2) as cluster:
        loader = ResumableDataLoader(Augmented(200), 4, shuffle=True, **options)
        batches = iter(loader)
        seen = [plain(next(batches))]
        with pytest.warns(WorkerRestartWarning, match=r"of a Ray cluster is lost .*it was worker"):
            kill_one(loader)
            seen += [plain(next(batches)) for _ in range(24)]
            cluster.remove_node(cluster.nodes[0], allow_graceful=False)
            seen += [plain(batch) for batch in batches]
        assert seen == expected
        loader._runner.close()
        lanes = ResumableDataLoader(Stream(60), 3, **options)  # two, and room for one actor
        with pytest.warns(WorkerRestartWarning):
            batches = iter(lanes)
            seen = [plain(next(batches)) for _ in range(3)]
            kill_one(lanes)
            seen += [plain(batch) for batch in batches]
        assert seen == streamed
        lanes._runner.close()
        loader = ResumableDataLoader(Slow(10**6), 4, shuffle=True, **options)
        batches = iter(loader)
        next(batches)
        cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=False)
        with pytest.raises(ClusterLostError, match="is gone: the raylet of this machine has ended"):
            take_within(60, batches)
        local = ResumableDataLoader(
            Slow(10**6), 4, shuffle=True, seed=3, num_workers=1, **NOT_FORKED
        )
        local.load_state_dict(loader.state_dict())
        assert plain(next(iter(local))) == plain(loader.batch_at(0, loader.samples_processed))


@pytest.mark.soak
@pytest.mark.long(300, reason="Ray ends a process after a minute without the head")
def test_a_head_that_is_silent_is_a_lost_cluster_while_batches_still_come(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_HEAD_PATIENCE", 5.0)
    with cluster_of(1) as cluster:
        loader = ResumableDataLoader(Slow(10**6), 4, seed=3, engine="ray", num_workers=1)
        batches = iter(loader)
        seen = [plain(next(batches))]
        cluster.head_node.kill_gcs_server(check_alive=True)
        with pytest.raises(ClusterLostError, match=r"is gone: its head is silent for \d+ s"):
            take_within(60, batches, seen)
        assert loader.batches_processed == len(seen) > 1
        # Ray would end this process a minute after the head went silent, were it connected still.
        end = time.monotonic() + 75
        local = ResumableDataLoader(Slow(10**6), 4, seed=3, num_workers=1, **NOT_FORKED)
        local.load_state_dict(loader.state_dict())
        for _ in iter(local):
            if time.monotonic() > end:
                break


@pytest.mark.soak
@pytest.mark.long(300, reason="Ray gives a silent node up after half a minute or more")
@pytest.mark.filterwarnings("ignore::dataporter.errors.WorkerRestartWarning")
def test_a_node_that_falls_silent_is_left_behind():
    expected = one_pass(ResumableDataLoader(Augmented(400), 4, shuffle=True, seed=3))
    with cluster_of(1, 1) as cluster:
        loader = ResumableDataLoader(
            Augmented(400), 4, shuffle=True, seed=3, engine="ray", num_workers=2,
            persistent_workers=True,
        )  # fmt: skip
        batches = iter(loader)
        seen = [plain(next(batches))]
        while len(members_of(loader)) < 2 and len(seen) < 50:
            seen.append(plain(next(batches)))
        (raylet,) = cluster.nodes[0].all_processes["raylet"]
        stopped = [raylet.process.pid, *(child.pid for child in children_of(raylet.process.pid))]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            seen += [plain(batch) for batch in batches]
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGKILL)
        loader._runner.close()
    assert seen == expected


@pytest.mark.soak
@pytest.mark.long(SECONDS + 200, reason="it kills for as long as it was asked to")
@pytest.mark.filterwarnings("ignore::dataporter.errors.WorkerRestartWarning")
@pytest.mark.parametrize("kind", ["samples", "lanes"])
def test_whatever_is_killed_batches_stay_the_same(kind):
    """Kill actors and nodes at random, and let others join, for minutes."""
    chance = random.Random(SEED)
    options = {"seed": 3, "engine": "ray", "num_workers": 3, "persistent_workers": True}
    if kind == "samples":
        expected = one_pass(ResumableDataLoader(Slow(400), 4, shuffle=True, seed=3, num_workers=2))
        loader = ResumableDataLoader(Slow(400), 4, shuffle=True, **options)
    else:
        expected = one_pass(ResumableDataLoader(Stream(300), 3, seed=3, num_workers=2, lanes=6))
        loader = ResumableDataLoader(Stream(300), 3, lanes=6, **options)
    with cluster_of(1, 2, 1) as cluster:
        nodes = list(cluster.nodes)
        end, kills = time.monotonic() + SECONDS / 2, 0
        while time.monotonic() < end:
            loader.seek(0)
            seen = []
            for batch in loader:
                seen.append(plain(batch))
                if chance.random() > 0.02 or not members_of(loader):
                    continue
                kills += 1
                if chance.random() < 0.7:
                    os.kill(chance.choice(members_of(loader)).pid, signal.SIGKILL)
                elif nodes:
                    lost = nodes.pop(chance.randrange(len(nodes)))
                    cluster.remove_node(lost, allow_graceful=False)
                if len(nodes) < 2 and chance.random() < 0.5:
                    nodes.append(cluster.add_node(num_cpus=2, **QUIET))
            assert seen == expected, f"after {kills} kills; DATAPORTER_SOAK_SEED={SEED}"
        assert kills
        loader._runner.close()
