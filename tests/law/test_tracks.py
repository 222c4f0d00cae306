"""The order of data in blocks: a bijection, well mixed, with few blocks in use at a time."""

import hashlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dataporter.law import Plan, Topology
from dataporter.law.tracks import TracksOrder, tracks_for

counts = st.lists(st.integers(0, 60), min_size=1, max_size=60)
powers = st.integers(0, 10).map(lambda power: 1 << power)
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 10_000)


def order_of(rows, tracks, seed=0):
    return TracksOrder(np.array(rows, dtype=np.int64), tracks=tracks, seed=seed)


def one_epoch(order, epoch=0):
    return order.indices(epoch, np.arange(order.length))


def blocks_of(order, indices):
    return np.searchsorted(np.cumsum(order.rows), indices, side="right")


# The laws


@given(rows=counts, tracks=powers, seed=seeds, epoch=epochs)
@example(rows=[7], tracks=1024, seed=0, epoch=0)
@example(rows=[0, 0, 5, 0], tracks=1, seed=0, epoch=0)
@example(rows=[0], tracks=4, seed=0, epoch=0)
@example(rows=[1_000_000] + [1] * 50, tracks=8, seed=3, epoch=1)
def test_every_epoch_has_every_index_once(rows, tracks, seed, epoch):
    order = order_of(rows, tracks, seed)
    assert np.array_equal(np.sort(one_epoch(order, epoch)), np.arange(sum(rows)))


@given(rows=counts, tracks=powers, seed=seeds, epoch=epochs, data=st.data())
def test_any_positions_can_be_asked_for_in_any_sequence(rows, tracks, seed, epoch, data):
    order = order_of(rows, tracks, seed)
    if not order.length:
        return
    asked = data.draw(st.lists(st.integers(0, order.length - 1), max_size=20))
    whole = one_epoch(order, epoch)
    assert order.indices(epoch, np.array(asked, dtype=np.int64)).tolist() == whole[asked].tolist()


