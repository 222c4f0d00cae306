import copy
import itertools
import json
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataporter import (
    DrawnAheadWarning,
    OptionError,
    OptionTypeError,
    PositionDroppedWarning,
    ResumableSampler,
    StateFormatError,
    StateMismatchError,
)

LENGTH, BATCH, EPOCHS = 10, 3, 3

KINDS = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "weighted": {"weights": np.arange(10.0)},
    "weighted without replacement": {
        "weights": np.arange(1.0, 11.0),
        "replacement": False,
        "num_samples": 7,
    },
}
every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def make(length=LENGTH, seed=5, **options):
    return ResumableSampler(length, seed=seed, **options)


def resumed(state, **options):
    sampler = make(**options)
    sampler.load_state_dict(state)
    return sampler


def loader_over(sampler, **options):
    return DataLoader(range(LENGTH), BATCH, sampler=sampler, **options)


def one_pass(loader):
    return [batch.tolist() for batch in loader]


def passes_with_states(sampler):
    """Some epochs of a torch loader, and the state after each batch with what follows it."""
    loader = loader_over(sampler)
    epochs, states = [], []
    for _ in range(EPOCHS):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch.tolist())
            states.append((sampler.state_dict(), len(epochs) - 1, len(epochs[-1])))
    return epochs, states


# On a plain torch DataLoader


@every_kind
def test_a_torch_loader_resumes_exactly_after_every_batch_of_every_epoch(options):
    epochs, states = passes_with_states(make(**options))
    for state, epoch, batches in states:
        loader = loader_over(resumed(state, **options))
        assert one_pass(loader) == epochs[epoch][batches:]
        for later in epochs[epoch + 1 :]:
            assert one_pass(loader) == later


@every_kind
def test_a_state_before_the_first_pass_resumes_at_the_start(options):
    sampler = make(**options)
    state = sampler.state_dict()
    assert one_pass(loader_over(resumed(state, **options))) == one_pass(loader_over(sampler))


@every_kind
def test_a_run_that_is_resumed_after_each_batch_is_the_same_run(options):
    epochs, _ = passes_with_states(make(**options))
    state, seen = make(**options).state_dict(), []
    for _ in range(sum(map(len, epochs))):
        sampler = resumed(state, **options)
        batch = next(iter(loader_over(sampler)), None)
        if batch is None:  # the epoch was at its end
            batch = next(iter(loader_over(sampler)))
        seen.append(batch.tolist())
        state = sampler.state_dict()
    assert seen == [batch for epoch in epochs for batch in epoch]


@pytest.mark.parametrize("consumed_batches", range(5))
def test_with_workers_consumed_says_what_was_used(consumed_batches):
    reference = one_pass(loader_over(make(shuffle=True)))
    sampler = make(shuffle=True)
    batches = iter(loader_over(sampler, num_workers=2))
    used = [next(batches).tolist() for _ in range(min(consumed_batches, len(reference)))]
    assert used == reference[:consumed_batches]
    state = sampler.state_dict(consumed=sum(map(len, used)))
    assert sampler.state_dict(batches=len(used), batch_size=BATCH) == state
    if len(used) < len(reference):
        # The workers' batches were drawn ahead: without consumed= they would be lost.
        with pytest.warns(DrawnAheadWarning, match=r"state_dict\(batches="):
            assert sampler.state_dict()["samples_processed"] > state["samples_processed"]
    rest = one_pass(loader_over(resumed(state, shuffle=True), num_workers=2))
    assert rest == reference[consumed_batches:]


def test_consumed_counts_the_samples_of_this_pass():
    sampler = resumed(state_after(4, shuffle=True), shuffle=True)
    drawn = list(itertools.islice(sampler, 5))
    state = sampler.state_dict(consumed=2)
    assert state["samples_processed"] == 6
    assert list(resumed(state, shuffle=True))[:3] == drawn[2:]


def state_after(count, **options):
    sampler = make(**options)
    for _ in itertools.islice(sampler, count):
        pass
    return sampler.state_dict()


