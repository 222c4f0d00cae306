"""Values of Arrow columns as samples.

| Arrow | sample |
| --- | --- |
| null | None |
| bool, ints, floats | bool, int, float |
| strings | str |
| binary | bytes |
| a list of bools, ints or floats without nulls | a one-dimensional array of its dtype |
| a fixed-shape tensor; Array2D to Array5D of Hugging Face | an array of its shape |
| any other list | a list of such values |
| a struct | a dict of such values |
| a dictionary column | the values, as in a plain column |
| anything else: times, decimals, maps, unions | the value that `to_pylist()` gives |

Arrays are copies: they can be written to and outlive the mapped file. Strings, bytes and numbers
are read from Arrow's buffers directly, since making a pyarrow scalar costs more than the value.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataporter.errors import ShardFormatError, ShardSchemaError
from dataporter.shards.formats.format import Rows, Sample

# Values of a column at the given rows.
Column: TypeAlias = Callable[[Sequence[int]], list[Any]]
# The place of a list in its child: its first element and the one after its last.
Bounds: TypeAlias = Callable[[int], tuple[int, int]]

ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")  # of Hugging Face's features


class FlatLists(NamedTuple):
    """A column of lists of numbers, end to end as they lie in the file. Copy what is to be kept."""

    offsets: memoryview  # where lists begin in `values`, and where the last one ends
    values: NDArray[Any]  # read-only


class ArrowRows:
    """The rows of record batches, one after the other, as samples with `columns`.

    >>> rows = ArrowRows([pa.record_batch({"id": [7, 8], "text": ["a", None]})])
    >>> rows([1, 0])
    [{'id': 8, 'text': None}, {'id': 7, 'text': 'a'}]
    """

    def __init__(
        self, batches: Iterable[pa.RecordBatch], columns: Sequence[str] | None = None
    ) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._columns = columns
        self._rows = _joined(self._batches, columns)
        self._lists: dict[str, list[FlatLists] | None] = {}

    def __call__(self, numbers: Sequence[int]) -> list[Sample]:
        return self._rows(numbers)

    def flat_lists(self, name: str) -> list[FlatLists] | None:
        """Return a column of lists of numbers by batch, without a copy; None for any other."""
        if name not in self._lists:
            is_there = self._columns is None or name in self._columns
            found = [_flat_lists(batch, name) for batch in self._batches] if is_there else [None]
            flat = [each for each in found if each is not None]
            self._lists[name] = flat if len(flat) == len(found) else None
        return self._lists[name]


def _joined(batches: Sequence[pa.RecordBatch], columns: Sequence[str] | None) -> Rows:
    parts = [_rows_of_batch(batch, columns) for batch in batches]
    if len(parts) == 1:
        return parts[0]
    starts = [0, *accumulate(batch.num_rows for batch in batches)]

    def rows(numbers: Sequence[int]) -> list[Sample]:
        samples: list[Sample] = []
        for part, run in groupby(numbers, lambda number: bisect_right(starts, number) - 1):
            samples += parts[part]([number - starts[part] for number in run])
        return samples

    return rows


def _flat_lists(batch: pa.RecordBatch, name: str) -> FlatLists | None:
    if name not in batch.schema.names or name in _features(batch.schema):
        return None  # features may stand for another shape
    array = batch.column(name)
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    if not is_list or array.null_count or not _is_number(array.type.value_type):
        return None
    if array.values.null_count:
        return None
    return FlatLists(_numbers(array.offsets).data, _numbers(array.values))


def describe(schema: pa.Schema, file_name: str) -> dict[str, str]:
    """Return the name and the type of each column, as an index keeps them."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        msg = (
            f"Several columns are named {twice[0]!r}: {file_name}. A sample has one value for a "
            "name. Rename them and write the file again."
        )
        raise ShardSchemaError(msg)
    return {field.name: str(_plain_type(field.type)) for field in schema}


