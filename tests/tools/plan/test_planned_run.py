"""What all ranks read, evaluated at once, is what each of them reads by itself."""

import functools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataporter.law import SequentialOrder, ShuffledOrder
from dataporter.law.tracks import TracksOrder
from dataporter.tools.plan import planned_run
from dataporter.tools.plan.planned_run import PlannedRun, dealt

orders = st.one_of(
    st.builds(SequentialOrder, st.integers(1, 300)),
    st.builds(ShuffledOrder, st.integers(1, 300), st.integers(0, 9)),
    st.builds(
        lambda rows, power, seed: TracksOrder(np.array(rows), 1 << power, seed),
        st.lists(st.integers(1, 30), min_size=1, max_size=30),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
)
runs = st.builds(
    PlannedRun, nodes=st.integers(1, 3), ranks=st.integers(1, 3), batch=st.integers(1, 7)
)


@given(order=orders, run=runs, data=st.data())
def test_each_rank_reads_what_its_plan_says_step_by_step(order, run, data):
    start = data.draw(st.integers(0, order.length - 1))
    epoch = data.draw(st.integers(0, 3))
    together = data.draw(st.sampled_from([1, 16, 1 << 18]))
    before, planned_run._TOGETHER = planned_run._TOGETHER, together
    try:
        parts = list(dealt(order, run, start, order.length, epoch))
    finally:
        planned_run._TOGETHER = before
    steps, ranks, positions = (np.concatenate(column) for column in zip(*parts, strict=True))
    assert (np.diff(steps) >= 0).all()
    for rank in range(run.world_size):
        batches = run.plan(order.length, rank).batches(start, functools.partial(order.deal, epoch))
        for step, batch in enumerate(batches):
            found = positions[(ranks == rank) & (steps == step)]
            assert sorted(found.tolist()) == sorted(batch.tolist())
        assert len(positions[ranks == rank]) == run.plan(order.length, rank).num_samples(start)


def test_no_more_steps_are_dealt_than_are_wanted():
    run = PlannedRun(nodes=2, batch=4)
    (part,) = dealt(SequentialOrder(1000), run, 10, most=30)
    assert sorted(part.positions.tolist()) == list(range(10, 34))
    (part,) = dealt(SequentialOrder(1000), run, 10, most=1)
    assert len(part.positions) == 8
