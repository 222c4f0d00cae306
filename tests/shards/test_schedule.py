"""What comes next follows from the order alone; what is evicted is what Belady would evict."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracks_order import SideBySide

from dataporter.law import Plan, Topology
from dataporter.law.tracks import ShuffledBlocks, TracksOrder
from dataporter.shards.cache import NEVER, BlockCache, NoRoomError
from dataporter.shards.schedule import (
    NO_BLOCK,
    Lookahead,
    Standing,
    distances,
    most_in_use,
    needs,
)
from dataporter.views.mixture_order import MixtureOrder, Part
from dataporter.views.segments import Segment

orders = st.builds(
    SideBySide,
    blocks=st.integers(1, 12),
    rows=st.integers(1, 9),
    tracks=st.integers(1, 4),
    seed=st.integers(0, 99),
)


def standing(order, *, epoch=0, start=0, stop=None, batch=2, rank=0, world=1, tail="pad"):
    plan = Plan(
        length=order.length,
        batch_size=batch,
        topology=Topology(rank=rank, world_size=world),
        tail=tail,
    )
    return Standing(order, plan, epoch, start, order.length if stop is None else stop)


# Needs


@given(orders, st.data())
def test_needs_are_the_blocks_of_the_rank_by_first_use(order, data):
    world = data.draw(st.integers(1, 3))
    rank = data.draw(st.integers(0, world - 1))
    start = data.draw(st.integers(0, order.length - 1))
    now = standing(order, epoch=3, start=start, rank=rank, world=world)
    expected = []
    for epoch, begin in ((3, start), (4, 0), (5, 0)):
        seen = set()
        for batch in now.plan.batches(begin):
            for position in batch:
                block = int(order.indices(epoch, np.array([position]))[0]) // order.rows
                if block not in seen:
                    seen.add(block)
                    expected.append((block, (epoch - 3) * order.length + int(position)))
    found = list(itertools.islice(needs(order.blocks, now), len(expected)))
    assert found == expected


@given(
    late=st.integers(1, 200),
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    data=st.data(),
)
def test_needs_of_a_part_that_is_read_late_are_found_however_far_ahead(late, rows, data):
    parts = {
        name: Part(TracksOrder(np.array(rows), 2, seed=1, leaf=name), sum(rows)) for name in "ab"
    }
    segments = (Segment(0, {"a": 1}), Segment(late, {"a": 1, "b": 2}))
    order = MixtureOrder(parts, segments, data.draw(st.integers(1, 60)))
    world = data.draw(st.integers(1, 3))
    start = data.draw(st.integers(0, order.length - 1))
    now = standing(order, start=start, rank=data.draw(st.integers(0, world - 1)), world=world)
    expected, epochs = [], late // order.length + 3
    for epoch, begin in [(0, start), *((epoch, 0) for epoch in range(1, epochs))]:
        seen = set()
        for batch in now.plan.batches(begin, functools.partial(order.deal, epoch)):
            places, blocks = order.reads("b", epoch, batch)
            for place, block in zip(places.tolist(), blocks.tolist(), strict=True):
                if block not in seen:
                    seen.add(block)
                    expected.append((block, epoch * order.length + int(batch[place])))
    found = (need for need in needs(len(rows), now._replace(leaf="b")) if need.block != NO_BLOCK)
    if expected:
        assert list(itertools.islice(found, len(expected))) == expected


def test_an_epoch_without_positions_ends_the_needs():
    order = SideBySide(1, 3, 1)
    now = standing(order, batch=2, world=2, tail="drop")
    assert list(needs(order.blocks, now)) == []


# Distances


@given(orders, st.data())
def test_distances_count_positions_to_the_next_use(order, data):
    start = data.draw(st.integers(0, order.length - 1))
    stop = data.draw(st.integers(start + 1, order.length))
    found = distances(standing(order, epoch=2, start=start, stop=stop), order.blocks)
    both = [order.indices(epoch, np.arange(order.length)) // order.rows for epoch in (2, 3)]
    for block in range(order.blocks):
        first, last = order.uses("", 2).first[block], order.uses("", 2).last[block]
        if first < stop and start <= last:
            assert found[block] == 0  # in use, also where the position itself is another block's
        else:
            ahead = np.concatenate(both)[start:]
            assert found[block] == np.flatnonzero(ahead == block)[0]


def test_a_block_that_is_never_read_is_infinitely_far():
    assert distances(standing(SideBySide(4, 2, 1)), 5)[4] == NEVER


def test_every_block_of_data_that_is_shuffled_as_a_whole_is_in_use():
    order = ShuffledBlocks(20, rows=np.full(5, 4))
    assert not distances(standing(order), 5).any()


@given(orders, st.data())
def test_the_most_in_use_is_that_of_the_fullest_positions(order, data):
    size = st.integers(1, 100)
    sizes = np.array(data.draw(st.lists(size, min_size=order.blocks, max_size=order.blocks)))
    fullest, wide = 0, data.draw(st.integers(1, order.length))
    for epoch in (2, 3):
        uses = order.uses("", epoch)
        for position in range(order.length):
            is_in_use = (uses.first < position + wide) & (position <= uses.last)
            fullest = max(fullest, int(sizes[uses.blocks[is_in_use]].sum()))
    most = most_in_use(standing(order, epoch=2, stop=wide), sizes)
    assert most == min(fullest + sizes.max(), sizes.sum())


def test_of_data_that_is_shuffled_as_a_whole_all_bytes_are_in_use():
    order = ShuffledBlocks(20, rows=np.array([5, 5, 10]))
    assert most_in_use(standing(order), np.array([3, 4, 5])) == 12


def test_who_waits_for_a_block_stands_where_it_is_read():
    order = SideBySide(8, 10, 2)  # both tracks go on to other blocks at position 20
    ahead = Lookahead(np.full(8, 1), bound=2)
    ahead.announce(standing(order, start=0, stop=40))
    old, new = (set((order.indices(0, np.arange(20) + at) // 10).tolist()) for at in (0, 20))
    assert {block for block in range(8) if ahead.distances()[block] == 0} == old | new
    far = ahead.distances(reading=max(new))
    assert {block for block in range(8) if far[block] <= 1} == new
    assert min(far[block] for block in old) >= 60


# Looking ahead


def drained(ahead: Lookahead) -> list[int]:
    return [need.block for need in iter(ahead.next, None)]


def test_looking_ahead_is_bounded_in_bytes_and_goes_on_with_the_run():
    order = SideBySide(20, 10, 1)
    tape = [int(order.indices(0, np.array([p]))[0]) // 10 for p in range(0, 200, 10)]
    ahead = Lookahead(np.full(20, 100), bound=300)
    ahead.announce(standing(order, start=0, stop=10))
    assert drained(ahead) == tape[:4]  # one that is announced, three beyond
    ahead.announce(standing(order, start=10, stop=20))
    assert drained(ahead) == tape[4:5]
    ahead.announce(standing(order, start=150, stop=160))
    assert drained(ahead) == tape[5:19]


def test_looking_ahead_goes_into_the_next_epoch():
    order = SideBySide(20, 10, 1)
    following = [int(order.indices(1, np.array([p]))[0]) // 10 for p in (0, 10)]
    ahead = Lookahead(np.full(20, 100), bound=200)
    ahead.announce(standing(order, start=190, stop=200))
    assert drained(ahead)[1:] == following


def test_looking_ahead_starts_anew_after_a_jump():
    order = SideBySide(20, 10, 1)
    ahead = Lookahead(np.full(20, 100), bound=100)
    ahead.announce(standing(order, start=100, stop=110))
    first = drained(ahead)
    ahead.announce(standing(order, start=50, stop=60))
    drained(ahead)
    ahead.announce(standing(order, start=100, stop=110, epoch=7))
    drained(ahead)
    ahead.announce(standing(order, start=100, stop=110))
    assert drained(ahead) == first


def test_a_whole_epoch_is_all_that_is_looked_ahead():
    order = ShuffledBlocks(100, rows=np.full(10, 10))
    ahead = Lookahead(np.full(10, 1), bound=10**9)
    ahead.announce(standing(order, stop=50))
    assert len(drained(ahead)) < 40


def test_a_refused_block_comes_again_after_an_announcement():
    order = SideBySide(20, 10, 1)
    ahead = Lookahead(np.full(20, 100), bound=300)
    ahead.announce(standing(order, start=0, stop=10))
    ahead.next()
    refused = ahead.next()
    ahead.refuse(refused)
    assert ahead.next() is None
    ahead.announce(standing(order, start=0, stop=10))
    assert ahead.next() == refused


# Eviction


def accesses(order: SideBySide, epochs: int) -> list[tuple[int, int, int]]:
    """(epoch, position, block) where each block is first used, in order."""
    found = []
    for epoch in range(epochs):
        first = order.uses("", epoch).first
        found += [(epoch, int(first[block]), int(block)) for block in np.argsort(first)]
    return found


def hits_of_the_cache(folder: Path, order: SideBySide, epochs: int, budget: int) -> list[bool]:
    cache = BlockCache(folder, order.blocks, budget)
    hits = []
    for epoch, position, block in accesses(order, epochs):
        hits.append(cache.holds(block))
        now = standing(order, epoch=epoch, start=position, stop=position + 1)
        far = distances(now, order.blocks)
        cache.add(
            block,
            lambda path: path.write_bytes(b"x") and None,
            lambda: cache.reserve(block, 1, far, 0),
            wait=True,
        )
        assert np.abs(cache.sizes()).sum() <= budget
    return hits


def belady(order: SideBySide, epochs: int, budget: int) -> list[bool]:
    """The same by looking through the future, use by use."""
    future = [
        (epoch, position, int(order.indices(epoch, np.array([position]))[0]) // order.rows)
        for epoch in range(epochs + 1)
        for position in range(order.length)
    ]
    held: set[int] = set()
    hits = []
    for epoch, position, block in accesses(order, epochs):
        hits.append(block in held)
        if block not in held:
            now = epoch * order.length + position
            ahead = [b for _, _, b in future[now:]]
            _, first, last = order.uses("", epoch)
            free = {b for b in held if not first[b] <= position <= last[b]}
            while len(held) >= budget:
                if not free:
                    raise NoRoomError(1, 0)
                victim = max(free, key=lambda b: (ahead.index(b), -b))
                held.discard(victim)
                free.discard(victim)
            held.add(block)
    return hits


@settings(max_examples=30)
@given(orders, st.data())
def test_evictions_are_those_of_belady(tmp_path_factory, order, data):
    budget = data.draw(st.integers(1, order.blocks))
    try:
        expected = belady(order, 3, budget)
    except NoRoomError:
        with pytest.raises(NoRoomError):
            hits_of_the_cache(tmp_path_factory.mktemp("cache"), order, 3, budget)
        return
    assert hits_of_the_cache(tmp_path_factory.mktemp("cache"), order, 3, budget) == expected


def hits_of_least_recently_used(order: SideBySide, epochs: int, budget: int) -> list[bool]:
    held: dict[int, None] = {}
    hits = []
    for epoch in range(epochs):
        previous: set[int] = set()
        for position in range(0, order.length, order.tracks):
            turn = order.indices(
                epoch, np.arange(position, min(position + order.tracks, order.length))
            )
            now = set((turn // order.rows).tolist())
            for block in now:
                if block not in previous:
                    hits.append(block in held)
                held.pop(block, None)
                held[block] = None
            while len(held) > budget:
                del held[next(iter(held))]
            previous = now
    return hits


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_share_of_hits_is_the_share_of_the_data_that_is_cached(tmp_path, share):
    order, epochs = SideBySide(blocks=128, rows=8, tracks=8, seed=1), 5
    budget = int(share * order.blocks)
    hits = hits_of_the_cache(tmp_path, order, epochs, budget)[order.blocks :]
    assert abs(np.mean(hits) - share) < 0.08
    recent = hits_of_least_recently_used(order, epochs, budget)[order.blocks :]
    assert np.mean(recent) < np.mean(hits) - 0.1
