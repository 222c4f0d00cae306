"""Lanes: an iterable is resumed exactly, at every batch, by any number of workers."""

import copy
import gc
import io
import itertools
import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import (
    CARRYING,
    WITH_STATE,
    WITHOUT_STATE,
    BothShards,
    CarryingShards,
    MutatingShards,
    OwnIterator,
    Packed,
    Shards,
    StatefulShards,
    in_turn,
    loaded,
    reading_again,
    reference,
)
from support import flat, one_pass, pass_with_states, passes, plain
from torch.utils.data import IterableDataset
from watching import worker_pids

from dataporter import PositionDroppedWarning, ResumableDataLoader
from dataporter.errors import (
    FastForwardWarning,
    LaneError,
    LengthWarning,
    StateError,
    StateFormatError,
)

KINDS = [*WITH_STATE, *WITHOUT_STATE]
SOME_KINDS = [StatefulShards, OwnIterator, Packed, Shards]  # where workers make a test slow
LENGTHS = [9, 0, 12, 2, 1]


lengths = st.lists(st.integers(0, 7), min_size=1, max_size=5)


@settings(max_examples=40)
@given(lengths=lengths, lanes=st.integers(1, 5), size=st.integers(1, 4), drop_last=st.booleans())
def test_lanes_take_turns_and_those_that_ended_are_left_out(lengths, lanes, size, drop_last):
    options = {"batch_size": size, "lanes": lanes, "drop_last": drop_last}
    for kind in (Shards, StatefulShards, OwnIterator):
        loader = ResumableDataLoader(kind(lengths), **options)
        expected = in_turn(lengths, lanes, size, drop_last=drop_last)
        assert passes(loader, 3) == [expected] * 3


@settings(max_examples=40)
@given(
    kind=st.sampled_from([*KINDS, *CARRYING]),
    lengths=lengths,
    lanes=st.integers(1, 4),
    size=st.integers(1, 3),
    drop_last=st.booleans(),
    every=st.integers(1, 5),
    noisy=st.booleans(),
    data=st.data(),
)
def test_a_state_of_any_moment_resumes_to_what_followed(
    kind, lengths, lanes, size, drop_last, every, noisy, data
):
    options = {"batch_size": size, "lanes": lanes, "drop_last": drop_last}
    options["snapshot_every_n_steps"] = every
    batches, states = reference(kind(lengths, noisy=noisy), 3, **options)
    epoch = data.draw(st.integers(0, 1))
    for k, state in enumerate(states[epoch][1:-1], 1):
        resumed = loaded(state, kind(lengths, noisy=noisy), **options)
        assert plain(resumed.state_dict()) == plain(state)
        following = passes(resumed, 3 - epoch)
        assert following == [batches[epoch][k:], *batches[epoch + 1 :]]
    resumed = loaded(states[epoch][-1], kind(lengths, noisy=noisy), **options)
    assert passes(resumed, 2 - epoch) == batches[epoch + 1 :]


@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    lengths=lengths,
    lanes=st.integers(1, 4),
    every=st.integers(1, 4),
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_a_chain_of_short_runs_delivers_what_one_run_does(kind, lengths, lanes, every, steps):
    options = {"batch_size": 2, "lanes": lanes, "snapshot_every_n_steps": every}
    (expected,), (states,) = reference(kind(lengths), 1, **options)
    delivered, state = [], states[0]
    for count in steps:  # also none: what was loaded is what is saved
        loader = loaded(state, kind(lengths), **options)
        running = iter(loader)
        delivered += [plain(batch) for batch in itertools.islice(running, count)]
        state = loader.state_dict()
        if state["finished"]:
            break
    assert delivered == expected[: len(delivered)]
    assert len(delivered) == min(sum(steps), len(expected))