@pytest.mark.parametrize("consumed", [-1, 4])
def test_more_consumed_than_drawn_is_refused(consumed):
    sampler = make()
    list(itertools.islice(sampler, 3))
    with pytest.raises(OptionError, match="only 3 samples were drawn"):
        sampler.state_dict(consumed=consumed)


@settings(max_examples=15)
@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    workers=st.integers(0, 2),
    used=st.integers(0, 8),
    again=st.integers(0, 3),
    options=st.fixed_dictionaries({"drop_last": st.booleans()}),
)
def test_a_state_by_batches_loses_nothing_that_was_prefetched(
    length, batch_size, workers, used, again, options
):
    def loader(sampler, num_workers):
        return DataLoader(
            range(length), batch_size, sampler=sampler, num_workers=num_workers, **options
        )

    expected = one_pass(loader(make(length, shuffle=True), 0))
    seen, state = [], make(length, shuffle=True).state_dict()
    for count in (used, again):  # the second time in the middle of the epoch
        sampler = make(length, shuffle=True)
        sampler.load_state_dict(state)
        batches = iter(loader(sampler, workers))
        state = sampler.state_dict(batches=0, batch_size=batch_size)
        for step, batch in enumerate(itertools.islice(batches, count), start=1):
            seen.append(batch.tolist())
            state = sampler.state_dict(batches=step, batch_size=batch_size)
        del batches
    sampler = make(length, shuffle=True)
    sampler.load_state_dict(state)
    assert seen + one_pass(loader(sampler, 0)) == expected


def test_a_state_that_cannot_be_wrong_does_not_warn():
    sampler = make(shuffle=True)
    sampler.state_dict()
    loader = loader_over(sampler, num_workers=1)
    for step, _ in enumerate(loader, start=1):
        sampler.state_dict(batches=step, batch_size=BATCH)
    assert sampler.state_dict()["samples_processed"] == LENGTH  # after the pass
    for _ in loader_over(sampler):  # without workers
        sampler.state_dict()


def test_a_loader_with_workers_that_was_left_early_warns():
    sampler = make(1000)
    for _ in DataLoader(range(1000), 2, sampler=Around(sampler), num_workers=1):
        break
    with pytest.warns(DrawnAheadWarning):
        sampler.state_dict()
    copied = copy.deepcopy(sampler)
    assert copied.state_dict() == pickle.loads(pickle.dumps(copied)).state_dict()


