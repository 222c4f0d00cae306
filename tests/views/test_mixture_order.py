"""The order of a mixture, compared with a model that goes from position to position."""

import functools
import json
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataporter.law import Permutation, Plan, ShuffledOrder, Topology, WeightedOrder, orders
from dataporter.law.keys import key_as_int
from dataporter.law.tracks import TracksOrder
from dataporter.views import Mixture
from dataporter.views.mixture_order import MixtureOrder, Part
from dataporter.views.segments import Segment, as_integers, continued, pattern_of
from dataporter.views.windows import WindowOrder

NAMES = "abcdef"
weights = st.integers(1, 9)


@st.composite
def mixtures(draw):
    """A mixture of ranges, its lengths and its schedule."""
    count = draw(st.integers(1, 5))
    lengths = {name: draw(st.integers(1, 30)) for name in NAMES[:count]}
    starts = sorted({0, *draw(st.lists(st.integers(1, 150), max_size=3))})
    schedule = [
        (start, {name: draw(weights) for name in draw(st.permutations(sorted(lengths)))})
        for start in starts
    ]
    # Some parts are not drawn for a while.
    schedule = [
        (start, dict(list(each.items())[: draw(st.integers(1, len(each)))]))
        for start, each in schedule
    ]
    epoch = draw(st.integers(1, 90))
    return lengths, schedule, epoch


def make(lengths, schedule, epoch, **options):
    parts = {name: (range(length), 1.0) for name, length in lengths.items()}
    return Mixture(parts, schedule=schedule, epoch=epoch, **options)


def order_of(mixture, seed=1, step_size=4, world_size=1):
    given = {"step_size": step_size, "world_size": world_size}
    return mixture.epoch_order(shuffle=True, seed=seed, **given)


def model(lengths, schedule, samples, seed=1, *, group=1, epoch=10**9):
    """Walk through a run, one position at a time."""
    offsets = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
    drawn = dict.fromkeys(lengths, 0)
    found = []
    segment, turn, left = None, 0, 0
    for position in range(samples):
        if left == 0 or position % epoch == 0:  # a turn ends with its epoch
            start, now = [entry for entry in schedule if entry[0] <= position][-1]
            segment, turn = (start, 0) if start != segment else (segment, turn + 1)
            left = group
            turns = dict(zip(now, as_integers(list(now.values())), strict=True))
            pattern = pattern_of(tuple(turns.get(name, 0) for name in lengths))
            name = list(lengths)[pattern.who[turn % len(pattern.who)]]
        left -= 1
        own_epoch, own = divmod(drawn[name], lengths[name])
        order = ShuffledOrder(lengths[name], key_as_int("part", seed, name))
        index = int(order.indices(own_epoch, np.array([own]))[0])
        found.append(offsets[name] + index)
        drawn[name] += 1
    return found


def run_of(order, samples):
    positions = np.arange(samples)
    epochs, at = np.divmod(positions, order.length)
    return [
        int(order.indices(int(epoch), np.array([where]))[0])
        for epoch, where in zip(epochs, at, strict=True)
    ]


@settings(max_examples=40)  # each walks through a run
@given(mixture=mixtures(), group=st.integers(1, 5))
def test_every_position_is_what_a_walk_from_the_start_finds(mixture, group):
    lengths, schedule, epoch = mixture
    options = {"batches_from": "one"} if group > 1 else {}
    order = order_of(make(*mixture, **options), step_size=group)
    assert run_of(order, 200) == model(lengths, schedule, 200, group=group, epoch=epoch)


@given(mixture=mixtures(), data=st.data())
def test_positions_may_be_asked_for_in_any_order_and_number(mixture, data):
    order = order_of(make(*mixture))
    epoch = data.draw(st.integers(0, 5))
    whole = order.indices(epoch, np.arange(order.length))
    some = data.draw(st.lists(st.integers(0, order.length - 1), max_size=20))
    assert order.indices(epoch, np.array(some, dtype=np.int64)).tolist() == whole[some].tolist()


