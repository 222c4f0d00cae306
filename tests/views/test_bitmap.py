"""Bitmaps, compared with arrays of bools."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataporter.views import bitmap as module
from dataporter.views.bitmap import Bitmap, packed

# Around the ends of bytes, words, lines and pages.
lengths = st.sampled_from([0, 1, 7, 8, 64, 511, 512, 513, 65_535, 65_536, 65_537, 140_000])


@st.composite
def verdicts(draw):
    length = draw(lengths | st.integers(0, 3000))
    share = draw(st.sampled_from([0.0, 0.0001, 0.01, 0.5, 0.99, 1.0]))
    drawn = np.random.default_rng(draw(st.integers(0, 9))).random(length) < share
    if length and draw(st.booleans()):
        drawn[draw(st.integers(0, length - 1)) :] = draw(st.booleans())  # whole pages of one kind
    return drawn


@given(wanted=verdicts(), few=st.sampled_from([0, 1 << 22]))
def test_ones_are_found_and_counted_as_in_an_array(wanted, few):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", few)
        bitmap = Bitmap(packed(wanted), len(wanted))
    ones = np.flatnonzero(wanted)
    assert len(bitmap) == len(ones)
    assert bitmap.select(np.arange(len(ones))).tolist() == ones.tolist()
    before = np.concatenate([[0], np.cumsum(wanted)])
    assert bitmap.rank(np.arange(len(wanted) + 1)).tolist() == before.tolist()


def test_ones_are_counted_without_the_newest_numpy(monkeypatch):
    wanted = np.random.default_rng(1).random(70_000) < 0.3
    expected = Bitmap(packed(wanted), 70_000)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    monkeypatch.setattr(module, "_FEW", 0)
    bitmap = Bitmap(packed(wanted), 70_000)
    numbers = np.arange(len(expected))
    assert bitmap.select(numbers).tolist() == expected.select(numbers).tolist()


def test_a_bitmap_survives_a_pickle():
    bitmap = Bitmap(packed(np.arange(1000) % 3 == 0), 1000)
    again = pickle.loads(pickle.dumps(bitmap))
    assert again.select(np.arange(len(bitmap))).tolist() == list(range(0, 1000, 3))


def test_the_counts_take_a_small_part_of_the_memory_of_the_bits():
    length = 10**7
    bitmap = Bitmap(np.full(module.size_of(length), 0b1010_1010, np.uint8), length)
    assert bitmap._listed is None
    counts = bitmap._pages.nbytes + bitmap._in_page.nbytes
    assert counts < bitmap.bits.nbytes / 10
