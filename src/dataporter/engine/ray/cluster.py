"""The Ray cluster that actors run on: found or started, its room, and its end.

Ray ends a process that has lost its cluster: at once when it asks the dead raylet of its machine
for something, after a minute when the head of the cluster does not answer. So both are looked
after here, by plain connections, and a cluster that is gone becomes an error in time.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from dataporter.engine.interface import OLDEST_RAY
from dataporter.errors import ClusterLostError, WorkerStartError
from dataporter.requirement import require

_LOOK_EVERY = 2.0  # seconds
_HEAD_PATIENCE = 20.0  # seconds that the head may be silent; it may be about to be restarted
_CONNECTING = 1.0  # seconds that a connection may take


def import_ray() -> Any:
    """Import Ray, or name the extra that brings it."""
    require("ray", at_least=OLDEST_RAY, extra="ray")
    import ray  # noqa: PLC0415  only when it is asked for

    return ray


class RayCluster:
    """The cluster that this process is connected to, or that is found or started now."""

    def __init__(self) -> None:
        self.ray = ray = import_ray()
        if not ray.is_initialized():
            try:
                ray.init()
            except Exception as error:
                msg = (
                    f"Ray cannot be reached or started: {type(error).__name__}: {error}. Start a "
                    "cluster (ray start --head), set RAY_ADDRESS, or call ray.init() before."
                )
                raise WorkerStartError(msg) from error
        context = ray.get_runtime_context()
        self._is_driver = context.worker.mode == ray.SCRIPT_MODE
        self.address = context.gcs_address
        self._connection = _connection(context)
        host, port = self.address.rsplit(":", 1)
        self._head = host, int(port)
        self._raylet: tuple[str, int] | None = None
        for node in ray.nodes():
            if node["NodeID"] == context.get_node_id():
                self._raylet = node["NodeManagerAddress"], node["NodeManagerPort"]
        self._looked = self._head_seen = time.monotonic()
        self._lost: str | None = None
        self.answers = True  # the head, as of the last look; otherwise most calls would wait

    @property
    def is_lost(self) -> bool:
        """True if the cluster is known to be gone."""
        return self._lost is not None

    @property
    def is_usable(self) -> bool:
        """True if the cluster is not known to be gone, and this process is connected to it."""
        return not self.is_lost and self.is_connected

    @property
    def is_connected(self) -> bool:
        """True if this process is still connected as it was, and not anew."""
        ray = self.ray
        return ray.is_initialized() and _connection(ray.get_runtime_context()) == self._connection

    def check(self, *, now: bool = False) -> None:
        """Raise an error if the cluster is gone. Looks every few seconds, unless `now`."""
        moment = time.monotonic()
        now = now or not self.is_connected or moment - self._looked >= _LOOK_EVERY
        if self._lost is None and now:
            self._lost = self._found_lost(moment)
            self._looked = moment
            if self._lost is not None:
                self._leave()
        if self._lost is not None:
            msg = (
                f"The Ray cluster at {self.address} is gone: {self._lost}. Nothing is lost: "
                "state_dict() is exact. Continue from it in a new process or, in this one, with "
                "engine='processes' and multiprocessing_context='forkserver', or connect to "
                "another cluster (ray.init) and iterate again."
            )
            raise ClusterLostError(msg)

    def _found_lost(self, moment: float) -> str | None:
        if not self.is_connected:
            return "this process is not connected to it any more (ray.shutdown)"
        if self._raylet is not None and not _answers(self._raylet):
            return "the raylet of this machine has ended"
        self.answers = _answers(self._head)
        if self.answers:
            self._head_seen = moment
        # Long intervals between two looks say nothing about the head.
        elif moment - self._looked > _HEAD_PATIENCE:
            self._head_seen = max(self._head_seen, self._looked)
        silent = moment - self._head_seen
        return f"its head is silent for {silent:.0f} s" if silent > _HEAD_PATIENCE else None

    def _leave(self) -> None:
        """Disconnect, or Ray would end this process. A worker of Ray's is Ray's to end."""
        if self._is_driver and self.is_connected:
            with contextlib.suppress(Exception):
                self.ray.shutdown()

    def lacks(self, request: Mapping[str, float]) -> bool:
        """Tell whether less is free than a worker requests, on all nodes together."""
        free = self.ray.available_resources()
        return any(free.get(name, 0) < amount for name, amount in request.items())

    def described(self, names: Iterable[str]) -> str:
        """Describe some of the cluster's resources: those in all, and those that are free."""
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        each = (f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in names)
        return f"{', '.join(each)} free"


def _connection(context: Any) -> tuple[str, str]:
    """Identify a connection: another one has another node or job, in the same cluster too."""
    return context.get_node_id(), context.get_job_id()


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _CONNECTING).close()
    except OSError:
        return False
    return True
