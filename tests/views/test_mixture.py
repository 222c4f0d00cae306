"""`Mixture` in loaders: shares, resumes with other ranks and weights, parts of all kinds."""

import gc
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from porters import tidy
from support import Augmented, plain
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader
from dataporter.errors import (
    OptionError,
    OptionTypeError,
    StateMismatchError,
    StateMismatchWarning,
)
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.testing import verify
from dataporter.views import Mixture, packed, where

WEB, CODE, MATH = range(1000), range(1000, 1060), range(2000, 2030)


def mix(web=0.7, code=0.3, **options):
    return Mixture({"web": (WEB, web), "code": (CODE, code)}, **options)


def loader_of(mixture, batch_size=10, **options):
    return ResumableDataLoader(mixture, batch_size, **{"shuffle": True, "seed": 3, **options})


def flat(batches):
    return [sample for batch in batches for sample in plain(batch)]


def taken(loader, batches):
    return flat(itertools.islice(loader, batches))


def resumed(loader, state, **load):
    loader.load_state_dict(json.loads(json.dumps(state)), **load)
    return loader


# Shares and epochs


def test_every_batch_has_the_share_of_each_part():
    for batch in loader_of(mix(epoch=1000), num_workers=1):
        assert sum(sample < 1000 for sample in plain(batch)) == 7


@pytest.mark.parametrize(
    ("epoch", "samples"), [("longest", 1429), ("shortest", 200), ("all", 1429), (55, 55)]
)
def test_an_epoch_ends_where_it_is_told_to(epoch, samples):
    mixture = mix(epoch=epoch)
    assert len(loader_of(mixture, 1)) == samples
    assert len(flat(loader_of(mixture, 7))) == samples
    assert len(mixture) == 1060


def test_the_longest_part_is_the_one_with_most_samples():
    few, many = range(10), range(100)
    mixture = Mixture({"few": (few, 1), "many": (many, 99)}, epoch="longest")
    assert len(loader_of(mixture, 1)) == 102  # "many" once; "few" would need 1,000
    mixture = Mixture({"few": (few, 1), "many": (many, 99)}, epoch="all")
    assert len(loader_of(mixture, 1)) == 1000


def test_a_small_part_comes_again_in_another_shuffle():
    found = [sample for sample in flat(loader_of(mix())) if sample >= 1000]
    rounds = [found[start : start + 60] for start in range(0, 360, 60)]
    assert all(sorted(each) == list(CODE) for each in rounds)
    assert len(set(map(tuple, rounds))) == 6


def test_parts_go_on_in_the_next_epoch_where_they_were():
    loader = loader_of(mix(epoch=100))
    found = flat(loader) + flat(loader)
    assert len({sample for sample in found if sample < 1000}) == 140  # none twice
    assert sorted(sample for sample in found if sample >= 1000) == list(CODE)


def test_samples_say_which_part_they_are_from_on_request():
    parts = {"a": ([{"x": 1}] * 3, 1), "b": ([{"x": 2}] * 3, 1)}
    mixture = Mixture(parts, name_as="part", epoch="all")
    for sample in mixture:
        assert sample["part"] == "ab"[sample["x"] - 1]
    with pytest.raises(OptionTypeError, match="needs samples that are dicts, found int in part"):
        Mixture({"a": ([1, 2], 1)}, name_as="part")[0]


def test_indices_are_those_of_the_parts_one_after_the_other():
    mixture = mix()
    assert (mixture[0], mixture[999], mixture[1000], mixture[-1]) == (0, 999, 1000, 1059)
    with pytest.raises(IndexError, match=r"1060 is out of range: the mixture has 1,060 samples"):
        mixture[1060]


def test_a_mixture_has_as_many_samples_as_its_parts_one_after_the_other():
    windows = packed([[1, 2, 3]] * 4, 4)  # its order has other indices than these
    mixture = Mixture({"windows": (windows, 1), "dicts": ([{"tokens": 7}] * 2, 1)})
    samples = list(itertools.islice(mixture, 9))
    assert len(mixture) == len(samples) == 5
    assert [int(sample["tokens"]) for sample in samples[3:]] == [7, 7]


def test_a_shuffle_is_optional():
    by_name = [1000, 0, 1001, 1, 1002, 2]
    assert flat(loader_of(mix(1, 1, epoch=6), shuffle=False)) == by_name


# Resumes


