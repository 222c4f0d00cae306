"""Filters, compared with a list that is filtered by hand."""

import functools
import io
import itertools
import json
import logging
import pickle
import tarfile
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset, load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Ids, flat
from torch.utils.data import ConcatDataset, Subset

from dataporter import ResumableDataLoader
from dataporter.errors import (
    LeftOutError,
    OptionError,
    OptionTypeError,
    PredicateError,
    PredicateWarning,
    ShardCacheError,
    ShardWarning,
    StateMismatchError,
)
from dataporter.law import Plan, ShuffledOrder, Topology
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.shards.tracks import TracksOrder
from dataporter.testing import verify
from dataporter.views import Mixture, packed, where


class Counted:
    """Samples that tell themselves apart, and note which were read."""

    def __init__(self, length, name="counted"):
        self.length, self.name, self.read = length, name, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(index)
        return index

    def fingerprint(self):
        return f"{self.name} {self.length}"


@pytest.fixture
def lines(tmp_path):
    """Files of JSON lines with 7 to 16 rows each, 1,150 rows in all; row i is {"id": i}."""
    folder, first = tmp_path / "lines", 0
    folder.mkdir()
    for file in range(100):
        rows = range(first, first + 7 + file % 10)
        first = rows.stop
        text = "\n".join(json.dumps({"id": row, "even": row % 2 == 0}) for row in rows)
        (folder / f"{file:03}.jsonl").write_text(text)
    return folder


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


def test_a_predicate_is_evaluated_once_and_its_verdicts_are_kept(tmp_path):
    def even(number):
        return number % 2 == 0

    first = Counted(5000)
    view = where(first, even, folder=tmp_path, num_workers=0)
    assert first.read == list(range(5000))
    second = Counted(5000)
    again = where(second, even, folder=tmp_path, num_workers=0)
    assert second.read == []
    assert again.fingerprint() == view.fingerprint()
    assert [path.suffix for path in tmp_path.iterdir()] == [".bits"]
    assert next(tmp_path.iterdir()).stat().st_size < 1024


def test_verdicts_are_those_of_the_data_the_name_and_the_transform(tmp_path, lines):
    def judge(data, name="x"):
        where(data, lambda n: True, name, folder=tmp_path, num_workers=0)
        return len(list(tmp_path.glob("*.bits")))

    assert judge(Counted(10)) == 1
    assert judge(Counted(10)) == 1
    assert judge(Counted(10, "other")) == 2
    assert judge(Counted(11)) == 3
    assert judge(Counted(10), "y") == 4
    assert judge(ShardedDataset(lines)) == 5
    assert judge(ShardedDataset(lines, transform=lambda row: row["id"])) == 6
    assert judge(ShardedDataset(lines, transform=lambda row: row["id"] + 1)) == 7


@pytest.mark.parametrize("workers", [0, 3])
def test_workers_evaluate_what_one_process_does(workers, tmp_path):
    view = where(
        Counted(3001), lambda n: n % 5 in {1, 2}, "x", folder=tmp_path, num_workers=workers
    )
    assert [view[n] for n in range(len(view))] == [n for n in range(3001) if n % 5 in {1, 2}]


def test_another_predicate_under_a_name_is_noticed_and_evaluated_anew(tmp_path):
    data = Ids(100)
    data.fingerprint = lambda: "ids"
    where(data, lambda n: n < 10, "low", folder=tmp_path, num_workers=0)
    with pytest.warns(PredicateWarning, match="keeps 10 of 100 samples") as caught:
        other = where(data, lambda n: n < 20, "low", folder=tmp_path, num_workers=0)
    assert len(caught) == 1
    assert len(other) == 20
    # Both are known now.
    assert len(where(data, lambda n: n < 10, "low", folder=tmp_path, num_workers=0)) == 10
    assert len(where(data, lambda n: n < 20, "low", folder=tmp_path, num_workers=0)) == 20


def test_a_state_of_another_predicate_is_refused():
    data = torch.arange(1000)
    states = [
        ResumableDataLoader(
            where(data, lambda n, least=least: n % 10 != least, f"no {least}", num_workers=0),
            batch_size=3,
            shuffle=True,
            seed=1,
        )
        for least in (3, 4)
    ]
    with pytest.raises(StateMismatchError, match="fingerprint"):
        states[0].load_state_dict(states[1].state_dict())


def test_a_predicate_that_keeps_the_same_samples_may_be_written_anew(tmp_path):
    options = {"folder": tmp_path, "num_workers": 0}
    view = where(Counted(50), lambda n: n < 10, "low", **options)
    with pytest.warns(PredicateWarning):
        again = where(Counted(50), lambda n: not n >= 10, "low", **options)
    loader = ResumableDataLoader(view, batch_size=3, shuffle=True, seed=1)
    next(iter(loader))
    resumed = ResumableDataLoader(again, batch_size=3, shuffle=True, seed=1)
    resumed.load_state_dict(loader.state_dict())


