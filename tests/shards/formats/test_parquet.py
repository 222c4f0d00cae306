"""Parquet: samples are those of pyarrow's reader, and what is wrong with a file is said."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrow_values import PARQUET, assert_same, samples_of, tables
from foreign_files import FOREIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_all, read_blocks

from dataporter.errors import ShardChangedError, ShardFormatError, ShardSchemaError
from dataporter.shards.formats import parquet
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.parquet import ParquetFormat
from dataporter.shards.shard_file import LocalFile

TABLE = pa.table(
    {
        "id": range(100),
        "text": [None if n % 7 == 0 else "é" * (n % 9) for n in range(100)],
        "kind": pa.array(["a", "b", None, "c"] * 25).dictionary_encode(),
        "emb": pa.array([[float(n)] * 4 for n in range(100)], pa.list_(pa.float32(), 4)),
        "image": [{"bytes": bytes([n]), "path": None} for n in range(100)],
    }
)


def parquet_format(columns=None):
    return ParquetFormat(ReadOptions(columns=columns))


def scan(path, columns=None):
    return parquet_format(columns).scan(LocalFile(path))


@pytest.fixture
def path(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=30)
    return tmp_path / "a.parquet"


def test_each_row_group_is_a_block(path):
    assert [len(block) for block in read_blocks(parquet_format(), path)] == [30, 30, 30, 10]
    assert_same(read_all(parquet_format(), path), samples_of(pq.read_table(path)))


@settings(max_examples=40)
@given(tables(tuple(PARQUET)), st.integers(1, 9), st.sampled_from(["none", "snappy", "zstd"]))
def test_samples_are_those_of_pyarrow(tmp_path_factory, table, group, compression):
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    try:
        pq.write_table(table, path, row_group_size=group, compression=compression)
        expected = samples_of(pq.read_table(path))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return  # pyarrow itself does not write or read such nested types
    assert_same(read_all(parquet_format(), path), expected)


def test_only_chosen_columns_are_decoded_in_the_order_asked_for(path, tmp_path):
    samples = read_all(parquet_format(("emb", "id")), path)
    assert [*samples[99]] == ["emb", "id"]
    source = parquet_format(("id",))
    found = source.scan(LocalFile(path))
    source.decode(LocalFile(path), found.blocks[0], found.schema, tmp_path / "decoded")
    with pa.memory_map(str(tmp_path / "decoded")) as file:
        assert pa.ipc.open_file(file).schema.names == ["id"]


def test_a_column_with_a_dot_in_its_name_is_one_column(tmp_path):
    pq.write_table(pa.table({"a.b": [1], "a": [{"b": 2}]}), tmp_path / "a.parquet")
    assert read_all(parquet_format(("a.b",)), tmp_path / "a.parquet") == [{"a.b": 1}]


def test_decoded_bytes_are_estimated_well(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "id": np.arange(20_000),
            "text": ["x" * int(n) for n in rng.integers(0, 200, 20_000)],
            "kind": ["cat", "dog"] * 10_000,
            "emb": pa.array(list(rng.random((20_000, 8), np.float32)), pa.list_(pa.float32())),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    for columns in (None, ("id",), ("text",), ("kind",), ("emb",)):
        source = parquet_format(columns)
        found = source.scan(LocalFile(path))
        (block,) = found.blocks
        source.decode(LocalFile(path), block, found.schema, tmp_path / "decoded")
        assert block.decoded == pytest.approx((tmp_path / "decoded").stat().st_size, rel=0.25)


def test_the_schema_says_columns_and_types(path):
    assert scan(path).schema == {
        "columns": {
            "id": "int64",
            "text": "string",
            "kind": "string",
            "emb": "fixed_size_list<element: float>[4]",
            "image": "struct<bytes: binary, path: null>",
        }
    }


def test_other_contents_have_other_checksums(path, tmp_path):
    checksums = [block.checksum for block in scan(path).blocks]
    assert len(set(checksums)) == 4
    pq.write_table(TABLE.slice(1), tmp_path / "b.parquet", row_group_size=30)
    assert not {*checksums} & {block.checksum for block in scan(tmp_path / "b.parquet").blocks}


def test_a_giant_row_group_is_warned_of(path, monkeypatch):
    assert not scan(path).warnings
    monkeypatch.setattr(parquet, "LARGE_BLOCK", 1000)
    (warning,) = scan(path).warnings
    assert str(path) in warning
    assert "row_group_size=" in warning


def test_a_large_file_of_one_row_group_is_warned_of(tmp_path, monkeypatch):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    monkeypatch.setattr(parquet, "LARGE_FILE", 1000)
    (warning,) = scan(tmp_path / "a.parquet").warnings
    assert "row_group_size=" in warning


def test_a_missing_column_is_named(path):
    source = parquet_format(("txt",))
    with pytest.raises(ShardSchemaError, match="Did you mean 'text'"):
        source.check(source.scan(LocalFile(path)).schema)


@pytest.mark.imports_much
def test_files_of_datasets_have_arrays_of_their_shape(tmp_path):
    import datasets

    features = datasets.Features({"m": datasets.Array2D((2, 2), "int32"), "x": datasets.Image()})
    rows = {"m": [[[1, 2], [3, 4]]], "x": [{"bytes": b"jpg", "path": None}]}
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "a.parquet")
    (sample,) = read_all(parquet_format(), tmp_path / "a.parquet")
    expected = {"m": np.array([[1, 2], [3, 4]], np.int32), "x": {"bytes": b"jpg", "path": None}}
    assert_same(sample, expected)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_file_without_rows_has_no_blocks(tmp_path, rows):
    pq.write_table(TABLE.slice(0, rows), tmp_path / "a.parquet")
    assert len(scan(tmp_path / "a.parquet").blocks) == rows


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_named(tmp_path, kind):
    (tmp_path / "a.parquet").write_bytes(FOREIGN[kind])
    with pytest.raises(ShardFormatError) as caught:
        scan(tmp_path / "a.parquet")
    for part in (str(tmp_path / "a.parquet"), "not a Parquet file", kind, "again"):
        assert part in str(caught.value)


def test_an_empty_file_is_no_parquet(tmp_path):
    (tmp_path / "a.parquet").touch()
    with pytest.raises(ShardFormatError, match="an empty file"):
        scan(tmp_path / "a.parquet")


@settings(max_examples=60)
@given(st.data())
def test_a_file_that_is_cut_off_is_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    path = folder / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=30)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    if start == end:
        return
    path.write_bytes(whole[:start] + whole[end:])
    with pytest.raises(ShardFormatError, match="again"):
        read_all(parquet_format(), path)


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_page_is_an_error_or_another_value(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "a.parquet"
    pq.write_table(TABLE.slice(0, 20), path, row_group_size=10, write_page_checksum=True)
    whole = bytearray(path.read_bytes())
    # Not in the footer: pyarrow ends the process for some of its damages.
    footer = int.from_bytes(whole[-8:-4], "little")
    place = data.draw(st.integers(4, len(whole) - 9 - footer))
    whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        found = read_all(parquet_format(), path)
    except (ShardFormatError, ShardChangedError, ShardSchemaError):
        return
    assert len(found) == 20


def test_a_damaged_page_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, write_page_checksum=True)
    whole = bytearray(path.read_bytes())
    whole[200] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(ShardFormatError) as caught:
        read_all(parquet_format(), path)
    assert str(path) in str(caught.value)


def test_a_replaced_file_is_an_error(path, tmp_path):
    source = parquet_format()
    found = source.scan(LocalFile(path))
    pq.write_table(TABLE, path, row_group_size=20)
    with pytest.raises(ShardChangedError, match="changed since it was indexed"):
        source.decode(LocalFile(path), found.blocks[1], found.schema, tmp_path / "decoded")


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "a.parquet")


def test_a_format_can_be_pickled():
    source = parquet_format(("id",))
    assert pickle.loads(pickle.dumps(source)).options == source.options
