"""Samples made of Arrow columns are those that pyarrow's own conversion gives."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from arrow_values import assert_same, sample, samples_of, tables, types, values
from hypothesis import given, settings
from hypothesis import strategies as st

from dataporter.errors import ShardFormatError, ShardSchemaError
from dataporter.shards.formats.columns import ArrowRows, describe
from dataporter.shards.formats.format import check_columns


def rows_of(data, columns=None):
    return ArrowRows(data.to_batches() if isinstance(data, pa.Table) else [data], columns)


@given(tables())
def test_samples_are_those_of_to_pylist(table):
    assert_same(rows_of(table)(range(len(table))), samples_of(table))


@settings(max_examples=25)
@given(tables(), st.data())
def test_rows_come_in_any_order_and_more_than_once(table, data):
    numbers = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=9)) if len(table) else []
    expected = samples_of(table)
    assert_same(rows_of(table)(numbers), [expected[number] for number in numbers])
    assert_same(rows_of(table)(np.array(numbers, np.int64)), [expected[n] for n in numbers])


@settings(max_examples=25)
@given(tables(), st.integers(0, 8), st.integers(0, 8))
def test_slices_have_the_rows_of_their_table(table, start, length):
    part = table.slice(start, length)
    assert_same(rows_of(part)(range(len(part))), samples_of(part))


@settings(max_examples=25)
@given(tables(), st.lists(st.integers(0, 3), max_size=6))
def test_tables_of_several_chunks_have_all_rows(table, sizes):
    chunks, start = [], 0
    for size in [*sizes, len(table)]:
        chunks.append(table.slice(start, size))
        start += size
    joined = pa.concat_tables(chunks)
    assert_same(rows_of(joined)(range(len(joined))), samples_of(table))


@given(types(), st.data())
def test_dictionary_columns_give_plain_values(kind, data):
    try:
        plain = pa.array(data.draw(st.lists(values(kind), max_size=8)), kind)
        encoded = plain.dictionary_encode()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return  # pyarrow encodes plain types only
    table = pa.table({"a": encoded})
    expected = [{"a": sample(value, encoded.type)} for value in encoded.to_pylist()]
    assert_same(rows_of(table)(range(len(table))), expected)


@pytest.mark.parametrize("kind", [pa.list_view(pa.int32()), pa.large_list_view(pa.string())])
def test_list_views_are_lists(kind):
    rows = [[1, 2], None, [], [5]] if "int" in str(kind) else [["a"], None, [], ["b", None]]
    table = pa.table({"a": pa.array(rows, kind)}).slice(1)
    assert_same(rows_of(table)([2, 1, 0]), samples_of(table)[::-1])


def test_run_end_encoded_columns_give_plain_values():
    array = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", None])
    assert rows_of(pa.table({"a": array}))([2, 1]) == [{"a": None}, {"a": "a"}]


def test_each_sample_is_new():
    rows = rows_of(pa.table({"a": pa.array([[1, 2]], pa.list_(pa.int32()))}))
    first, second = rows([0, 0])
    first["a"][0] = 9
    assert second["a"].tolist() == [1, 2]
    assert rows([0])[0]["a"].tolist() == [1, 2]


def test_columns_come_in_the_order_asked_for():
    batch = pa.record_batch({"a": [1], "b": [2], "c": [3]})
    assert [*rows_of(batch, ["c", "a"])([0])[0]] == ["c", "a"]


def test_no_columns_give_empty_samples():
    assert rows_of(pa.record_batch({"a": [1, 2]}), [])([0, 1]) == [{}, {}]


def test_fixed_shape_tensors_are_arrays_of_their_shape():
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    storage = pa.array([[1, 2, 3, 4, 5, 6], None], pa.list_(pa.float32(), 6))
    table = pa.table({"a": pa.ExtensionArray.from_storage(kind, storage)})
    first, second = rows_of(table)([0, 1])
    np.testing.assert_array_equal(first["a"], np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    assert second == {"a": None}


def test_a_string_that_is_no_utf8_is_an_error():
    wrong = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(ShardFormatError, match="not valid UTF-8"):
        rows_of(pa.record_batch({"a": wrong}))([0])


def test_no_batches_have_no_rows():
    assert ArrowRows([])([]) == []


def test_missing_columns_are_named():
    with pytest.raises(ShardSchemaError) as caught:
        check_columns(["txt", "id"], {"text": "string", "id": "int64"})
    message = str(caught.value)
    assert "'txt'" in message
    assert "Did you mean 'text'?" in message
    assert "'text', 'id'" in message


def test_two_columns_of_one_name_are_an_error():
    schema = pa.schema([("a", pa.int64()), ("a", pa.string())])
    with pytest.raises(ShardSchemaError, match="Several columns are named 'a'"):
        describe(schema, Path("a.arrow"))
