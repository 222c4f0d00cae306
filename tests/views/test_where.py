"""Filters, compared with a list that is filtered by hand."""

import itertools
import logging
import pickle

import numpy as np
import pytest
import torch
from counted_data import Counted
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Ids, flat

from dataporter import ResumableDataLoader
from dataporter.errors import (
    LeftOutError,
    OptionError,
    OptionTypeError,
    PredicateError,
    ShardCacheError,
)
from dataporter.law import Plan, ShuffledOrder, Topology
from dataporter.law.tracks import TracksOrder
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.testing import verify
from dataporter.views import Mixture, packed, where


def ids_of(loader):
    return [[int(number) for number in batch["id"]] for batch in loader]


def rows_of(loader):
    return [batch.tolist() for batch in loader]


# The view


bitmaps = st.lists(st.booleans(), min_size=1, max_size=300).filter(any)


@given(wanted=bitmaps, world=st.integers(1, 4), batch=st.integers(1, 7), data=st.data())
@settings(max_examples=40)
def test_every_rank_reads_what_a_filtered_list_gives_it_from_any_position(
    wanted, world, batch, data
):
    view = where(range(len(wanted)), lambda n: wanted[n], "random", num_workers=0)
    kept = [number for number, is_kept in enumerate(wanted) if is_kept]
    assert len(view) == len(kept)
    assert [view[number] for number in range(-len(kept), len(kept))] == kept + kept
    position = data.draw(st.integers(0, len(kept)))
    rank = data.draw(st.integers(0, world - 1))
    options = {"batch_size": batch, "rank": rank, "world_size": world, "seed": 5}
    loader = ResumableDataLoader(view, shuffle=True, **options)
    loader.seek(1, position)
    order = ShuffledOrder(len(kept), 5).indices(1, np.arange(len(kept)))
    plan = Plan(length=len(kept), batch_size=batch, topology=Topology(rank=rank, world_size=world))
    expected = [[kept[order[at]] for at in positions] for positions in plan.batches(position)]
    assert rows_of(loader) == expected
    plain = ResumableDataLoader(view, **options)
    assert rows_of(plain) == [[kept[at] for at in each] for each in plan.batches()]


@given(first=bitmaps, second=st.integers(2, 5), third=st.integers(2, 5))
@settings(max_examples=30)
def test_filters_of_filters_keep_what_passes_all(first, second, third):
    kept = [n for n, is_kept in enumerate(first) if is_kept and n % second < 2]
    view = where(Ids(len(first)), lambda n: first[n], f"first {first}", num_workers=0)
    try:
        view = view.where(lambda n: n % second < 2, f"second {second}", num_workers=0)
        view = where(view, lambda n: n % third != 1, f"third {third}", num_workers=0)
    except OptionError as error:
        assert "keeps none" in str(error)  # noqa: PT017  it may come from either
        return
    kept = [n for n in kept if n % third != 1]
    assert [view[number] for number in range(len(view))] == kept
    loader = ResumableDataLoader(view, batch_size=3, shuffle=True, seed=1)
    assert sorted(flat(rows_of(loader))) == kept


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_filtered_corpus_is_read_block_by_block_and_resumes(lines, monkeypatch, tracked, workers):
    monkeypatch.setattr(dataset_module, "SMALL", 0 if tracked else 2**40)
    corpus = ShardedDataset(lines)
    view = corpus.where(lambda row: row["id"] % 7 < 2, name="few")
    kept = [number for number in range(1150) if number % 7 < 2]
    assert [view[number]["id"] for number in range(len(view))] == kept
    edges = np.concatenate([[0], np.cumsum(corpus.block_rows)])
    expected = [sum(low <= n < high for n in kept) for low, high in itertools.pairwise(edges)]
    assert view.block_rows.tolist() == expected
    loader = ResumableDataLoader(view, batch_size=9, shuffle=True, seed=2, num_workers=workers)
    whole = ids_of(loader)
    order = TracksOrder(np.array(expected), 8, 2) if tracked else ShuffledOrder(len(kept), 2)
    assert flat(whole) == [kept[at] for at in order.indices(0, np.arange(len(kept)))]
    loader.seek(0, 90)
    assert ids_of(loader) == whole[10:]
    again = ResumableDataLoader(view, batch_size=9, shuffle=True, seed=2)
    batches = iter(again)
    seen = [[int(n) for n in next(batches)["id"]] for _ in range(4)]
    resumed = ResumableDataLoader(view, batch_size=5, shuffle=True, seed=2, num_workers=workers)
    resumed.load_state_dict(again.state_dict())
    assert sorted(flat(seen + ids_of(resumed))) == kept


def test_a_filter_of_a_filtered_corpus_keeps_its_blocks(lines, monkeypatch):
    monkeypatch.setattr(dataset_module, "SMALL", 0)
    view = ShardedDataset(lines).where(lambda row: row["even"], "even")
    small = view.where(lambda row: row["id"] < 500, "low")
    assert len(small.block_rows) == 100
    assert small.block_rows.sum() == len(small) == 250
    assert "tracks" in ResumableDataLoader(small, 4, shuffle=True).state_dict()["order"]


