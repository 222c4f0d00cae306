"""Windows of packed documents, compared with a model that lays everything end to end."""

import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataporter.law import Plan, Topology
from dataporter.views.windows import AS_STORED, KEYS, Tape, WindowOrder, Windows, key_of


@st.composite
def documents(draw):
    """Lengths of documents, bounds of blocks (None: no blocks) and the length of a window."""
    lengths = draw(st.lists(st.integers(0, 30), min_size=1, max_size=40))
    lengths[0] += 1
    cuts = draw(st.none() | st.lists(st.integers(0, len(lengths)), max_size=8))
    bounds = None if cuts is None else np.array([0, *sorted(cuts), len(lengths)])
    return np.array(lengths, dtype=np.int32), bounds, draw(st.integers(1, sum(lengths)))


def tokens_of(pieces):
    return [(document, token) for document, a, b in pieces for token in range(a, b)]


def model(lengths, bounds, key):
    """Lay all tokens of an epoch end to end."""
    windows = Windows(lengths, bounds, length=1, pads=True)
    blocks = windows._tape(key).numbers.tolist()
    if bounds is None:
        return [(number, token) for number in blocks for token in range(lengths[number])]
    return [
        (int(bounds[block]) + number, token)
        for block in blocks
        for number in windows._make_documents(key, block)[0].numbers.tolist()
        for token in range(lengths[bounds[block] + number])
    ]


@given(given=documents(), key=st.integers(0, KEYS), pads=st.booleans())
def test_windows_are_what_a_tape_of_all_tokens_is_cut_into(given, key, pads):
    lengths, bounds, length = given
    windows = Windows(lengths, bounds, length=length, pads=pads)
    tape = model(lengths, bounds, key)
    indices = key * windows.count + np.arange(windows.count)
    found = list(map(tokens_of, windows.pieces(indices).each()))
    expected = [tape[a : a + length] for a in range(0, len(tape), length)]
    assert found == [each for each in expected if pads or len(each) == length]
    assert sorted(tape) == [(d, t) for d, n in enumerate(lengths) for t in range(n)]


@given(given=documents())
def test_key_zero_is_the_order_in_which_documents_are_stored(given):
    lengths, bounds, _ = given
    assert model(lengths, bounds, AS_STORED) == [
        (d, t) for d, n in enumerate(lengths) for t in range(n)
    ]