@given(rows=counts, power=st.integers(1, 6), seed=seeds, epoch=epochs)
def test_every_aligned_run_meets_each_equal_range_of_tracks_once(rows, power, seed, epoch):
    tracks = 1 << power
    order = order_of(rows, tracks, seed)
    positions = np.arange(order.length // tracks * tracks)
    dealt = order.deal(epoch, positions)
    assert ((dealt >= 0) & (dealt < 1)).all()
    for run in (1 << s for s in range(1, power + 1)):
        ranges = np.sort((dealt * run).astype(int).reshape(-1, run), axis=1)
        assert (ranges == np.arange(run)).all()


@given(rows=counts, tracks=powers, seed=seeds, epoch=epochs, data=st.data())
def test_positions_are_found_by_their_tracks(rows, tracks, seed, epoch, data):
    order = order_of(rows, tracks, seed)
    start, stop = sorted(data.draw(st.integers(0, order.length)) for _ in "ab")
    low, high = sorted(data.draw(st.floats(-0.5, 1.5)) for _ in "ab")
    positions = np.arange(start, stop)
    numbers = order.deal(epoch, positions)
    below, found = order.dealt_between(epoch, start, stop, low, high)
    assert found.tolist() == positions[(numbers >= low) & (numbers < high)].tolist()
    assert below == np.count_nonzero(numbers < low)


@pytest.mark.parametrize("rank", [0, 77, 1023])
def test_a_rank_of_many_takes_what_sorting_whole_steps_gives_it(rank):
    order = order_of([500] * 400, 64)
    plan = Plan(length=200_000, batch_size=12, topology=Topology(rank=rank, world_size=1024))
    expected = plan.batches(5, lambda positions: order.deal(0, positions))
    found = plan.batches(
        5, lambda positions: order.deal(0, positions), lambda *span: order.dealt_between(0, *span)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.tolist() == other.tolist()


@given(rows=counts, tracks=powers, seed=seeds, epoch=epochs)
def test_every_read_of_a_block_lies_in_a_stretch_that_uses_names(rows, tracks, seed, epoch):
    order = order_of(rows, tracks, seed)
    uses = order.uses("", epoch)
    assert (np.diff(uses.first) >= 0).all()
    stretches: dict[int, list[tuple[int, int]]] = {}
    for block, first, last in zip(*(column.tolist() for column in uses), strict=True):
        stretches.setdefault(block, []).append((first, last))
    for position, block in enumerate(blocks_of(order, one_epoch(order, epoch)).tolist()):
        assert any(first <= position <= last for first, last in stretches[block])


def test_the_order_is_the_one_of_earlier_versions():
    """Another order needs another id: users have states of this one."""
    order = order_of(np.arange(2_100) * 7 % 50, tracks=256, seed=3)
    digests = [
        hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16]
        for found in (one_epoch(order, 2), 256 * order.deal(2, np.arange(order.length)))
    ]
    assert order.id == "tracks-1, 256 side by side, blocks 2f977ab3"
    assert digests == ["d3c5de83e703167c", "27bdcc1c57dd0f0a"]


@given(rows=counts, tracks=powers, seed=seeds, saved=powers)
def test_a_saved_run_keeps_its_number_of_tracks(rows, tracks, seed, saved):
    was, now = order_of(rows, saved, seed), order_of(rows, tracks, seed)
    resumed = now.resumed(was.id)
    assert resumed.id == was.id
    assert np.array_equal(one_epoch(resumed), one_epoch(was))


def test_orders_over_other_blocks_have_other_names():
    assert order_of([4, 4, 4], 2).id != order_of([2, 6, 4], 2).id


@pytest.mark.parametrize(
    "foreign",
    ["shuffled-1", "tracks-1, 3 side by side", f"tracks-1, {2**60} side by side", "tracks-2", ""],
)
def test_an_order_that_is_not_of_tracks_is_not_taken_over(foreign):
    assert order_of([5, 5], 2).resumed(foreign).id == order_of([5, 5], 2).id


@given(blocks=st.integers(0, 10**6), step=st.integers(1, 10**6), world_size=st.integers(1, 20_000))
def test_tracks_are_a_power_of_two_that_an_eighth_of_the_blocks_can_fill(blocks, step, world_size):
    tracks = tracks_for(blocks, step_size=step, world_size=world_size)
    assert tracks >= 1
    assert tracks & (tracks - 1) == 0
    assert tracks <= max(blocks / 8, 1)
    wanted = max(256, 2 * step, 8 * world_size)
    assert tracks >= wanted or 2 * tracks > max(blocks / 8, 1)


# The mixture


def test_epochs_and_seeds_share_no_more_places_and_neighbours_than_chance_has():
    order = order_of([100] * 256, 32)
    epochs_of = [one_epoch(order, epoch) for epoch in range(4)]
    epochs_of += [one_epoch(order.with_seed(seed), 0) for seed in (1, 2)]
    pairs_of = [set(map(frozenset, each.reshape(-1, 2).tolist())) for each in epochs_of]
    couples = list(itertools.combinations(range(len(epochs_of)), 2))
    places = sum(int((epochs_of[a] == epochs_of[b]).sum()) for a, b in couples)
    pairs = sum(len(pairs_of[a] & pairs_of[b]) for a, b in couples)
    # By chance one place and one half of a pair a couple; places in one page come together.
    assert places < 5 * len(couples)
    assert pairs < 5 * len(couples)


def test_rows_of_a_block_come_in_another_sequence_in_every_epoch():
    order = order_of([640] * 16, 1)
    sequences = set()
    for epoch in range(8):
        indices = one_epoch(order, epoch)
        sequences.add(tuple(indices[indices < 640].tolist()))
    assert len(sequences) == 8
    assert tuple(range(640)) not in sequences


def test_rows_stay_within_a_sixteenth_of_their_block_so_pages_are_read_in_turn():
    order = order_of([3200] * 8, 1)
    indices = one_epoch(order, 3)
    pages = indices[indices < 3200] // 200
    turns = np.flatnonzero(np.diff(pages))
    assert len(turns) <= 16  # each page but the first is entered once, that one maybe twice
    assert (np.diff(pages)[turns] % 16 == 1).all()


def spread(labels, batch):
    """Chi-squared of the labels in batches, over its degrees of freedom: 1 if well mixed."""
    kinds = int(labels.max()) + 1
    batches = labels[: len(labels) // batch * batch].reshape(-1, batch)
    found = np.stack([np.bincount(each, minlength=kinds) for each in batches])
    expected = batch / kinds
    return float(((found - expected) ** 2 / expected).sum() / (len(batches) * (kinds - 1)))


def sorted_labels(blocks, per_block, kinds):
    """Labels of data that is sorted by label: all rows of a block have the same one."""
    return np.repeat(np.arange(blocks) * kinds // blocks, per_block)


def shuffle_buffer(labels, size, rng):
    """Labels as a buffer of so many samples delivers them, over shuffled blocks."""
    kept, delivered = list(labels[:size]), []
    for label in labels[size:]:
        place = rng.integers(len(kept))
        delivered.append(kept[place])
        kept[place] = label
    rng.shuffle(kept)
    return np.array(delivered + kept)


def test_batches_are_as_mixed_as_a_perfect_shuffle_and_better_than_buffers_of_the_same_memory():
    blocks, per_block, kinds, tracks, batch = 4096, 32, 8, 256, 128
    labels = sorted_labels(blocks, per_block, kinds)
    order = order_of([per_block] * blocks, tracks)
    rng = np.random.default_rng(5)
    ours = spread(labels[one_epoch(order)], batch)
    perfect = spread(rng.permutation(labels), batch)
    tape = rng.permutation(labels.reshape(blocks, per_block)).ravel()
    # A buffer of as many samples as the blocks in use hold.
    buffered = spread(shuffle_buffer(tape, tracks * per_block, rng), batch)
    small = spread(shuffle_buffer(tape, tracks * per_block // 8, rng), batch)
    assert perfect == pytest.approx(1, abs=0.06)
    assert ours < perfect + 0.06
    assert ours <= buffered
    assert ours < small


def test_the_end_of_an_epoch_is_as_mixed_as_its_start():
    blocks, per_block, kinds = 4096, 32, 8
    labels = sorted_labels(blocks, per_block, kinds)
    order = order_of([per_block] * blocks, 256)
    epochs_of = [labels[one_epoch(order, epoch)] for epoch in range(30)]
    tenth = len(labels) // 10
    start = np.mean([spread(epoch[:tenth], 128) for epoch in epochs_of])
    end = np.mean([spread(epoch[-tenth:], 128) for epoch in epochs_of])
    assert start < 1.15
    assert end < 1.15


# Reads: how often a node opens a block, over all nodes


def reads_per_block(order, nodes, ranks_per_node, batch, start=0, steps=400):
    """Distinct (node, block) pairs that some steps read, over the distinct blocks they read."""
    world_size = nodes * ranks_per_node
    read = set()
    for rank in range(world_size):
        topology = Topology(rank=rank, world_size=world_size)
        plan = Plan(length=order.length, batch_size=batch, topology=topology)
        taken = 0
        for positions in plan.blocks(start, lambda positions: order.deal(0, positions)):
            blocks = blocks_of(order, order.indices(0, positions[: steps * batch - taken]))
            read.update((rank // ranks_per_node, block) for block in np.unique(blocks).tolist())
            taken += len(positions)
            if taken >= steps * batch:
                break
    return len(read) / len({block for _, block in read})


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node", "batch", "start", "most"),
    [
        (8, 8, 16, 0, 1.01),
        (4, 8, 8, 0, 1.01),
        (8, 8, 16, 123_457, 1.2),  # after a resume in mid-epoch, from another topology
        (13, 8, 16, 123_457, 1.35),
        (3, 2, 5, 0, 1.3),
    ],
)
def test_each_node_reads_its_own_blocks(nodes, ranks_per_node, batch, start, most):
    world_size = nodes * ranks_per_node
    blocks = 16_384
    tracks = tracks_for(blocks, step_size=batch * world_size, world_size=world_size)
    order = order_of([64] * blocks, tracks)
    assert reads_per_block(order, nodes, ranks_per_node, batch, start, steps=60) <= most


def test_ranks_that_share_by_stride_would_read_every_block_on_every_node():
    order = order_of([64] * 4096, 512)
    by_stride = TracksOrder(order.rows, tracks=512)
    nodes = 4
    read = set()
    for rank in range(nodes):
        plan = Plan(
            length=order.length, batch_size=64, topology=Topology(rank=rank, world_size=nodes)
        )
        positions = next(plan.blocks(0))
        blocks = blocks_of(by_stride, by_stride.indices(0, positions))
        read.update((rank, block) for block in np.unique(blocks).tolist())
    assert len(read) / len({block for _, block in read}) > 3.9


def test_few_blocks_are_in_use_at_a_time():
    order = order_of([64] * 4096, 256)
    uses = order.uses("", 0)
    for position in range(0, order.length, order.length // 50):
        in_use = ((uses.first <= position) & (position <= uses.last)).sum()
        assert in_use <= 2 * 256
    assert math.isclose(len(uses.blocks), 4096, rel_tol=0.07)