def test_data_without_a_fingerprint_is_evaluated_each_time(tmp_path):
    calls = []
    for _ in range(2):
        where([3, 1, 2], lambda n: calls.append(n) or n > 1, "x", num_workers=0)
    assert calls == [3, 1, 2, 3, 1, 2]
    with pytest.raises(OptionError, match=r"fingerprint\(\)"):
        where([3, 1, 2], lambda n: n > 1, "x", folder=tmp_path, num_workers=0)


def test_verdicts_and_counts_of_data_that_has_no_name_are_not_taken_over():
    def wanted(texts):
        first = where(texts, lambda text: text != "", "some", num_workers=0)
        second = first.where(lambda text: "x" in text, "with x", num_workers=0)
        return [second[n] for n in range(len(second))], packed(
            first, 2, tokenizer=list_of
        ).num_tokens

    def list_of(text):
        return list(text.encode())

    assert wanted(["x", "abc", ""]) == (["x"], 4)
    assert wanted(["y", "xyz!", ""]) == (["xyz!"], 5)
    for change in (0, 1):  # of so many values, few are looked at
        numbers = torch.arange(10_000)
        numbers[7_777] += change
        low = where(numbers, lambda n: bool(n <= 7_777), "low", num_workers=0)
        assert len(low) == 7_778 - change
    halves = [
        where(Subset(list(texts), [0, 2]), lambda text: text == "x", "x", num_workers=0)
        for texts in ("xax", "xab")
    ]
    assert [len(half) for half in halves] == [2, 1]


def test_parts_of_data_that_has_a_name_have_names(tmp_path):
    for number, make in enumerate(
        [
            lambda: Subset(Counted(100), range(50)),
            lambda: Subset(Counted(100), [*range(49), 50]),
            lambda: ConcatDataset([Counted(20), Counted(30, "other")]),
        ],
        start=1,
    ):
        for _ in range(2):
            where(make(), lambda n: n % 2 == 0, "even", folder=tmp_path, num_workers=0)
            assert len(list(tmp_path.glob("*.bits"))) == number
    unnamed = ConcatDataset([Counted(20), range(30)])
    with pytest.raises(OptionError, match="nothing surely tells this data"):
        where(unnamed, lambda n: True, "all", folder=tmp_path, num_workers=0)


# Verdicts on what is not there any more


def write_arrow(path, numbers):
    table = pa.table({"id": numbers})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_parquet(path, numbers):
    # The same least and greatest values, in pages of the same size.
    pq.write_table(pa.table({"id": numbers}), path, use_dictionary=False, compression="none")


def write_tar(path, numbers):
    with tarfile.open(path, "w") as file:
        for index, number in enumerate(numbers.tolist()):
            data = f"{number:03}".encode()
            member = tarfile.TarInfo(f"{index}.id")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("write", [write_arrow, write_parquet, write_tar])
def test_files_written_again_at_the_same_size_are_evaluated_and_counted_again(tmp_path, write):
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / f"a.{write.__name__.partition('_')[2]}"
    found, counts = [], []
    for numbers in (np.arange(100), np.array([0, *np.arange(50, 99), *np.arange(50, 100)])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShardWarning)  # one file that changed
            write(path, numbers)
            data = ShardedDataset(folder)
        size = path.stat().st_size
        view = data.where(is_low, "low", folder=tmp_path / "kept", num_workers=0)
        found.append(len(view))
        tokens = packed(data, 1, by="id", tokenizer=as_tokens, folder=tmp_path / "kept")
        counts.append(tokens.num_tokens)
        assert found[-1] == sum(is_low({"id": number}) for number in numbers)
        assert counts[-1] == sum(len(as_tokens(number)) for number in numbers)
    assert path.stat().st_size == size
    assert found[0] != found[1]
    assert counts[0] != counts[1]


def is_low(row):
    return int(row["id"]) < 50


def as_tokens(number):
    return [1] * (int(number) // 10)


def doubled(row):
    return {"id": row["id"] * 2}


def tripled(row):
    return {"id": row["id"] * 3}


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda data: data,
        lambda data: Subset(data, range(1150)),
        lambda data: ConcatDataset([data, data]),
        lambda data: Subset(ConcatDataset([Subset(data, range(1150))]), range(1150)),
        lambda data: where(data, lambda row: True, "all", num_workers=0),
    ],
)
def test_another_transform_is_noticed_however_deep_it_lies(lines, tmp_path, wrapped):
    def kept(transform):
        data = wrapped(ShardedDataset(lines, transform=transform))
        return len(where(data, is_low, "low", folder=tmp_path, num_workers=0))

    assert kept(tripled) < kept(doubled)
    assert kept(tripled) < kept(doubled)


