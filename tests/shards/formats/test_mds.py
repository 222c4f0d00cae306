"""MDS shards, compared with what streaming's own reader returned (see fixtures/make_mds.py)."""

import json
import shutil

import portable
import pytest
import zstandard
from hypothesis import given
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
from dataporter.shards.formats.mds import MdsFormat
from dataporter.shards.shard_file import LocalFile


def mds(**options):
    return MdsFormat(ReadOptions(**options))


@pytest.fixture
def folder(fixtures, tmp_path):
    """A copy of the folder with raw shards and hashes, to be damaged."""
    shutil.copytree(fixtures / "mds" / "hashed", tmp_path / "d")
    return tmp_path / "d"


@pytest.mark.parametrize("name", ["all", "hashed", "zstd", "gz", "bz2"])
def test_every_sample_equals_streamings_own(fixtures, tmp_path, name):
    folder = fixtures / "mds" / name
    expected = portable.loads((folder / "expected.json").read_text())
    files = listed_files(folder)
    assert len(files) > 1
    samples = [s for file in files for s in read_all(mds(), folder / file)]
    assert len(samples) == len(expected) > 0
    for one, other in zip(samples, expected, strict=True):
        same(one, other)


def test_pickles_are_read_only_if_allowed(fixtures):
    path = fixtures / "mds" / "pickled" / "shard.00000.mds"
    with pytest.raises(OptionError, match=r"'a' are pickles.*allow_pickle=True"):
        read_all(mds(), path)
    assert read_all(mds(columns=("b",)), path) == [{"b": 0}, {"b": 1}, {"b": 2}]
    assert read_all(mds(allow_pickle=True), path)[2] == {"a": {"x": 2}, "b": 2}


def test_an_empty_dataset_has_no_files(fixtures):
    with pytest.raises(ShardsNotFoundError, match="no file of a known format"):
        listed_files(fixtures / "mds" / "empty")


@pytest.mark.parametrize("name", ["br", "snappy"])
def test_other_compressions_are_refused(fixtures, name):
    folder = fixtures / "mds" / name
    with pytest.raises(OptionError, match=rf"00\.mds\.{name} is compressed with '{name}'.*zstd"):
        mds().scan(LocalFile(folder / listed_files(folder)[0]))


def test_columns_are_chosen_and_ordered(fixtures):
    path = fixtures / "mds" / "all" / "shard.00000.mds"
    whole = read_all(mds(), path)
    for one, other in zip(read_all(mds(columns=("str", "array", "int")), path), whole, strict=True):
        same(one, {name: other[name] for name in ("str", "array", "int")})
    schema = mds().scan(LocalFile(path)).schema
    with pytest.raises(ShardSchemaError, match=r"No column is named 'x'.*'array'"):
        mds(columns=("x",)).check(schema)


def test_all_shards_have_one_schema_that_is_json(fixtures):
    folder = fixtures / "mds" / "all"
    schemas = [mds().scan(LocalFile(folder / file)).schema for file in listed_files(folder)]
    assert all(json.loads(json.dumps(schema)) == schemas[0] for schema in schemas)


def test_arrays_have_memory_of_their_own(fixtures):
    sample = read_all(mds(), fixtures / "mds" / "all" / "shard.00000.mds")[0]
    assert sample["array"].flags.writeable
    assert sample["array_shape"].flags.writeable


def test_an_unknown_encoding_is_named(folder):
    change_index(
        folder,
        lambda i: [s["column_encodings"].__setitem__(0, "tiff") for s in i["shards"]] and None,
    )
    path = folder / "shard.00000.mds"
    with pytest.raises(ShardSchemaError, match="'number' has the encoding 'tiff'"):
        read_all(mds(), path)
    assert len(read_all(mds(columns=("text",)), path)) > 10


def test_shards_may_lie_below_the_index(folder):
    (folder / "0").mkdir()
    for file in folder.glob("*.mds"):
        file.rename(folder / "0" / file.name)

    def change(index):
        for shard in index["shards"]:
            shard["raw_data"]["basename"] = "0/" + shard["raw_data"]["basename"]

    change_index(folder, change)
    files = listed_files(folder)
    assert files[0] == "0/shard.00000.mds"
    assert sum(len(read_all(mds(), folder / file)) for file in files) == 100


def test_a_raw_file_is_preferred_to_its_compressed_one(fixtures, folder, tmp_path):
    shutil.rmtree(folder)
    shutil.copytree(fixtures / "mds" / "zstd", folder)
    assert listed_files(folder)[0] == "shard.00000.mds.zstd"
    raw = zstandard.decompress((folder / "shard.00000.mds.zstd").read_bytes())
    (folder / "shard.00000.mds").write_bytes(raw)
    assert listed_files(folder)[0] == "shard.00000.mds"
    packed = read_all(mds(), folder / "shard.00000.mds.zstd")
    for one, other in zip(read_all(mds(), folder / "shard.00000.mds"), packed, strict=True):
        same(one, other)


