"""The pool of tapes: it keeps as many as there is room for, and cuts from any block."""

import numpy as np
import pytest

from dataporter.views import windows
from dataporter.views.windows import AS_STORED, Tape, TapePool

DOCUMENTS = 5  # of three tokens each in every block


class Made:
    """Makes tapes, and counts how often each was made."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def __call__(self, _, block):
        self.blocks.append(block)
        tape = Tape(np.full(DOCUMENTS, 3), AS_STORED)
        return tape, DOCUMENTS * block, 3 * DOCUMENTS * block


def documents(pool, *blocks):
    """The documents of whole blocks."""
    count = len(blocks)
    starts, stops = np.zeros(count, dtype=np.int64), np.full(count, 3 * DOCUMENTS)
    return pool.cut(0, np.array(blocks), starts, stops).numbers.tolist()


def numbers(*blocks):
    return [DOCUMENTS * block + number for block in blocks for number in range(DOCUMENTS)]


def test_a_tape_is_made_once_while_there_is_room():
    made = Made()
    pool = TapePool(made)
    for blocks in ((3, 1, 3), (1, 2)):
        assert documents(pool, *blocks) == numbers(*blocks)
    assert made.blocks == [3, 1, 2]


def test_all_tapes_are_dropped_if_there_is_no_room_for_another(monkeypatch):
    monkeypatch.setattr(windows, "_MOST", 2 * (DOCUMENTS + 1))
    made = Made()
    pool = TapePool(made)
    for block in (0, 1, 0, 2, 2, 0):
        assert documents(pool, block) == numbers(block)
    assert made.blocks == [0, 1, 2, 2, 0]  # 2 once to see how long it is, and once to keep it


@pytest.mark.parametrize("first", [1, 1 << 12])
def test_a_batch_of_more_than_there_is_room_for_is_cut_too(monkeypatch, first):
    monkeypatch.setattr(windows, "_MOST", 1)
    monkeypatch.setattr(windows, "_FIRST", first)  # places at first: one, or enough for all
    pool = TapePool(Made())
    for _ in range(2):
        assert documents(pool, 4, 7, 5) == numbers(4, 7, 5)
