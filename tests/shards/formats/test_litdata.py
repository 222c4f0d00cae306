"""LitData chunks, compared with what its own reader returned (see fixtures/make_litdata.py)."""

import json
import shutil

import numpy as np
import portable
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from portable import same
from reading import change_index, listed_files, read_all

from dataporter.errors import (
    OptionError,
    ShardChangedError,
    ShardFormatError,
    ShardSchemaError,
    ShardsNotFoundError,
)
from dataporter.shards.building import open_index
from dataporter.shards.files import list_files
from dataporter.shards.formats.format import SUFFIXES, ReadOptions
from dataporter.shards.formats.litdata import LitDataFormat
from dataporter.shards.formats.litdata_rows import read_json
from dataporter.shards.shard_file import LocalFile


def litdata(**options):
    return LitDataFormat(ReadOptions(**options))


@pytest.fixture
def folder(fixtures, tmp_path):
    """A copy of a folder with plain chunks, to be damaged."""
    shutil.copytree(fixtures / "litdata" / "raw", tmp_path / "d")
    return tmp_path / "d"


PLAIN = ["full", "nested", "rows", "rows_zstd", "raw", "pairs", "single"]
PACKED = ["chunk", "batch", "sample", "frames"]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in PLAIN + PACKED]
    + [
        ("pickled", {"allow_pickle": True}),
        ("tokens", {"window": 8}),
        ("tokens_numpy", {"window": 8}),
    ],
)
def test_every_sample_equals_litdatas_own(fixtures, tmp_path, name, options):
    folder = fixtures / "litdata" / name
    expected = portable.loads((folder / "expected.json").read_text())
    samples = []
    for file in listed_files(folder):
        samples += read_all(litdata(**options), folder / file)
    assert len(samples) == len(expected) > 0
    for one, other in zip(samples, expected, strict=True):
        same(one, other)


def test_values_have_memory_of_their_own(fixtures):
    folder = fixtures / "litdata" / "full"
    sample = read_all(litdata(), folder / "chunk-0-0.bin")[2]
    for value in sample.values():
        if isinstance(value, np.ndarray):
            assert value.flags.writeable
        if isinstance(value, torch.Tensor) and value.numel():
            value.zero_()


def test_pickles_are_read_only_if_allowed(fixtures):
    path = fixtures / "litdata" / "pickled" / "chunk-0-0.bin"
    with pytest.raises(OptionError, match=r"pickles.*allow_pickle=True"):
        read_all(litdata(), path)
    assert [list(s) for s in read_all(litdata(columns=("t",)), path)] == [["t"]] * 3


@pytest.mark.parametrize("name", ["raw", "rows", "nested"])
def test_columns_are_chosen_and_ordered(fixtures, name):
    path = fixtures / "litdata" / name / "chunk-0-0.bin"
    whole = read_all(litdata(), path)
    chosen = tuple(reversed(list(whole[0])))[:2]
    for one, other in zip(read_all(litdata(columns=chosen), path), whole, strict=True):
        same(one, {column: other[column] for column in chosen})
    with pytest.raises(ShardSchemaError, match="No column is named 'x'"):
        litdata(columns=("x",)).check(litdata().scan(LocalFile(path)).schema)


@pytest.mark.parametrize("name", [*PLAIN, *PACKED])
def test_all_chunks_have_one_schema_that_is_json(fixtures, name):
    folder = fixtures / "litdata" / name
    schemas = [litdata().scan(LocalFile(folder / file)).schema for file in listed_files(folder)]
    assert all(json.loads(json.dumps(schema)) == schemas[0] for schema in schemas)


def test_tokens_need_a_window(fixtures):
    path = fixtures / "litdata" / "tokens" / "chunk-0-0.bin"
    with pytest.raises(OptionError, match=r"78 tokens in one row.*Pass window="):
        litdata().scan(LocalFile(path))
    with pytest.raises(ShardFormatError, match="78 tokens, fewer than one window of 79"):
        litdata(window=79).scan(LocalFile(path))
    with pytest.raises(OptionError, match="window must be at least 1, found 0"):
        litdata(window=0)
    (warning,) = litdata(window=40).scan(LocalFile(path)).warnings
    assert "38 tokens" in warning


def test_an_index_without_a_loader_is_of_tokens_if_it_has_one_flat_tensor(fixtures, tmp_path):
    shutil.copytree(fixtures / "litdata" / "tokens", tmp_path / "d")
    change_index(tmp_path / "d", lambda i: i["config"].pop("item_loader") and None)
    assert len(read_all(litdata(window=8), tmp_path / "d" / "chunk-0-0.bin")) == 9


def test_an_index_without_a_loader_is_of_samples_if_they_have_several_values(folder):
    path = folder / "chunk-0-0.bin"
    samples = read_all(litdata(), path)
    change_index(folder, lambda i: i["config"].pop("item_loader") and None)
    for one, other in zip(read_all(litdata(), path), samples, strict=True):
        same(one, other)


