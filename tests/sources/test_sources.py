"""Sources by themselves: what remains of an epoch, on any ranks, without a loader or an engine."""

import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import StatefulShards, in_turn
from support import Ids

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, StateMismatchError
from dataporter.fetch import EMPTY, Fetcher
from dataporter.law.state import Progress
from dataporter.loader.options import LoaderOptions
from dataporter.loader.wiring import make_source
from dataporter.samplers import ResumableSampler
from dataporter.sources.source import Source
from dataporter.views import Mixture

TAILS = ["pad", "drop", "uneven"]


def source_of(dataset: Any, **options: Any) -> Source:
    chosen = LoaderOptions(dataset, **options)
    fetch = Fetcher(dataset, collate_fn=None)
    return make_source(dataset, fetch, chosen, pipe_shuffle=None)[0]


def read(source: Source, progress: Progress, steps: int = 10**6) -> tuple[list[Any], Progress]:
    """Fetch so many batches as an engine does; they, and the progress that they lead to."""
    reading = source.begin(progress, same_workers=False)
    found = []
    for task in reading.tasks:
        (progress, _), batch = reading.received(task, reading.fetch(task.payload))
        if batch is not EMPTY:
            found.append(batch.tolist())
        if len(found) == steps:
            break
    return found, progress


@settings(max_examples=60)
@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from(TAILS),
)
def test_ranks_deliver_an_epoch_once_whatever_their_number_is_at_each_leg(
    length, batch_size, worlds, steps, tail
):
    """At each leg another number of ranks goes on with the progress of the one before."""
    seen: list[int] = []
    progress = Progress(epoch=1)
    for leg, ranks in enumerate(worlds):
        is_last = leg == len(worlds) - 1
        each = []
        for rank in range(ranks):
            options = {"rank": rank, "world_size": ranks, "tail": tail, "seed": 3}
            source = source_of(Ids(length), batch_size=batch_size, shuffle=True, **options)
            batches, after = read(source, progress, 10**6 if is_last else steps)
            each.append(after)
            seen += [index for batch in batches for index in batch]
        progress = max(each, key=lambda after: after.samples_processed)
        if tail == "pad":
            assert all(after == each[0] for after in each)
    if tail == "uneven":
        assert sorted(seen) == list(range(length))
    elif tail == "pad":
        assert set(seen) == set(range(length))
        assert len(seen) - length < sum(worlds)
    else:
        assert len(set(seen)) == len(seen) == progress.samples_processed
        assert length - len(seen) < worlds[-1] * batch_size


@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 4), st.sampled_from(TAILS))
def test_the_end_of_an_epoch_is_the_same_on_every_rank(length, batch_size, ranks, tail):
    ends = set()
    for rank in range(ranks):
        options = {"rank": rank, "world_size": ranks, "tail": tail}
        source = source_of(Ids(length), batch_size=batch_size, seed=3, **options)
        _, progress = read(source, source.fresh(0))
        ends.add(source.ended(progress))
    assert len(ends) == 1
    (end,) = ends
    assert end.finished
    assert end.samples_processed == source.plan.remaining()


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 8))
def test_a_sampler_of_the_users_own_goes_on_after_what_was_delivered(length, batch_size, steps):
    sampler = list(range(length))[::-1]
    source = source_of(Ids(length), batch_size=batch_size, sampler=sampler)
    first, progress = read(source, source.fresh(0), steps) if steps else ([], source.fresh(0))
    source.restore(progress)
    rest, _ = read(source, progress)
    assert [index for batch in first + rest for index in batch] == sampler


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 8),
)
def test_lanes_go_on_where_each_was_delivered_up_to(lengths, lanes, batch_size, steps):
    expected = in_turn(lengths, lanes, batch_size)
    source = source_of(StatefulShards(lengths), batch_size=batch_size, lanes=lanes)
    first, progress = read(source, source.fresh(0), steps)
    again = source_of(StatefulShards(lengths), batch_size=batch_size, lanes=lanes)
    again.restore(progress)
    rest, _ = read(again, progress)
    assert first + rest == expected


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [4, 2]}, {"in_order": False}])
def test_a_loader_says_what_its_source_is(options):
    loader = ResumableDataLoader(Ids(9), 2, seed=1, **options)
    identity = source_of(Ids(9), batch_size=2, seed=1, **options).identity()
    state = loader.state_dict()
    for name in ("seed", "shuffle", "order", "num_samples", "batch_size", "world_size"):
        assert state[name] == getattr(identity, name)


class Counted(Ids):
    """Read by index, and has a state: how often."""

    count = 0

    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.count = state["count"]


def test_a_dataset_with_a_state_has_the_identity_that_its_order_gives():
    batches = [[0, 1], [2, 3]]
    assert ResumableDataLoader(Counted(4), batch_sampler=batches).state_dict()["batch_size"] is None
    own = ResumableSampler(9, seed=5)
    loader = ResumableDataLoader(Counted(9), 3, sampler=own)
    state = {**loader.state_dict(), "seed": 6}
    with pytest.raises(StateMismatchError, match="seed changed"):
        loader.load_state_dict(state)


def test_a_sampler_put_into_mid_epoch_is_refused_where_the_dataset_has_a_state():
    sampler = ResumableSampler(9, seed=5)
    next(iter(sampler))
    positioned = ResumableSampler(9, seed=5)
    positioned.load_state_dict(sampler.state_dict())
    with pytest.raises(OptionError, match="position=1 cannot be sought"):
        ResumableDataLoader(Counted(9), 3, sampler=positioned)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (partial(Ids, 8), {"shuffle": True}),
        (partial(Ids, 8), {"sampler": torch.utils.data.SequentialSampler(range(8))}),
        (partial(Mixture, {"all": (Ids(8), 1.0)}), {"shuffle": True}),
        (partial(StatefulShards, [8]), {}),
    ],
    ids=["own order", "a sampler", "an order of the dataset", "a stream"],
)
def test_a_loader_that_nobody_has_lets_go_of_its_dataset_at_once(make, options, workers):
    dataset = make()
    loader = ResumableDataLoader(dataset, 2, **options, **workers)
    assert len(list(loader)) > 0
    loader.load_state_dict(loader.state_dict())
    gone = weakref.ref(dataset)
    gc.collect()
    gc.disable()  # in a cycle, it would stay until garbage is collected, with what it has open
    try:
        del loader, dataset
        assert gone() is None
    finally:
        gc.enable()
