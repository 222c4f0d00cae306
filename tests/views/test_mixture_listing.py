"""The order in which a dict lists a mixture's parts does not reach the data; nor does a detour."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain

from dataporter import ResumableDataLoader
from dataporter.errors import StateMismatchError, StateMismatchWarning
from dataporter.views import Mixture
from dataporter.views.segments import Segment, Segments

SAMPLES = {name: range(1000 * at, 1000 * at + 40) for at, name in enumerate("abcde", start=1)}
weights = st.sampled_from([1, 2, 3, 0.1, 1 / 3, 1 / 7])


def listed(draw, entries):
    """The same entries in another sequence."""
    return {name: entries[name] for name in draw(st.permutations(sorted(entries)))}


@st.composite
def pairs_of_mixtures(draw):
    """Two mixtures that list the same parts in different sequences."""
    names = "abcde"[: draw(st.integers(2, 5))]
    lengths = {name: draw(st.sampled_from([5, 20, 20, 30])) for name in names}
    shares = {name: draw(weights) for name in names}
    nested = dict.fromkeys(draw(st.sets(st.sampled_from(names), max_size=1)))
    late = {name: draw(weights) for name in draw(st.sets(st.sampled_from(names), min_size=1))}
    is_late = draw(st.booleans())
    options = {
        "epoch": draw(st.sampled_from(["longest", "shortest", "all", 50])),
        "batches_from": draw(st.sampled_from(["all", "one"])),
    }

    def inner(length):
        parts = {"x": (range(7000, 7000 + length), 1), "y": (range(8000, 8000 + length), 1)}
        return Mixture(listed(draw, parts))

    def make():
        parts = {
            name: (inner(length) if name in nested else SAMPLES[name][:length], shares[name])
            for name, length in lengths.items()
        }
        schedule = [(0, listed(draw, shares)), (30, listed(draw, late))] if is_late else None
        return Mixture(listed(draw, parts), schedule=schedule, **options)

    return make(), make()


def loader_of(mixture, batch_size=4, **options):
    return ResumableDataLoader(mixture, batch_size, **{"shuffle": True, "seed": 3, **options})


def flat(batches):
    return [sample for batch in batches for sample in plain(batch)]


def resumed(mixture, state, **load):
    loader = loader_of(mixture)
    loader.load_state_dict(json.loads(json.dumps(state)), **load)
    return loader


# Parts in another sequence


@settings(max_examples=60)
@given(pair=pairs_of_mixtures())
def test_mixtures_that_list_the_same_parts_are_the_same(pair):
    one, other = map(loader_of, pair)
    assert one.sampler.order.id == other.sampler.order.id
    assert [flat(one), flat(one)] == [flat(other), flat(other)]


def test_ranks_that_list_parts_in_another_sequence_share_every_sample_once():
    parts = {name: (samples, 1) for name, samples in SAMPLES.items()}
    listed = list(parts.items())
    sequences = [parts, dict(reversed(listed)), dict(listed[2:] + listed[:2])]
    loaders = [
        loader_of(Mixture(parts), rank=rank, world_size=3, tail="uneven")
        for rank, parts in enumerate(sequences)
    ]
    found = [sample for loader in loaders for sample in flat(loader)]
    assert sorted(found) == sorted(itertools.chain(*SAMPLES.values()))


def test_a_state_of_a_run_that_took_equals_as_they_were_listed_keeps_that():
    schedule = [(0, {"a": 1, "b": 1}), (35, {"a": 2, "b": 1, "c": 2}), (70, {"b": 1, "c": 1})]
    parts = {name: (SAMPLES[name], 1) for name in "abc"}
    loader = loader_of(Mixture(parts, schedule=schedule, epoch=90))
    order = loader.sampler.order
    earlier = tuple(
        Segment(each.start, dict(reversed(each.turns.items()))) for each in order.segments
    )
    old = replace(order, segments=earlier)
    positions = np.arange(90)
    assert old.indices(0, positions).tolist() != order.indices(0, positions).tolist()
    next(iter(loader))
    again = resumed(Mixture(parts, schedule=schedule), {**loader.state_dict(), "order": old.id})
    expected = old.indices(0, positions)[4:].tolist()
    assert [SAMPLES["abc"[at // 40]][at % 40] for at in expected] == flat(again)
    assert json.loads(again.state_dict()["order"].partition(" ")[2])["weights"] == [
        [each.start, dict(each.turns), 1] for each in earlier
    ]


# The end of an epoch


SCHEDULES = [
    # web alone, then code alone: all of code is read after 10 of web
    ([(0, {"a": 1}), (10, {"b": 1})], {"longest": 50, "shortest": 50, "all": 50}),
    ([(0, {"a": 1, "b": 1}), (20, {"b": 1})], {"longest": 50, "shortest": 50, "all": 50}),
    ([(0, {"a": 1}), (40, {"a": 1, "b": 1})], {"longest": 120, "shortest": 40, "all": 120}),
    ([(0, {"a": 3, "b": 1}), (20, {"a": 1, "b": 3})], {"longest": 120, "shortest": 66, "all": 120}),
    ([(0, {"b": 1}), (1000, {"a": 1})], {"longest": 1040, "shortest": 40, "all": 1040}),
]


@pytest.mark.parametrize(("schedule", "ends"), SCHEDULES)
def test_an_epoch_by_a_schedule_ends_where_the_parts_have_been_read(schedule, ends):
    parts = {name: (SAMPLES[name], 1) for name in "ab"}
    for epoch, length in ends.items():
        assert len(loader_of(Mixture(parts, schedule=schedule, epoch=epoch), 1)) == length


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    starts=st.sets(st.integers(1, 60), max_size=3),
    epoch=st.sampled_from(["longest", "shortest", "all"]),
    data=st.data(),
)
def test_an_epoch_is_as_long_as_a_walk_finds(lengths, starts, epoch, data):
    needed = dict(zip("abcd", lengths, strict=False))
    schedule = [
        (start, {name: data.draw(st.integers(1, 4)) for name in data.draw(some(sorted(needed)))})
        for start in [0, *sorted(starts)]
    ]
    parts = {name: (range(length), 1) for name, length in needed.items()}
    order = Mixture(parts, schedule=schedule, epoch=epoch).epoch_order(
        shuffle=True, seed=1, step_size=4, world_size=1
    )
    segments = [Segment(start, dict(sorted(each.items()))) for start, each in schedule]
    drawn, _ = Segments(segments, sorted(needed), 10**9).places(np.arange(1000))
    ends = {}
    for number, (name, length) in enumerate(sorted(needed.items())):
        at = np.flatnonzero(drawn == number)
        if len(at) >= length:
            ends[name] = int(at[length - 1]) + 1
    longest = max(needed[name] for name in ends)
    of_longest = [end for name, end in ends.items() if needed[name] == longest]
    walked = {
        "longest": max(of_longest),
        "shortest": min(ends.values()),
        "all": max(ends.values()),
    }
    slack = (len(starts) + 1) * 16  # of a period for each change of weights
    assert abs(order.length - walked[epoch]) <= slack


def some(names):
    return st.sets(st.sampled_from(names), min_size=1).map(sorted)


# A part that goes and comes back


def without(name, names="abc"):
    return Mixture({each: (SAMPLES[each], 1) for each in names if each != name}, epoch=90)


def whole(**other):
    return Mixture({**{name: (SAMPLES[name], 1) for name in "abc"}, **other}, epoch=90)


def run_without_b():
    """Batches with all parts, then with two of them; the state after that."""
    loader = loader_of(whole())
    before = flat(itertools.islice(loader, 6))
    with pytest.warns(StateMismatchWarning, match="order changed"):
        fewer = resumed(without("b"), loader.state_dict(), strict=False)
    return before + flat(itertools.islice(fewer, 3)), fewer.state_dict()


def test_a_part_that_was_removed_may_come_back_and_goes_on_where_it_was():
    before, state = run_without_b()
    back = resumed(whole(), state)
    assert back.samples_at(0, list(range(36))) == before  # its samples can be looked at again
    after = flat(back)
    found = before + after
    assert sum(sample // 1000 == 2 for sample in after) == 18
    assert len(set(found)) == len(found) == 90  # nothing comes twice
    again = resumed(whole(), back.state_dict())
    assert flat(again) == flat(back)


def test_a_state_that_does_not_say_what_a_removed_part_was_lets_it_come_back():
    before, state = run_without_b()
    name, _, described = state["order"].partition(" ")
    older = json.loads(described)
    del older["removed"]
    found = before + flat(resumed(whole(), {**state, "order": f"{name} {json.dumps(older)}"}))
    assert len(set(found)) == len(found) == 90


def test_other_data_under_the_name_of_a_removed_part_is_refused_by_name():
    _, state = run_without_b()
    other = whole(b=(range(9000, 9041), 1))
    with pytest.raises(StateMismatchError, match=r'"removed": \{"b": \["shuffled-1", 40'):
        resumed(other, state)
    renamed = Mixture({**{n: (SAMPLES[n], 1) for n in "ac"}, "b2": (range(9000, 9041), 1)})
    assert any(sample >= 9000 for sample in flat(resumed(renamed, state)))


def test_a_part_that_stays_removed_stays_known():
    _, state = run_without_b()
    fewer = resumed(without("b"), state)
    flat(fewer)
    assert flat(resumed(whole(), fewer.state_dict()))
