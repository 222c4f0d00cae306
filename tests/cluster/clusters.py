"""Real Ray clusters of several raylets on this machine, and a stream, for the cases here."""

import contextlib
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from launching import RAY
from torch.utils.data import IterableDataset, get_worker_info
from watching import environment

STORE = 80 * 2**20  # bytes, the least that Ray takes is 75 MB
QUIET = {"object_store_memory": STORE, "include_dashboard": False}


@contextlib.contextmanager
def cluster_of(*cpus: int) -> Iterator[Any]:
    """Start a cluster with so many CPUs on its head and its other nodes, and connect to it."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        # A folder of its own: what others start on this machine is not to find this cluster.
        os.environ.update(environment(), **RAY, RAY_TMPDIR=folder)
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **QUIET})
        try:
            cluster.nodes = [cluster.add_node(num_cpus=each, **QUIET) for each in cpus[1:]]
            ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def members_of(loader: Any) -> list[Any]:
    """The actors of a loader with persistent workers that have begun."""
    return loader._runner._kept._transport._pool.ready


def free_all_cpus() -> bool:
    """End the actors that are left. True once no CPU of the cluster is taken."""
    import ray
    from ray._private.state import actors

    for actor in actors().values():
        if actor["State"] == "ALIVE" and actor["Pid"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(actor["Pid"], signal.SIGKILL)
    return ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"]


class Stream(IterableDataset):
    """Each lane counts its own samples, with random numbers, and has a state."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.next = 0

    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id, self.length, info.num_workers):
            if index >= self.next:
                self.next = index + 1
                yield index, random.random(), float(torch.rand(()))
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]
