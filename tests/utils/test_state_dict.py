"""States that are not what they should be: a clear error, and nothing half loaded."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import Ids, Stateful, one_pass, passes, plain
from torch.utils.data import IterableDataset, RandomSampler

from dataporter import (
    DataPorterError,
    DataPorterWarning,
    ResumableDataLoader,
    ResumableSampler,
    StateError,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    StateVersionError,
    UncheckedStateWarning,
)
from dataporter.stateful_dataloader import StatefulDistributedSampler


def make(length: int = 10, **options) -> ResumableDataLoader:
    return ResumableDataLoader(Ids(length), 3, **{"shuffle": True, "seed": 1, **options})


def state_after(batches: int, **options) -> dict:
    loader = make(**options)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict()


GOOD = state_after(2)
PLACE = {
    name: GOOD[name] for name in ("epoch", "samples_processed", "batches_processed", "rng_state")
}


TORCHDATAS = {"_snapshot": {}, "_steps_since_snapshot": 0, "_iterator_finished": False}


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        ({}, StateFormatError, ["no 'version'"]),
        (None, StateFormatError, ["NoneType"]),
        ([GOOD], StateFormatError, ["list"]),
        ("a.pt", StateFormatError, ["path 'a.pt'", "torch.load('a.pt')['loader']"]),
        (Path("a.pt"), StateFormatError, ["path 'a.pt'"]),
        (dict, StateFormatError, ["found the class dict", "what state_dict() returned"]),
        (
            {"model": 1, "dataloader": GOOD},
            StateFormatError,
            ["a whole checkpoint", "dataloader, model", "in it: checkpoint['dataloader']."],
        ),
        (
            {"version": "3", "epoch": 4, "loaders": [{"train": GOOD}, {"val": PLACE}]},
            StateFormatError,
            ["checkpoint['loaders'][0]['train'] or checkpoint['loaders'][1]['val']"],
        ),
        (TORCHDATAS, StateFormatError, ["torchdata's StatefulDataLoader", "continues it"]),
        ({"loader": TORCHDATAS}, StateFormatError, ["checkpoint['loader']"]),
        ({**GOOD, "version": 2}, StateVersionError, ["version 2", "up to 1"]),
        ({**GOOD, "version": 0}, StateFormatError, ["0"]),
        ({**GOOD, "version": "1"}, StateFormatError, ["version", "'1'"]),
        ({**GOOD, "epoch": -1}, StateFormatError, ["epoch", "-1"]),
        ({**GOOD, "epoch": 1.0}, StateFormatError, ["epoch", "float 1.0"]),
        ({**GOOD, "epoch": True}, StateFormatError, ["epoch", "bool"]),
        ({**GOOD, "samples_processed": "6"}, StateFormatError, ["samples_processed", "'6'"]),
        ({**GOOD, "samples_processed": -3}, StateFormatError, ["samples_processed", "-3"]),
        ({**GOOD, "batches_processed": None}, StateFormatError, ["batches_processed"]),
        ({**GOOD, "finished": 1}, StateFormatError, ["finished", "True or False"]),
        ({**GOOD, "seed": 2**64}, StateFormatError, ["seed", "2**64"]),
        ({**GOOD, "world_size": 0}, StateFormatError, ["world_size"]),
        ({**GOOD, "rng_state": 5}, StateFormatError, ["rng_state"]),
        ({**GOOD, "sampler": 5}, StateFormatError, ["sampler"]),
        ({k: v for k, v in GOOD.items() if k != "seed"}, StateFormatError, ["no 'seed'"]),
        ({**GOOD, "epoch": 10**30}, StateFormatError, ["epoch", "2**63"]),
        ({**GOOD, "samples_processed": 10**30}, StateFormatError, ["samples_processed", "2**63"]),
        ({**GOOD, "batches_processed": 10**30}, StateFormatError, ["batches_processed", "2**63"]),
        ({**GOOD, "num_samples": 10**30}, StateFormatError, ["num_samples", "2**63"]),
        ({**GOOD, "batch_size": 10**30}, StateFormatError, ["batch_size", "2**63"]),
        ({**GOOD, "world_size": 10**30}, StateFormatError, ["world_size", "2**63"]),
        ({**GOOD, "ahead": [[8, 10**30]]}, StateFormatError, ["ahead"]),
        ({**GOOD, "ahead": [[8, 12]]}, StateMismatchError, ["past the end", "12", "10"]),
        ({**PLACE, "samples_processed": 10**30}, StateFormatError, ["samples_processed"]),
        ({**PLACE, "epoch": "0"}, StateFormatError, ["epoch", "'0'"]),
        ({**GOOD, "num_samples": 50_000}, StateMismatchError, ["50,000", "10 samples"]),
        ({**GOOD, "shuffle": False}, StateMismatchError, ["shuffle=False", "shuffle=True"]),
        ({**GOOD, "seed": 2}, StateMismatchError, ["seed=2", "seed=1"]),
        ({**GOOD, "order": "shuffled-0"}, StateMismatchError, ["shuffled-0", "shuffled-1"]),
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_a_wrong_state_is_refused_in_words_and_changes_nothing(state, error, words, live):
    loader = make()
    iterator = iter(loader)
    if live:
        next(iterator)
    before, kept = loader.state_dict(), copy.deepcopy(state)
    with pytest.raises(error) as raised:
        loader.load_state_dict(state)
    assert isinstance(raised.value, StateError | ValueError)
    assert isinstance(raised.value, DataPorterError)
    for word in words:
        assert word in str(raised.value)
    assert loader.state_dict() == before
    assert state == kept
    assert [plain(batch) for batch in iterator] == one_pass(make())[1 if live else 0 :]


def test_every_mismatch_is_named_at_once():
    with pytest.raises(StateMismatchError) as raised:
        make(11, seed=2, shuffle=False).load_state_dict(GOOD)
    for name in ("num_samples", "shuffle", "seed"):
        assert f"{name} changed" in str(raised.value)
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        assert [each.field for each in error.mismatches] == ["num_samples", "shuffle", "seed"]


def test_a_shrunken_dataset_is_refused_or_continued_with_a_warning():
    with pytest.raises(StateMismatchError, match=r"10 samples.*has 9 samples.*strict=False"):
        make(9).load_state_dict(GOOD)
    loader = make(9)
    with pytest.warns(StateMismatchWarning, match="num_samples changed"):
        loader.load_state_dict(GOOD, strict=False)
    assert one_pass(loader) == one_pass(make(9))[2:]


def test_a_dataset_that_shrank_below_the_position_has_nothing_left_when_not_strict():
    loader = make(4)
    with pytest.warns(StateMismatchWarning):
        loader.load_state_dict(GOOD, strict=False)
    assert one_pass(loader) == []
    assert len(one_pass(loader)) == 2


def test_the_warning_of_strict_false_does_not_advise_it():
    loader = make(9, seed=2, shuffle=False)
    with pytest.warns(StateMismatchWarning) as warned:
        loader.load_state_dict(GOOD, strict=False)
    assert len(warned) == 3
    for warning in warned:
        assert "strict" not in str(warning.message)
        assert "continues here at position 6" in str(warning.message)


# Places: states that say where, and not in which run


@pytest.mark.parametrize("rng_state", [None, torch.get_rng_state(), "anything"], ids=type)
def test_a_state_of_four_keys_continues_with_a_warning_that_nothing_was_checked(rng_state):
    loader = make()
    with pytest.warns(UncheckedStateWarning, match="nothing could be checked.*epoch 0, position 6"):
        loader.load_state_dict({**PLACE, "rng_state": rng_state})
    assert loader.batches_processed == 2
    assert one_pass(loader) == one_pass(make())[2:]
    assert one_pass(loader) == passes(make(), 2)[1]


def test_a_state_of_four_keys_takes_this_loaders_seed_and_says_so_where_it_was_drawn():
    with pytest.warns(UncheckedStateWarning) as warned:
        make().load_state_dict(PLACE)
        make(shuffle=False, seed=None).load_state_dict(PLACE)
        loader = make(seed=None)
        loader.load_state_dict(PLACE)
    given, sequential, drawn = (str(one.message) for one in warned)
    assert f"seed is {loader.seed}, which was drawn" in drawn
    assert "drawn" not in given
    assert "drawn" not in sequential


def test_a_state_of_four_keys_continues_a_sampler_of_the_users_own():
    def sampled():
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(Ids(10), generator=generator)
        return ResumableDataLoader(Ids(10), 3, sampler=sampler, seed=1)

    loader = sampled()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    resumed = sampled()
    with pytest.warns(UncheckedStateWarning):
        resumed.load_state_dict({name: state[name] for name in PLACE})
    assert one_pass(resumed) == [plain(batch) for batch in batches]


def test_a_state_of_four_keys_is_refused_where_it_does_not_say_enough():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    for loader in (
        ResumableDataLoader(Stream(), 3),
        ResumableDataLoader(Ids(10), 3, sampler=Stateful(10, 10)),
    ):
        before = loader.state_dict()
        with pytest.raises(StateFormatError, match="holds only a position"):
            loader.load_state_dict(PLACE)
        assert plain(loader.state_dict()) == plain(before)


# Positions past the end


@given(
    epoch=st.integers(0, 5),
    samples=st.integers(11, 60),
    whole=st.booleans(),
    size=st.integers(1, 4),
    ranks=st.integers(1, 2),
)
def test_a_position_past_the_end_is_one_of_a_later_epoch(epoch, samples, whole, size, ranks):
    state = {**(GOOD if whole else PLACE), "epoch": epoch, "samples_processed": samples}

    def loader():
        options = {"shuffle": True, "seed": 1, "rank": 0, "world_size": ranks}
        return ResumableDataLoader(Ids(10), size, **options)

    found, expected = loader(), loader()
    with pytest.warns(DataPorterWarning) as warned:
        found.load_state_dict(state)
    assert f"found {samples} in an epoch of 10" in str(warned[0].message)
    assert [one.category for one in warned[1:]] == [UncheckedStateWarning] * (not whole)
    expected.load_state_dict(
        {**GOOD, "epoch": epoch + samples // 10, "samples_processed": samples % 10}
    )
    assert (found.epoch, found.samples_processed) == (epoch + samples // 10, samples % 10)
    assert found.batches_processed == -(-(samples % 10) // (size * ranks))
    assert passes(found, 2) == passes(expected, 2)


def test_a_position_past_the_end_of_a_sampler_is_one_of_a_later_epoch():
    sampler = ResumableSampler(100, shuffle=True, seed=1)
    with pytest.warns(StateMismatchWarning, match="epoch 4, position 50"):
        sampler.load_state_dict({**sampler.state_dict(), "epoch": 2, "samples_processed": 250})
    other = ResumableSampler(100, shuffle=True, seed=1)
    other.set_epoch(4)
    assert list(sampler) == list(other)[50:]


@pytest.mark.parametrize("sampler", [lambda: list(range(100)), lambda: RandomSampler(Ids(100))])
def test_a_position_past_the_end_of_a_users_sampler_is_no_silent_end(sampler):
    loader = ResumableDataLoader(Ids(100), 10, sampler=sampler(), seed=1)
    loader.seek(2, 1000)
    words = "found 1,000, but the sampler ended after 100 samples. Nothing remains of epoch 2"
    with pytest.warns(StateMismatchWarning, match=words):
        assert one_pass(loader) == []
    assert len(one_pass(loader)) == 10


def test_the_end_of_a_users_sampler_is_a_position():
    loader = ResumableDataLoader(Ids(100), 10, sampler=list(range(100)))
    loader.seek(0, 100)
    assert one_pass(loader) == []


def test_a_position_past_the_end_of_a_distributed_sampler_is_refused():
    sampler = StatefulDistributedSampler(Ids(100), num_replicas=2, rank=0)
    sampler.load_state_dict({"yielded": 50})
    with pytest.raises(StateMismatchError, match="found yielded=1,000 of 50 indices"):
        sampler.load_state_dict({"yielded": 1000})


def test_strict_false_still_refuses_what_is_not_a_state():
    with pytest.raises(StateFormatError):
        make().load_state_dict({}, strict=False)


def test_a_warning_that_is_an_error_leaves_the_loader_as_it_was():
    loader = make(9)
    before = loader.state_dict()
    with pytest.raises(StateMismatchWarning):
        loader.load_state_dict(GOOD, strict=False)
    assert loader.state_dict() == before


def test_without_a_seed_of_its_own_a_loader_takes_the_states():
    loader = make(seed=None)
    loader.load_state_dict(GOOD)
    assert loader.seed == 1
    assert one_pass(loader) == one_pass(make())[2:]


class Versioned(Ids):
    def __init__(self, length: int, version: str) -> None:
        super().__init__(length)
        self.version = version

    def fingerprint(self) -> str:
        return self.version


def test_data_of_equal_length_but_another_fingerprint_is_refused():
    first = ResumableDataLoader(Versioned(10, "v1"), 3, seed=1)
    same, other = (ResumableDataLoader(Versioned(10, v), 3, seed=1) for v in ("v1", "v2"))
    same.load_state_dict(first.state_dict())
    with pytest.raises(StateMismatchError, match=r"'v1'.*'v2'"):
        other.load_state_dict(first.state_dict())


def test_hugging_face_datasets_and_subsets_are_told_apart():
    import torch
    from datasets import Dataset
    from torch.utils.data import Subset, random_split

    data = Dataset.from_dict({"x": list(range(10))})
    changed = data.map(lambda row: {"x": row["x"] + 1})
    state = ResumableDataLoader(data, 3, seed=1).state_dict()
    ResumableDataLoader(data, 3, seed=1).load_state_dict(json.loads(json.dumps(state)))
    with pytest.raises(StateMismatchError, match="fingerprint"):
        ResumableDataLoader(changed, 3, seed=1).load_state_dict(state)

    def split(seed: int) -> Subset:
        return random_split(Ids(10), [8, 2], torch.Generator().manual_seed(seed))[0]

    state = ResumableDataLoader(split(1), 3, seed=1).state_dict()
    ResumableDataLoader(split(1), 3, seed=1).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="fingerprint"):
        ResumableDataLoader(split(2), 3, seed=1).load_state_dict(state)


def test_a_sampler_of_the_users_own_refuses_another_world_size_and_another_class():
    def loader(world_size: int, sampler) -> ResumableDataLoader:
        return ResumableDataLoader(
            Ids(10), 3, sampler=sampler, seed=1, rank=0, world_size=world_size
        )

    state = loader(2, range(5)).state_dict()
    loader(2, range(5)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="2 ranks, this run has 3"):
        loader(3, range(5)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"sampler range.*sampler list"):
        loader(2, [1, 2]).load_state_dict(state)


def test_a_sampler_that_refuses_its_state_leaves_the_loader_as_it_was():
    class Refusing:
        def __iter__(self):
            return iter(range(10))

        def state_dict(self) -> dict:
            return {}

        def load_state_dict(self, _state: dict) -> None:
            raise RuntimeError("not this one")

    loader = ResumableDataLoader(Ids(10), 3, sampler=Refusing(), seed=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    fresh = ResumableDataLoader(Ids(10), 3, sampler=Refusing(), seed=1)
    before = fresh.state_dict()
    with pytest.raises(RuntimeError, match="not this one"):
        fresh.load_state_dict(state)
    assert fresh.state_dict() == before
