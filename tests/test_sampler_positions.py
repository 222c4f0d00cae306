"""A sampler that a loader reads has its position: it is reported, and a load is followed."""

import copy
import gc
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Ids, one_pass, passes, plain
from torch.utils.data import DataLoader

from dataporter import ResumableDataLoader, ResumableSampler
from dataporter.errors import OptionError, PositionDroppedWarning, StateError, StateMismatchError
from dataporter.patched_dataloader import PatchedDataLoader
from dataporter.stateful_dataloader import StatefulDataLoader

LENGTH = 20


def make(loader_class=ResumableDataLoader, *, own=True, **options):
    """A loader that shuffles by its own sampler, or by one that the user has made."""
    if own:
        order = {"shuffle": True, "seed": 3}
    else:
        order = {"sampler": ResumableSampler(LENGTH, shuffle=True, seed=3)}
    return loader_class(Ids(LENGTH), **{"batch_size": 4, **order, **options})


def broken_off(loader, batches, epochs=0):
    """Deliver some batches after whole epochs; the iterator."""
    passes(loader, epochs)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return iterator


@pytest.mark.parametrize(
    "loader_class", [ResumableDataLoader, PatchedDataLoader, StatefulDataLoader]
)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_resumes_the_loader_that_reads_it(loader_class, own, num_workers):
    loader = make(loader_class, own=own, num_workers=num_workers)
    iterator = broken_off(loader, 2)
    state = loader.sampler.state_dict()
    assert (state["epoch"], state["samples_processed"]) == (0, 8)
    rest = [plain(batch) for batch in iterator]
    resumed = make(loader_class, own=own, num_workers=num_workers)
    resumed.sampler.load_state_dict(state)
    assert resumed.samples_processed == 8
    assert passes(resumed, 2) == [rest, one_pass(loader)]


@settings(deadline=None)
@given(
    epochs=st.integers(0, 2),
    batches=st.integers(0, 5),
    batch_size=st.integers(1, 7),
    resumed_size=st.integers(1, 7),
    own=st.booleans(),
    then=st.sampled_from(["load", "seek", "set_epoch", "copy", "pickle"]),
)
def test_a_sampler_and_its_loader_have_the_same_position(
    epochs, batches, batch_size, resumed_size, own, then
):
    loader = make(own=own, batch_size=batch_size)
    iterator = broken_off(loader, min(batches, len(loader)), epochs)
    if then == "load":
        loader.load_state_dict(loader.state_dict())
    elif then == "seek":
        loader.seek(4, 11)
    elif then == "set_epoch":
        loader.set_epoch(7)
    else:
        loader = copy.deepcopy(loader) if then == "copy" else pickle.loads(pickle.dumps(loader))
    del iterator
    state, whole = loader.sampler.state_dict(), loader.state_dict()
    names = ("epoch", "samples_processed")
    assert [state[name] for name in names] == [whole[name] for name in names]
    by_sampler, by_loader = (make(own=own, batch_size=resumed_size) for _ in range(2))
    by_sampler.sampler.load_state_dict(state)
    by_loader.load_state_dict(whole)
    assert by_sampler.sampler.state_dict() == state
    assert passes(by_sampler, 2) == passes(by_loader, 2)


def test_an_epoch_that_ran_to_its_end_is_followed_by_the_next():
    loader = make()
    one_pass(loader)
    state = loader.sampler.state_dict()
    assert (state["epoch"], state["samples_processed"]) == (1, 0)
    resumed = make()
    resumed.sampler.load_state_dict(state)
    assert passes(resumed, 2) == passes(loader, 2)


def test_a_state_loaded_into_the_sampler_takes_effect_in_a_live_iterator():
    state = make().sampler.state_dict() | {"epoch": 2, "samples_processed": 12}
    expected = passes(make(), 3)[2][3:]
    loader = make()
    iterator = broken_off(loader, 1)
    loader.sampler.load_state_dict(state)
    assert [plain(batch) for batch in iterator] == expected


def test_a_position_loaded_into_the_sampler_is_dropped_with_one_warning():
    loader = make()
    loader.sampler.load_state_dict(loader.sampler.state_dict() | {"samples_processed": 12})
    loader.sampler.set_epoch(5)
    with pytest.warns(PositionDroppedWarning) as caught:
        assert len(one_pass(loader)) == 5
    assert len(caught) == 1


