"""The process engine: workers fetch ahead, batches come in order, or as they come.

                       one pipe of issues: any free worker takes the next
    consumer ──────────────────────────────────────────────────▶ workers
       ▲                                                            │ batch into the slot
       └──────────────── one pipe of replies ◀──────────────────────┘

Tasks that have a place, since a stream is read by one worker alone, go by a pipe of that
worker's own instead.

Messages are small and of fixed size, so reads and writes of them are whole: there is no
lock that a killed worker could hold. Tasks and batches lie in slots of shared memory, which
can be page-locked: then a batch goes from its worker to a device without another copy.

Fetched ahead are `num_workers * prefetch_factor` batches. Only while the consumer waits,
more are: `_RUSH` times as many may be on their way, so that no worker runs out of issues, and
`_STRETCH` times as many in all, so that none stops behind a slow batch, as long as all that
waits is at most `_STRETCH_BYTES`. That and what the consumer holds bound the memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dataporter.engine.arena import Slot, create_arena
from dataporter.engine.crew import Crew, Loss, Losses, WorkerOptions, undisturbed
from dataporter.engine.leaving import look_after_leavers
from dataporter.engine.pace import Pace
from dataporter.engine.pinning import can_pin, pinned
from dataporter.engine.results import Results
from dataporter.engine.slots import Slots
from dataporter.engine.wire import (
    BATCH,
    ISSUE,
    PARTIAL,
    REPLY,
    STOP,
    TIMED,
    UNREADY,
    read_batch,
    write_task,
)
from dataporter.engine.worker import Wiring, WorkerTraceback
from dataporter.errors import PageLockWarning, WorkerError, WorkerTimeoutError
from dataporter.fetch import EMPTY, Failed, Fetches, Late
from dataporter.fetch.tasks import Renew, Task
from dataporter.fetch.timing import Timing

_RUSH = 4
_STRETCH = 16
_STRETCH_BYTES = 2**28
_MOST_ISSUED = 1024  # far below what a pipe holds: issuing never blocks
_MOST_HELD = 2**13  # slots; each is a mapping, and a process may have 65,530 of them
_DELIVERED = 4  # batches that a consumer has at a time, those on their way to a device included
_MARKED_BYTES = 2**20  # of slots that one mark is taken for; few, so that they stay in caches
_MARKED = 16  # and how many slots that are at most
_MOMENT = 0.01  # seconds in which workers without work may end, at the end of a pass
_LAST_MOMENT = 0.1  # and when all that uses them is gone
_LONGEST_POLL = 2**31 - 1  # milliseconds


@dataclass(slots=True)
class _Ticket:
    """A task on its way."""

    task: Task
    slot: int
    reply: tuple[int, int, int] | None = None  # outcome, offset, size


class _Pipe:
    """A pipe of issues. What no worker has taken can be taken back."""

    def __init__(self) -> None:
        # A second read end, which never blocks: that is a property of an end, not of a read.
        self.read, self.write, self.taking_back = _piped()

    @property
    def descriptors(self) -> list[int]:
        return [self.read, self.write, self.taking_back]

    def taken_back(self) -> Iterator[int]:
        """Read issues that no worker has taken; their numbers."""
        with contextlib.suppress(BlockingIOError):
            while message := os.read(self.taking_back, ISSUE.size):
                yield ISSUE.unpack(message)[0]

    def stop(self, workers: int) -> None:
        """Tell so many workers to end."""
        os.write(self.write, ISSUE.pack(STOP, 0, 0) * workers)


class ProcessEngine:
    """Runs tasks in worker processes. One run at a time; the workers stay for the next."""

    def __init__(self, fetch: Fetches, options: WorkerOptions) -> None:
        self._options = options
        self._fetch = fetch
        self._pins = options.pin_memory and can_pin()
        self._locks = self._pins and torch.cuda.is_available()
        self._owner = os.getpid()
        self._tickets: dict[int, _Ticket] = {}  # by number of the issue
        self._abandoned: dict[int, int] = {}  # slots of issues nobody waits for, by number
        self._unfinished = 0  # tickets without a reply
        self._ready = 0  # those with one, when a batch was last asked for
        self._arrived: deque[int] = deque()  # those with a reply, where the order is theirs
        self._largest = 0  # bytes of the largest batch so far
        self._issued = 0
        self._runs = 0
        self._running = False
        self._is_ending = sys.is_finalizing
        self._renew: Renew | None = None
        self._losses = Losses(options.max_restarts)
        self._order: deque[int] = deque()  # numbers of issues, in the order of their tasks
        arena = self._arena = create_arena()
        self._slots = Slots(arena)
        # One pipe for all, or one for each worker.
        self._pipes = [_Pipe() for _ in range(options.num_workers if options.has_places else 1)]
        self._replies, from_workers = os.pipe()
        os.set_blocking(self._replies, False)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)
        wirings = [Wiring(arena=arena, issues=p.read, replies=from_workers) for p in self._pipes]
        self._crew = Crew(fetch, options, wirings, self._poll)
        _open[arena] = [arena, self._replies, from_workers]
        for pipe in self._pipes:
            _open[arena] += pipe.descriptors
        closing = self._owner, self._crew, self._pipes, arena
        self._close = weakref.finalize(self, _close, *closing, waits=True)
        self._close.atexit = False  # workers are killed then

    @property
    def _depth(self) -> int:
        """Batches that are fetched ahead."""
        return min(self._crew.wanted * self._options.prefetch_factor, _MOST_ISSUED // _STRETCH)

    @property
    def num_workers(self) -> int:
        """How many workers there are now."""
        return self._crew.size

    @property
    def is_ours(self) -> bool:
        """Whether there are workers, this process's, not those of one that forked it."""
        return self._owner == os.getpid() and self._close.alive

    def fetches_by(self, fetch: Fetches) -> bool:
        """Whether its workers are this process's and fetch by this very fetcher."""
        return self.is_ours and self._fetch is fetch

    @property
    def is_free(self) -> bool:
        """Whether it can run a pass: its workers are this process's, and none is under way."""
        return self.is_ours and not self._running

    def close(self) -> None:
        """Let the workers go."""
        with undisturbed(signal.valid_signals()):
            if self._close.detach() is not None:
                _close(self._owner, self._crew, self._pipes, self._arena)

    def run(
        self, tasks: Iterator[Task], *, then_close: bool, renew: Renew | None = None
    ) -> Results:
        """Start fetching; yield every task with its batch.

        `renew` makes tasks anew that have a place and whose worker died, given which places
        it had.
        """
        self._running = True
        self._crew.is_late = False
        self._renew = renew
        self._runs += 1
        self._order = deque()
        results = self._deliver(tasks, self._order, then_close=then_close)
        next(results)  # into its `try`: from here on, dropping it ends the run
        self._top_up(tasks, self._order)
        self._crew.start(inherited=_inherited)
        return Results(results, self._is_next_there)

    def _is_next_there(self) -> bool:
        if not self._order or self._deliverable(self._order) is not None:
            return True
        self._read_replies()
        return self._deliverable(self._order) is not None

    def _deliver(
        self, tasks: Iterator[Task], order: deque[int], *, then_close: bool
    ) -> Iterator[Any]:
        self._losses.begin_run()
        pace = Pace(self._options.num_workers) if self._options.adapts else None
        timing = self._fetch.timing
        try:
            yield None
            while order:
                asked = time.monotonic_ns()
                ticket = self._wait_for(tasks, order)
                if ticket is None:
                    # Handed on, not raised: the run goes on, and the next call waits on.
                    yield self._tickets[order[0]].task, self._late(order)
                    continue
                there = time.monotonic_ns()
                self._losses.note_delivery(ticket.task)
                if pace is not None:
                    self._adapt(pace.note((there - asked) / 1e9, self._crew.wanted))
                self._top_up(tasks, order)
                look_after_leavers()
                # No batch is held in a variable here: it is the consumer's alone.
                if timing is None or ticket.reply is None or ticket.reply[0] < TIMED:
                    batch = [self._take(ticket)]
                else:
                    batch = [self._take_timed(ticket, timing, asked, there)]
                if ticket.reply is not None and ticket.reply[0] == UNREADY:
                    then_close = True  # the next run tries with other workers
                    raise batch.pop().error
                if then_close and not order:
                    self.close()  # so that workers end while the last batch is used
                yield ticket.task, batch.pop()
            if then_close:
                self._crew.await_end(_MOMENT)
        finally:
            if not self._is_ending():  # at exit workers are killed, and modules are gone
                self._abandon()
                self._running = False
                if then_close:
                    self.close()

    def _adapt(self, wanted: int) -> None:
        if wanted > self._crew.wanted:
            self._crew.wanted = wanted
            self._crew.start(inherited=_inherited)
        elif wanted < self._crew.wanted:
            self._crew.retire_one()
            self._pipes[0].stop(1)

    def _top_up(self, tasks: Iterator[Task], order: deque[int], *, waits: bool = False) -> None:
        most = on_their_way = self._depth
        if waits and self._largest and not self._options.has_places:
            room = max(_STRETCH_BYTES // self._largest, self._depth)
            most, on_their_way = min(most * _STRETCH, room), min(most * _RUSH, room)
        while len(order) < most and self._unfinished < on_their_way:
            task = next(tasks, None)
            if task is None:
                return
            order.append(self._issue(task))

    def _issue(self, task: Task) -> int:
        slot = self._slots.take()
        size = write_task(slot, self._runs, task.payload)
        self._issued += 1
        self._unfinished += 1
        self._tickets[self._issued] = _Ticket(task, slot.number)
        pipe = self._pipes[(task.place or 0) % len(self._pipes)]
        os.write(pipe.write, ISSUE.pack(self._issued, slot.number, size))
        return self._issued

    def _wait_for(self, tasks: Iterator[Task], order: deque[int]) -> _Ticket | None:
        """Wait for the next reply that may be delivered, and take its ticket off.

        None if that takes longer than the timeout; then nothing has changed.
        """
        patience = self._options.timeout
        deadline = time.monotonic() + patience if patience else None
        self._read_replies()
        self._ready = len(order) - self._unfinished
        while (number := self._deliverable(order)) is None:
            left = None
            if deadline is not None:
                left = min(max(deadline - time.monotonic(), 0) * 1000, _LONGEST_POLL)
            ready = self._poll.poll(left)
            if not ready and left != _LONGEST_POLL:
                return None
            self._read_replies()
            if any(descriptor != self._replies for descriptor, _ in ready):
                self._replace_the_dead(order)
            self._top_up(tasks, order, waits=True)
        order.remove(number)
        if not self._options.in_order:
            self._arrived.popleft()
        self._crew.is_late = False
        return self._tickets.pop(number)

    def _late(self, order: deque[int]) -> Late:
        """Say why a batch is late; no worker that hangs at what nobody waits for stays."""
        self._crew.is_late = True
        late = Late(WorkerTimeoutError(self._crew.who_has(order[0], self._options.timeout)))
        hanging = self._crew.having(self._abandoned)
        for worker in hanging:
            self._crew.kill(worker)
        if hanging:
            self._replace_the_dead(order, hanging)
        return late

    def _deliverable(self, order: deque[int]) -> int | None:
        """The number of the issue to be delivered now, if it is there."""
        if not self._options.in_order:
            return self._arrived[0] if self._arrived else None
        return None if self._tickets[order[0]].reply is None else order[0]

    def _read_replies(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._replies, REPLY.size * 256):
                for issue, _, outcome, offset, size in REPLY.iter_unpack(data):
                    ticket = self._tickets.get(issue)
                    if ticket is None:
                        self._let_go(issue)  # abandoned, or issued again in another slot
                    else:
                        ticket.reply = outcome, offset, size
                        self._unfinished -= 1
                        if not self._options.in_order:
                            self._arrived.append(issue)
                        self._largest = max(self._largest, offset + size)

    def _take_timed(self, ticket: _Ticket, timing: Timing, asked: int, there: int) -> Any:
        """Take a batch with what was noted of its making."""
        number = ticket.task.number
        outcome, offset, size = ticket.reply or (UNREADY, 0, 0)
        packed = self._slots[ticket.slot].reach(offset + size)[offset : offset + size]
        ticket.reply = (outcome - TIMED, *timing.unpack(number, packed.tobytes()))
        batch = self._take(ticket)
        timing.note_handed(number, asked, there, self._ready)
        return batch

    def _take(self, ticket: _Ticket) -> Any:
        """Rebuild a batch where it lies; its slot is free when the last part of it dies."""
        outcome, offset, size = ticket.reply or (UNREADY, 0, 0)
        slot = self._slots[ticket.slot]
        if outcome not in (BATCH, PARTIAL):
            packed = slot.reach(offset + size)[offset : offset + size].tobytes()
            self._slots.free(ticket.slot)
            return Failed(_unpacked(packed))
        is_locked = False
        if self._slots.held < _MOST_HELD:
            room = max(_STRETCH_BYTES // self._largest, self._depth)
            self._slots.most_read = room
            # What is under way at most, or a pass would end with giving memory back that the
            # next one has to get again: fetched ahead, read by devices, delivered.
            self._slots.keep(self._depth + room + _DELIVERED)
            self._slots.together = max(1, min(_MARKED, _MARKED_BYTES // self._largest))
            is_locked = self._locks and self._page_lock(slot, offset + size)
            memory = self._slots.lend(slot, offset + size)
        else:
            memory = slot.reach(offset + size)[: offset + size].copy()
            self._slots.free(ticket.slot)
        try:
            batch = read_batch(memory, offset, size)
        except Exception as error:  # noqa: BLE001  of a class that cannot be rebuilt here
            return Failed(error)
        if outcome == PARTIAL:
            is_empty, batch, skipped = batch
            for sample in skipped:
                self._fetch.note_skipped(sample)
            batch = EMPTY if is_empty else batch
        if not self._pins or batch is EMPTY or (is_locked and self._options.copies_ahead):
            return batch
        return pinned(batch)  # of a slot that is locked, what does not lie in it

    def _page_lock(self, slot: Slot, size: int) -> bool:
        """Page-lock a slot where it lies. Refused once, it is not tried again."""
        refused = slot.page_lock(size)
        if refused is None:
            return True
        self._locks = False
        msg = (
            f"{size:,} bytes of shared memory could not be page-locked ({refused}): batches are "
            "copied into page-locked memory instead, which takes longer. Allow more locked "
            "memory (ulimit -l), or use fewer workers or a smaller prefetch_factor."
        )
        warnings.warn(msg, PageLockWarning, stacklevel=6)
        return False

    def _abandon(self) -> None:
        """Forget what is on its way: replies to it will only free their slots."""
        if os.getpid() != self._owner or not self._close.alive:
            return
        self._read_replies()
        for issue, ticket in self._tickets.items():
            if ticket.reply is not None:
                self._slots.free(ticket.slot)
            else:
                self._abandoned[issue] = ticket.slot
        self._tickets.clear()
        self._arrived.clear()
        self._unfinished = 0
        for issue in self._take_back_issues():
            self._let_go(issue)
        # After a timeout, who is still at work hangs. Others finish what they have in hand.
        for worker in self._crew.having(self._abandoned) if self._crew.is_late else ():
            self._crew.kill(worker)
            if not self._crew.dismissed(worker).is_alive():
                self._let_go(self._crew.has(worker))

    def _let_go(self, issue: int) -> None:
        """Free the slot of an issue that nobody waits for, once nobody works on it."""
        slot = self._abandoned.pop(issue, None)
        if slot is not None:
            self._slots.free(slot)

    def _take_back_issues(self) -> set[int]:
        """Read out of the pipe what no worker has taken yet; the numbers of the issues."""
        found = set()
        for pipe in self._pipes:
            taken_back = list(pipe.taken_back())
            found.update(taken_back)
            if STOP in found:  # of workers that are to end all the same
                found.discard(STOP)
                pipe.stop(taken_back.count(STOP))
        return found

    def _replace_the_dead(self, order: deque[int], killed: Sequence[int] = ()) -> None:
        """Start dead workers anew, and issue again what they had in hand.

        `killed` are those that the engine itself has ended.
        """
        dead = self._crew.dead()
        if not dead:
            # Somebody retired as told; more may be wanted again by now than are left.
            self._crew.start(inherited=_inherited)
            return
        self._read_replies()
        if self._options.has_places:
            lost = self._renew_tasks(order, dead)
        else:
            lost = self._issue_again(order, dead)
        lost = [loss for loss in lost if loss.worker not in killed]
        awaited = self._tickets[order[0]].task
        self._losses.note(lost, awaited)  # may raise: by now nothing is half done
        self._crew.start(inherited=_inherited)

    def _renew_tasks(self, order: deque[int], dead: list[int]) -> list[Loss]:
        """Issue anew all that is not delivered of the places of dead workers.

        What has arrived as well: a place goes on from its last delivery.
        """
        lost: list[Loss] = []
        for worker in dead:
            issue = self._crew.has(worker)
            had = self._tickets.get(issue)
            for _ in self._pipes[worker].taken_back():
                pass
            self._let_go(issue)
            had_place = partial(self._is_place_of, worker)
            turns = [turn for turn, number in enumerate(order) if had_place(self._place(number))]
            tickets = [self._tickets.pop(order[turn]) for turn in turns]
            self._unfinished -= sum(ticket.reply is None for ticket in tickets)
            for ticket in tickets:
                self._slots.free(ticket.slot)
            tasks: Iterable[Task] = [ticket.task for ticket in tickets]
            if self._renew is not None:
                tasks = self._renew(list(tasks), had_place)
            for turn, task in zip(turns, tasks, strict=True):
                order[turn] = self._issue(task)
            lost.append(self._loss(worker, had))
        self._arrived = deque(number for number in self._arrived if number in self._tickets)
        return lost

    def _loss(self, worker: int, had: _Ticket | None) -> Loss:
        task, has_begun = None if had is None else had.task, self._crew.has_begun(worker)
        return Loss(self._crew.dismissed(worker), worker, task, has_begun)

    def _place(self, issue: int) -> int:
        return self._tickets[issue].task.place or 0

    def _is_place_of(self, worker: int, place: int) -> bool:
        return place % len(self._pipes) == worker

    def _issue_again(self, order: deque[int], dead: list[int]) -> list[Loss]:
        """Issue again what dead workers had in hand, and what may have been lost with them."""
        taken_back = self._take_back_issues()
        in_hand = self._crew.in_hand(but_not=dead)
        lost: list[Loss] = []
        for worker in dead:
            number = self._crew.has(worker)
            had = self._tickets.get(number)
            if had is None:
                self._let_go(number)
            elif had.reply is None:
                taken_back.add(number)  # as good as: nobody has it any more
            lost.append(self._loss(worker, had))
        for place, issue in enumerate(order):
            ticket = self._tickets[issue]
            if ticket.reply is not None or (issue in in_hand and issue not in taken_back):
                continue
            # A worker that took it a moment ago may still reply: into the old slot, which is
            # not used again before that reply or its death.
            self._abandoned[issue] = ticket.slot
            if issue in taken_back:
                self._let_go(issue)
            del self._tickets[issue]
            self._unfinished -= 1
            order[place] = self._issue(ticket.task)
        return lost


def _unpacked(packed: bytes) -> Exception:
    """The error that a worker met, with where it was as its cause."""
    pickled, name, text = pickle.loads(packed)  # noqa: S301  from a worker of ours
    if pickled is None:
        msg = f"{name} in a worker, which cannot be sent as it is. {text}"
        return WorkerError(msg)
    error: Exception = pickle.loads(pickled)  # noqa: S301  likewise
    error.__cause__ = WorkerTraceback(text)
    return error


def _piped() -> tuple[int, int, int]:
    """Open a pipe: its read end, its write end, and one that reads without ever blocking."""
    read, write = os.pipe()
    with contextlib.suppress(FileNotFoundError):  # no /proc
        return read, write, os.open(f"/proc/self/fd/{read}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(read)
    os.close(write)
    # A pipe that has a name can be opened twice; so it has one for a moment.
    with tempfile.TemporaryDirectory(prefix="dataporter") as folder:
        name = f"{folder}/issues"
        os.mkfifo(name)
        # In this order: an end that blocks waits for one of the other kind.
        unblocked = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        write = os.open(name, os.O_WRONLY)
        return os.open(name, os.O_RDONLY), write, unblocked


# The descriptors of every engine of this process, by that of its arena.
_open: dict[int, list[int]] = {}


def _inherited() -> set[int]:
    """What a forked worker finds open of all engines."""
    return {descriptor for descriptors in _open.values() for descriptor in descriptors}


def _close(
    owner: int, crew: Crew, pipes: Sequence[_Pipe], arena: int, *, waits: bool = False
) -> None:
    """Tell the workers to end. They are not waited for, but for a moment if nobody is left to."""
    if os.getpid() != owner:
        return  # a forked child inherits the object, not the engine
    with undisturbed(signal.valid_signals()):
        for pipe in pipes:
            for _ in pipe.taken_back():
                pass
            pipe.stop(crew.size if len(pipes) == 1 else 1)
        crew.leave()
        for descriptor in _open.pop(arena):
            os.close(descriptor)
    if waits:
        crew.await_end(_LAST_MOMENT)
