"""The board and the recovery policies, without a process: no task and no slot is lost."""

from collections import deque
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dataporter.engine.board import Board
from dataporter.engine.recovery import lost_by_any_worker, lost_by_lane_workers

DONE = 0  # an outcome


def made(**options: Any) -> tuple[Board[str], list[int]]:
    freed: list[int] = []
    return Board(freed.append, **options), freed


def test_tasks_are_taken_in_the_order_of_their_issues():
    board, _ = made()
    numbers = [board.issue(task, slot) for slot, task in enumerate("abc")]
    for number in reversed(numbers):
        assert board.take() is None
        board.note_reply(number, DONE, 0, 1)
    assert [board.take().task for _ in "abc"] == ["a", "b", "c"]


def test_tasks_are_taken_as_they_arrive_if_order_is_not_kept():
    board, _ = made(in_order=False)
    numbers = [board.issue(task, slot) for slot, task in enumerate("abc")]
    for number in reversed(numbers):
        board.note_reply(number, DONE, 0, 1)
    assert [board.take().task for _ in "abc"] == ["c", "b", "a"]


def test_an_issue_that_is_taken_says_where_its_reply_lies_and_keeps_its_slot():
    board, freed = made()
    board.note_reply(board.issue("a", slot=7), outcome=2, offset=64, size=100)
    issue = board.take()
    assert (issue.task, issue.slot, issue.outcome, issue.offset, issue.size) == ("a", 7, 2, 64, 100)
    assert not freed


def test_tasks_ahead_and_replies_are_counted():
    board, _ = made()
    first, _second = board.issue("a", 1), board.issue("b", 2)
    assert (len(board), board.unfinished, board.num_ready) == (2, 2, 0)
    board.note_reply(first, DONE, 0, 1)
    assert (len(board), board.unfinished, board.num_ready) == (2, 1, 1)
    board.take()
    assert (len(board), board.unfinished, board.num_ready) == (1, 1, 0)


@pytest.mark.parametrize("in_order", [True, False])
def test_an_issue_that_is_replaced_keeps_its_turn(in_order):
    board, freed = made(in_order=in_order)
    numbers = [board.issue(task, slot) for slot, task in enumerate("abc")]
    board.note_reply(numbers[1], DONE, 0, 1)
    renewed = board.reissue(numbers[1], "B", 9, in_use=False)
    assert freed == [1]
    for number in (numbers[0], renewed, numbers[2]):
        board.note_reply(number, DONE, 0, 1)
    assert [board.take().task for _ in "abc"] == ["a", "B", "c"]


def test_a_slot_in_use_is_freed_by_the_late_reply():
    board, freed = made()
    old = board.issue("a", slot=1)
    board.reissue(old, "a", slot=2, in_use=True)
    assert not freed
    board.note_reply(old, DONE, 0, 1)
    assert freed == [1]
    assert board.take() is None  # the reply was to the old issue


def test_after_a_run_only_slots_that_workers_have_are_kept():
    board, freed = made()
    numbers = [board.issue(task, slot) for slot, task in enumerate("abc")]
    board.note_reply(numbers[0], DONE, 0, 1)
    board.abandon_all()
    assert freed == [0]
    assert not board
    board.release(numbers[1])  # taken back before a worker read it
    assert freed == [0, 1]
    board.note_reply(numbers[2], DONE, 0, 1)
    assert freed == [0, 1, 2]
    assert numbers[2] not in board.abandoned


class PlacedTask(NamedTuple):
    name: int
    place: int | None = None
    attempt: int = 0


class Hand(NamedTuple):
    """What a worker has read out of its pipe."""

    number: int
    slot: int
    is_noted: bool = False  # where the engine sees it
    has_replied: bool = False


NOTHING = Hand(0, 0, is_noted=True, has_replied=True)
WORKERS = 3