def _rows_of_batch(batch: pa.RecordBatch, columns: Sequence[str] | None) -> Rows:
    features = _features(batch.schema)
    names = list(batch.schema.names if columns is None else columns)
    readers = [_column(batch.column(name), features.get(name)) for name in names]

    if not names:
        return lambda numbers: [{} for _ in numbers]
    name, first = names[0], readers[0]

    def rows(numbers: Sequence[int]) -> list[Sample]:
        try:
            if len(names) == 1:
                return [{name: value} for value in first(numbers)]
            values = zip(*(read(numbers) for read in readers), strict=True)
            return [dict(zip(names, row, strict=True)) for row in values]
        except (UnicodeDecodeError, IndexError) as error:
            raise _damaged(error) from error

    return rows


def _damaged(error: UnicodeDecodeError | IndexError) -> ShardFormatError:
    if isinstance(error, UnicodeDecodeError):
        return ShardFormatError(
            f"A string is not valid UTF-8: {error}. The file is damaged, or the column should be "
            "binary. Write the file again."
        )
    return ShardFormatError(
        f"A row lies outside of its data: {error}. The file is damaged. Download or write it again."
    )


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features that Hugging Face keeps beside a schema."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):  # none are kept, or in a form unknown here
        return {}
    return found if isinstance(found, dict) else {}


def _column(array: pa.Array, feature: Any = None) -> Column:
    """Return the reader of an array; `feature` is what Hugging Face says of it."""
    kind = array.type
    if _is_hugging_face(kind):
        array, kind = array.storage, array.type.storage_type
    if isinstance(feature, dict) and feature.get("_type") in ARRAYS:
        found = _tensors(array, feature.get("shape"))
        return found or _slow(array)
    if isinstance(kind, pa.FixedShapeTensorType):
        return _with_nulls(array, lambda rows: [array[int(row)].to_numpy().copy() for row in rows])
    return _with_nulls(array, _values(array, feature))


def _values(array: pa.Array, feature: Any) -> Column:
    """Return the reader of an array, for rows that are not null."""
    kind = array.type
    if _is_number(kind):
        item = _numbers(array).item
        return lambda rows: [item(row) for row in rows]
    if pa.types.is_boolean(kind):
        bit = _bits(array.buffers()[1], array.offset)
        return lambda rows: [bit(row) for row in rows]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        offsets, data = _binary(array)
        return lambda rows: [str(data[offsets[row] : offsets[row + 1]], "utf-8") for row in rows]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        offsets, data = _binary(array)
        return lambda rows: [bytes(data[offsets[row] : offsets[row + 1]]) for row in rows]
    if pa.types.is_dictionary(kind):
        values, indices = _column(array.dictionary, feature), _numbers(array.indices).item
        return lambda rows: values([indices(row) for row in rows])
    if pa.types.is_struct(kind):
        return _structs(array, feature)
    bounds = _bounds(array)
    if bounds is not None:
        return _lists(array.values, bounds, _feature_of_items(feature))
    return _slow(array)


def _with_nulls(array: pa.Array, values: Column) -> Column:
    """Return a reader that gives None for nulls."""
    buffer = array.buffers()[0] if array.null_count else None
    if buffer is None:  # no nulls, or types that keep them elsewhere and are read by pyarrow
        return values
    valid = _bits(buffer, array.offset)

    def read(rows: Sequence[int]) -> list[Any]:
        found = [row for row in rows if valid(row)]
        if len(found) == len(rows):
            return values(rows)
        present = iter(values(found))
        return [next(present) if valid(row) else None for row in rows]

    return read


def _slow(array: pa.Array) -> Column:
    """Read an array of any type, one pyarrow scalar after the other."""
    kind = array.type
    is_flat = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    if not (is_flat or pa.types.is_decimal(kind)):
        try:
            array.validate(full=True)  # a scalar of damaged data may crash the process
        except pa.ArrowException as error:
            msg = f"Data of type {kind} is damaged: {error}. Download or write the file again."
            raise ShardFormatError(msg) from error
    return lambda rows: [array[int(row)].as_py() for row in rows]