def test_a_copy_follows_its_own_sampler():
    loader = make()
    iterator = broken_off(loader, 1)
    copied = copy.deepcopy(loader)
    copied.sampler.load_state_dict(copied.sampler.state_dict() | {"samples_processed": 16})
    assert len(one_pass(copied)) == 1
    assert loader.sampler.state_dict()["samples_processed"] == 4
    assert len([plain(batch) for batch in iterator]) == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_the_position_is_counted_over_all_ranks(rank):
    loader = make(rank=rank, world_size=2)
    iterator = broken_off(loader, 1)
    state = loader.sampler.state_dict()
    assert state["samples_processed"] == 8
    rest = [plain(batch) for batch in iterator]
    resumed = make(rank=rank, world_size=2)
    resumed.sampler.load_state_dict(state)
    assert one_pass(resumed) == rest


def test_a_loader_built_over_a_sampler_goes_on_where_another_one_was_put():
    first = make(own=False)
    first.sampler.load_state_dict(first.sampler.state_dict() | {"samples_processed": 12})
    again = ResumableDataLoader(Ids(LENGTH), batch_size=4, sampler=first.sampler)
    assert again.samples_processed == 12
    one_pass(again)
    fresh = ResumableDataLoader(Ids(LENGTH), batch_size=4, sampler=first.sampler)
    assert fresh.samples_processed == 0


def test_torchs_loader_over_the_same_sampler_has_its_own_position():
    loader = make(own=False)
    iterator = broken_off(loader, 3)
    sampler = loader.sampler
    drawing = iter(DataLoader(Ids(LENGTH), batch_size=2, sampler=sampler))
    next(drawing)
    assert sampler.state_dict()["samples_processed"] == 2
    assert sampler.state_dict(batches=1, batch_size=2)["samples_processed"] == 2
    del iterator
    broken_off(loader, 1)
    assert sampler.state_dict()["samples_processed"] == 4


def test_a_sampler_knows_the_position_of_a_loader_that_is_gone():
    loader = make(own=False)
    sampler = loader.sampler
    broken_off(loader, 3)
    del loader
    gc.collect()
    state = sampler.state_dict()
    assert state["samples_processed"] == 12
    assert ResumableDataLoader(Ids(LENGTH), batch_size=4, sampler=sampler).samples_processed == 0
    sampler.load_state_dict(state)
    resumed = ResumableDataLoader(Ids(LENGTH), batch_size=4, sampler=sampler)
    assert len(one_pass(resumed)) == 2


def test_counts_of_batches_are_not_needed_where_the_loader_counts():
    loader = make()
    broken_off(loader, 3)
    for counts in ({"batches": 3, "batch_size": 4}, {"consumed": 12}):
        with pytest.raises(OptionError, match="without consumed= or batches="):
            loader.sampler.state_dict(**counts)


def test_batches_delivered_before_their_turn_do_not_fit_a_samplers_state():
    loader = make(batch_size=2, in_order=False)
    loader.load_state_dict(loader.state_dict() | {"samples_processed": 4, "ahead": [[8, 10]]})
    with pytest.raises(StateError, match=r"loader\.state_dict"):
        loader.sampler.state_dict()


class Counting(Ids):
    """Read by index, with a state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_dataset_with_a_state_is_not_put_back_by_its_sampler():
    loader = ResumableDataLoader(Counting(LENGTH), batch_size=4)
    broken_off(loader, 3)
    state = loader.sampler.state_dict()
    assert state["samples_processed"] == 12
    with pytest.raises(OptionError, match="only the state of the dataset"):
        loader.sampler.load_state_dict(state)
    assert loader.sampler.state_dict() == state


def test_a_samplers_state_does_not_hold_for_a_dataset_that_has_grown():
    dataset = Ids(LENGTH)
    loader = ResumableDataLoader(dataset, batch_size=4, shuffle=True, seed=3)
    broken_off(loader, 1)
    state = loader.sampler.state_dict()
    dataset.length += 5
    with pytest.raises(StateMismatchError, match="length"):
        loader.sampler.load_state_dict(state)