class Around:
    """A sampler around another."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield from self.sampler

    def __len__(self):
        return len(self.sampler)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batches": 1}, "together"),
        ({"batch_size": 1}, "together"),
        ({"consumed": 1, "batches": 1, "batch_size": 1}, "alone"),
        ({"consumed": 1, "batches": 0, "batch_size": 1}, "alone"),
        ({"batches": -1, "batch_size": 2}, "batches must be at least 0"),
        ({"batches": 1, "batch_size": 0}, "batch_size must be at least 1"),
        ({"batches": 3, "batch_size": 2}, "only 4 samples were drawn in this pass, found 3 of 2"),
        ({"batches": 4, "batch_size": 2}, "only 4 samples were drawn"),
    ],
)
def test_batches_that_cannot_be_are_refused(arguments, said):
    sampler = make()
    list(itertools.islice(sampler, 4))
    with pytest.raises(OptionError, match=said):
        sampler.state_dict(**arguments)


# Passes and epochs


@given(
    length=st.integers(0, 40),
    counts=st.lists(st.integers(0, 15), max_size=4),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_chain_of_resumes_is_one_pass(length, counts, shuffle, seed):
    options = {"length": length, "shuffle": shuffle, "seed": seed}
    seen, state = [], make(**options).state_dict()
    for count in counts:
        sampler = resumed(state, **options)
        seen += itertools.islice(sampler, count)
        state = sampler.state_dict()
    assert seen + list(resumed(state, **options)) == list(make(**options))


def test_every_pass_is_the_next_epoch_in_another_order():
    sampler = make(shuffle=True)
    epochs = [list(sampler) for _ in range(5)]
    assert all(sorted(order) == list(range(LENGTH)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 5
    assert sampler.epoch == 4


def test_a_pass_that_was_broken_off_is_followed_by_the_next_epoch():
    reference = [list(epoch) for epoch in itertools.repeat(make(shuffle=True), 3)]
    sampler = make(shuffle=True)
    for epoch in range(3):
        drawing = iter(sampler)
        assert [next(drawing), next(drawing)] == reference[epoch][:2]


def test_set_epoch_chooses_the_order():
    reference = make(shuffle=True)
    epochs = [list(reference) for _ in range(4)]
    sampler = make(shuffle=True)
    for epoch in (3, 0, 2, 2):
        sampler.set_epoch(epoch)
        assert list(sampler) == epochs[epoch]
    assert list(sampler) == epochs[3]


def test_set_epoch_to_the_loaded_epoch_keeps_the_position():
    state = state_after(4, shuffle=True)
    sampler = resumed(state, shuffle=True)
    sampler.set_epoch(0)
    assert list(sampler) == list(resumed(state, shuffle=True))
    assert len(list(sampler)) == LENGTH


def test_set_epoch_to_another_epoch_drops_the_position():
    sampler = resumed(state_after(4, shuffle=True), shuffle=True)
    with pytest.warns(PositionDroppedWarning, match=r"epoch 0 after 4 samples.*sampler\.epoch"):
        sampler.set_epoch(1)
    reference = make(shuffle=True)
    reference.set_epoch(1)
    assert list(sampler) == list(reference)


def test_an_epoch_that_was_drawn_to_its_end_is_followed_by_the_next_without_a_warning():
    sampler = resumed(state_after(LENGTH, shuffle=True), shuffle=True)
    sampler.set_epoch(1)
    reference = make(shuffle=True)
    reference.set_epoch(1)
    assert list(sampler) == list(reference)


def test_a_state_wins_over_an_epoch_that_was_set_before():
    state = state_after(4, shuffle=True)
    sampler = make(shuffle=True)
    sampler.set_epoch(7)
    sampler.load_state_dict(state)
    assert sampler.state_dict() == state
    assert list(sampler) == list(make(shuffle=True))[4:]


def test_the_length_is_that_of_a_full_epoch_after_a_resume_too():
    sampler = resumed(state_after(4))
    assert len(sampler) == LENGTH
    assert len(loader_over(sampler)) == 4


def test_a_negative_epoch_is_refused():
    with pytest.raises(OptionError, match="at least 0, found -1"):
        make().set_epoch(-1)


@pytest.mark.parametrize("epoch", [1.0, "1", None, True])
def test_an_epoch_that_is_no_int_is_refused(epoch):
    with pytest.raises(OptionTypeError, match="epoch must be an int"):
        make().set_epoch(epoch)


# The state


@every_kind
def test_a_state_is_small_json_and_comes_back_from_a_load_unchanged(options):
    state = state_after(4, **options)
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 300
    assert resumed(state, **options).state_dict() == state


def test_a_state_does_not_change_while_the_run_goes_on():
    sampler = make(shuffle=True)
    drawing = iter(sampler)
    next(drawing)
    state = sampler.state_dict()
    before = dict(state)
    list(drawing)
    list(sampler)
    assert state == before


def test_neither_drawing_nor_states_touch_the_global_generators():
    sampler = make(shuffle=True)
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    before = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
    for _ in sampler:
        sampler.load_state_dict(sampler.state_dict())
    after = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
    assert after == before


def test_a_resume_in_a_trillion_samples_is_a_seek():
    sampler = ResumableSampler(10**12, shuffle=True, seed=1)
    sampler.load_state_dict(sampler.state_dict() | {"samples_processed": 10**12 - 5})
    rest = list(iter(sampler))  # list(sampler) would make room for len(sampler)
    assert len(set(rest)) == 5
    assert all(0 <= index < 10**12 for index in rest)


# Seeds


def test_without_a_seed_it_is_drawn_from_torchs_global_generator():
    def drawn(manual_seed):
        torch.manual_seed(manual_seed)
        return list(ResumableSampler(50, shuffle=True))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_sampler_without_a_seed_takes_over_that_of_the_state():
    first = ResumableSampler(50, shuffle=True)
    drawing = iter(first)
    for _ in range(20):
        next(drawing)
    second = ResumableSampler(50, shuffle=True)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(drawing)
    assert second.seed == first.seed
    assert list(second) == list(first)


def test_another_seed_than_the_one_given_is_refused():
    sampler = make(seed=6)
    with pytest.raises(StateMismatchError, match=r"seed=5.*seed=6.*seed=5"):
        sampler.load_state_dict(state_after(3))
    assert sampler.state_dict() == make(seed=6).state_dict()


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_seeds_have_64_bits(seed):
    assert sorted(make(seed=seed, shuffle=True)) == list(range(LENGTH))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_beyond_64_bits_are_refused(seed):
    with pytest.raises(OptionError, match=str(seed)):
        make(seed=seed)


@pytest.mark.parametrize("seed", [1.0, "1", True, [1]])
def test_seeds_that_are_no_ints_are_refused(seed):
    with pytest.raises(OptionTypeError, match="seed must be an int"):
        make(seed=seed)


# States and options that cannot work


@pytest.mark.parametrize(
    ("saved_with", "loaded_with", "said"),
    [
        ({}, {"length": 11}, "length changed.*10.*11"),
        ({}, {"shuffle": True}, "order changed.*sequential.*shuffled"),
        ({"shuffle": True}, {}, "order changed.*shuffled.*sequential"),
        ({"weights": np.ones(10)}, {"weights": np.arange(10)}, "order changed"),
        ({"weights": np.ones(10)}, {"weights": np.ones(10), "num_samples": 5}, "length changed"),
        ({"weights": np.ones(10)}, {"weights": np.ones(10), "replacement": False}, "order"),
    ],
)
def test_a_state_of_other_data_or_another_order_is_refused(saved_with, loaded_with, said):
    sampler = make(**loaded_with)
    fresh = sampler.state_dict()
    with pytest.raises(StateMismatchError, match=said):
        sampler.load_state_dict(state_after(3, **saved_with))
    assert sampler.state_dict() == fresh


@pytest.mark.parametrize("state", [{}, {"epoch": 0}, None, [1, 2], "state"], ids=repr)
def test_what_is_no_state_is_refused(state):
    with pytest.raises(StateFormatError, match="is missing"):
        make().load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"samples_processed": -1},
        {"samples_processed": 10**30},
        {"samples_processed": 2.0},
        {"samples_processed": None},
        {"samples_processed": True},
        {"epoch": -1},
        {"epoch": 10**30},
        {"epoch": "0"},
        {"epoch": None},
        {"seed": -1},
        {"seed": "5"},
        {"seed": None},
    ],
    ids=repr,
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    sampler = ResumableSampler(LENGTH)
    fresh = sampler.state_dict()
    with pytest.raises(StateFormatError, match=next(iter(damage))):
        sampler.load_state_dict(state_after(3) | damage)
    assert sampler.state_dict() == fresh


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_samples": 5}, "requires weights="),
        ({"weights": np.ones(10), "shuffle": True}, "conflicts with weights"),
        ({"weights": np.ones(9)}, "found 9 for 10"),
        ({"weights": np.zeros(10)}, "all be zero"),
        ({"weights": -np.ones(10)}, "not negative"),
        ({"weights": np.eye(10)[0], "replacement": False}, "only 1 of 10"),
        ({"weights": np.ones(10), "num_samples": -1}, "num_samples"),
        ({"length": -1}, "at least 0"),
        ({"length": True}, "found True"),
    ],
)
def test_options_that_cannot_work_are_refused(options, said):
    with pytest.raises(OptionError, match=said):
        make(**options)


def test_the_data_or_its_length_may_be_given():
    assert list(ResumableSampler(["a", "b", "c"])) == list(ResumableSampler(3)) == [0, 1, 2]
    assert list(ResumableSampler([])) == []