def corpus_loader(folder, **options):
    dataset_module.SMALL = 0  # in a process of its own
    view = ShardedDataset(folder).where(lambda row: row["id"] % 3 == 0, name="threes", **options)
    return ResumableDataLoader(view, batch_size=8, shuffle=True, seed=4, num_workers=1)


def make_over_a_list():
    view = where([{"n": n} for n in range(203)], lambda sample: sample["n"] % 3 == 0, name="threes")
    assert [sample["n"] for sample in view] == list(range(0, 203, 3))
    return ResumableDataLoader(view, 4, shuffle=True, seed=1)


def test_verify_leaves_the_evaluation_of_a_filter_alone():
    options = {"workers": [1], "batch_sizes": [5], "world_sizes": [2]}
    report = verify(make_over_a_list, batches=8, points=1, seconds=1000, **options)
    assert report.is_exact, report


@pytest.mark.parametrize("lazy", [False, True])
def test_verify_says_exact_of_a_filtered_corpus(lines, lazy):
    report = verify(lambda: corpus_loader(lines, lazy=lazy), batches=12, points=2, seconds=1000)
    assert report.is_exact, report
    assert "\nEXACT: all " in str(report)


def test_the_same_shuffle_and_position_follow_a_pickle(lines):
    view = ShardedDataset(lines).where(lambda row: row["even"], "even")
    again = pickle.loads(pickle.dumps(view))
    assert again.fingerprint() == view.fingerprint()
    assert [again[n]["id"] for n in range(5)] == [view[n]["id"] for n in range(5)]


def test_a_mixture_has_filtered_parts(lines):
    even = ShardedDataset(lines).where(lambda row: row["even"], "even")
    odd = ShardedDataset(lines).where(lambda row: not row["even"], "odd")
    mixture = Mixture({"even": (even, 0.5), "odd": (odd, 0.5)}, epoch="all")
    loader = ResumableDataLoader(mixture, batch_size=10, shuffle=True, seed=1)
    assert sorted(flat(ids_of(loader))) == list(range(1150))


def test_a_filter_says_what_it_keeps():
    view = where(Counted(100), lambda n: n < 25, "low", num_workers=0)
    assert repr(view) == "where('low': 25 of 100 samples of Counted)"
    loader = ResumableDataLoader(view, batch_size=4, shuffle=True)
    assert ("filter", "'low' keeps 25 of 100 samples (25.0 %)") in loader.explain().rows()


# What was evaluated


# Verdicts on what is not there any more


# Errors


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("value", [1, None, "yes", np.array([True, False]), torch.tensor(1)])
def test_a_predicate_has_to_return_a_bool(value, workers):
    with pytest.raises(PredicateError, match=r"must return True or False, found .* for sample 0"):
        where(range(10), lambda n: value, "x", num_workers=workers)


@pytest.mark.parametrize("value", [True, np.True_, np.array([True]), torch.tensor([True])[0]])
def test_bools_of_all_libraries_will_do(value):
    assert len(where(range(10), lambda n: value, "x", num_workers=0)) == 10


def test_an_error_of_the_data_arrives_as_it_is(tmp_path):
    class Broken(Counted):
        def __getitem__(self, index):
            raise FileNotFoundError(2, "gone", "sample")

    with pytest.raises(FileNotFoundError, match="gone"):
        where(Broken(10), lambda n: True, "x", folder=tmp_path, num_workers=0)


def test_mistakes_are_named():
    with pytest.raises(OptionTypeError, match="predicate must be a function"):
        where(range(3), "n > 1")
    with pytest.raises(OptionError, match="has no name of its own"):
        where(range(3), lambda n: True)
    with pytest.raises(OptionTypeError, match="version must be a number or a text, found list"):
        where(range(3), lambda n: True, "x", version=[1])
    with pytest.raises(OptionTypeError, match="name must be a text"):
        where(range(3), lambda n: True, name=3)
    with pytest.raises(OptionTypeError, match="has no length"):
        where(iter(range(3)), lambda n: True, "x")
    with pytest.raises(OptionError, match="keeps none of 3 samples"):
        where(range(3), lambda n: False, "x", num_workers=0)
    with pytest.raises(OptionError, match="has no samples"):
        where([], lambda n: True, "x", num_workers=0)
    with pytest.raises(OptionTypeError, match="folder must be a folder"):
        where(range(3), lambda n: True, "x", folder=3)
    mixture = Mixture({"a": (range(3), 1.0)})
    with pytest.raises(OptionError, match="Filter the datasets that it is made of"):
        where(mixture, lambda n: True, "x")
    with pytest.raises(IndexError, match="the view has 3 samples"):
        where(range(9), lambda n: n < 3, "x", num_workers=0)[3]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ShardCacheError, match="name another one by folder="):
        where(Counted(10), lambda n: True, "x", folder=tmp_path / "file", num_workers=0)


