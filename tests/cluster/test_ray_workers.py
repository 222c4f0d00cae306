"""Workers on a Ray cluster: the cases of this folder, each file in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from watching import environment

HERE = Path(__file__).parent
LIMIT = 900  # seconds: beside two busy loops, 400 were not enough
clusters_take_time = pytest.mark.long(
    LIMIT + 50, reason="a cluster is started, and many actors, each of which imports torch"
)


def run_cases(name: str, *arguments: str, seconds: float = LIMIT) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    answer = subprocess.run(
        [*command, str(HERE / name), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-20_000:] + answer.stderr[-5_000:]


@clusters_take_time
def test_batches_of_a_ray_cluster_are_those_of_worker_processes():
    run_cases("ray_cases.py", "-m", "not soak")


@clusters_take_time
@pytest.mark.soak  # examples/ray_workers.py loses an actor in the usual tests
def test_lost_actors_nodes_and_clusters_lose_no_batch():
    run_cases("ray_loss_cases.py", "-m", "not soak")


@clusters_take_time
@pytest.mark.soak  # 22 s on two cores
def test_loaders_of_ray_train_share_a_small_cluster():
    run_cases("ray_train_cases.py")


@pytest.mark.long(3050, reason="it kills for as long as it was asked to")
@pytest.mark.soak
def test_nothing_that_is_killed_changes_a_batch():
    run_cases("ray_loss_cases.py", "-m", "soak", seconds=3000)


@clusters_take_time
@pytest.mark.soak
def test_nodes_that_join_are_used():
    run_cases("ray_cases.py", "-m", "soak")