@settings(max_examples=30)
@given(
    stops=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    batches=st.lists(st.integers(1, 9), min_size=5, max_size=5),
    ranks=st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
def test_chains_of_resumes_on_other_ranks_and_batches_are_one_run(stops, batches, ranks):
    whole = flat(loader_of(mix(epoch=2000), 1))
    found, state = [], None
    for number, steps in enumerate([*stops, None]):
        loaders = [
            loader_of(
                mix(epoch=2000), batches[number], rank=rank, world_size=ranks[number], tail="drop"
            )
            for rank in range(ranks[number])
        ]
        if steps is None:  # the rest, on one rank
            loaders = [loader_of(mix(epoch=2000), 1)]
        for loader in loaders:
            if state is not None:
                resumed(loader, state)
        parts = [taken(loader, steps) for loader in loaders]
        found += [sample for part in parts for sample in part]
        state = loaders[0].state_dict()
    assert sorted(found) == sorted(whole)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_weights_at_a_resume_hold_from_there_on(num_workers):
    loader = loader_of(mix(epoch=1000))
    before = taken(loader, 20)
    after = flat(resumed(loader_of(mix(0.5, 0.5), num_workers=num_workers), loader.state_dict()))
    assert sum(sample < 1000 for sample in before) == 140
    assert sum(sample < 1000 for sample in after) == 400
    assert len(after) == 800
    web = [sample for sample in before + after if sample < 1000]
    assert len(set(web)) == len(web) == 540  # nothing repeated
    code = [sample for sample in before + after if sample >= 1000]
    assert all(
        sorted(code[start : start + 60]) == list(CODE) for start in range(0, len(code) - 59, 60)
    )


def test_a_schedule_changes_weights_at_its_positions():
    schedule = [(0, {"web": 1}), (100, {"web": 1, "code": 1}), (300, {"code": 1})]
    found = flat(loader_of(mix(schedule=schedule, epoch=400)))
    counts = [sum(sample >= 1000 for sample in found[at : at + 100]) for at in range(0, 400, 100)]
    assert counts == [0, 50, 50, 100]


def test_a_part_may_be_added():
    loader = loader_of(mix(epoch=200))
    before = taken(loader, 5)
    parts = {"web": (WEB, 0.5), "math": (MATH, 0.25), "code": (CODE, 0.25)}
    more = loader_of(Mixture(parts))
    after = flat(resumed(more, loader.state_dict()))
    assert sum(sample >= 2000 for sample in after) == 37  # a quarter of 150
    web = [sample for sample in before + after if sample < 1000]
    assert len(set(web)) == len(web)
    again = flat(resumed(loader_of(Mixture(parts)), more.state_dict()))  # the next epoch
    assert len(again) == 200


def test_a_part_may_be_removed_unless_the_load_is_strict():
    parts = {"web": (WEB, 0.5), "math": (MATH, 0.25), "code": (CODE, 0.25)}
    loader = loader_of(Mixture(parts, epoch=200))
    before = taken(loader, 5)
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match="math"):
        resumed(loader_of(mix()), state)
    with pytest.warns(StateMismatchWarning, match="math"):
        fewer = resumed(loader_of(mix()), state, strict=False)
    after = flat(fewer)
    assert len(after) == 150
    assert not any(sample >= 2000 for sample in after)
    web = [sample for sample in before + after if sample < 1000]
    assert len(set(web)) == len(web)
    assert taken(resumed(loader_of(mix()), fewer.state_dict()), 3)  # strict from now on


def test_positions_of_a_removed_part_cannot_be_looked_at_and_others_fill_up_steps():
    parts = {"web": (WEB, 1), "math": (MATH, 1), "code": (CODE, 1)}
    loaders = [loader_of(Mixture(parts, epoch=35), 5, rank=rank, world_size=2) for rank in (0, 1)]
    before = [sample for loader in loaders for sample in taken(loader, 2)]
    found = []
    for rank in (0, 1):
        loader = loader_of(mix(1, 1), 5, rank=rank, world_size=2)
        with pytest.warns(StateMismatchWarning, match="math"):
            resumed(loader, loaders[0].state_dict(), strict=False)
        with pytest.raises(OptionError, match="position 1 of epoch 0 was a sample of part 'math'"):
            loader.samples_at(0, [0, 1])
        with pytest.raises(OptionError, match="'math', which was removed"):
            loader.batch_at(0, 0)
        padding = []
        for batch in loader:
            found += plain(batch)
            padding += loader.delivered.padding.tolist()
        assert len(padding) == 8
    web = [sample for sample in found if sample < 1000]
    assert len(found) == 16
    assert all(sample < 2000 for sample in found)  # also of the one that fills up the last step
    assert len(set(web) & set(before)) <= 1