@given(given=documents(), seed=st.integers(0, 9), epoch=st.integers(0, 5), data=st.data())
def test_an_epoch_has_each_window_once_and_any_position_can_be_asked_for(given, seed, epoch, data):
    lengths, bounds, length = given
    windows = Windows(lengths, bounds, length=length, pads=True)
    order = WindowOrder(
        windows.tokens,
        length,
        windows.count,
        tracks=data.draw(st.sampled_from([1, 2, 8])),
        shuffles=data.draw(st.booleans()),
        seed=seed,
    )
    found = order.indices(epoch, np.arange(order.length))
    assert sorted((found % order.length).tolist()) == list(range(order.length))
    assert set((found // order.length).tolist()) == {key_of(seed, epoch) if order.shuffles else 0}
    some = data.draw(st.lists(st.integers(0, order.length - 1), max_size=9))
    asked = order.indices(epoch, np.array(some, dtype=np.int64))
    assert asked.tolist() == found[some].tolist()


def test_epochs_and_seeds_have_orders_of_their_own():
    assert len({key_of(seed, epoch) for seed in range(20) for epoch in range(20)}) >= 399
    assert len({key_of(3, epoch) for epoch in range(5000)}) == 5000
    tape = [Tape(np.ones(50, np.int64), key).numbers.tolist() for key in (1, 2)]
    assert tape[0] != tape[1]


def order_over(windows, tracks, seed=1):
    return WindowOrder(
        windows.tokens,
        windows.length,
        windows.count,
        tracks=tracks,
        shuffles=True,
        seed=seed,
        leaf="corpus",
    )


@given(given=documents(), tracks=st.sampled_from([1, 2, 4]), epoch=st.integers(0, 3))
def test_uses_of_blocks_cover_all_that_is_read(given, tracks, epoch):
    lengths, bounds, length = given
    if bounds is None:
        bounds = np.array([0, len(lengths)])
    windows = Windows(lengths, bounds, length=length, pads=False)
    order = order_over(windows, tracks)
    uses = order.uses("corpus", epoch)
    read = set()
    told = reads_by_position(order, epoch)
    for position, index in enumerate(order.indices(epoch, np.arange(order.length)).tolist()):
        blocks = (
            np.searchsorted(
                bounds, [d for d, _, _ in windows.pieces(np.array([index])).each()[0]], "right"
            )
            - 1
        )
        assert told[position] == list(dict.fromkeys(blocks.tolist()))  # all of them, in order
        for block in set(blocks.tolist()):
            there = uses.blocks == block
            assert np.any((uses.first[there] <= position) & (position <= uses.last[there]))
            read.add(block)
    assert set(uses.blocks.tolist()) == read


def reads_by_position(order, epoch, leaf="corpus"):
    places, blocks = order.reads(leaf, epoch, np.arange(order.length))
    assert np.all(np.diff(places) >= 0)
    found = [[] for _ in range(order.length)]
    for place, block in zip(places.tolist(), blocks.tolist(), strict=True):
        found[place].append(block)
    return found


def test_a_window_that_spans_three_blocks_says_three():
    windows = Windows(np.full(5, 4, np.int32), np.arange(6), length=9, pads=True)
    order = pickle.loads(pickle.dumps(order_over(windows, 1)))
    tape = windows._tape(key_of(1, 0)).numbers.tolist()
    assert reads_by_position(order, 0) == [tape[0:3], tape[2:5], tape[4:]]
    assert reads_by_position(order, 0, "another corpus") == [[]] * 3
    assert not len(order.uses("another corpus", 0).blocks)


@given(given=documents(), epoch=st.integers(0, 3))
def test_windows_of_documents_that_are_shuffled_one_by_one_say_the_blocks_of_these(given, epoch):
    lengths, bounds, length = given
    windows = Windows(lengths, None, length=length, pads=True)
    ends = np.array([len(lengths)]) if bounds is None else bounds[1:]
    order = replace(order_over(windows, 1), ends=ends)
    uses = order.uses("corpus", epoch)
    for index, found in zip(
        order.indices(epoch, np.arange(order.length)).tolist(),
        reads_by_position(order, epoch),
        strict=True,
    ):
        documents = windows.pieces(np.array([index])).numbers
        assert found == np.searchsorted(ends, documents, side="right").tolist()
        assert set(found) <= set(uses.blocks.tolist())


@given(given=documents(), world_size=st.integers(1, 4), batch=st.integers(1, 5))
def test_ranks_share_the_windows_of_every_step(given, world_size, batch):
    lengths, bounds, length = given
    windows = Windows(lengths, bounds, length=length, pads=True)
    order = WindowOrder(windows.tokens, length, windows.count, tracks=4, shuffles=True)
    taken = []
    for rank in range(world_size):
        topology = Topology(rank=rank, world_size=world_size)
        plan = Plan(length=order.length, batch_size=batch, topology=topology, tail="uneven")
        for positions in plan.blocks(0, lambda positions: order.deal(0, positions)):
            taken += positions.tolist()
    assert sorted(taken) == list(range(order.length))


def test_the_number_of_tracks_of_a_saved_run_is_kept():
    order = WindowOrder(np.array([50, 50]), 5, 20, tracks=4, shuffles=True)
    now = WindowOrder(np.array([50, 50]), 5, 20, tracks=8, shuffles=True)
    assert now.resumed(order.id).id == order.id
    assert now.resumed("windows-1, 1 side by side").tracks == 1
    for damaged in ("windows-1, 3 side by side", "windows-1, 0 side by side", "windows-2", ""):
        assert now.resumed(damaged).tracks == 8