class Engine:
    """An engine whose workers are pretended: they read, note, reply and die at any moment."""

    def __init__(self, *, in_order: bool, has_places: bool) -> None:
        self.in_order, self.has_places = in_order, has_places
        self.board: Board[PlacedTask] = Board(self.free, in_order=in_order)
        self.pipes = [deque() for _ in range(WORKERS if has_places else 1)]
        self.replies: deque[int] = deque()
        self.hands = [NOTHING] * WORKERS
        self.free_slots: set[int] = set()
        self.num_slots = 0
        self.lost_slots: set[int] = set()  # of a worker that died before it noted what it read
        self.waiting: list[PlacedTask] = []  # issued in this run and not delivered
        self.next_name = 0

    def free(self, slot: int) -> None:
        assert slot not in self.free_slots, "freed twice"
        writing = [h.slot for h in self.hands if not h.has_replied]
        assert slot not in writing, "freed while a worker writes into it"
        self.free_slots.add(slot)

    def taken_slot(self) -> int:
        if self.free_slots:
            return self.free_slots.pop()
        self.num_slots += 1
        return self.num_slots

    def send(self, task: PlacedTask, number: int, slot: int) -> None:
        self.pipes[(task.place or 0) % len(self.pipes)].append((number, slot))

    def issue(self, place: int) -> None:
        task = PlacedTask(self.next_name, place if self.has_places else None)
        self.next_name += 1
        slot = self.taken_slot()
        self.send(task, self.board.issue(task, slot), slot)
        self.waiting.append(task)

    def work(self, worker: int) -> None:
        """Let a worker do its next step."""
        hand, pipe = self.hands[worker], self.pipes[worker % len(self.pipes)]
        if not hand.is_noted:
            self.hands[worker] = hand._replace(is_noted=True)
        elif not hand.has_replied:
            self.replies.append(hand.number)
            self.hands[worker] = hand._replace(has_replied=True)
        elif hand is not NOTHING:
            self.hands[worker] = NOTHING
        elif pipe:
            self.hands[worker] = Hand(*pipe.popleft())

    def read_replies(self) -> None:
        while self.replies:
            self.board.note_reply(self.replies.popleft(), DONE, 0, 1)

    def deliver(self) -> None:
        issue = self.board.take()
        if issue is None:
            return
        task = issue.task
        names = [each.name for each in self.waiting]
        assert task.name in names, "delivered twice, or of another run"
        of_place = [each.name for each in self.waiting if each.place == task.place]
        if self.in_order:
            assert task.name == names[0]
        elif self.has_places:
            assert task.name == of_place[0]
        del self.waiting[names.index(task.name)]
        self.free(issue.slot)

    def lose(self, dead: set[int]) -> None:
        self.read_replies()
        had = [self.hands[worker] for worker in dead]
        for worker in dead:
            self.hands[worker] = NOTHING
        noted = {hand.number for hand in had if hand.is_noted}
        for hand in had:
            if not hand.is_noted and (not self.has_places or self.board.get(hand.number) is None):
                self.lost_slots.add(hand.slot)
        if self.has_places:
            for worker in dead:
                self.pipes[worker].clear()
            lost = lost_by_lane_workers(self.board, lambda p: p % WORKERS in dead, renewed)
        else:
            nobody_has = self.taken_back() | noted
            somebody_has = {hand.number for hand in self.hands if hand.is_noted}
            lost = lost_by_any_worker(self.board, nobody_has=nobody_has, somebody_has=somebody_has)
        for number in noted:
            self.board.release(number)
        for number, task, in_use in lost:
            slot = self.taken_slot()
            self.send(task, self.board.reissue(number, task, slot, in_use=in_use), slot)

    def taken_back(self) -> set[int]:
        numbers = {number for pipe in self.pipes for number, _ in pipe}
        for pipe in self.pipes:
            pipe.clear()
        return numbers

    def end_run(self) -> None:
        self.read_replies()
        self.board.abandon_all()
        for number in self.taken_back():
            self.board.release(number)
        self.waiting.clear()
        assert not self.board

    def check(self) -> None:
        assert len(self.board) == len(self.waiting)
        assert self.board.unfinished == sum(issue.outcome is None for _, issue in self.board)
        on_board = {issue.slot for _, issue in self.board}
        assert len(on_board) == len(self.waiting), "two tasks in one slot"
        assert not on_board & self.free_slots

    def finish(self) -> None:
        """Let the workers finish, and deliver all."""
        while self.waiting or any(hand is not NOTHING for hand in self.hands):
            before = len(self.waiting), list(self.hands)
            for worker in range(WORKERS):
                self.work(worker)
            self.read_replies()
            self.deliver()
            assert (len(self.waiting), self.hands) != before, "stuck"
        self.read_replies()


def renewed(tasks: list[PlacedTask], _: Any) -> list[PlacedTask]:
    return [task._replace(attempt=task.attempt + 1) for task in tasks]


STEPS = ["issue"] * 6 + ["work"] * 12 + ["deliver"] * 4 + ["read", "lose", "end"]


@given(
    in_order=st.booleans(), has_places=st.booleans(), steps=st.binary(min_size=150, max_size=150)
)
def test_whatever_happens_no_task_and_no_slot_is_lost(in_order, has_places, steps):
    engine = Engine(in_order=in_order, has_places=has_places)
    for byte in steps:  # drawn at once, since a draw takes longer than a step
        number, step = divmod(byte, len(STEPS))
        if STEPS[step] == "issue":
            engine.issue(number % 5)
        elif STEPS[step] == "work":
            engine.work(number % WORKERS)
        elif STEPS[step] == "deliver":
            engine.deliver()
        elif STEPS[step] == "read":
            engine.read_replies()
        elif STEPS[step] == "lose":
            engine.lose({worker for worker in range(WORKERS) if number >> worker & 1})
        else:
            engine.end_run()
        engine.check()
    engine.finish()
    every_slot = set(range(1, engine.num_slots + 1))
    assert engine.free_slots >= every_slot - engine.lost_slots
    assert engine.lost_slots.isdisjoint(engine.free_slots)