def test_the_order_in_which_parts_are_listed_may_change_at_a_resume():
    parts = {"b": (range(50), 1), "c": (range(50, 100), 1), "d": (range(100, 150), 2)}
    loader = loader_of(Mixture(parts, epoch=100), 3)
    before = taken(loader, 3)
    whole = flat(loader_of(Mixture(parts, epoch=100), 3))
    listed = dict(reversed(parts.items()))
    assert before + flat(resumed(loader_of(Mixture(listed), 3), loader.state_dict())) == whole
    more = Mixture({"a": (range(200, 300), 4), **listed})
    found = before + flat(resumed(loader_of(more, 3), loader.state_dict()))
    assert len(set(found)) == len(found) == 100


def test_other_weights_begin_after_what_was_delivered_ahead_of_its_turn():
    loader = loader_of(mix(epoch=300), in_order=False)
    taken(loader, 2)
    state = {**loader.state_dict(), "ahead": [[40, 50]]}
    before = loader.samples_at(0, [*range(20), *range(40, 50)])
    after = flat(resumed(loader_of(mix(0.1, 0.9)), state))
    assert len(before + after) == 300
    web = [sample for sample in before + after if sample < 1000]
    assert len(set(web)) == len(web)
    assert sum(sample < 1000 for sample in after) == 14 + 25  # of 20 samples, and of 250


def test_other_data_of_a_part_is_refused():
    tensors = {"a": (torch.arange(50), 1), "b": (torch.arange(50, 80), 1)}
    loader = loader_of(Mixture(tensors))
    taken(loader, 2)
    other = {**tensors, "b": (torch.arange(51, 81), 1)}
    with pytest.raises(StateMismatchError, match="order changed"):
        resumed(loader_of(Mixture(other)), loader.state_dict())


def test_augmentation_belongs_to_the_position():
    def make(**options):
        parts = {"a": (Augmented(20), 1), "b": (Augmented(30), 2)}
        return loader_of(Mixture(parts), 4, **options)

    def contents(batches):
        return [json.dumps(plain(batch)) for batch in batches]

    whole = contents(make())
    loader = make(num_workers=2)
    first = contents(itertools.islice(loader, 3))
    rest = contents(resumed(make(num_workers=1), loader.state_dict()))
    assert first + rest == whole


# Batches from one part


@pytest.mark.parametrize("world_size", [1, 3])
def test_each_batch_is_from_one_part_on_request(world_size):
    for rank in range(world_size):
        loader = loader_of(
            mix(batches_from="one", epoch=600), rank=rank, world_size=world_size, tail="drop"
        )
        parts = [{sample >= 1000 for sample in plain(batch)} for batch in loader]
        assert all(len(part) == 1 for part in parts)
        if world_size == 1:
            assert sum(part == {False} for part in parts) == 42


def test_batches_are_from_one_part_in_later_epochs_and_after_changes_of_weights():
    schedule = [(0, {"web": 0.5, "code": 0.5}), (1003, {"web": 0.3, "code": 0.7})]
    loader = loader_of(mix(schedule=schedule, batches_from="one", epoch=333))
    found = [plain(batch) for _ in range(6) for batch in loader]
    assert [len(batch) for batch in found] == [*[10] * 33, 3] * 6
    assert all(len({sample >= 1000 for sample in batch}) == 1 for batch in found)
    samples = [sample for batch in found for sample in batch]
    web = [sample for sample in samples if sample < 1000]
    assert len(set(web)) == len(web)
    assert len(web) == pytest.approx(0.5 * 1003 + 0.3 * 995, abs=20)  # a batch at each change
    code = [sample for sample in samples if sample >= 1000]
    assert all(sorted(code[at : at + 60]) == list(CODE) for at in range(0, 1140, 60))


def test_batches_of_another_size_are_from_one_part_after_a_resume():
    loader = loader_of(mix(batches_from="one", epoch=600))
    taken(loader, 5)
    other = resumed(loader_of(mix(batches_from="one"), 11), loader.state_dict())
    for _ in range(3):
        for batch in other:
            assert len({sample >= 1000 for sample in plain(batch)}) == 1


# Parts of all kinds


def test_a_part_may_leave_samples_out():
    odd = where(list(CODE), lambda number: number % 2 == 1, name="odd", lazy=True)
    mixture = Mixture({"web": (WEB, 1), "odd": (odd, 1)}, epoch=120)
    assert mixture.leaves_samples_out
    found = flat(loader_of(mixture))
    assert sum(sample < 1000 for sample in found) == 60
    assert sorted(sample for sample in found if sample >= 1000) == list(range(1001, 1060, 2))