def _structs(array: pa.Array, feature: Any) -> Column:
    known = feature if isinstance(feature, dict) else {}
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        return _slow(array)
    parts = [_column(array.field(place), known.get(name)) for place, name in enumerate(names)]
    if not names:
        return lambda rows: [{} for _ in rows]

    def read(rows: Sequence[int]) -> list[Any]:
        columns = [part(rows) for part in parts]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    return read


def _lists(items: pa.Array, bounds: Bounds, feature: Any) -> Column:
    values = _column(items, feature)
    if not (_is_number(items.type) or pa.types.is_boolean(items.type)):
        return lambda rows: [values(range(*bounds(row))) for row in rows]
    if items.null_count:

        def read(rows: Sequence[int]) -> list[Any]:
            found = [values(range(*bounds(row))) for row in rows]
            dtype = _dtype(items.type)
            return [row if None in row else np.array(row, dtype) for row in found]

        return read
    if pa.types.is_boolean(items.type):
        return lambda rows: [np.array(values(range(*bounds(row))), np.bool_) for row in rows]
    numbers = _numbers(items)

    def copy(rows: Sequence[int]) -> list[Any]:
        found = []
        for row in rows:
            start, end = bounds(row)
            found.append(numbers[start:end].copy())
        return found

    return copy


def _tensors(array: pa.Array, shape: Any) -> Column | None:
    """Return the reader of nested lists that are arrays of one shape, or None if they are not."""
    levels: list[Bounds] = []
    items = array
    for _ in shape or ():
        level = _bounds(items)
        if level is None or (levels and items.null_count) or "view" in str(items.type):
            return None  # the inner lists of a row need not lie side by side
        levels.append(level)
        items = items.values
    if items.null_count or not _is_number(items.type):
        return None
    numbers = _numbers(items)
    # Hugging Face leaves the first dimension open by None.
    wanted = [-1 if size is None else size for size in shape]

    def read(rows: Sequence[int]) -> list[Any]:
        found = []
        for row in rows:
            start, end = row, row + 1
            for bounds in levels:
                start, end = bounds(start)[0], bounds(end - 1)[1] if end > start else start
            found.append(_shaped(numbers[start:end], wanted))
        return found

    return _with_nulls(array, read)


def _shaped(numbers: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    try:
        return numbers.reshape(shape).copy()
    except ValueError as error:
        msg = (
            f"An array has {numbers.size} numbers, which do not fit its shape {tuple(shape)} in "
            "the Hugging Face features. Correct the features, or write the file again."
        )
        raise ShardFormatError(msg) from error


def _bounds(array: pa.Array) -> Bounds | None:
    """Return the places of an array's lists in `array.values`, or None if it has no lists."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        size, first = kind.list_size, array.offset
        return lambda row: ((first + row) * size, (first + row + 1) * size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = _numbers(array.offsets).data
        return lambda row: (offsets[row], offsets[row + 1])
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        starts, sizes = _numbers(array.offsets).data, _numbers(array.sizes).data
        return lambda row: (starts[row], starts[row] + sizes[row])
    return None


def _binary(array: pa.Array) -> tuple[memoryview, memoryview]:
    """Return the offsets and the bytes of an array of strings or binary."""
    _, offsets, data = array.buffers()
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = 8 if wide else 4
    places = memoryview(offsets or b"").cast("B")[array.offset * width :]
    places = places[: (len(array) + 1) * width]
    return places.cast("q" if wide else "i"), memoryview(data or b"").cast("B")


def _numbers(array: pa.Array) -> NDArray[Any]:
    """Return an array of numbers without copying it. Nulls have any value."""
    dtype = _dtype(array.type)
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def _bits(buffer: pa.Buffer, offset: int) -> Callable[[int], bool]:
    data = memoryview(buffer or b"").cast("B")
    return lambda row: data[(row + offset) >> 3] >> ((row + offset) & 7) & 1 == 1


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_hugging_face(kind: pa.DataType) -> bool:
    # They are registered only where `datasets` is imported: samples must not depend on that.
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name.startswith("datasets.")


def _feature_of_items(feature: Any) -> Any:
    """Return what Hugging Face says of the items of a list."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    return feature.get("feature") if isinstance(feature, dict) else None


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if _is_hugging_face(kind) else kind
