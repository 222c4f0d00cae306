"""Listings of folders, globs, files and lists of these."""

import json
import os
import random
import re
from pathlib import Path

import pytest
from lines_format import SUFFIXES

from dataporter.errors import (
    OptionError,
    OptionTypeError,
    ShardFormatError,
    ShardsNotFoundError,
)
from dataporter.shards.files import list_files
from dataporter.shards.listing import natural_key

KNOWN = SUFFIXES | {".mds": "mds", ".bin": "tokens", ".jsonl": "jsonl", ".jsonl.gz": "jsonl"}
HUGGING_FACE = {".arrow": "arrow", ".json": "jsonl"}


def make(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def paths(files, **options):
    return list(list_files(files, KNOWN, **options).paths)


def test_a_folder_gives_its_files_and_those_of_its_folders(tmp_path):
    make(tmp_path, "b.lines", "sub/a.lines", "README.md", "sub/deep/c.lines")
    listing = list_files(tmp_path, KNOWN)
    assert listing.root == tmp_path
    assert listing.paths == ("b.lines", "sub/a.lines", "sub/deep/c.lines")
    assert listing.format == "lines"


def test_hidden_files_and_index_files_are_left_out(tmp_path):
    make(tmp_path, "a.lines", ".b.lines", "_c.lines", ".dataporter/d.lines", "_log/e.lines")
    assert paths(tmp_path) == ["a.lines"]


def test_numbers_in_names_are_sorted_by_value(tmp_path):
    names = [f"part-{number}.lines" for number in (0, 1, 2, 9, 10, 11, 100)]
    make(tmp_path, *random.Random(0).sample(names, len(names)))
    assert paths(tmp_path) == names


def test_the_order_is_total_and_does_not_depend_on_the_order_of_discovery():
    names = ["a1", "a01", "a001", "a", "A1", "a1/b", "a1.b", "a-1", "1a", "01", "1", "é", ""]
    expected = sorted(names, key=natural_key)
    for seed in range(20):
        mixed = random.Random(seed).sample(names, len(names))
        assert sorted(mixed, key=natural_key) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.lines", ["a.lines"]),
        ("**/*.lines", ["a.lines", "x/b.lines", "x/y/c.lines"]),
        ("x/*.lines", ["b.lines"]),
        ("[ax]/*.lines", ["x/b.lines"]),
        ("x/**", ["b.lines", "y/c.lines"]),
    ],
)
def test_a_glob_is_relative_to_its_last_plain_folder(tmp_path, pattern, expected):
    make(tmp_path, "a.lines", "x/b.lines", "x/y/c.lines")
    assert paths(f"{tmp_path}/{pattern}") == expected


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    make(tmp_path, "a[1].lines", "a1.lines")
    assert paths(tmp_path / "a[1].lines") == ["a[1].lines"]


def test_a_list_gives_each_file_once_under_the_common_folder(tmp_path):
    make(tmp_path, "x/a.lines", "y/b.lines", "y/c.lines")
    files = [tmp_path / "y", f"{tmp_path}/*/b.lines", tmp_path / "x" / "a.lines"]
    listing = list_files(files, KNOWN)
    assert listing.root == tmp_path
    assert listing.paths == ("x/a.lines", "y/b.lines", "y/c.lines")
    assert list_files(files[::-1], KNOWN) == listing


def test_a_file_that_a_list_names_twice_is_an_error(tmp_path):
    make(tmp_path, "a.lines", "b.lines")
    files = [tmp_path / name for name in ("b.lines", "a.lines", "x/../b.lines")]
    with pytest.raises(OptionError, match=r"names .*b\.lines 2 times.* a weight in a Mixture"):
        list_files(files, KNOWN)


def test_relative_paths_and_the_home_folder_are_understood(tmp_path, monkeypatch):
    make(tmp_path, "data/a.lines")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    expected = list_files(tmp_path / "data", KNOWN)
    assert list_files("data", KNOWN) == list_files("data/", KNOWN) == expected
    assert list_files("~/data", KNOWN) == expected
    assert list_files("x/../data", KNOWN) == expected


