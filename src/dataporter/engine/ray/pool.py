"""The pool: the actors of an engine, each of them a worker. It starts them, and ends them.

An actor is started by Ray where it finds room, sooner or later. Until it has loaded the dataset it
gets no task, so a cluster with room for fewer actors than asked for uses those.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from dataporter.engine.interface import WorkerOptions
from dataporter.engine.ray.actor import packed, shell
from dataporter.engine.ray.cluster import RayCluster
from dataporter.engine.worker import Duty
from dataporter.errors import ClusterRoomWarning, OptionError, WorkerError, WorkerStartError
from dataporter.fetch import Fetches
from dataporter.user_warnings import warn_user

_LEND_AFTER = 15.0  # seconds without a worker, after which one is started that reserves no CPU
_GIVE_UP_AFTER = 60.0  # seconds, after which a cluster without room is an error
_START_WITHIN = 300.0  # seconds, if the cluster seems to have room
_REST = 1.0  # seconds after an actor was lost before it had a place, as on a node that has died
_LONGEST_REST = 8.0  # seconds; each rest is twice as long as the one before
_FEWEST = 2  # workers at first, if their number adapts

# Ray's options that say what an actor needs.
_NEEDS = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}


class Member:
    """One actor. `calls` are its unanswered calls by the slot of their errand, oldest first."""

    def __init__(self, worker: int, actor: Any, parcel: Any, serial: int) -> None:
        self.worker = worker
        self.actor = actor
        self.serial = serial  # of its start
        self.placing: Any = actor.place.remote()  # None once it was answered; likewise the next
        self.beginning: Any = actor.begin.remote(worker, parcel)
        self.calls: dict[int, Any] = {}
        self.pid: int | None = None

    @property
    def has_place(self) -> bool:
        """True if Ray has found room for the actor, and its process runs."""
        return self.placing is None

    @property
    def has_begun(self) -> bool:
        """True if the actor can be given tasks."""
        return self.beginning is None


class Pool:
    """The actors of one engine, by number. `wanted` is how many there should be."""

    def __init__(self, cluster: RayCluster, fetch: Fetches, options: WorkerOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._ray_options = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
        self._ray_options.update(options.ray_options or {})
        self._may_lend = not ({*_NEEDS, "resources"} & set(options.ray_options or {}))
        self._has_lent = False  # started an actor that reserves no CPU
        duty = Duty(
            worker=0,
            num_workers=options.num_workers,
            seed=options.seed,
            fetch=fetch,
            dataset=options.dataset,
            init=options.init,
        )
        self._parcel = self._put(duty)
        self.members: dict[int, Member] = {}
        self.wanted = min(_FEWEST, options.num_workers) if options.adapts else options.num_workers
        self._starts = 0
        self._last_loss = 0  # the number of starts before the last loss that counts
        self._waiting_since: float | None = None  # for a first worker
        self._rest = _REST
        self._rests_until = 0.0

    def _put(self, duty: Duty) -> Any:
        """Put the duty into the object store, once for all actors."""
        ray = self._cluster.ray
        try:
            parcel = packed(duty, ray.cloudpickle)
        except Exception as error:
            msg = (
                "the dataset or a function beside it cannot be sent to a Ray cluster: "
                f"{type(error).__name__}: {error}. Open files and connections when the first "
                "sample is fetched, not before."
            )
            raise OptionError(msg) from error
        return ray.put(parcel)

    @property
    def ready(self) -> list[Member]:
        """The actors that can be given tasks."""
        # Of a copy: it is asked from other threads as well.
        return [member for member in list(self.members.values()) if member.has_begun]

    @property
    def starting(self) -> list[Member]:
        """The actors that have not answered yet."""
        return [member for member in self.members.values() if not member.has_begun]

    def start(self) -> None:
        """Start every actor that is missing, unless the cluster does not answer right now."""
        missing = self.wanted - len(self.members)
        if missing > 0 and time.monotonic() < self._rests_until:
            return
        if missing > 0:
            self._cluster.check(now=True)  # Ray would end this process if its raylet were dead
        for _ in range(missing if self._cluster.answers else 0):
            self._start(self._ray_options)

    def _start(self, ray_options: Mapping[str, Any]) -> None:
        worker = next(
            number for number in range(len(self.members) + 1) if number not in self.members
        )
        # Ray restarts nothing by itself: a lane would begin where nobody expects it.
        ours = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1}
        try:
            actor = self._cluster.ray.remote(**ray_options, **ours)(shell()).remote()
        except (TypeError, ValueError) as error:
            msg = f"Ray refuses ray_options={dict(ray_options)}: {error}"
            raise OptionError(msg) from error
        self._starts += 1
        self.members[worker] = Member(worker, actor, self._parcel, self._starts)

    def note_place(self, member: Member, pid: int) -> None:
        """Note that there was room for an actor."""
        member.placing, member.pid = None, pid
        self._rest = _REST

    def note_begun(self, member: Member, why_not: str | WorkerError) -> None:
        """Note that an actor is ready, or why no actor ever will be."""
        if isinstance(why_not, WorkerError):
            raise WorkerStartError(*why_not.args) from why_not
        if why_not:
            msg = (
                f"a worker on the Ray cluster cannot import dataporter ({why_not}). Install it on "
                "every node, in the same version, or send it there: "
                "ray_options={'runtime_env': {'pip': ['torch-dataporter']}}."
            )
            raise WorkerStartError(msg)
        member.beginning = None

    def note_loss(self, member: Member) -> bool:
        """Note that an actor has died; False if others have since it was started.

        False as well if it never had a place: Ray may try a node that has died just now.
        """
        if not member.has_place:
            self._rests_until = time.monotonic() + self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            return False
        is_first = member.serial > self._last_loss
        if is_first:
            self._last_loss = self._starts
        return is_first

    def dismiss(self, member: Member) -> None:
        """End an actor, if it has not ended, and forget it."""
        del self.members[member.worker]
        self._kill(member)

    def retire_one(self) -> bool:
        """End an actor that has nothing to do. False if there is none."""
        for member in [*self.starting, *self.ready]:
            if not member.calls:
                self.wanted -= 1
                self.dismiss(member)
                return True
        return False

    def look_for_room(self) -> WorkerStartError | None:
        """Help a pool of which no actor finds room; return an error once that takes too long."""
        now = time.monotonic()
        if any(member.has_place for member in self.members.values()) or self._waiting_since is None:
            self._waiting_since = now
        waited = now - self._waiting_since
        if waited < _LEND_AFTER or not self.members or not self._cluster.answers:
            return None
        request = self._request()
        if waited < _START_WITHIN and not self._cluster.lacks(request):
            return None
        if self._may_lend:
            self._lend()
        elif waited > _GIVE_UP_AFTER:
            self._waiting_since = None
            return self._no_room(waited, request)
        return None

    def _request(self) -> dict[str, float]:
        """Return the resources that the most modest actor needs, by Ray's names."""
        options = {**self._ray_options, **({"num_cpus": 0} if self._has_lent else {})}
        request = {name: options.get(option) or 0 for option, name in _NEEDS.items()}
        return {**request, **(options.get("resources") or {})}  # type: ignore[dict-item]

    def _lend(self) -> None:
        """Start one actor that reserves no CPU in place of one that finds none."""
        found = self._cluster.described(["CPU"])
        msg = (
            f"The Ray cluster has no free CPU for a worker ({found}). One is "
            "started that reserves none and shares those in use. Give the cluster more CPUs, or "
            "say what a worker reserves: ray_options={'num_cpus': 0}."
        )
        self.dismiss(self.starting[0])
        self._has_lent, self._may_lend = True, False
        self._start({**self._ray_options, "num_cpus": 0})
        warn_user(msg, ClusterRoomWarning)

    def _no_room(self, waited: float, request: Mapping[str, float]) -> WorkerStartError:
        asked = {name: amount for name, amount in request.items() if amount} or {"CPU": 0}
        needs = ", ".join(f"{amount:g} {name}" for name, amount in asked.items())
        found = self._cluster.described(asked)
        return WorkerStartError(
            f"No worker could start on the Ray cluster at {self._cluster.address} within "
            f"{waited:.0f} s. Each needs {needs} (ray_options="
            f"{dict(self._options.ray_options or {})}); the cluster has {found}. Ask for less, "
            "free resources or add nodes. Call next() on this iterator again to keep waiting."
        )

    def close(self) -> None:
        """End all actors, at once: their CPUs are free for others then."""
        self.wanted = 0
        for member in list(self.members.values()):
            self.dismiss(member)

    def _kill(self, member: Member) -> None:
        if self._cluster.is_usable:
            with contextlib.suppress(Exception):  # it may have ended, with its node or by itself
                self._cluster.ray.kill(member.actor)