def test_mixtures_nest():
    inner = Mixture({"code": (CODE, 1), "math": (MATH, 1)})
    outer = Mixture({"web": (WEB, 1), "rest": (inner, 1)}, epoch=240)
    found = flat(loader_of(outer))
    assert sum(sample < 1000 for sample in found) == 120
    assert sum(1000 <= sample < 2000 for sample in found) == 60
    loader = loader_of(outer)
    first = taken(loader, 9)
    assert first + flat(resumed(loader_of(outer), loader.state_dict())) == found


def test_weights_of_a_mixture_within_a_mixture_may_change_at_a_resume():
    def make(code, **more):
        inner = Mixture({"code": (CODE, code), "math": (MATH, 1 - code), **more})
        return loader_of(Mixture({"web": (WEB, 1), "rest": (inner, 1)}, epoch=300))

    loader = make(0.5)
    before = taken(loader, 6)
    state = loader.state_dict()
    other = make(0.9)
    found = before + flat(resumed(other, state))
    assert sum(1000 <= sample < 2000 for sample in found) == 15 + 108
    code = [sample for sample in found if 1000 <= sample < 2000]
    assert all(sorted(code[at : at + 60]) == list(CODE) for at in (0, 60))
    assert sum(2000 <= sample < 3000 for sample in found) == 15 + 12
    assert flat(resumed(make(0.9), other.state_dict())) == flat(other)  # the next epoch
    more = flat(resumed(make(0.4, text=(range(3000, 3100), 0.4)), state))
    assert sum(sample >= 3000 for sample in more) == 34  # two of seven, of 120