def test_more_lanes_than_data():
    for num_workers in (0, 2):
        loader = ResumableDataLoader(StatefulShards([2]), lanes=5, num_workers=num_workers)
        assert passes(loader, 2) == [[[0], [1]], [[0], [1]]]
        empty = ResumableDataLoader(Shards([]), lanes=3, num_workers=num_workers)
        assert passes(empty, 2) == [[], []]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_change_neither_data_nor_generators(num_workers):
    options = {"batch_size": 2, "lanes": 2, "num_workers": num_workers}
    expected = passes(ResumableDataLoader(Packed(LENGTHS, noisy=True), seed=3, **options), 2)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    batches, states = reference(Packed(LENGTHS, noisy=True), 2, **options)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert batches == expected
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    kept = copy.deepcopy(states)
    state = states[0][2]
    resumed = loaded(state, Packed(LENGTHS, noisy=True), **options)
    assert one_pass(resumed) == batches[0][2:]
    assert states == kept


@pytest.mark.parametrize("kind", [MutatingShards, OwnIterator])
def test_a_state_is_a_snapshot(kind):
    for num_workers in (0, 1):
        loader = ResumableDataLoader(kind([6]), num_workers=num_workers)
        running = iter(loader)
        next(running)
        state = loader.state_dict()
        kept = copy.deepcopy(state)
        next(running)
        assert state == kept
        state["lanes"]["each"]["0"].clear()
        assert len(loader.state_dict()["lanes"]["each"]["0"]) > 3


def test_an_iterator_that_is_the_dataset_is_stored_and_iterated_once():
    for num_workers in (0, 1):
        options = {"num_workers": num_workers, "collate_fn": list}
        loader = ResumableDataLoader(OwnIterator([5]), **options)
        for _, _ in zip(range(2), loader, strict=False):
            pass
        state = loader.state_dict()
        found = state["lanes"]["each"]["0"]
        assert "dataset" not in found
        assert found["iterator"] == {"i": 2, "iterated": 1}
        resumed = ResumableDataLoader(OwnIterator([5]), **options)
        resumed.load_state_dict(state)
        next(iter(resumed))
        # It counted that it was iterated once, and its state was put back after that.
        assert resumed.state_dict()["lanes"]["each"]["0"]["iterator"] == {"i": 3, "iterated": 1}


class Calls(OwnIterator):
    """Says what is done with it."""

    def __init__(self) -> None:
        super().__init__([9])
        self.calls: list[str] = []

    def __iter__(self):
        self.calls.append("iter")
        return self

    def load_state_dict(self, state):
        self.calls.append("load")
        super().load_state_dict(state)


def test_restoring_loads_and_iterates_once_and_a_new_run_loads_nothing():
    dataset = Calls()
    loader = ResumableDataLoader(dataset)
    next(iter(loader))
    assert dataset.calls == ["iter"]
    restored = Calls()
    resumed = ResumableDataLoader(restored)
    resumed.load_state_dict(loader.state_dict())
    assert one_pass(resumed) == [[i] for i in range(1, 9)]
    assert restored.calls == ["iter", "load"]


@pytest.mark.parametrize("kind", WITHOUT_STATE)
def test_a_dataset_without_a_state_is_read_again_with_one_warning(kind):
    _, (states,) = reference(kind(LENGTHS), 1, batch_size=2, lanes=2)
    resumed = ResumableDataLoader(kind(LENGTHS), seed=3, batch_size=2)
    with pytest.warns(FastForwardWarning, match="[23] batches are read again") as caught:
        resumed.load_state_dict(states[3])
        one_pass(resumed)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    why = f"neither {kind.__name__} nor its iterator has state_dict and load_state_dict: "
    assert str(caught[0].message).startswith(why)
    for at_an_end in (states[0], states[-1]):  # nothing to be read again
        resumed.load_state_dict(at_an_end)


class Counted(Shards):
    """Counts what is read of it, in this process."""

    def shown(self, sample):
        self.read = getattr(self, "read", 0) + 1
        return sample


def test_what_follows_the_last_snapshot_is_read_again_and_no_more():
    class Both(Counted, StatefulShards):
        pass

    loader = ResumableDataLoader(Both([20]), batch_size=2, snapshot_every_n_steps=4)
    states = pass_with_states(loader)[1]
    for k in range(1, 10):
        dataset = Both([20])
        resumed = ResumableDataLoader(dataset, batch_size=2, snapshot_every_n_steps=4)
        resumed.load_state_dict(states[k])
        assert one_pass(resumed) == in_turn([20], 1, 2)[k:]
        assert dataset.read == 20 - 2 * (k - k % 4)