def test_flat_arrays_that_were_not_written_for_the_loader_of_tokens_are_samples(fixtures, tmp_path):
    folder = shutil.copytree(fixtures / "litdata" / "single", tmp_path / "d")
    path = folder / "chunk-0-0.bin"
    samples = read_all(litdata(), path)  # bytes
    change_index(folder, lambda i: i["config"].update(data_format=["no_header_numpy:4"]))
    for one, other in zip(read_all(litdata(), path), samples, strict=True):
        ((column, value),) = other.items()
        same(one, {column: np.frombuffer(value, np.uint8)})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"item_loader": "ParquetLoader"}, "Parquet files.*format='parquet'"),
        ({"item_loader": "TemporalArrayLoader"}, "needs LitData's TemporalArrayLoader"),
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"compression": "lz4"}, "compressed with 'lz4'"),
    ],
)
def test_folders_that_cannot_be_read_say_why(folder, change, found):
    change_index(folder, lambda i: i["config"].update(change))
    with pytest.raises(OptionError, match=found) as caught:
        litdata().scan(LocalFile(folder / "chunk-0-0.bin"))
    assert str(folder / "index.json") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda i: i.pop("chunks") and None, "has no chunks and config"),
        (lambda i: i.update(config=None), "has no chunks and config"),
        (lambda i: {"shards": [], "version": 2}, "has no chunks and config"),
        (lambda i: [], "has a list; expected an object"),
        (lambda i: i["config"].pop("data_spec") and None, "data_spec"),
        (lambda i: i["config"].update(data_spec="[2, {}]"), "protocol 2"),
        (lambda i: i["config"].update(data_spec="["), "damaged"),
        (lambda i: i["config"].update(data_format=["int"]), "the 1 leaves"),
        (lambda i: i["config"].update(item_loader="TokensLoader"), "one flat tensor"),
        (lambda i: i["chunks"][0].pop("filename") and None, "filename"),
        (lambda i: i["chunks"].append(3), "damaged"),
        (
            lambda i: i["config"].update(
                data_spec=json.dumps([1, {"type": "my.Node", "context": "1", "children_spec": []}])
            ),
            "my.Node",
        ),
    ],
)
def test_an_index_of_another_kind_is_an_error(folder, change, found):
    change_index(folder, change)
    with pytest.raises(ShardFormatError, match=found) as caught:
        litdata().scan(LocalFile(folder / "chunk-0-0.bin"))
    assert str(folder / "index.json") in str(caught.value)


@pytest.mark.parametrize("kind", ["graph", "no_header_tensor:99", "no_header_numpy:x", "mystery"])
def test_an_unknown_format_of_a_value_is_named(folder, kind):
    change_index(folder, lambda i: i["config"]["data_format"].__setitem__(0, kind))
    path = folder / "chunk-0-0.bin"
    with pytest.raises(ShardSchemaError, match=f"'{kind}'"):
        read_all(litdata(), path)
    assert [s["n"] for s in read_all(litdata(columns=("n",)), path)] == list(range(7))


def test_a_missing_index_is_an_error(folder):
    (folder / "index.json").unlink()
    with pytest.raises(ShardsNotFoundError, match=r"index\.json is missing"):
        litdata().scan(LocalFile(folder / "chunk-0-0.bin"))


@pytest.mark.parametrize("name", ["raw", "chunk"])
def test_a_missing_chunk_is_an_error(fixtures, tmp_path, name):
    folder = tmp_path / "d"
    shutil.copytree(fixtures / "litdata" / name, folder)
    path = folder / listed_files(folder)[1]
    path.unlink()
    assert path.name in listed_files(folder)
    with pytest.raises(ShardsNotFoundError, match=r"chunk-0-1.* is missing"):
        open_index(list_files(folder, SUFFIXES), litdata())


def test_a_chunk_that_is_not_listed_is_an_error(folder):
    shutil.copy(folder / "chunk-0-0.bin", folder / "chunk-9-9.bin")
    with pytest.raises(ShardFormatError, match=r"chunk-9-9\.bin is not listed"):
        litdata().scan(LocalFile(folder / "chunk-9-9.bin"))


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("name", ["raw", "rows_zstd", "tokens", *PACKED])
def test_a_truncated_chunk_is_an_error(fixtures, tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("t") / "d"
    shutil.copytree(fixtures / "litdata" / name, folder)
    path = folder / listed_files(folder)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ShardFormatError, match="chunk-0-0"):
        read_all(litdata(window=8), path)


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("name", ["raw", "nested", "rows", "rows_zstd", *PACKED])
def test_a_damaged_chunk_is_an_error_or_has_all_rows(fixtures, tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("t") / "d"
    shutil.copytree(fixtures / "litdata" / name, folder)
    path = folder / listed_files(folder)[0]
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        samples = read_all(litdata(), path)
    except (ShardFormatError, ShardSchemaError):
        return
    assert (
        len(samples) == json.loads((folder / "index.json").read_text())["chunks"][0]["chunk_size"]
    )


def test_a_foreign_file_of_the_right_size_is_an_error(folder):
    path = folder / "chunk-0-0.bin"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(ShardFormatError, match=r"0-0\.bin does not begin with the offsets of 7"):
        litdata().scan(LocalFile(path))


def test_another_chunk_than_the_indexed_one_is_an_error(folder):
    scanned = litdata().scan(LocalFile(folder / "chunk-0-0.bin"))
    (block,) = scanned.blocks
    other = (folder / "chunk-0-4.bin").read_bytes()
    with pytest.raises(ShardChangedError, match="became shorter"):
        litdata().open(memoryview(other), block, scanned.schema)
    with pytest.raises(ShardChangedError, match="not the one that was indexed"):
        litdata().open(memoryview(other.ljust(block.size, b"\0")), block, scanned.schema)


@pytest.mark.parametrize("text", [b'{"a": [1, null]}', b"[]", b'"x"'])
def test_json_of_earlier_versions_is_read(text):
    assert read_json(memoryview(text)) == json.loads(text)