@pytest.fixture
def corpora(tmp_path, monkeypatch):
    """Two folders of Parquet files, which are ordered by tracks."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, kind in enumerate(("web", "code")):
        folder = tmp_path / kind
        folder.mkdir()
        for file in range(8):
            ids = np.arange(100) + 100 * file + 1000 * number
            pq.write_table(pa.table({"id": ids}), folder / f"{file}.parquet", row_group_size=10)
    with tidy():
        yield lambda kind: ShardedDataset(tmp_path / kind)
        gc.collect()  # a loader is part of a cycle


def test_parts_in_files_are_read_by_their_porters(corpora):
    def make(**options):
        parts = {"web": (corpora("web"), 3), "code": (corpora("code"), 1)}
        mixture = Mixture(parts, epoch=800)
        return mixture, loader_of(mixture, 8, num_workers=1, **options)

    mixture, loader = make()
    found = [number for batch in loader for number in plain(batch["id"])]
    assert sum(number < 1000 for number in found) == 600
    assert len(set(found)) == 800
    stats = {name: part.stats() for name, part in mixture._datasets.items()}
    assert all(each["ahead"] > 0 for each in stats.values())
    assert stats["code"]["decoded"] <= 40  # of 80 blocks: no others are fetched than are read
    _, again = make()
    first = [number for batch in itertools.islice(again, 30) for number in plain(batch["id"])]
    _, last = make()
    resumed(last, again.state_dict())
    assert first + [number for batch in last for number in plain(batch["id"])] == found


def test_ranks_that_share_a_mixture_read_blocks_of_their_own(corpora):
    mixture = Mixture({"web": (corpora("web"), 3), "code": (corpora("code"), 1)}, epoch=800)
    blocks = []
    for rank in range(2):
        loader = loader_of(mixture, 8, rank=rank, world_size=2)
        numbers = [number for batch in loader for number in plain(batch["id"])]
        blocks.append({number // 10 for number in numbers})
    assert len(blocks[0] & blocks[1]) <= 0.2 * len(blocks[0] | blocks[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_tensors_are_gathered_as_they_are_read_one_by_one(num_workers):
    def parts(kind):
        first, second = torch.arange(60.0).reshape(30, 2), torch.arange(100.0, 140).reshape(20, 2)
        if kind == "tensors":
            return first, second
        if kind == "arrays":
            return first.numpy(), second.numpy()
        if kind == "rows":  # nothing gathers a list
            return list(first), list(second)
        pairs = (TensorDataset(each, each[:, 0].long()) for each in (first, second))
        return tuple(pairs) if kind == "datasets" else tuple(map(list, pairs))

    def batches(kind):
        mixture = Mixture(dict(zip("ab", ((part, 1) for part in parts(kind)), strict=True)))
        assert (mixture.batch_gather() is not None) == (kind in {"tensors", "arrays", "datasets"})
        return [plain(batch) for batch in loader_of(mixture, 7, num_workers=num_workers)]

    assert batches("tensors") == batches("arrays") == batches("rows")
    assert batches("datasets") == batches("pairs")


def test_a_mixture_with_a_part_that_cannot_be_gathered_is_not_gathered():
    assert Mixture({"a": (torch.zeros(5), 1), "b": ([0.0] * 5, 1)}).batch_gather() is None


# Words


def test_explain_shows_the_shares_so_far_and_ahead():
    schedule = [(0, {"web": 3, "code": 1}), (500, {"web": 1, "code": 1})]
    loader = loader_of(mix(schedule=schedule, epoch=700))
    taken(loader, 4)
    words = dict(loader.explain().rows())
    assert words["parts"] == (
        "web 75.0 %: 30 so far (75.0 %, 0.03 epochs of its own); "
        "code 25.0 %: 10 so far (25.0 %, 0.17 epochs of its own)"
    )
    assert words["later"] == "from 500 on web 50.0 %, code 50.0 %"
    assert repr(mix()) == "Mixture(1,060 samples: web 70 %, code 30 %)"
    assert repr(mix(1, 1e-7)) == "Mixture(1,060 samples: web 99.99 %, code 0.01 %)"  # as it is used


def test_explain_shows_the_weights_that_hold_from_its_position_on():
    schedule = [(0, {"web": 3, "code": 1}), (40, {"web": 1, "code": 1})]
    loader = loader_of(mix(schedule=schedule, epoch=700))
    words = dict(loader.explain().rows())
    assert words["parts"].startswith("web 75.0 %: 0 so far")
    assert words["later"] == "from 40 on web 50.0 %, code 50.0 %"
    taken(loader, 4)
    words = dict(loader.explain().rows())
    assert words["parts"].startswith("web 50.0 %: 30 so far")
    assert "later" not in words


def make_verified():
    return loader_of(mix(epoch=200), 8)


def test_verify_says_exact():
    report = verify(make_verified, batches=12, seconds=1000, points=1, workers=[1], batch_sizes=[5])
    assert report.is_exact, report


def test_a_mixture_chooses_batches_if_it_or_a_part_does():
    by_part = mix(batches_from="one")
    assert not mix().chooses_batches
    assert by_part.chooses_batches
    assert Mixture({"mixed": (by_part, 1), "math": (MATH, 1)}).chooses_batches


def make_verified_from_one():
    return loader_of(mix(epoch=75, batches_from="one"), 8)


def test_verify_says_exact_of_batches_from_one_part_and_leaves_other_sizes_out():
    report = verify(make_verified_from_one, batches=12, seconds=1000, points=1, workers=[1])
    assert report.is_exact, report
    assert "Mixture chooses samples for batches of this size" in str(report)


# Mistakes


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Mixture({}), OptionTypeError, "parts must be a dict such as"),
        (lambda: Mixture({"a": WEB}), OptionTypeError, "a part is a name with a dataset and its"),
        (lambda: Mixture({"a": [WEB, 1]}), OptionTypeError, "its weight, .* found 'a': list"),
        (lambda: Mixture({1: (WEB, 1)}), OptionTypeError, "a part is a name .* found 1: tuple"),
        (lambda: mix(0), OptionError, "the weight of part 'web' must be above zero, found 0"),
        (lambda: mix(-1.5), OptionError, "must be above zero, found -1.5"),
        (lambda: mix(float("nan")), OptionError, "must be above zero, found nan"),
        (lambda: mix("much"), OptionTypeError, "must be a number, found 'much'"),
        (lambda: Mixture({"a": (iter(WEB), 1)}), OptionTypeError, "part 'a' has no length"),
        (lambda: Mixture({"a": ([], 1)}), OptionError, "part 'a' is empty"),
        (lambda: mix(epoch=0), OptionError, "epoch must be at least 1 sample, found 0"),
        (lambda: mix(epoch="ever"), OptionError, "epoch must be 'longest', 'shortest', 'all' or"),
        (lambda: mix(batches_from="two"), OptionError, "batches_from must be 'all' or 'one'"),
        (lambda: mix(schedule=[(5, {"web": 1})]), OptionError, "must begin at position 0"),
        (lambda: mix(schedule=[(0, {"wbe": 1})]), OptionError, r"weights of \['wbe'\]"),
        (lambda: mix(schedule=[(0, {"web": 0})]), OptionError, "must be above zero"),
        (lambda: mix(schedule=[(0.5, {"web": 1})]), OptionTypeError, "must be an int, found 0.5"),
    ],
)
def test_mistakes_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()