def test_links_are_followed_but_not_in_circles(tmp_path):
    make(tmp_path, "data/a.lines", "elsewhere/b.lines")
    (tmp_path / "data/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/loop").symlink_to(tmp_path / "data")
    (tmp_path / "data/c.lines").symlink_to(tmp_path / "elsewhere/b.lines")
    assert paths(tmp_path / "data") == ["a.lines", "c.lines", "linked/b.lines"]


def test_suffixes_are_known_in_capitals_and_by_their_longest_form(tmp_path):
    make(tmp_path, "A.JSONL", "b.jsonl.gz")
    listing = list_files(tmp_path, KNOWN | {".gz": "other"})
    assert (listing.paths, listing.format) == (("A.JSONL", "b.jsonl.gz"), "jsonl")


def test_names_that_are_no_unicode_are_listed(tmp_path):
    name = os.fsdecode(b"\xff.lines")
    make(tmp_path, name)
    assert paths(tmp_path) == [name]


# index.json


def test_the_index_json_of_mds_names_the_files(tmp_path):
    shards = [{"raw_data": {"basename": f"shard.{n}.mds"}, "zip_data": None} for n in (0, 1)]
    zipped = {"basename": "shard.2.mds.zstd"}
    shards.append({"raw_data": {"basename": "shard.2.mds"}, "zip_data": zipped})
    make(tmp_path, "shard.0.mds", "shard.1.mds", "shard.2.mds.zstd", "stale.mds")
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    listing = list_files(tmp_path, KNOWN)
    assert listing.paths == ("shard.0.mds", "shard.1.mds", "shard.2.mds.zstd")
    assert listing.format == "mds"


