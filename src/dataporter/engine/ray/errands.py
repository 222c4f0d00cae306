"""Errands: tasks on their way to actors, and their replies. All of it is noted on the board.

A task on the board has an errand, which is given to an actor when one has room for it. If that
actor dies, the task gets another errand, with the same turn. Where tasks have places, all tasks of
a place go to one actor, its home. A place moves when its home dies, or when an actor joins that
has none: its tasks are made anew then, from the last delivery on.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from dataporter.engine.board import Board, Reissue
from dataporter.engine.budget import Budget, Limits
from dataporter.engine.ray.actor import Reply
from dataporter.engine.ray.cluster import RayCluster
from dataporter.engine.ray.pool import Member, Pool
from dataporter.engine.recovery import Loss, Losses, Replacements, lost_by_lane_workers
from dataporter.errors import WorkerError, WorkerStartError
from dataporter.fetch.tasks import Renew, Task

_GETTING = 10.0  # seconds that a reply may take that is said to be there
_MOMENT = 0.1  # seconds
_FEWEST_CALLS = 2  # that an actor is given at a time, so that it never waits for the next
_PLACE, _BEGIN = -1, 0  # in place of a slot: the first two calls of an actor
FAILED_CALL = -1  # an outcome: Ray could not bring the reply, and says why


class Errand:
    """One task given to an actor, or to be given to one."""

    __slots__ = ("member", "number", "reply")

    def __init__(self) -> None:
        self.number = 0  # of its issue
        self.member: Member | None = None
        self.reply: Reply | WorkerError | None = None


class Errands:
    """Gives the tasks of one engine to its actors, and collects the replies."""

    def __init__(
        self,
        cluster: RayCluster,
        pool: Pool,
        budget: Budget,
        losses: Losses,
        replacements: Replacements,
        *,
        in_order: bool,
        calls_each: int,
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._budget = budget
        self._losses = losses
        self._replacements = replacements
        self._calls_each = max(calls_each, _FEWEST_CALLS)
        self._slots = itertools.count(1)
        self._by_slot: dict[int, Errand] = {}
        self._waiting: deque[int] = deque()  # slots of errands that no actor has, by turn
        self.board: Board[Task] = Board(self._by_slot.pop, in_order=in_order)
        self._homes: dict[int, Member] = {}  # by place
        self._run = 0
        self.renew: Renew | None = None  # makes the tasks of lost places anew

    def begin_run(self, renew: Renew | None) -> None:
        """Number the next run, so that actors notice that it begins."""
        self._run += 1
        self.renew = renew

    def reply_to(self, slot: int) -> Any:
        """Look at the reply of an errand that was taken off the board."""
        return self._by_slot[slot].reply

    def take_reply(self, slot: int) -> Any:
        """Take the reply of an errand that was taken off the board."""
        return self._by_slot.pop(slot).reply

    def top_up(self, tasks: Iterator[Task], limits: Limits) -> None:
        """Add tasks up to the limits, and give actors what they have room for."""
        board = self.board
        room = min(limits.ahead - len(board), limits.unfinished - board.unfinished)
        for task in itertools.islice(tasks, max(room, 0)):
            slot = self._new_errand()
            self._by_slot[slot].number = board.issue(task, slot)
            self._waiting.append(slot)
        self._give()

    def _new_errand(self) -> int:
        slot = next(self._slots)
        self._by_slot[slot] = Errand()
        return slot

    def _give(self) -> None:
        """Give waiting errands to actors."""
        ready = self._pool.ready
        while self._waiting and ready:
            errand = self._by_slot[self._waiting[0]]
            issue = self.board.get(errand.number)
            if issue is None:
                msg = "an errand waits whose issue is gone"
                raise RuntimeError(msg)
            if issue.task.place is None:
                member = min(ready, key=lambda member: len(member.calls))
                if len(member.calls) >= self._calls_each:
                    return
            else:
                member = self._home_of(issue.task.place, ready)
            slot = self._waiting.popleft()
            errand.member = member
            payload = pickle.dumps(issue.task.payload)
            member.calls[slot] = member.actor.fetch.remote(self._run, payload)

    def _home_of(self, place: int, ready: Collection[Member]) -> Member:
        if place not in self._homes:
            places = Counter(self._homes.values())
            self._homes[place] = min(ready, key=places.__getitem__)
        return self._homes[place]

    def collect(self, seconds: float) -> bool:
        """Note what actors have replied, within some seconds. False if nothing was there."""
        ray = self._cluster.ray
        calls = {
            call: (member, slot)
            for member in self._pool.members.values()
            for slot, call in _unanswered(member)
        }
        if not calls:
            time.sleep(min(seconds, _MOMENT))  # no actor can be started right now
            return False
        if seconds and not ray.wait(list(calls), timeout=seconds)[0]:
            return False
        found, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        dead: dict[Member, Exception] = {}
        for call in found:
            member, slot = calls[call]
            answer = self._answer(call)
            if isinstance(answer, ray.exceptions.RayError):
                dead.setdefault(member, answer)
            elif answer is not None:
                self._note(member, slot, answer)
        if dead:
            self._replace(dead)
        self._give()
        return bool(found)

    def _note(self, member: Member, slot: int, answer: Any) -> None:
        if slot > 0:
            self._note_reply(member, slot, answer)
        elif slot == _PLACE:
            self._pool.note_place(member, answer)
        else:
            self._pool.note_begun(member, answer)
            self._share_places()

    def _answer(self, call: Any) -> Any:
        """Get what a call has returned; Ray's error if its actor is lost, None if it is late."""
        ray = self._cluster.ray
        try:
            return ray.get(call, timeout=_GETTING)
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayTaskError as error:
            # The actor lives: it could not leave its reply, as where the store has no room.
            return WorkerError(f"a Ray actor could not return its batch: {error}")
        except ray.exceptions.RayError as error:
            return error

    def _note_reply(self, member: Member, slot: int, reply: Reply | WorkerError) -> None:
        del member.calls[slot]
        errand = self._by_slot.get(slot)
        if errand is None:
            return  # of a run before, or its task was made anew
        errand.reply = reply
        if isinstance(reply, WorkerError):
            self.board.note_reply(errand.number, FAILED_CALL, 0, 0)
            return
        outcome, offset, size, stored = reply
        # At once: what the consumer has not asked for yet is not to fill the object store.
        errand.reply = outcome, offset, size, np.array(stored)
        self.board.note_reply(errand.number, outcome, offset, size)
        self._budget.note_size(offset + size)

    def _replace(self, dead: dict[Member, Exception]) -> None:
        """Give the errands of dead actors to others, and start actors in their place."""
        self._cluster.check(now=True)
        had = {member: self._in_hand(member) for member in dead}
        self._dismiss(dead)
        losses = [self._loss(member, error, had[member]) for member, error in dead.items()]
        _, oldest = self.board.oldest
        self._losses.note(losses, oldest.task)  # may raise: by now nothing is half done
        self._replacements.count += len(dead)
        self._pool.start()

    def _dismiss(self, members: Collection[Member]) -> None:
        """End actors, and let others have their errands and places."""
        if self.renew is not None:
            self._move({place for place, home in self._homes.items() if home in members})
        else:
            self._reissue(
                (number, issue.task, False)
                for number, issue in list(self.board)
                if issue.outcome is None and self._by_slot[issue.slot].member in members
            )
        for member in members:
            self._pool.dismiss(member)

    def _in_hand(self, member: Member) -> Task | None:
        """Return the task that an actor was at: the oldest that it has not answered."""
        for slot in member.calls:
            errand = self._by_slot.get(slot)
            issue = None if errand is None else self.board.get(errand.number)
            return None if issue is None else issue.task
        return None

    def _loss(self, member: Member, error: Any, task: Task | None) -> Loss:
        if _is_hopeless(error, self._cluster.ray.exceptions):
            msg = f"a worker cannot start on the Ray cluster: {error}"
            raise WorkerStartError(msg) from error
        said = str(error).strip().splitlines() or [""]
        return Loss(
            member.worker,
            member.pid,
            None,
            task if member.has_begun else None,
            member.has_begun,
            how=f"of a Ray cluster is lost ({type(error).__name__}: {said[0][:300]})",
            is_first=self._pool.note_loss(member),
        )

    def _share_places(self) -> None:
        """Move places to actors that have fewer by two or more."""
        if self.renew is None:
            return
        homes = dict(self._homes)
        moving = set()
        while homes:
            places = Counter(dict.fromkeys(self._pool.ready, 0))
            places.update(homes.values())
            fullest, emptiest = (
                max(places, key=places.__getitem__),
                min(places, key=places.__getitem__),
            )
            if places[fullest] - places[emptiest] < 2:  # noqa: PLR2004  else they would swap
                break
            place = max(place for place, home in homes.items() if home is fullest)
            homes[place] = emptiest
            moving.add(place)
        if moving:
            self._move(moving)
            self._homes = homes

    def _move(self, places: Collection[int]) -> None:
        """Make all undelivered tasks of some places anew, for whoever will be their home."""
        if self.renew is None or not places:
            return
        is_moved: Callable[[int], bool] = places.__contains__
        lost = lost_by_lane_workers(self.board, is_moved, self.renew)
        for place in places:
            self._homes.pop(place, None)
        self._reissue(lost)

    def _reissue(self, lost: Any) -> None:
        reissues: list[Reissue[Task]] = list(lost)
        for number, task, _ in reissues:
            slot = self._new_errand()
            self._by_slot[slot].number = self.board.reissue(number, task, slot, in_use=False)
        # By turn: what was lost is older than what waits.
        self._waiting = deque(
            issue.slot
            for _, issue in self.board
            if issue.outcome is None and self._by_slot[issue.slot].member is None
        )

    def abandon(self) -> None:
        """Drop every task. Actors finish what they have, and nobody looks at it."""
        numbers = [number for number, _ in self.board]
        self.board.abandon_all()
        for number in numbers:
            self.board.release(number)
        self._waiting.clear()

    def dismiss_hanging(self) -> None:
        """End the actors that are at tasks which nobody waits for."""
        self._dismiss(
            [
                member
                for member in self._pool.ready
                if member.calls and next(iter(member.calls)) not in self._by_slot
            ]
        )


def _unanswered(member: Member) -> Iterable[tuple[int, Any]]:
    """List the calls that an actor is to answer next, each with its slot."""
    if not member.has_place:
        return [(_PLACE, member.placing)]
    return member.calls.items() if member.has_begun else [(_BEGIN, member.beginning)]


def _is_hopeless(error: Any, exceptions: Any) -> bool:
    """Tell whether any other actor would fail in the same way."""
    never = (
        exceptions.RuntimeEnvSetupError,
        exceptions.ActorUnschedulableError,
        exceptions.ActorPlacementGroupRemoved,
    )
    return isinstance(error, never) or getattr(error, "actor_init_failed", False)
