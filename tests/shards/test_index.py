"""The index as a table, and as a file."""

import pickle
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataporter.shards.index import BLOCK, Index, IndexedFile, build_index
from dataporter.shards.index_file import read_index, write_index
from dataporter.shards.shard_file import Block

counts = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=6)


def index_of(rows_of_files, root=Path("/data")) -> Index:
    files = []
    for number, rows in enumerate(rows_of_files):
        blocks = [(10 * at, 10, count, 20, 2**63 + at) for at, count in enumerate(rows)]
        schema = {"columns": {"text": f"type {number % 2}"}}
        array = np.array(blocks, BLOCK)
        files.append(IndexedFile(f"f{number}", 100, 7 + number, array, schema, ("A remark.",)))
    return build_index(root, "lines", files)


def assert_same(one: Index, other: Index, *, but=("place",)) -> None:
    for field in fields(Index):
        if field.name not in but:
            a, b = getattr(one, field.name), getattr(other, field.name)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype, field.name
                np.testing.assert_array_equal(a, b)
            elif field.name == "file_warnings":
                assert {key: list(texts) for key, texts in a.items()} == {
                    key: list(texts) for key, texts in b.items()
                }
            else:
                assert a == b, field.name


@given(counts)
def test_locate_finds_the_block_and_the_row_of_every_index(rows_of_files):
    index = index_of(rows_of_files)
    counted = [count for rows in rows_of_files for count in rows]
    expected = [(block, row) for block, count in enumerate(counted) for row in range(count)]
    assert len(index) == len(expected)
    blocks, rows = index.locate(np.arange(len(index), dtype=np.int64))
    assert blocks.dtype == rows.dtype == np.int64
    assert list(zip(blocks.tolist(), rows.tolist(), strict=True)) == expected


def test_locate_takes_indices_in_any_order_and_shape():
    index = index_of([[2, 3], [4]])
    blocks, rows = index.locate(np.array([[8, 0], [4, 4]]))
    assert blocks.tolist() == [[2, 0], [1, 1]]
    assert rows.tolist() == [[3, 0], [2, 2]]


def test_a_block_knows_its_file_and_schema():
    index = index_of([[2, 3], [4]])
    assert index.block(1) == Block(10, 10, 3, 20, 2**63 + 1)
    assert index.path(2) == Path("/data/f1")
    assert index.schema(2) == {"columns": {"text": "type 1"}}
    assert index.warnings == ["f0: A remark.", "f1: A remark."]
    assert repr(index) == "Index(lines, 2 files, 3 blocks, 9 rows, in /data)"


@given(counts)
def test_an_index_is_built_again_from_its_files(rows_of_files):
    index = index_of(rows_of_files)
    assert_same(build_index(index.root, index.format, index.files()), index)


@pytest.mark.parametrize("rows_of_files", [[], [[]], [[2, 3], [], [4]]])
def test_an_index_is_read_as_it_was_written(tmp_path, rows_of_files):
    index = index_of(rows_of_files)
    path = tmp_path / "index.arrow"
    write_index(index, path)
    read = read_index(path, Path("/data"))
    assert read.place == path
    assert_same(read, index)
    assert_same(pickle.loads(pickle.dumps(read)), index)
    assert [file.name for file in tmp_path.iterdir()] == ["index.arrow"]


def test_names_that_are_no_unicode_are_kept(tmp_path):
    index = replace(index_of([[1]]), paths=["\udcff.lines"])
    write_index(index, tmp_path / "index.arrow")
    assert read_index(tmp_path / "index.arrow", Path("/data")).paths == ["\udcff.lines"]


def test_a_damaged_index_is_as_good_as_none(tmp_path):
    path = tmp_path / "index.arrow"
    assert read_index(path, tmp_path) is None
    write_index(index_of([[2, 3], [4]]), path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert read_index(path, tmp_path) is None
    for offset in range(0, len(whole), 7):
        # A flipped bit in padding changes nothing.
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        read = read_index(path, Path("/data"))
        if read is not None:
            assert_same(read, index_of([[2, 3], [4]]))


def test_an_open_index_stays_as_it_is_when_its_file_is_replaced(tmp_path):
    path = tmp_path / "index.arrow"
    write_index(index_of([[2, 3]]), path)
    read = read_index(path, Path("/data"))
    write_index(index_of([[5], [6], [7]]), path)
    assert_same(read, index_of([[2, 3]]))


def test_a_block_costs_less_than_50_bytes(tmp_path):
    write_index(index_of([[1] * 10_000]), tmp_path / "index.arrow")
    assert (tmp_path / "index.arrow").stat().st_size < 50 * 10_000