@settings(max_examples=40)  # each walks through a run
@given(mixture=mixtures())
def test_each_part_is_read_whole_before_any_of_it_comes_again(mixture):
    lengths, _, _ = mixture
    found = run_of(order_of(make(*mixture)), 300)
    ends = np.cumsum(list(lengths.values()))
    for number, length in enumerate(lengths.values()):
        first = int(ends[number]) - length
        own = [index - first for index in found if first <= index < ends[number]]
        for start in range(0, len(own) - length + 1, length):
            assert sorted(own[start : start + length]) == list(range(length))


@given(mixture=mixtures(), group=st.integers(1, 5), data=st.data())
def test_the_positions_of_draws_are_found_from_these(mixture, group, data):
    order = order_of(make(*mixture, batches_from="one"), step_size=group)
    at = np.array(data.draw(st.lists(st.integers(0, 10_000), min_size=1, max_size=20)))
    parts, draws = order._places.places(at)
    for part in np.unique(parts).tolist():
        there = parts == part
        assert order._places.positions_of(part, draws[there]).tolist() == at[there].tolist()


@given(mixture=mixtures(), group=st.integers(1, 5), position=st.integers(0, 400))
def test_counts_are_those_of_the_run(mixture, group, position):
    lengths, _, _ = mixture
    order = order_of(make(*mixture, batches_from="one"), step_size=group)
    ends = np.cumsum(list(lengths.values()))
    parts = np.searchsorted(ends, run_of(order, position), side="right")
    expected = np.bincount(parts, minlength=len(lengths)).tolist()
    epoch, at = divmod(position, order.length)
    assert list(order.counts(epoch, at).values()) == expected


@settings(max_examples=40)  # each walks through a run
@given(
    mixture=mixtures(),
    group=st.integers(1, 4),
    rows=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    epoch=st.integers(0, 3),
)
def test_blocks_of_a_part_are_in_use_where_they_are_read(mixture, group, rows, epoch):
    order = order_of(make(*mixture, batches_from="one"), step_size=group)
    parts = {
        name: Part(TracksOrder(np.array(rows), 2, seed=3, leaf=LEAVES[number % 2]), sum(rows))
        for number, name in enumerate(order.parts)
    }
    order = replace(order, parts=parts)
    check_reads(order, epoch, rows)


LEAVES = ("one corpus", "another")  # of parts in turns: a leaf may be read by several


def check_reads(order, epoch, rows):
    """Compare with the indices which blocks are read where, for each of two leaves in turns."""
    indices = order.indices(epoch, np.arange(order.length))
    for number, leaf in enumerate(LEAVES):
        is_read = indices // sum(rows) % 2 == number
        blocks = np.searchsorted(np.cumsum(rows), indices % sum(rows), side="right")
        places, read = order.reads(leaf, epoch, np.arange(order.length))
        assert places.tolist() == np.flatnonzero(is_read).tolist()
        assert read.tolist() == blocks[is_read].tolist()
        uses = order.uses(leaf, epoch)
        for position in places.tolist():
            there = uses.blocks == blocks[position]
            assert np.any((uses.first[there] <= position) & (position <= uses.last[there]))
        assert np.all(np.diff(uses.first) >= 0)
        assert np.all((uses.first <= uses.last) & (uses.last < order.length))
        assert set(uses.blocks.tolist()) >= set(read.tolist())


@settings(max_examples=40)  # each walks through a run
@given(
    mixture=mixtures(),
    inner=mixtures(),
    rows=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    epoch=st.integers(0, 3),
)
def test_blocks_of_a_mixture_within_a_mixture_are_in_use_where_they_are_read(
    mixture, inner, rows, epoch
):
    def leaf(number):
        return Part(TracksOrder(np.array(rows), 2, seed=3, leaf=LEAVES[number % 2]), sum(rows))

    order = order_of(make(*mixture))
    parts, number = {}, 0
    for name in order.parts:
        within = order_of(make(*inner))
        of_inner = {each: leaf(number + at) for at, each in enumerate(within.parts)}
        if len(parts) % 2:  # every other part is a mixture
            samples = sum(rows) * len(of_inner)
            parts[name] = Part(replace(within, parts=of_inner), samples)
            number += len(of_inner)
        else:
            parts[name] = leaf(number)
            number += 1
    check_reads(replace(order, parts=parts), epoch, rows)


