"""Lanes that other workers, a live loader or the next pass go on with."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import (
    CARRYING,
    WITH_STATE,
    WITHOUT_STATE,
    CarryingShards,
    IteratorShards,
    OwnIterator,
    Packed,
    Shards,
    StatefulShards,
    in_turn,
    loaded,
    reading_again,
    reference,
)
from support import one_pass, passes, plain

from dataporter import ResumableDataLoader

KINDS = [*WITH_STATE, *WITHOUT_STATE]
SOME_KINDS = [StatefulShards, OwnIterator, Packed, Shards]  # where workers make a test slow
LENGTHS = [9, 0, 12, 2, 1]


lengths = st.lists(st.integers(0, 7), min_size=1, max_size=5)


@settings(max_examples=8)
@given(
    kind=st.sampled_from([*KINDS, *CARRYING]),
    lengths=lengths,
    size=st.integers(1, 3),
    lanes=st.integers(1, 4),
    before=st.sampled_from([0, 1, 2, 4]),
    after=st.sampled_from([0, 1, 2, 3, 4]),
    persistent=st.booleans(),
    data=st.data(),
)
def test_any_number_of_workers_delivers_and_resumes_the_same(
    kind, lengths, size, lanes, before, after, persistent, data
):
    options = {"batch_size": size, "lanes": lanes}
    # Workers that end with their epoch begin the next one with a dataset as it was made.
    first = {**options, "num_workers": before, "persistent_workers": persistent and before > 0}
    batches, states = reference(kind(lengths, noisy=True), 2, **first)
    inline, _ = reference(kind(lengths, noisy=True), 2, **options)
    assert batches[0] == inline[0]
    carries = before == 0 or first["persistent_workers"]
    if carries or kind not in CARRYING:
        assert batches == inline
    k = data.draw(st.integers(0, len(batches[0])))
    second = {**options, "num_workers": after, "persistent_workers": carries and after > 0}
    resumed = loaded(states[0][k] if k else states[0][0], kind(lengths, noisy=True), **second)
    rest, following = passes(resumed, 2)
    assert rest == inline[0][k:]
    if carries or kind not in CARRYING:
        assert following == inline[1]


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize(("before", "after"), [(2, 0), (2, 3), (3, 2), (1, 2), (0, 2)])
def test_lanes_move_to_other_workers(kind, before, after):
    batches, states = reference(
        kind(LENGTHS, noisy=True), 1, batch_size=2, num_workers=before, lanes=None
    )
    for k in (1, len(batches[0]) - 1):
        resumed = loaded(
            states[0][k],
            kind(LENGTHS, noisy=True),
            batch_size=2,
            num_workers=after,
            persistent_workers=after > 0 and k == 1,
        )
        rest, again = passes(resumed, 2)
        assert rest == batches[0][k:]
        assert len(again) == len(batches[0])


def test_lanes_that_ended_before_the_save_stay_ended():
    lengths = [9, 1, 0, 4]  # by lane
    options = {"batch_size": 2, "num_workers": 2, "lanes": 4}
    expected = in_turn(lengths, 4, 2)
    for kind in (OwnIterator, Shards, StatefulShards):
        batches, states = reference(kind(lengths), 1, **options)
        assert batches == [expected]
        for k in range(len(expected) + 1):
            state = states[0][k]
            resumed = loaded(state, kind(lengths), **{**options, "num_workers": 2 * (k == 4)})
            assert passes(resumed, 2) == [expected[k:], expected]
    assert [lane["ended"] for lane in states[0][4]["lanes"]["each"].values()] == [0, 1, 1, 0]


def test_what_was_asked_for_ahead_of_an_end_is_not_in_the_state():
    options = {"batch_size": 2, "num_workers": 2, "lanes": 2, "prefetch_factor": 8}
    _, ahead = reference(OwnIterator([1, 30]), 1, **options)
    _, inline = reference(OwnIterator([1, 30]), 1, batch_size=2, lanes=2)
    assert [state["lanes"] for state in ahead[0][2:]] == [s["lanes"] for s in inline[0][2:]]


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_chain_of_saves_and_resumes_is_one_run(kind, num_workers):
    options = {"batch_size": 2, "lanes": 3, "num_workers": num_workers}
    (expected,), states = reference(kind(LENGTHS, noisy=True), 1, **options)
    state, delivered = states[0][0], []
    for steps in (1, 0, 2, 1, 99):
        loader = loaded(state, kind(LENGTHS, noisy=True), **options)
        assert loader.state_dict() == state
        for _, batch in zip(range(steps), loader, strict=False):
            delivered.append(plain(batch))
        state = loader.state_dict() if steps else state
    assert delivered == expected


@pytest.mark.parametrize("kind", [*SOME_KINDS, *CARRYING])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_loading_into_a_live_loader_is_loading_into_a_new_one(kind, num_workers):
    options = {"batch_size": 2, "lanes": 2, "num_workers": num_workers}
    options["persistent_workers"] = num_workers > 0
    batches, states = reference(kind(LENGTHS), 3, **options)
    live = ResumableDataLoader(kind(LENGTHS), seed=3, **options)
    for epoch, k in [(1, 2), (0, 0), (0, 3), (1, len(batches[1])), (0, 1)]:
        for _, _ in zip(range(3), live, strict=False):
            pass
        with reading_again(kind):
            live.load_state_dict(states[epoch][k + (k > 0 and k == len(batches[epoch]))])
        if k < len(batches[epoch]):
            assert one_pass(live) == batches[epoch][k:]
        assert one_pass(live) == batches[epoch + 1]
    running = iter(live)
    next(running)
    with reading_again(kind):
        live.load_state_dict(states[1][1])
    assert [plain(batch) for batch in running] == batches[1][1:]
    assert one_pass(live) == batches[2]


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_pass_that_is_broken_off_is_followed_by_a_full_one(kind, num_workers, persistent):
    options = {"batch_size": 2, "lanes": 2, "num_workers": num_workers}
    options["persistent_workers"] = persistent and num_workers > 0
    loader = ResumableDataLoader(kind(LENGTHS), seed=3, **options)
    full = len(one_pass(loader))
    for steps in (1, 2, 4, 1):
        for _, _ in zip(range(steps), loader, strict=False):
            pass
        del _
        batches = one_pass(loader)
        assert len(batches) == full
    resumed = ResumableDataLoader(kind(LENGTHS), seed=3, **options)
    next(iter(resumed))
    state = resumed.state_dict()
    with reading_again(kind):
        resumed.load_state_dict(state)
    next(iter(resumed))  # of a resumed pass as well
    assert len(one_pass(resumed)) == full


@pytest.mark.parametrize("kind", CARRYING)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_after_one_that_was_broken_off_begins_as_that_one_did(kind, num_workers):
    options = {"batch_size": 2, "lanes": 2, "num_workers": num_workers}
    options["persistent_workers"] = num_workers > 0
    batches, _ = reference(kind([6, 5]), 2, **options)
    loader = ResumableDataLoader(kind([6, 5]), seed=3, **options)
    assert one_pass(loader) == batches[0]
    for k in (1, 3):
        started = iter(loader)
        assert [plain(next(started)) for _ in range(k)] == batches[1][:k]
        del started
    running = iter(loader)
    first = plain(next(running))  # of one lane: the state has to know of the other as well
    state = loader.state_dict()
    assert [first, *map(plain, running)] == batches[1]
    resumed = loaded(state, kind([6, 5]), **options)
    assert one_pass(resumed) == batches[1][1:]


# In one process, iterators over a dataset that itself knows the place share that place.
@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [(Shards, 0), (IteratorShards, 0), (Shards, 2), (IteratorShards, 2), (StatefulShards, 2)],
)
def test_live_iterators_do_not_disturb_each_other(kind, num_workers):
    lengths = [6, 5]
    options = {"batch_size": 2, "lanes": 2, "num_workers": num_workers}
    options["persistent_workers"] = num_workers > 0
    loader = ResumableDataLoader(kind(lengths), seed=3, **options)
    expected = in_turn(lengths, 2, 2)
    one = iter(loader)
    delivered: list[list] = [[plain(next(one))], []]
    two = iter(loader)
    for batches, running in ((1, two), (0, one), (1, two), (0, one)):
        delivered[batches].append(plain(next(running)))
    assert delivered == [expected[:3], expected[:2]]
    state = loader.state_dict()
    assert [plain(batch) for batch in two] == expected[2:]
    assert one_pass(loaded(state, kind(lengths), **options)) == expected[2:]
    assert [plain(batch) for batch in one] == expected[3:]
    assert one_pass(loader) == expected


def test_a_second_live_iterator_begins_its_epoch_with_what_the_datasets_carry():
    options = {"batch_size": 2, "num_workers": 2, "persistent_workers": True}
    batches, _ = reference(CarryingShards([6, 5]), 2, **options)
    loader = ResumableDataLoader(CarryingShards([6, 5]), seed=3, **options)
    one_pass(loader)
    one = iter(loader)
    next(one)
    assert one_pass(loader) == batches[1]


def test_the_end_of_an_older_iterator_is_not_the_end_of_the_run():
    options = {"batch_size": 2, "num_workers": 2, "persistent_workers": True}
    batches, _ = reference(CarryingShards([6, 5]), 2, **options)
    loader = ResumableDataLoader(CarryingShards([6, 5]), seed=3, **options)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    assert [plain(batch) for batch in newer] == batches[0]  # as it began, for it was broken off
    next(older)
    state = loader.state_dict()
    list(older)
    assert plain(loader.state_dict()) == plain(state)
    assert one_pass(loader) == batches[1]