def test_a_missing_index_is_an_error(folder):
    (folder / "index.json").unlink()
    with pytest.raises(ShardsNotFoundError, match=r"index\.json is missing"):
        mds().scan(LocalFile(folder / "shard.00000.mds"))


def test_a_missing_shard_is_an_error(folder):
    (folder / "shard.00003.mds").unlink()
    assert "shard.00003.mds" in listed_files(folder)
    with pytest.raises(ShardsNotFoundError, match=r"shard\.00003\.mds is missing"):
        open_index(list_files(folder, SUFFIXES), mds())


def test_a_shard_that_is_not_listed_is_an_error(folder):
    shutil.copy(folder / "shard.00000.mds", folder / "other.mds")
    with pytest.raises(ShardFormatError, match=r"other\.mds is not listed in .*index\.json"):
        mds().scan(LocalFile(folder / "other.mds"))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda i: i.update(version=3), "has version 3; expected 2 of MDS"),
        (lambda i: i.pop("version") and None, "has version None"),
        (lambda i: i.update(shards={}), "has no list of shards"),
        (lambda i: i["shards"][1].update(format="csv"), "shard 1 .*'csv'"),
        (lambda i: i["shards"][1].update(version=1), "shard 1 .*version 1"),
        (lambda i: i["shards"][1].pop("samples") and None, "shard 1 .*'samples'"),
        (lambda i: i["shards"][1]["column_sizes"].pop() and None, "shard 1"),
        (lambda i: i["shards"][1].update(raw_data=None), "shard 1"),
        (lambda i: i["shards"].append("text"), "shard 6"),
        (lambda i: [1, 2], "has a list; expected an object"),
    ],
)
def test_an_index_of_another_kind_is_an_error(folder, change, found):
    change_index(folder, change)
    with pytest.raises(ShardFormatError, match=found) as caught:
        mds().scan(LocalFile(folder / "shard.00000.mds"))
    assert str(folder / "index.json") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"shards": ['])
def test_a_damaged_index_is_an_error(folder, content):
    (folder / "index.json").write_bytes(content)
    with pytest.raises(ShardFormatError, match=r"index\.json is damaged"):
        mds().scan(LocalFile(folder / "shard.00000.mds"))


@given(st.data())
def test_a_truncated_shard_is_an_error(fixtures, tmp_path_factory, data):
    name = data.draw(st.sampled_from(["hashed", "zstd"]))
    folder = tmp_path_factory.mktemp("t") / "d"
    shutil.copytree(fixtures / "mds" / name, folder)
    path = folder / listed_files(folder)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ShardFormatError, match=r"truncated: it has .* bytes, but .* announces"):
        mds().scan(LocalFile(path))


@given(st.data())
def test_a_damaged_shard_is_an_error_or_has_all_rows(fixtures, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("t") / "d"
    shutil.copytree(fixtures / "mds" / "hashed", folder)
    path = folder / "shard.00000.mds"
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        samples = read_all(mds(), path)
    except ShardFormatError:
        return
    assert len(samples) == 19


@pytest.mark.parametrize("name", ["zstd", "gz", "bz2"])
@given(data=st.data())
def test_a_damaged_compressed_shard_is_an_error(fixtures, tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("t") / "d"
    shutil.copytree(fixtures / "mds" / name, folder)
    path = folder / listed_files(folder)[0]
    damaged = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    try:
        samples = read_all(mds(), path)
    except ShardFormatError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert name == "gz"  # the only one without hashes; its header has bytes without meaning
        expected = portable.loads((folder / "expected.json").read_text())
        for one, other in zip(samples, expected, strict=False):
            same(one, other)


def test_a_hash_that_differs_is_an_error(fixtures, folder, tmp_path):
    shutil.rmtree(folder)
    shutil.copytree(fixtures / "mds" / "zstd", folder)
    change_index(folder, lambda i: i["shards"][0]["raw_data"]["hashes"].update(sha1="0"))
    with pytest.raises(ShardFormatError, match=r"mds\.zstd is damaged: the sha1 of .* index has 0"):
        read_all(mds(), folder / "shard.00000.mds.zstd")


def test_a_foreign_file_of_the_right_size_is_an_error(folder):
    path = folder / "shard.00000.mds"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(ShardFormatError, match=r"00000\.mds does not begin with the offsets of 19"):
        mds().scan(LocalFile(path))


def test_the_checksum_sees_other_contents(folder):
    one, other = (
        mds().scan(LocalFile(folder / f"shard.0000{i}.mds")).blocks[0].checksum for i in (0, 1)
    )
    assert one != other


def test_another_shard_than_the_indexed_one_is_an_error(folder):
    first, second = folder / "shard.00000.mds", folder / "shard.00005.mds"
    scanned = mds().scan(LocalFile(first))
    with pytest.raises(ShardChangedError, match=r"became shorter|not the one that was indexed"):
        mds().open(memoryview(second.read_bytes()), scanned.blocks[0], scanned.schema)
    padded = second.read_bytes().ljust(scanned.blocks[0].size, b"\0")
    with pytest.raises(ShardChangedError, match="not the one that was indexed"):
        mds().open(memoryview(padded), scanned.blocks[0], scanned.schema)