@pytest.mark.parametrize("files", ["", "*.bin", "chunk-0-0.bin"])
def test_the_index_json_of_litdata_tells_its_chunks_from_tokens(tmp_path, files):
    make(tmp_path, "chunk-0-0.bin")
    index = {"chunks": [{"filename": "chunk-0-0.bin"}], "config": {}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    listing = list_files(tmp_path / files, KNOWN)
    assert (listing.paths, listing.format) == (("chunk-0-0.bin",), "litdata")


def test_folders_of_mds_in_a_folder_are_one_dataset(tmp_path):
    for sub in "ab":
        make(tmp_path, f"{sub}/shard.0.mds")
        shards = [{"raw_data": {"basename": "shard.0.mds"}}]
        (tmp_path / sub / "index.json").write_text(json.dumps({"shards": shards}))
    assert paths(tmp_path) == ["a/shard.0.mds", "b/shard.0.mds"]


@pytest.mark.parametrize("text", ['{"weight_map": {}}', "[]", "{"])
def test_an_index_json_of_somebody_else_is_left_out(tmp_path, text):
    make(tmp_path, "a.lines")
    (tmp_path / "index.json").write_text(text)
    assert paths(tmp_path) == paths(f"{tmp_path}/*") == ["a.lines"]


@pytest.mark.parametrize(
    "text",
    ["{", '{"shards": [{}]}', '{"shards": [3]}', '{"chunks": [{"filename": "../x"}]}', "\xff"],
)
def test_a_damaged_index_json_is_an_error(tmp_path, text):
    make(tmp_path, "shard.0.mds")
    (tmp_path / "index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ShardFormatError, match=r"index\.json"):
        list_files(tmp_path, KNOWN)


# Errors


def test_a_glob_that_finds_nothing_says_what_is_there_instead(tmp_path):
    make(tmp_path, "data/a.lines", "data/b.lines", "data/c.json", "data/sub/d.lines")
    with pytest.raises(ShardsNotFoundError) as error:
        list_files(f"{tmp_path}/data/*.parquet", KNOWN)
    assert f"no file matches {tmp_path}/data/*.parquet" in str(error.value)
    assert f"The folder {tmp_path}/data is there: it holds 2 .lines, 1 .json" in str(error.value)
    assert "the folders sub" in str(error.value)
    assert isinstance(error.value, FileNotFoundError)


def test_a_missing_folder_says_which_folder_above_it_is_there(tmp_path):
    make(tmp_path, "train/a.lines")
    with pytest.raises(ShardsNotFoundError) as error:
        list_files(tmp_path / "tain" / "x" / "*", KNOWN)
    assert f"The folder {tmp_path} is there: it holds the folders train." in str(error.value)


def test_a_folder_of_images_says_how_files_of_one_sample_are_read(tmp_path):
    make(tmp_path, "a.png", "b.PNG")
    advice = "1 .PNG, 1 .png. Images, sounds and other files of one sample each are read by"
    with pytest.raises(ShardsNotFoundError, match=re.escape(advice)):
        list_files(tmp_path, KNOWN)


def test_a_folder_without_known_files_says_what_it_holds(tmp_path):
    make(tmp_path, "a.txt", "b.txt.gz", "c")
    with pytest.raises(ShardsNotFoundError, match=r"1 \.txt, 1 \.txt\.gz, 1 without suffix"):
        list_files(tmp_path, KNOWN)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShardsNotFoundError, match="it is empty"):
        list_files(tmp_path / "empty", KNOWN)


def test_a_mixture_of_formats_is_an_error_that_counts_them(tmp_path):
    make(tmp_path, "a.lines", "b.lines", "c.other")
    with pytest.raises(OptionError, match=r"several formats: 2 \.lines, 1 \.other"):
        list_files(tmp_path, KNOWN)
    assert paths(tmp_path, format="lines") == ["a.lines", "b.lines"]
    assert paths(f"{tmp_path}/*.lines") == ["a.lines", "b.lines"]


def test_a_format_that_is_named_needs_no_suffix_in_a_glob(tmp_path):
    make(tmp_path, "a.dat")
    assert list_files(f"{tmp_path}/*.dat", KNOWN).format is None
    assert list_files(f"{tmp_path}/*.dat", KNOWN, format="lines").format == "lines"


@pytest.mark.parametrize("files", [3, None, [3], {"a": "b"}, b"x"])
def test_files_of_another_type_are_refused(files):
    with pytest.raises(OptionTypeError, match="files must be a path, a glob or a list of these"):
        list_files(files, KNOWN)


@pytest.mark.parametrize("files", ["", [], [""]])
def test_no_files_are_refused(files):
    with pytest.raises(OptionError, match="must name at least one file"):
        list_files(files, KNOWN)


def test_a_folder_of_hugging_face_gives_the_files_that_it_lists(tmp_path):
    make(tmp_path, "data-1.arrow", "data-0.arrow", "cache-0.arrow", "dataset_info.json")
    files = [{"filename": f"data-{number}.arrow"} for number in range(2)]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": files}))
    listing = list_files(tmp_path, HUGGING_FACE)
    assert listing.paths == ("data-0.arrow", "data-1.arrow")
    assert listing.format == "arrow"


def test_files_about_the_data_are_not_read_as_data(tmp_path):
    make(tmp_path, "a.json", "index.json", "state.json", "dataset_info.json", "dataset_dict.json")
    assert list_files(tmp_path, HUGGING_FACE).paths == ("a.json",)
    assert list_files(str(tmp_path / "*.json"), HUGGING_FACE).paths == ("a.json",)
    assert list_files(tmp_path / "state.json", HUGGING_FACE).paths == ("state.json",)


def test_a_folder_of_splits_is_refused_with_their_names(tmp_path):
    make(tmp_path, "train/data.arrow", "test/data.arrow")
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    expected = f"{tmp_path} holds several splits: train, test. Name the folder of one, such as "
    with pytest.raises(OptionError, match=re.escape(expected)):
        list_files(tmp_path, HUGGING_FACE)
    assert list_files(tmp_path / "train", HUGGING_FACE).paths == ("data.arrow",)