# Lazy


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2}, {"num_workers": 2, "engine": "threads"}]
)
@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_a_lazy_filter_leaves_holes_and_positions_stay(options, batch_size, caplog):
    caplog.set_level(logging.INFO, "dataporter.fetch")
    view = where(Counted(60), lambda n: n % 3 == 0, "threes", lazy=True)
    loader = ResumableDataLoader(view, batch_size=batch_size, shuffle=True, seed=1, **options)
    order = ShuffledOrder(60, 1).indices(0, np.arange(60)).tolist()
    size = batch_size or 1
    expected, after = [], []
    for first in range(0, 60, size):
        kept = [n for n in order[first : first + size] if n % 3 == 0]
        if kept:
            expected.append(kept)
            after.append(first + size)
    found, states = [], []
    for batch in loader:
        found.append(np.atleast_1d(batch).tolist())
        states.append(loader.state_dict())
    assert found == expected
    assert [state["samples_processed"] for state in states] == after
    assert loader.skipped == []
    assert caplog.text == ""
    for number in (0, len(states) // 2, len(states) - 1):
        resumed = ResumableDataLoader(view, batch_size=batch_size, shuffle=True, seed=1, **options)
        resumed.load_state_dict(states[number])
        assert [np.atleast_1d(batch).tolist() for batch in resumed] == expected[number + 1 :]


def test_a_lazy_filter_evaluates_each_sample_once():
    calls = []
    view = where(range(40), lambda n: calls.append(n) or n % 2 == 0, "even", lazy=True)
    assert calls == []
    rows_of(ResumableDataLoader(view, batch_size=8))
    # The first hole has its batch read again.
    assert sorted(calls[-32:]) == list(range(8, 40))


def test_holes_are_not_counted_as_errors():
    view = where(range(40), lambda n: 1 / (n - 20) < 0, "low", lazy=True)
    loader = ResumableDataLoader(view, batch_size=4, on_error="skip", max_skipped=1)
    assert flat(rows_of(loader)) == list(range(20))
    assert [skipped.index for skipped in loader.skipped] == [20]
    with pytest.raises(PredicateError, match="sample 20"):
        rows_of(ResumableDataLoader(view, batch_size=4))


def test_a_lazy_filter_says_so():
    view = where(range(9), lambda n: n < 3, "low", lazy=True)
    assert "lazy=True: up to 9 samples" in repr(view)
    assert "leave holes" in repr(view)
    assert len(view) == 9
    assert view[2] == 2
    with pytest.raises(LeftOutError, match="sample 5 does not pass the filter 'low'"):
        view[5]
    rows = dict(ResumableDataLoader(view, batch_size=4).explain().rows())
    assert "as samples are read" in rows["filter"]


def test_a_lazy_filter_works_over_a_mixture_and_in_one():
    mixture = Mixture({"a": (range(10), 0.5), "b": (range(10, 20), 0.5)})
    view = where(mixture, lambda n: n % 2 == 0, "even", lazy=True)
    loader = ResumableDataLoader(view, batch_size=4, shuffle=True, seed=1)
    assert sorted(flat(rows_of(loader))) == list(range(0, 20, 2))
    assert {heading for heading, _ in loader.explain().rows()} >= {"parts", "filter"}
    low = where(range(10), lambda n: n < 3, "low", lazy=True)
    mixture = Mixture({"a": (low, 0.5), "b": (range(10, 20), 0.5)})
    loader = ResumableDataLoader(mixture, batch_size=4, shuffle=True, seed=1, num_workers=1)
    assert sorted(flat(rows_of(loader))) == [0, 1, 2, *range(10, 20)]


def test_a_lazy_filter_works_over_packed_windows_and_in_a_mixture_of_these():
    documents = [[number] * 3 for number in range(40)]
    windows, other = packed(documents, 4), packed([[1000] * 3] * 40, 4)
    even = where(windows, lambda sample: int(sample["tokens"][0]) % 2 == 0, "even", lazy=True)
    options = {"batch_size": 4, "shuffle": True, "seed": 1}
    whole = [row for batch in ResumableDataLoader(windows, **options) for row in batch["tokens"]]
    kept = [row.tolist() for row in whole if int(row[0]) % 2 == 0]
    found = [row for batch in ResumableDataLoader(even, **options) for row in batch["tokens"]]
    assert [row.tolist() for row in found] == kept
    mixture = Mixture({"even": (even, 1), "other": (other, 1)})
    mixed = [row for batch in ResumableDataLoader(mixture, **options) for row in batch["tokens"]]
    assert sum(int(row[0]) == 1000 for row in mixed) == 30
    assert all(int(row[0]) % 2 == 0 for row in mixed)
    assert even[-1]["tokens"].tolist() == [38, 39, 39, 39]


def test_what_leaves_holes_is_not_packed():
    lazy = where([[1, 2], [3]], lambda document: len(document) > 1, "two", lazy=True)
    with pytest.raises(OptionTypeError, match=r"LazilyFiltered leaves samples out .* without lazy"):
        packed(lazy, 2)

    class Holes(Counted):
        def __getitem__(self, index):
            if index % 2:
                raise LeftOutError("odd")
            return [index] * 3

    assert packed(Holes(5), 3).num_tokens == 9  # a document that is left out has none
