"""Verdicts of a filter: kept on disk, and used only under all that they were made from."""

import functools
import io
import tarfile
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from counted_data import Counted
from support import Ids
from torch.utils.data import ConcatDataset, Subset

from dataporter import ResumableDataLoader
from dataporter.errors import (
    OptionError,
    PredicateError,
    PredicateWarning,
    ShardWarning,
    StateMismatchError,
)
from dataporter.shards import ShardedDataset
from dataporter.views import packed, where


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


@pytest.mark.imports_much
def test_hugging_face_data_is_evaluated_again_with_another_transform_or_file(tmp_path):
    from datasets import Dataset, load_from_disk

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


@pytest.mark.imports_much
def test_images_that_hugging_face_data_names_by_path_are_looked_at_again(tmp_path):
    from datasets import Dataset, Image, load_from_disk
    from PIL import Image as Picture

    def opened():
        paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
        return Dataset.from_dict({"image": paths}).cast_column("image", Image())

    def wide(data, **options):
        return len(where(data, is_wide, "wide", num_workers=0, **options))

    Picture.new("L", (8, 1)).save(tmp_path / "a.png")
    Picture.new("L", (8, 1)).save(tmp_path / "b.png")
    assert wide(opened()) == 2
    Picture.new("L", (2, 1)).save(tmp_path / "b.png")
    assert wide(opened()) == 1
    with pytest.raises(OptionError, match="nothing surely tells this data"):
        wide(opened(), folder=tmp_path / "kept")
    opened().save_to_disk(str(tmp_path / "whole"))  # with the images
    assert wide(load_from_disk(str(tmp_path / "whole")), folder=tmp_path / "kept") == 1


def is_wide(row):
    return row["image"].size[0] > 4


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
