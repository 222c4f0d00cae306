"""`ShardedDataset` with wrong options, wrong indices, and files that change while it is read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Subset

from dataporter import OptionError, OptionTypeError, ResumableDataLoader
from dataporter.errors import (
    ShardChangedError,
    ShardFormatError,
    ShardSchemaError,
    ShardsNotFoundError,
)
from dataporter.shards import ShardedDataset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"columns": wrong}, "columns must be a list of names")
            for wrong in ("text", [1], [["text"]], 5, {"text"})
        ),
        ({"transform": 5}, "transform must be callable, found int 5"),
        ({"window": 1.5}, "window must be an int or None, found float 1.5"),
        ({"window": "8"}, "window must be an int or None, found str '8'"),
        ({"dtype": 5}, "dtype must be a NumPy dtype, such as 'uint16', found 5"),
        ({"allow_pickle": "no"}, "allow_pickle must be True or False, found str 'no'"),
        ({"progress": 2}, "progress must be True or False, found int 2"),
        ({"index": 5}, "index must be a folder, found int 5"),
        ({"cache": b"x"}, "cache must be a folder, found bytes b'x'"),
        ({"cache_bytes": "1GB"}, "cache_bytes must be an int or None, found str '1GB'"),
    ],
)
def test_an_option_of_a_wrong_type_is_named(lines, options, message):
    with pytest.raises(OptionTypeError, match=message):
        ShardedDataset(lines, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": []}, "at least one column, each once"),
        ({"columns": ["text", "text"]}, "at least one column, each once"),
        ({"window": 0}, "window must be at least 1, found 0"),
        ({"cache_bytes": 0}, "cache_bytes must be at least 1, found 0"),
        ({"cache": "s3://me:secret@bucket/x"}, "a folder of this machine, found 's3://bucket/x'"),
        ({"index": "hf://x/y"}, "index must be a folder of this machine, found 'hf://x/y'"),
        ({"format": "jsonline"}, r"format='jsonline' is unknown. Did you mean 'jsonl'\?"),
        ({"dtype": "uint16"}, "dtype= is for files of tokens, found jsonl files"),
    ],
)
def test_an_option_out_of_range_is_named(lines, options, message):
    with pytest.raises(OptionError, match=message):
        ShardedDataset(lines, **options)


@pytest.mark.parametrize("other", ["", 3, "s3://me:secret@bucket/x"])
def test_names_that_cannot_be_read_are_shown_without_the_secrets_beside_them(other):
    with pytest.raises((OptionError, OptionTypeError), match="s3://bucket/x") as caught:
        ShardedDataset([other, "s3://me:secret@bucket/x"])
    assert "secret" not in str(caught.value)


def test_a_folder_may_begin_with_the_home_folder(texts, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    corpus = ShardedDataset(texts, cache="~/cache", index="~/index")
    assert corpus[3]["id"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "index"}


def test_a_path_that_was_made_of_a_url_is_explained():
    with pytest.raises(ShardsNotFoundError, match=r"s3:/bucket/x\. Pass a URL as a str: a Path"):
        ShardedDataset(Path("s3://bucket/x"))
    with pytest.raises(OptionError, match=r"found 's3:/bucket/x'.*as a str, such as \"s3://"):
        ShardedDataset(Path("s3://bucket/x"), storage_options={"region": "x"})


@pytest.mark.parametrize("dtype", ["uint16", np.uint16, np.dtype("uint16")])
def test_a_dtype_is_a_name_or_one_of_numpy(tokens, dtype):
    corpus = ShardedDataset(tokens, dtype=dtype, window=8)
    assert corpus[1]["tokens"].tolist() == list(range(8, 16))
    assert corpus.index.place == ShardedDataset(tokens, dtype="uint16", window=8).index.place


@pytest.mark.parametrize("wrong", [600, -601, 10**12])
def test_an_index_out_of_range_says_how_many_samples_there_are(lines, wrong):
    corpus = ShardedDataset(lines)
    for read in (corpus.__getitem__, lambda number: corpus.__getitems__([0, number])):
        with pytest.raises(IndexError, match="the dataset has 600 samples"):
            read(wrong)


@pytest.mark.parametrize("wrong", ["text", 1.5, slice(3), None])
def test_an_index_must_be_an_int(lines, wrong):
    corpus = ShardedDataset(lines)
    for read in (corpus.__getitem__, lambda number: corpus.__getitems__([number])):
        with pytest.raises(OptionTypeError, match="a sample's index must be an int"):
            read(wrong)


def test_many_samples_are_counted_from_the_end_as_one_is(lines):
    corpus = ShardedDataset(lines)
    assert corpus.__getitems__([-1, 0]) == [corpus[599], corpus[0]]
    assert corpus.__getitems__([]) == []
    assert [sample["id"] for sample in Subset(corpus, [-2, 3]).__getitems__([0, 1])] == [598, 3]


def written(folder, rows):
    path = folder / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_an_error_of_a_row_names_its_file_and_keeps_its_type(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": }\n')
    with pytest.raises(ShardFormatError, match=rf"A line is no JSON.*The file is {path}\.$"):
        ShardedDataset(path)[1]
    with pytest.raises(ShardSchemaError, match=rf"Did you mean 'a'\?.*The file is {path}\.$"):
        ShardedDataset(path, columns=["aa"])[0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("change", ["replaced", "longer", "gone"])
def test_a_file_that_changes_before_it_is_read_is_named(tmp_path, change, workers):
    path = written(tmp_path, [{"id": number} for number in range(8)])
    corpus = ShardedDataset(path)
    if change == "replaced":
        os.utime(path, ns=(1, 1))
    elif change == "longer":
        path.write_text(path.read_text() * 2)
    else:
        path.unlink()
    with pytest.raises(ShardChangedError, match=rf"^a file changed.*: {path}: .*Put the file back"):
        list(ResumableDataLoader(corpus, 4, num_workers=workers))


def test_pyarrow_is_imported_by_the_dataset_alone_and_named_if_it_is_missing():
    code = """
import sys
import dataporter, dataporter.shards
assert "pyarrow" not in sys.modules
sys.modules["pyarrow"] = None
try:
    dataporter.shards.ShardedDataset
except dataporter.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        'pyarrow is not installed. Install it: pip install "torch-dataporter[shards]".\n'
    )
