"""The law, for many ranks: any topology continues what any other has begun."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_in_step import ranks, run, state_of
from support import Augmented, flat, one_pass

from dataporter import ResumableDataLoader

topologies = st.tuples(st.integers(1, 5), st.integers(1, 6))  # world size, batch size


@given(
    st.integers(1, 60),
    st.lists(st.tuples(topologies, st.integers(0, 4)), min_size=1, max_size=4),
    topologies,
    st.booleans(),
)
def test_reshapes_without_padding_deliver_every_sample_exactly_once(length, legs, last, shuffle):
    seen: list[int] = []
    state = None
    for (world_size, batch_size), steps in legs:
        # Stop before a tail: there, uneven ranks are not in step.
        loaders = ranks(length, world_size, batch_size, shuffle=shuffle, tail="uneven")
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        position = state["samples_processed"] if state else 0
        whole = (length - position) // (world_size * batch_size)
        seen += flat(flat(batches) for batches in run(loaders, min(steps, whole)))
        state = state_of(loaders)
        assert state["samples_processed"] == len(seen)
    loaders = ranks(length, *last, shuffle=shuffle, tail="uneven")
    for loader in loaders:
        loader.load_state_dict(state)
    seen += flat(flat(batches) for batches in run(loaders))
    assert sorted(seen) == list(range(length))


@given(st.integers(1, 60), topologies, st.integers(0, 6), topologies, st.booleans())
def test_padded_reshapes_repeat_only_what_evens_out_the_ranks(
    length, before, steps, after, shuffle
):
    first = ranks(length, *before, shuffle=shuffle)
    seen = flat(flat(batches) for batches in run(first, steps))
    state = state_of(first)
    second = ranks(length, *after, shuffle=shuffle)
    for loader in second:
        loader.load_state_dict(state)
    per_rank = run(second) if not state["finished"] else [[] for _ in second]
    assert len({tuple(map(len, batches)) for batches in per_rank}) == 1
    seen += flat(flat(batches) for batches in per_rank)
    assert set(seen) == set(range(length))
    assert len(seen) - length < before[0] + after[0]


@given(st.integers(1, 60), topologies, st.integers(0, 6), topologies)
def test_dropped_tails_deliver_nothing_twice_and_whole_batches_only(length, before, steps, after):
    first = ranks(length, *before, shuffle=True, drop_last=True)
    seen = flat(flat(batches) for batches in run(first, steps))
    state = state_of(first)
    second = ranks(length, *after, shuffle=True, drop_last=True)
    for loader in second:
        loader.load_state_dict(state)
    per_rank = run(second) if not state["finished"] else [[] for _ in second]
    assert all(len(batch) == after[1] for batches in per_rank for batch in batches)
    seen += flat(flat(batches) for batches in per_rank)
    assert len(set(seen)) == len(seen)
    assert state["finished"] or length - len(seen) < after[0] * after[1]


@given(st.sampled_from([(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]), st.integers(1, 80))
def test_the_same_global_batch_size_gives_the_same_global_batches(topology, length):
    def global_batches(world_size: int, batch_size: int) -> list[list[int]]:
        per_rank = run(ranks(length, world_size, batch_size, shuffle=True, tail="uneven"))
        steps = max(map(len, per_rank))
        return [sorted(flat(b[step] for b in per_rank if step < len(b))) for step in range(steps)]

    assert global_batches(*topology) == global_batches(1, 12)


@settings(max_examples=40)
@given(st.integers(1, 30), topologies, st.integers(0, 3), topologies, st.integers(0, 2))
def test_a_samples_augmentation_is_the_same_under_every_topology_and_after_a_resume(
    length, before, steps, after, epoch
):
    def by_sample(per_rank: list[list[Any]]) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for ids, numbers in flat(per_rank):
            for position, sample in enumerate(ids):
                drawn = [column[position] for column in numbers]
                assert found.setdefault(sample, drawn) == drawn
        return found

    alone = ResumableDataLoader(Augmented(length), length, shuffle=True, seed=5)
    alone.set_epoch(epoch)
    reference = by_sample([one_pass(alone)])
    first = ranks(length, *before, dataset=Augmented, shuffle=True)
    for loader in first:
        loader.set_epoch(epoch)
    begun = by_sample(run(first, steps))
    second = ranks(length, *after, dataset=Augmented, shuffle=True)
    for loader in second:
        loader.load_state_dict(state_of(first))
        loader.set_epoch(epoch)
    assert {**begun, **by_sample(run(second))} == reference


@given(st.integers(2, 6), st.integers(40, 80))
def test_each_ranks_samples_change_from_epoch_to_epoch(world_size, length):
    for loader in ranks(length, world_size, 4, shuffle=True):
        epochs = [frozenset(flat(one_pass(loader))) for _ in range(3)]
        assert len(set(epochs)) == 3


@given(st.integers(0, 40), topologies, st.sampled_from(["pad", "drop", "uneven"]))
def test_len_is_the_number_of_batches_of_a_full_pass_on_every_rank(length, topology, tail):
    for loader in ranks(length, *topology, shuffle=True, tail=tail):
        assert len(loader) == len(one_pass(loader))
        assert len(loader) == len(list(loader.batch_sampler))


@given(st.integers(0, 60), topologies, st.integers(0, 6), topologies)
def test_the_state_after_the_end_is_the_same_on_every_rank_also_if_uneven(
    length, before, steps, after
):
    first = ranks(length, *before, shuffle=True)
    run(first, steps)
    for tail in ("pad", "drop", "uneven"):
        second = ranks(length, *after, shuffle=True, tail=tail)
        for loader in second:
            loader.load_state_dict(state_of(first))
        run(second)
        assert state_of(second)["finished"]
