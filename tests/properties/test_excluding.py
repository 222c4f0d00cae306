"""Excluded spans: left out on any topology, from any moment on, and nothing else with them."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_in_step import ranks, run, state_of
from support import Augmented, flat, one_pass, plain

topologies = st.tuples(st.integers(1, 4), st.integers(1, 5))  # world size, batch size
spans = st.tuples(st.integers(0, 39), st.integers(1, 12))


def positions_of(span: tuple[int, int], length: int) -> range:
    start, size = span
    return range(min(start, length - 1), min(start + size, length))


def excluding(loaders: list[Any], epoch: int, span: range) -> None:
    for loader in loaders:
        loader.exclude(epoch, span.start, span.stop)


@given(st.integers(2, 40), st.lists(spans, max_size=3), topologies, topologies, st.integers(0, 5))
def test_what_is_not_excluded_comes_once_on_any_topology(length, wanted, before, after, steps):
    left_out = [positions_of(span, length) for span in wanted]
    gone = {position for span in left_out for position in span}
    first = ranks(length, *before, shuffle=True, tail="uneven")
    for span in left_out:
        excluding(first, 0, span)
    whole = (length - len(gone)) // (before[0] * before[1])
    seen = flat(flat(batches) for batches in run(first, min(steps, whole)))
    second = ranks(length, *after, shuffle=True, tail="uneven")
    for loader in second:
        loader.load_state_dict(state_of(first))
    seen += flat(flat(batches) for batches in run(second))

    order = ranks(length, 1, 1, shuffle=True)[0].samples_at(0, range(length))
    assert sorted(seen) == sorted(index for at, index in enumerate(order) if at not in gone)
    assert sorted(flat(flat(batches) for batches in run(second))) == list(range(length))  # epoch 1


@given(st.integers(2, 40), spans, topologies, st.integers(0, 5), st.sampled_from(["pad", "drop"]))
def test_a_pass_under_way_goes_on_around_what_is_excluded(length, wanted, topology, steps, tail):
    span, step = positions_of(wanted, length), topology[0] * topology[1]
    loaders = ranks(length, *topology, shuffle=True, tail=tail)
    passes = [iter(loader) for loader in loaders]
    for _ in range(min(steps, length // step)):
        for batches in passes:
            next(batches)
    at = state_of(loaders)["samples_processed"]
    excluding(loaders, 0, span)
    delivered = []
    for loader, batches in zip(loaders, passes, strict=True):
        for _ in batches:
            mine = loader.delivered
            delivered += mine.positions[~mine.padding].tolist()
    left = [position for position in range(at, length) if position not in span]
    if tail == "drop":
        left = left[: len(left) - len(left) % step]
    assert sorted(delivered) == left
    state_of(loaders)


@settings(max_examples=30)
@given(st.integers(2, 30), spans, topologies)
def test_augmentation_of_what_remains_does_not_change(length, wanted, topology):
    span = positions_of(wanted, length)
    expected = one_pass(ranks(length, 1, 1, Augmented, shuffle=True)[0])
    for loader in ranks(length, *topology, Augmented, shuffle=True):
        loader.exclude(0, span.start, span.stop)
        for ids, drawn in loader:
            for number, position in enumerate(loader.delivered.positions.tolist()):
                alone = [[plain(ids)[number]], [[column[number].item()] for column in drawn]]
                assert alone == expected[position]