def test_a_state_saved_before_its_dataset_had_one_is_read_again():
    _, (states,) = reference(Shards([9]), 1)
    resumed = ResumableDataLoader(StatefulShards([9]), seed=3)
    state = {**states[3], "order": resumed.state_dict()["order"]}
    with pytest.warns(FastForwardWarning, match=r"state holds none of StatefulShards: 3 batches"):
        resumed.load_state_dict(state)
    assert flat(one_pass(resumed)) == [3, 4, 5, 6, 7, 8]


def test_another_batch_size_goes_on_at_the_sample_where_states_allow():
    _, (states,) = reference(StatefulShards([20]), 1, batch_size=2)
    resumed = loaded(states[3], StatefulShards([20]), batch_size=5)
    assert flat(one_pass(resumed)) == list(range(6, 20))
    _, (states,) = reference(Shards([20]), 1, batch_size=2)
    with pytest.raises(StateError, match=r"batch_size=2.*batch_size=5"):
        loaded(states[3], Shards([20]), batch_size=5)
    loaded(states[-1], Shards([20]), batch_size=5)  # an epoch at its end has no more to read


@pytest.mark.parametrize("kind", [Shards, StatefulShards])
def test_random_numbers_depend_on_lanes_not_on_workers(kind):
    options = {"batch_size": 3, "lanes": 4, "seed": 3}
    expected = passes(ResumableDataLoader(kind(LENGTHS, noisy=True), **options), 2)
    torch.manual_seed(99)
    for num_workers in (1, 2, 4):
        loader = ResumableDataLoader(kind(LENGTHS, noisy=True), num_workers=num_workers, **options)
        assert passes(loader, 2) == expected
    drawn = [
        number for epoch in expected for batch in epoch for part in batch[1:] for number in part
    ]
    assert len(set(drawn)) == len(drawn)  # no two lanes, batches or epochs share their numbers
    other = ResumableDataLoader(kind(LENGTHS, noisy=True), **{**options, "seed": 4})
    assert one_pass(other) != expected[0]


def test_random_numbers_of_iter_itself():
    class Shuffled(Shards):
        def samples(self):
            samples = super().samples()
            random.shuffle(samples)
            return samples

    options = {"batch_size": 2, "lanes": 2}
    batches, states = reference(Shuffled([9, 9]), 2, **options)
    assert sorted(map(str, batches[0])) != sorted(map(str, batches[1]))
    resumed = ResumableDataLoader(Shuffled([9, 9]), seed=3, num_workers=2, **options)
    with pytest.warns(FastForwardWarning):
        resumed.load_state_dict(states[1][4])
    assert one_pass(resumed) == batches[1][4:]


def test_randomness_false_leaves_the_generators_to_the_dataset():
    loader = ResumableDataLoader(Shards([3], noisy=True), randomness=False)
    torch.manual_seed(5)
    drawn = next(iter(loader))[3].item()
    torch.manual_seed(5)
    assert drawn == torch.rand(()).item()


@pytest.mark.parametrize("kind", [StatefulShards, OwnIterator, Shards])
def test_out_of_order_loses_nothing_and_repeats_nothing(kind):
    class Slow(kind):
        def shown(self, sample):
            if sample < 100:
                sum(range(100_000))
            return sample

    lengths = [12, 30, 7, 0]
    options = {"batch_size": 2, "num_workers": 2, "lanes": 4, "in_order": False}
    everything = sorted(map(tuple, in_turn(lengths, 4, 2)))
    for k in (1, 5, 13):
        loader = ResumableDataLoader(Slow(lengths), seed=3, **options)
        delivered = [tuple(plain(batch)) for _, batch in zip(range(k), loader, strict=False)]
        state = loader.state_dict()
        resumed = ResumableDataLoader(Slow(lengths), seed=3, **options)
        with reading_again(Shards if kind is Shards else kind):
            resumed.load_state_dict(state)
        delivered += map(tuple, one_pass(resumed))
        assert sorted(delivered) == everything
        assert sorted(map(tuple, one_pass(resumed))) == everything