@given(mixture=mixtures(), group=st.integers(1, 3), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_positions_in_any_sequence_have_what_they_have_one_by_one(mixture, group, seed, epoch):
    order = order_of(make(*mixture, batches_from="one"), step_size=group)
    parts = {
        name: Part(TracksOrder(np.array([2, 3]), 2, seed=3, leaf=LEAVES[number % 2]), 5)
        for number, name in enumerate(order.parts)
    }
    order = replace(order, parts=parts)
    positions = np.random.default_rng(seed).integers(0, order.length, 30)
    whole = order.indices(epoch, np.arange(order.length))
    assert order.indices(epoch, positions).tolist() == whole[positions].tolist()
    for leaf in LEAVES:
        of_all = dict(zip(*order.reads(leaf, epoch, np.arange(order.length)), strict=True))
        places, blocks = order.reads(leaf, epoch, positions)
        expected = [at for at, position in enumerate(positions.tolist()) if position in of_all]
        assert places.tolist() == expected
        assert blocks.tolist() == [of_all[position] for position in positions[places].tolist()]


def calls_of(function, *arguments):
    """Count the functions that Python calls, those of C too."""
    count = 0

    def count_calls(_, event, __):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(count_calls)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return count


def test_a_leaf_of_fifty_parts_is_read_with_as_many_calls_as_one_of_four():
    def calls(count):
        parts = {
            f"part {number:02}": Part(TracksOrder(np.full(40, 25), 8, leaf=str(number)), 1000)
            for number in range(count)
        }
        turns = dict.fromkeys(parts, 1)
        order = MixtureOrder(parts, (Segment(0, turns),), 10_000)
        order.reads("0", 0, np.arange(1024))  # sets up the epoch
        return calls_of(order.reads, "0", 0, np.arange(1024))

    assert calls(50) - calls(4) <= 46 * 2  # each part is asked for its leaves


@given(mixture=mixtures(), world_size=st.integers(1, 5), batch=st.integers(1, 6))
def test_ranks_share_every_step_without_loss(mixture, world_size, batch):
    order = order_of(make(*mixture))
    taken = []
    for rank in range(world_size):
        topology = Topology(rank=rank, world_size=world_size)
        plan = Plan(length=order.length, batch_size=batch, topology=topology, tail="uneven")
        for positions in plan.blocks(0, lambda positions: order.deal(0, positions)):
            taken += positions.tolist()
    assert sorted(taken) == list(range(order.length))


def test_every_rank_has_its_share_of_every_part():
    mixture = make({"a": 1000, "b": 1000}, [(0, {"a": 1, "b": 1})], 512)
    order = order_of(mixture)
    for rank in range(2):
        plan = Plan(length=512, batch_size=16, topology=Topology(rank=rank, world_size=2))
        for positions in plan.batches(0, lambda positions: order.deal(0, positions)):
            of_a = np.count_nonzero(order.indices(0, positions) < 1000)
            assert 6 <= of_a <= 10  # by stride, a rank would have one part only


@given(
    mixture=mixtures(),
    batch=st.integers(1, 7),
    world_size=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_a_batch_from_one_part_is_from_one_part_on_any_ranks_in_any_epoch(
    mixture, batch, world_size, epoch
):
    lengths, _, _ = mixture
    options = {"step_size": batch * world_size, "world_size": world_size}
    order = order_of(make(*mixture, batches_from="one"), **options)
    ends = np.cumsum(list(lengths.values()))
    for rank in range(world_size):
        topology = Topology(rank=rank, world_size=world_size)
        tail = "uneven" if world_size == 1 else "drop"  # ranks share a short step sample by sample
        plan = Plan(length=order.length, batch_size=batch, topology=topology, tail=tail)
        for positions in plan.batches(0, functools.partial(order.deal, epoch)):
            parts = np.searchsorted(ends, order.indices(epoch, positions), side="right")
            assert len(set(parts.tolist())) == 1


# Resumes


@settings(max_examples=40)  # each walks through a run
@given(mixture=mixtures(), later=st.data(), at=st.integers(1, 200))
def test_other_weights_hold_from_the_resume_on_and_nothing_is_repeated_or_skipped(
    mixture, later, at
):
    lengths, schedule, epoch = mixture
    saved = order_of(make(*mixture))
    new = {name: later.draw(weights) for name in lengths}
    now = order_of(make(lengths, [(0, new)], later.draw(st.integers(1, 90))))
    epoch, position = divmod(at, saved.length)
    assert now.resumed(saved.id).id == saved.id
    resumed = now.resumed(saved.id).continued(epoch, position)
    past = [entry for entry in schedule if entry[0] < at]
    assert run_of(resumed, 300) == model(lengths, [*past, (at, new)], 300) or past[-1][1] == new


@settings(max_examples=40)  # each walks through a run
@given(mixture=mixtures(), at=st.integers(0, 200))
def test_a_resume_with_the_same_weights_changes_nothing(mixture, at):
    saved, now = order_of(make(*mixture)), order_of(make(*mixture))
    resumed = now.resumed(saved.id).continued(*divmod(at, saved.length))
    assert run_of(resumed, 300) == run_of(saved, 300)
    assert resumed.id == saved.id


@settings(max_examples=40)  # each walks through a run
@given(mixture=mixtures(), at=st.lists(st.integers(1, 60), min_size=1, max_size=4), data=st.data())
def test_chains_of_resumes_with_changes_are_one_run(mixture, at, data):
    lengths, schedule, _ = mixture
    order, position, expected = order_of(make(*mixture)), 0, list(schedule)
    for step in at:
        position += step
        added = NAMES[len(lengths)] if data.draw(st.booleans()) and len(lengths) < 6 else None
        if added:
            lengths = {**lengths, added: data.draw(st.integers(1, 30))}
        new = {name: data.draw(weights) for name in lengths}
        now = order_of(make(lengths, [(0, new)], 5))
        assert now.resumed(order.id).id == order.id
        order = now.resumed(order.id).continued(*divmod(position, order.length))
        past = [entry for entry in expected if entry[0] < position]
        kept = as_integers(list(past[-1][1].values())) == as_integers(list(new.values()))
        is_same = kept and list(past[-1][1]) == list(new)
        expected = past if is_same else [*past, (position, new)]
    assert run_of(order, 300) == model(lengths, expected, 300)


def test_a_part_with_other_data_is_not_taken_for_the_same():
    saved = order_of(make({"a": 10, "b": 10}, [(0, {"a": 1, "b": 1})], 20))
    other = order_of(make({"a": 10, "b": 11}, [(0, {"a": 1, "b": 1})], 20))
    assert other.resumed(saved.id).id != saved.id


def test_a_removed_part_is_another_order_and_the_others_go_on():
    lengths = {"a": 10, "b": 15, "c": 5}
    saved = order_of(make(lengths, [(0, {"a": 1, "b": 2, "c": 1})], 40))
    now = order_of(make({"a": 10, "b": 15}, [(0, {"a": 1, "b": 1})], 40))
    assert now.resumed(saved.id).id != saved.id
    resumed = now.resumed(saved.id).continued(0, 20)
    before = run_of(saved, 20)
    later = [int(index) for index in resumed.indices(0, np.arange(20, 40))]
    drawn = [sum(index < 10 for index in before), sum(10 <= index < 25 for index in before)]
    expected = model({"a": 10, "b": 15}, [(0, {"a": 1, "b": 1})], 400)
    own = [[i for i in expected if (i < 10) == is_a] for is_a in (True, False)]
    assert [i for i in later if i < 10] == own[0][drawn[0] : drawn[0] + 10]
    assert [i for i in later if i >= 10] == own[1][drawn[1] : drawn[1] + 10]


def test_a_part_that_was_removed_from_a_mixture_within_a_mixture_is_named():
    def nested(names):
        inner = make(dict.fromkeys(names, 10), [(0, dict.fromkeys(names, 1))], 10 * len(names))
        return order_of(Mixture({"z": (range(50), 1.0), "inner": (inner, 1.0)}, epoch=40))

    saved, now = nested("abc"), nested("ab")
    resumed = now.resumed(saved.id)
    removed = [at for at, index in enumerate(run_of(saved, 40)) if index >= 70]
    for at in range(40):
        reason = resumed.reason_removed(0, np.array([at]))
        assert (reason is not None) == (at in removed)
        assert reason is None or "a sample of part 'c', which was removed" in reason
    assert resumed.reason_removed(0, np.arange(40)) == resumed.reason_removed(0, np.array(removed))


@given(text=st.text(max_size=30), data=st.data())
def test_damaged_names_of_orders_are_no_orders(text, data):
    order = order_of(make({"a": 5, "b": 3}, [(0, {"a": 2, "b": 1})], 9))
    described = json.loads(order.id.partition(" ")[2])
    key = data.draw(st.sampled_from(sorted(described)))
    for value in (text, None, -1, [], {}):
        damaged = f"mixture-1 {json.dumps({**described, key: value})}"
        found = order.resumed(damaged)
        assert found.id == order.id or found.length > 0 == found.segments[0].start


def test_names_of_orders_whose_weights_begin_out_of_order_are_no_orders():
    order = order_of(make({"a": 5, "b": 3}, [(0, {"a": 2, "b": 1}), (9, {"b": 1})], 20))
    described = json.loads(order.id.partition(" ")[2])
    (_, *early), (_, *late) = described["weights"]
    other = make({"a": 5, "b": 3}, [(0, {"a": 1, "b": 1})], 30)
    for starts, is_order in (((0, 9), True), ((0, 0), False), ((9, 0), False), ((1, 9), False)):
        weights = [[starts[0], *early], [starts[1], *late]]
        name = f"mixture-1 {json.dumps({**described, 'weights': weights})}"
        assert (order_of(other).resumed(name).length == 20) is is_order


def test_segments_that_would_begin_at_the_same_position_replace_each_other():
    old, new = Segment(0, {"a": 1}), Segment(0, {"a": 2, "b": 1})
    assert continued([old], [new], 0) == [new]


def test_seeds_give_other_orders_of_the_parts_and_the_same_shares():
    order = order_of(make({"a": 50, "b": 50}, [(0, {"a": 1, "b": 1})], 60))
    other = order.with_seed(2)
    positions = np.arange(60)
    assert order.indices(0, positions).tolist() != other.indices(0, positions).tolist()
    assert (order.indices(0, positions) < 50).tolist() == (
        other.indices(0, positions) < 50
    ).tolist()
    assert replace(order).id == other.id


# Many parts


KINDS = {
    "tracks": lambda seed: TracksOrder(np.full(50, 20), tracks=4, seed=seed),
    "windows": lambda seed: WindowOrder(
        np.full(50, 100), 5, 1000, tracks=4, shuffles=True, seed=seed, leaf="corpus"
    ),
    "shuffled": lambda seed: ShuffledOrder(1000, seed=seed),
    "by weights": lambda seed: WeightedOrder(np.ones(50), length=50, replacement=False, seed=seed),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [4, 5, 50])
def test_what_is_computed_of_an_epoch_is_kept_with_each_of_many_parts(monkeypatch, kind, count):
    made = []
    for its in (Permutation, "__post_init__"), (orders, "_waiting_order"):
        monkeypatch.setattr(*its, counting(made, getattr(*its)))
    names = [f"part {number}" for number in range(count)]
    parts = {name: Part(KINDS[kind](number), 10**9) for number, name in enumerate(names)}
    order = MixtureOrder(parts, (Segment(0, dict.fromkeys(names, 1)),), 10 * count)
    order = replace(order, seed=2)

    def read():
        for epoch in (0, 1, 0):
            order.indices(epoch, np.arange(order.length))
            order.deal(epoch, np.arange(order.length))

    read()
    first = len(made)
    assert first >= count
    read()
    assert len(made) == first


def counting(made, call):
    def counted(*arguments):
        made.append(call)
        return call(*arguments)

    return counted


def test_what_is_computed_is_no_part_of_an_order():
    for make in KINDS.values():
        order = make(3)
        before = len(pickle.dumps(order))
        order.indices(7, np.arange(20))
        assert len(pickle.dumps(order)) == before
        copy = pickle.loads(pickle.dumps(order))
        assert copy.indices(7, np.arange(20)).tolist() == order.indices(7, np.arange(20)).tolist()
        other = order.with_seed(4)
        found = [each.indices(7, np.arange(20)).tolist() for each in (other, make(4), order)]
        assert found[0] == found[1] != found[2]
    assert ShuffledOrder(9, seed=1) == ShuffledOrder(9, seed=1)
