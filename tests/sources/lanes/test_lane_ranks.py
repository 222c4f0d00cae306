"""Lanes shared among ranks, told or of real gloo groups; other numbers of ranks at a resume."""

import itertools
import signal
from functools import partial
from typing import Any

import pytest
from groups import on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupting import interrupted, raise_tick
from streamed import OwnIterator, Packed, Shards, StatefulShards
from support import flat, one_pass, passes, plain

from dataporter import ResumableDataLoader
from dataporter.errors import StateError, StateFormatError, StateMismatchError, TopologyError

LENGTHS = [5, 0, 7, 2, 11, 3, 1]
EVERYTHING = sorted(100 * shard + j for shard, length in enumerate(LENGTHS) for j in range(length))


def on_told_ranks(world_size: int, kind: type = StatefulShards, **options: Any) -> list:
    options = {"batch_size": 2, "lanes": 7, "seed": 3, **options}
    return [
        ResumableDataLoader(kind(LENGTHS), rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def take(loader: ResumableDataLoader, steps: int) -> list[int]:
    return flat(plain(batch) for _, batch in zip(range(steps), loader, strict=False))


@settings(max_examples=25)
@given(
    before=st.integers(1, 4),
    after=st.integers(1, 5),
    steps=st.integers(0, 8),
    kind=st.sampled_from([StatefulShards, OwnIterator]),
)
def test_any_number_of_ranks_goes_on_where_others_were(before, after, steps, kind):
    loaders = on_told_ranks(before, kind)
    seen = flat(take(loader, steps) for loader in loaders)
    states = [loader.state_dict() for loader in loaders]
    rest = []
    resumed = on_told_ranks(after, kind, tail="uneven")
    for loader in resumed:
        loader.load_state_dict(states)
        rest += flat(one_pass(loader)) if not loader.state_dict()["finished"] else []
    finished = all(state["finished"] for state in states)
    assert sorted(seen + rest) == EVERYTHING
    if not finished:
        following = flat(flat(one_pass(loader)) for loader in resumed)
        assert sorted(following) == EVERYTHING


@pytest.mark.parametrize("after", [1, 3, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_saved_on_two_ranks_and_loaded_on_others(after, num_workers):
    loaders = on_told_ranks(2, Packed, num_workers=num_workers)
    seen = flat(take(loader, 2) for loader in loaders)
    states = [loader.state_dict() for loader in loaders]
    whole = flat(flat(one_pass(loader)) for loader in on_told_ranks(2, Packed))
    rest: list[int] = []
    for loader in on_told_ranks(after, Packed, num_workers=2 - num_workers):
        loader.load_state_dict(states)
        rest += flat(one_pass(loader))
    assert sorted(seen + rest) == sorted(whole)


def test_one_rank_that_has_ended_does_not_end_the_epoch_of_all():
    loaders = on_told_ranks(7)
    ended = one_pass(loaders[1])  # its lane is empty
    assert ended == []
    seen = flat(take(loader, 1) for loader in loaders if loader is not loaders[1])
    states = [loader.state_dict() for loader in loaders]
    assert [state["finished"] for state in states].count(True) >= 1
    for order in (states, states[::-1], [states[1], *states[:1], *states[2:]]):
        (alone,) = on_told_ranks(1)
        alone.load_state_dict(order)
        assert sorted(seen + flat(one_pass(alone))) == EVERYTHING
        assert sorted(flat(one_pass(alone))) == EVERYTHING


def test_a_state_of_one_rank_serves_that_rank_only():
    loaders = on_told_ranks(2)
    for loader in loaders:
        take(loader, 2)
    first, second = (loader.state_dict() for loader in loaders)
    again = on_told_ranks(2)[1]
    again.load_state_dict(second)
    with pytest.raises(
        StateMismatchError, match=r"lanes of this rank: \[1, 3, 5\] of 7.*as a list"
    ):
        again.load_state_dict(first)
    with pytest.raises(StateMismatchError, match="missing"):
        on_told_ranks(3)[2].load_state_dict([first])
    assert again.state_dict() == second


def test_all_states_on_as_many_ranks_leave_each_where_it_was():
    loaders = on_told_ranks(3)
    for steps, loader in enumerate(loaders, start=1):
        take(loader, steps)
    states = [loader.state_dict() for loader in loaders]
    alone = on_told_ranks(3)
    together = on_told_ranks(3)
    for state, one, other in zip(states, alone, together, strict=True):
        one.load_state_dict(state)
        for order in (states, states[::-1]):
            other.load_state_dict(order)
            assert other.state_dict() == state
        assert one_pass(other) == one_pass(one)


def test_the_counters_of_other_ranks_are_those_of_the_rank_that_is_furthest():
    loaders = on_told_ranks(2)
    take(loaders[0], 1)
    take(loaders[1], 3)
    states = [loader.state_dict() for loader in loaders]
    for order in (states, states[::-1]):
        (alone,) = on_told_ranks(1)
        alone.load_state_dict(order)
        assert alone.batches_processed == 3


def test_without_lanes_the_state_of_a_stream_is_of_its_rank_alone():
    ranks = [
        ResumableDataLoader(StatefulShards([9, 9]), 2, rank=rank, world_size=2, seed=1)
        for rank in (0, 1)
    ]
    take(ranks[0], 2)
    state = ranks[0].state_dict()
    with pytest.raises(StateMismatchError, match=r"rank 0 alone, this is rank 1"):
        ranks[1].load_state_dict(state)
    ranks[0].load_state_dict(state)


def test_states_that_are_not_of_one_moment_are_refused():
    loaders = on_told_ranks(2)
    early, other_seed = on_told_ranks(2)[1], on_told_ranks(2, seed=4)[1]
    other_lanes = on_told_ranks(2, lanes=9)[1]
    one_pass(loaders[1])
    take(loaders[1], 1)
    take(loaders[0], 1)
    state = loaders[0].state_dict()
    (alone,) = on_told_ranks(1)
    for loader in (loaders[1], other_seed, other_lanes):
        with pytest.raises(StateFormatError, match="different runs or moments"):
            alone.load_state_dict([state, loader.state_dict()])
    later = on_told_ranks(2)[0]
    take(later, 2)
    with pytest.raises(StateFormatError, match="disagree on a lane"):
        alone.load_state_dict([state, later.state_dict(), early.state_dict()])
    by_index = ResumableDataLoader(range(9), seed=3)
    for states in ([by_index.state_dict()], [state, by_index.state_dict()]):
        with pytest.raises(StateError):
            alone.load_state_dict(states)
    with pytest.raises(StateFormatError):
        alone.load_state_dict([])
    alone.load_state_dict([state, early.state_dict()])


def test_without_lanes_a_rank_reads_what_its_dataset_gives():
    for rank in range(2):
        loader = ResumableDataLoader(Shards([3]), rank=rank, world_size=2)
        assert flat(one_pass(loader)) == [0, 1, 2]


def test_fewer_lanes_than_ranks_leave_some_without_data():
    found = [flat(one_pass(loader)) for loader in on_told_ranks(3, lanes=2, tail="uneven")]
    assert found[2] == []
    assert sorted(flat(found)) == EVERYTHING


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rank_without_lanes_resumes_and_delivers_nothing(num_workers):
    options = {"lanes": 2, "tail": "uneven", "num_workers": num_workers}
    loaders = on_told_ranks(3, **options)
    for begun in (False, True):
        seen = flat(take(loader, 2 * begun) for loader in loaders)
        states = [loader.state_dict() for loader in loaders]
        assert states[2]["lanes"]["each"] == {}
        resumed = on_told_ranks(3, **options)
        for loader, state in zip(resumed, states, strict=True):
            loader.load_state_dict(state)
            assert loader.state_dict() == state
        rest = [flat(one_pass(loader)) for loader in resumed]
        assert rest[2] == []
        assert sorted(seen + flat(rest)) == EVERYTHING
        for order in (states, states[::-1]):
            (alone,) = on_told_ranks(1, **options)
            alone.load_state_dict(order)
            assert sorted(seen + flat(one_pass(alone))) == EVERYTHING


def test_ending_together_needs_a_process_group():
    loader = on_told_ranks(2, tail="drop")[0]
    with pytest.raises(TopologyError, match=r"init_process_group.*uneven"):
        one_pass(loader)
    (alone,) = on_told_ranks(1, tail="drop")
    assert sorted(flat(one_pass(alone))) == EVERYTHING


def drop_together(rank: int, options: dict) -> dict[str, Any]:
    loader = ResumableDataLoader(StatefulShards(LENGTHS), tail="drop", **options)
    epochs = passes(loader, 3)
    # Once more, and saved on the way.
    batches, state = [], None
    for batch in loader:
        batches.append(plain(batch))
        if len(batches) == 2:
            state = loader.state_dict()
    resumed = ResumableDataLoader(StatefulShards(LENGTHS), tail="drop", **options)
    resumed.load_state_dict(state)
    return {"epochs": epochs, "batches": batches, "rest": passes(resumed, 2), "state": state}


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_all_ranks_of_a_group_end_at_the_same_step(num_workers):
    options = {"lanes": 4, "batch_size": 2, "num_workers": num_workers}
    options["persistent_workers"] = num_workers > 0
    answers = on_ranks(2, drop_together, options)
    for answer in answers:
        first, *others = answer["epochs"]
        assert others == [first, first]  # what was cut off is not the next epoch's beginning
        assert answer["batches"] == first
        assert answer["rest"] == [first[2:], first]
    lengths = {len(answer["epochs"][0]) for answer in answers}
    assert len(lengths) == 1
    own = [one_pass(loader) for loader in on_told_ranks(2, lanes=4, tail="uneven")]
    assert lengths == {min(map(len, own))}
    assert [answer["epochs"][0] for answer in answers] == [share[: min(lengths)] for share in own]


def deliver_lanes(rank: int, states: list | None, steps: int) -> dict[str, Any]:
    loader = ResumableDataLoader(OwnIterator(LENGTHS), batch_size=2, lanes=7)
    if states is not None:
        loader.load_state_dict(states)
    taken = [plain(batch) for batch in itertools.islice(loader, steps)]
    return {"batches": taken, "state": loader.state_dict()}


def test_a_group_is_followed_by_one_of_another_size():
    first = on_ranks(2, deliver_lanes, None, 3)
    states = [answer["state"] for answer in first]
    assert states[0]["seed"] == states[1]["seed"]
    second = on_ranks(3, deliver_lanes, states, 99)
    both = flat(flat(answer["batches"]) for answer in [*first, *second])
    assert sorted(both) == EVERYTHING


def interrupted_on_one_rank(rank: int, moments: int, calls_in: str) -> tuple[list[list[Any]], int]:
    """Read epochs; in each one, rank 0 is interrupted in its second step, later and later."""
    signal.signal(signal.SIGALRM, raise_tick)
    options = {"lanes": 4, "tail": "drop", "seed": 3}
    loader = ResumableDataLoader(StatefulShards(LENGTHS), 2, **options)
    epochs, times = [], 0
    for moment in range(moments):
        batches = iter(loader)
        got = [plain(next(batches))]
        if rank == 0:
            ask = partial(interrupted, after_calls_in=calls_in)
            times += ask(lambda: got.append(plain(next(batches))), moment)
        epochs.append(got + [plain(batch) for batch in batches])
    return epochs, times


@pytest.mark.parametrize(
    ("moments", "calls_in", "least"),
    [(60, "", 20), (12, "sharing.py", 4)],
    ids=["everywhere", "while ranks are asked"],
)
def test_a_rank_that_is_interrupted_in_a_step_makes_the_steps_that_the_others_make(
    moments, calls_in, least
):
    (first, times), (second, _) = on_ranks(2, interrupted_on_one_rank, moments, calls_in)
    (first_whole, _), (second_whole, _) = on_ranks(2, interrupted_on_one_rank, 1, "")
    assert times > least
    assert {len(epoch) for epoch in first + second} == {len(first_whole[0])}
    assert all(epoch == first[-1] for epoch in first[1:])
    assert all(epoch == second[-1] for epoch in second[1:])
    assert first_whole[0][:1] == first[0][:1]
    assert second_whole == second[:1]