@pytest.mark.parametrize("kind", [StatefulShards, BothShards, OwnIterator, Packed, Shards])
def test_states_go_through_json_and_torch_load(kind):
    options = {"batch_size": 2, "lanes": 2}
    (batches,), (states,) = reference(kind(LENGTHS), 1, num_workers=2, **options)
    for k, state in enumerate(states[1:-1], 1):
        assert json.loads(json.dumps(state)) == state
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        for copied in (torch.load(file, weights_only=True), json.loads(json.dumps(state))):
            assert one_pass(loaded(copied, kind(LENGTHS), **options)) == batches[k:]


def test_states_with_tensors_go_through_torch_load():
    _, (states,) = reference(CarryingShards([9]), 1)
    file = io.BytesIO()
    torch.save(states[3], file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    expected = reference(CarryingShards([9]), 1)[0][0]
    assert one_pass(loaded(state, CarryingShards([9]))) == expected[3:]


def test_a_state_before_iter_starts_no_worker_and_is_complete():
    options = {"batch_size": 2, "num_workers": 2}
    loader = ResumableDataLoader(StatefulShards(LENGTHS), seed=3, **options)
    state = loader.state_dict()
    assert worker_pids() == []
    resumed = loaded(state, StatefulShards(LENGTHS), **options)
    assert passes(resumed, 2) == passes(loader, 2)


def test_set_epoch_after_a_load_keeps_the_lanes_of_the_run():
    _, (states,) = reference(StatefulShards(LENGTHS), 1, batch_size=2, lanes=4)
    resumed = loaded(states[2], StatefulShards(LENGTHS), batch_size=2, num_workers=2)
    with pytest.warns(PositionDroppedWarning, match="epoch 0 after"):
        resumed.set_epoch(5)
    assert one_pass(resumed) == in_turn(LENGTHS, 4, 2)
    resumed = loaded(states[2], StatefulShards(LENGTHS), batch_size=2)
    resumed.set_epoch(0)
    assert one_pass(resumed) == in_turn(LENGTHS, 4, 2)[2:]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batch_size_none_delivers_samples(num_workers):
    loader = ResumableDataLoader(StatefulShards([5]), batch_size=None, num_workers=num_workers)
    running = iter(loader)
    assert [next(running), next(running)] == [0, 1]
    resumed = ResumableDataLoader(StatefulShards([5]), batch_size=None, num_workers=1)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == [2, 3, 4]


@pytest.mark.parametrize("kind", [StatefulShards, Shards])
def test_lanes_in_threads(kind):
    options = {"batch_size": 2, "num_workers": 2, "engine": "threads", "lanes": 3}
    expected = in_turn(LENGTHS, 3, 2)
    loader = ResumableDataLoader(kind(LENGTHS), seed=3, **options)
    for k in (1, 4):
        for _, _ in zip(range(k), loader, strict=False):
            pass
        state = loader.state_dict()
        assert one_pass(loaded(state, kind(LENGTHS), **options)) == expected[k:]
        assert one_pass(loader) == expected


def test_pinning_changes_no_state():
    for num_workers in (0, 2):
        options = {"batch_size": 2, "num_workers": num_workers}
        pinned = reference(StatefulShards(LENGTHS), 1, pin_memory=True, **options)
        assert pinned == reference(StatefulShards(LENGTHS), 1, **options)


def damaged(state, **changes):
    return {**state, "lanes": {**state["lanes"], **changes}}


def test_damaged_lanes_are_refused():
    _, (states,) = reference(StatefulShards([9, 9]), 1, lanes=2)
    state = states[3]
    each = state["lanes"]["each"]
    wrong = [
        {"count": 0},
        {"count": 1},
        {"count": "many"},
        {"has_worker_info": "yes"},
        {"count": 0, "each": {}, "last": -1},
        {"each": {"-1": each["0"], "1": each["1"]}},
        {"each": {"0": {**each["0"], "at": 9}, "1": each["1"]}},
        {"each": {"0": {**each["0"], "at": -1}, "1": each["1"]}},
        {"each": {"0": {"batches": 1}, "1": each["1"]}},
        {"each": {"0": {"batches": 1, "ended": False, "at": 1}, "1": each["1"]}},
        {"each": {"0": None, "1": each["1"]}},
        {"last": 2},
        {"last": -2},
        {"each": {"0": {**each["0"], "dataset": lambda: 0}, "1": each["1"]}},
    ]
    for changes in wrong:
        loader = ResumableDataLoader(StatefulShards([9, 9]), seed=3)
        with pytest.raises(StateFormatError):
            loader.load_state_dict(damaged(state, **changes))
        assert len(one_pass(loader)) == 18
    for found in ({"0": each["0"]}, {}):
        with pytest.raises(StateError, match=r"missing"):
            loaded(damaged(state, each=found), StatefulShards([9, 9]))


def test_data_that_became_shorter_is_noticed():
    _, (states,) = reference(Shards([9]), 1)
    resumed = loaded(states[5], Shards([3]))
    with pytest.raises(LaneError, match="data has changed"):
        one_pass(resumed)


def test_a_state_of_other_lanes_loaded_into_a_running_loader_begins_at_its_place():
    _, (states,) = reference(StatefulShards([9, 9]), 1, lanes=2)
    loader = ResumableDataLoader(StatefulShards([9, 9]), seed=3)
    running = iter(loader)
    assert [plain(next(running)) for _ in range(3)] == [[0], [1], [2]]
    for k in (0, 1):
        loader.load_state_dict(states[k])
        assert one_pass(loader) == in_turn([9, 9], 2, 1)[k:]


class Longer(Shards):
    """Says that it has five samples."""

    def __len__(self):
        return 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_longer_than_it_says_is_warned_of_as_in_torch(num_workers):
    options = {"batch_size": 2, "num_workers": num_workers}
    loader = ResumableDataLoader(Longer([4, 4]), seed=3, **options)
    assert len(one_pass(loader)) == 4  # nobody has asked how long it is
    assert len(loader) == 3
    running = iter(loader)
    for _ in range(2):
        next(running)
    state = loader.state_dict()
    said = r"reported to be 5 .*, but 6 samples have been fetched\. "
    with pytest.warns(LengthWarning, match=said + "For multi" * (num_workers > 0)) as caught:
        assert len(list(running)) == 2
    assert len({str(warning.message) for warning in caught}) == 1
    resumed = ResumableDataLoader(Longer([4, 4]), seed=3, **options)
    with pytest.warns(FastForwardWarning):
        resumed.load_state_dict(state)
    assert len(resumed) == 3
    with pytest.warns(LengthWarning, match="but 6 samples"):
        one_pass(resumed)


@pytest.mark.parametrize("turns", [[0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 0], [1, 1, 0]], ids=str)
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_passes_side_by_side_do_not_depend_on_who_reads(kind, lanes, turns):
    def read(num_workers: int) -> list[list]:
        loader = ResumableDataLoader(
            kind([7, 4, 5]), 2, seed=1, lanes=lanes, num_workers=num_workers
        )
        both = [iter(loader), iter(loader)]
        got: list[list] = [[], []]
        for turn in turns:
            got[turn] += [plain(batch) for batch in [next(both[turn], None)] if batch is not None]
        for turn in (0, 1):
            got[turn] += [plain(batch) for batch in both[turn]]
        return got

    assert read(0) == read(lanes)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "engine": "threads"}], ids=str)
def test_a_pass_that_is_dropped_closes_its_iterators_without_the_garbage_collector(options):
    """One that waits for its own threads when it is closed would hang in one of them."""
    closed = []

    class Closing(IterableDataset):
        def __iter__(self):
            try:
                yield from range(100)
            finally:
                closed.append(1)

    loader = ResumableDataLoader(Closing(), 4, lanes=2, **options)
    gc.disable()
    try:
        running = iter(loader)
        for _ in range(3):
            next(running)
        del running
        assert len(closed) == 2
    finally:
        gc.enable()
