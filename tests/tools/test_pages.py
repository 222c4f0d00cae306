"""Parts of pages: axes whose words stand where they belong, at round numbers."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dataporter.tools.pages import plot, round_steps


@given(st.floats(1e-9, 1e12))
def test_an_axis_is_divided_at_round_numbers_up_to_its_end(highest):
    ticks = round_steps(highest)
    step = ticks[1]
    assert ticks[0] == 0
    assert 3 <= len(ticks) <= 7
    assert ticks[-1] <= highest * (1 + 1e-6) < ticks[-1] + step * (1 + 1e-4)
    assert all(math.isclose(tick, number * step) for number, tick in enumerate(ticks))
    assert f"{step:.0e}"[0] in "125"
    assert math.isclose(step, float(f"{step:.0e}"))


def test_words_stand_beside_an_axis_where_their_values_are():
    drawn = plot([], [(0, "top"), (6, "low")], [(2, "left"), (5, "<middle>")], (10, 8))
    assert '<span style="--at:0.7500">low</span>' in drawn
    assert '<span style="--at:0.2000">left</span>' in drawn
    assert '<span style="--at:0.5000">&lt;middle&gt;</span>' in drawn