def test_other_columns_are_noticed(lines, tmp_path):
    def kept(columns):
        data = ShardedDataset(lines, columns=columns)
        return len(where(data, lambda row: "even" in row, "x", folder=tmp_path, num_workers=0))

    assert kept(["id", "even"]) == 1150
    with pytest.raises(OptionError, match="keeps none of 1,150 samples"):
        kept(["id"])


def test_the_code_of_a_dataset_counts(tmp_path):
    class Low(Counted):
        def __getitem__(self, index):
            return index

    class High(Counted):
        def __getitem__(self, index):
            return index + 40

    def kept(data):
        return len(where(data, lambda n: n < 50, "low", folder=tmp_path, num_workers=0))

    assert (kept(Low(100)), kept(High(100))) == (50, 10)


def test_hugging_face_data_is_evaluated_again_with_another_transform_or_file(tmp_path):
    table = Dataset.from_dict({"id": list(range(100))})
    table.save_to_disk(str(tmp_path / "data"))
    loaded = load_from_disk(str(tmp_path / "data"))

    def kept(data):
        return len(where(data, is_low, "low", folder=tmp_path / "kept", num_workers=0))

    assert kept(loaded) == 50
    loaded.set_transform(lambda rows: {"id": [2 * number for number in rows["id"]]})
    assert kept(loaded) == 25
    fingerprint = load_from_disk(str(tmp_path / "data"))._fingerprint
    (path,) = (tmp_path / "data").glob("*.arrow")
    size = path.stat().st_size
    other = Dataset.from_dict({"id": list(range(100, 200))})
    other._fingerprint = fingerprint
    other.save_to_disk(str(tmp_path / "other"))
    path.write_bytes(next((tmp_path / "other").glob("*.arrow")).read_bytes())
    assert path.stat().st_size == size
    with pytest.raises(OptionError, match="keeps none"):
        kept(load_from_disk(str(tmp_path / "data")))


def test_code_that_may_change_unseen_is_evaluated_each_time_unless_it_has_a_version(tmp_path):
    @functools.lru_cache
    def low(number):
        return number < least

    def kept(**options):
        data = Counted(100)
        return len(where(data, lambda n: low(n) and n >= 0, "low", folder=tmp_path, **options))

    for least in (10, 20):
        low.cache_clear()
        with pytest.warns(
            PredicateWarning, match=r"uses a functools\._lru_cache_wrapper \(by low\)"
        ):
            assert kept(num_workers=0) == least
    assert list(tmp_path.iterdir()) == []
    for version in (1, 2, "three"):
        low.cache_clear()
        least = 30 if version == 1 else 40
        assert kept(num_workers=0, version=version) == least
        least = 0
        assert kept(num_workers=0, version=version) == (30 if version == 1 else 40)


def test_a_filter_of_a_filter_knows_the_transform(lines, tmp_path):
    def kept(shift):
        data = ShardedDataset(lines, transform=lambda row: row["id"] + shift)
        first = data.where(lambda n: True, "all", folder=tmp_path, num_workers=0)
        return len(first.where(lambda n: n < 100, "low", folder=tmp_path, num_workers=0))

    assert (kept(0), kept(10)) == (100, 90)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "head"])
def test_a_damaged_file_is_evaluated_again(tmp_path, damage):
    def even(number):
        return number % 2 == 0

    where(Counted(5000), even, folder=tmp_path, num_workers=0)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = {
        "flip": whole[:-300] + bytes([whole[-300] ^ 4]) + whole[-299:],
        "cut": whole[:-64],
        "empty": b"",
        "head": whole[:30] + b"?" + whole[31:],
    }
    path.write_bytes(damaged[damage])
    data = Counted(5000)
    assert len(where(data, even, folder=tmp_path, num_workers=0)) == 2500
    assert len(data.read) >= 5000
    assert path.read_bytes() == whole


# Errors


def test_a_predicate_that_raises_names_the_sample_and_what_was_evaluated_is_kept(tmp_path):
    def picky(number):
        return 1 / (number - 3000) < 2

    with pytest.raises(PredicateError, match=r"'picky' raised an error for sample 3000: ZeroDiv"):
        where(Counted(5000), picky, folder=tmp_path, num_workers=0)
    (partial,) = tmp_path.iterdir()
    assert partial.suffix == ".part"


def test_a_predicate_that_fails_now_and_then_goes_on_where_it_was(tmp_path):
    class Moody:
        """The same version in every mood."""

        __slots__ = ("fails",)

        def __call__(self, number):
            if number == 3000 and self.fails:
                raise OSError("the network is away")
            return number % 2 == 0

    moody = Moody()
    moody.fails = True
    with pytest.raises(PredicateError, match="sample 3000"):
        where(Counted(5000), moody, "moody", version=1, folder=tmp_path, num_workers=0)
    moody.fails = False
    data = Counted(5000)
    view = where(data, moody, "moody", version=1, folder=tmp_path, num_workers=0)
    assert 2000 <= min(data.read) <= 3000
    assert [view[n] for n in range(len(view))] == list(range(0, 5000, 2))


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
