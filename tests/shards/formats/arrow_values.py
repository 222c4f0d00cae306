"""Random Arrow tables, and the samples that the contract of `columns` makes of them."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

NUMBERS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.bool_(),
]  # fmt: skip
PLAIN = [
    *NUMBERS, pa.null(), pa.string(), pa.large_string(), pa.string_view(), pa.binary(),
    pa.large_binary(), pa.binary_view(), pa.binary(3), pa.date32(), pa.timestamp("us"),
    pa.timestamp("ms", "UTC"), pa.duration("us"), pa.time64("us"), pa.decimal128(9, 2),
]  # fmt: skip
# Parquet has no views and keeps half floats, durations and times as they are since recently.
PARQUET = [kind for kind in PLAIN if "view" not in str(kind) and kind != pa.float16()]


def types(plain=tuple(PLAIN)):
    """Types of columns, nested up to a few levels."""

    def nested(inner):
        names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
        return st.one_of(
            st.builds(pa.list_, inner),
            st.builds(pa.large_list, inner),
            st.builds(lambda item: pa.list_(item, 2), inner),
            st.builds(lambda item: pa.map_(pa.string(), item), inner),
            names.flatmap(
                lambda found: st.tuples(*(inner for _ in found)).map(
                    lambda kinds: pa.struct(list(zip(found, kinds, strict=True)))
                )
            ),
        )

    return st.recursive(st.sampled_from(plain), nested, max_leaves=4)


def values(kind):
    """Values of a type, None among them."""
    return st.one_of(st.none(), _values(kind))


def _values(kind):  # noqa: C901  a dispatch on types
    if pa.types.is_nested(kind):
        return _nested_values(kind)
    if pa.types.is_null(kind):
        return st.none()
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        low = 0 if "uint" in str(kind) else -(2 ** (kind.bit_width - 1))
        return st.integers(low, low + 2**kind.bit_width - 1)
    if pa.types.is_floating(kind):
        width = kind.bit_width
        floats = st.floats(allow_nan=False, width=width)
        return floats.map(np.float16) if width == 16 else floats
    if kind == pa.binary(3):
        return st.binary(min_size=3, max_size=3)
    if "binary" in str(kind):
        return st.binary(max_size=20)
    if "string" in str(kind):
        return st.text(max_size=20)
    if pa.types.is_date(kind):
        return st.dates()
    if pa.types.is_timestamp(kind):
        zone = dt.timezone.utc if kind.tz else None
        moments = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1))  # noqa: DTZ001
        return moments.map(lambda moment: moment.replace(microsecond=0, tzinfo=zone))
    if pa.types.is_duration(kind):
        return st.timedeltas(dt.timedelta(0), dt.timedelta(days=9))
    if pa.types.is_time(kind):
        return st.times()
    return st.integers(-(10**8), 10**8).map(lambda number: decimal.Decimal(number) / 100)


def _nested_values(kind):
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    if pa.types.is_map(kind):
        return st.lists(st.tuples(st.text(max_size=3), values(kind.item_type)), max_size=3)
    if pa.types.is_fixed_size_list(kind):
        return st.lists(values(kind.value_type), min_size=2, max_size=2)
    return st.lists(values(kind.value_type), max_size=4)


@st.composite
def tables(draw, plain=tuple(PLAIN), max_columns=3):
    """Tables of random columns, of 0 to 8 rows."""
    rows = draw(st.integers(0, 8))
    kinds = draw(st.lists(types(plain), min_size=1, max_size=max_columns))
    arrays = [
        pa.array(draw(st.lists(values(kind), min_size=rows, max_size=rows)), kind) for kind in kinds
    ]
    return pa.table(arrays, [f"column {place}" for place in range(len(arrays))])


def samples_of(table: pa.Table) -> list[dict]:
    """Return what the contract makes of `to_pylist()`."""
    kinds = {field.name: field.type for field in table.schema}
    return [
        {name: sample(value, kinds[name]) for name, value in row.items()}
        for row in table.to_pylist()
    ]


def sample(value, kind):
    if value is None:
        return None
    if pa.types.is_dictionary(kind):
        return sample(value, kind.value_type)
    if pa.types.is_struct(kind):
        return {field.name: sample(value[field.name], field.type) for field in kind}
    is_list = "list" in str(kind).split("<", maxsplit=1)[0]
    if is_list and kind.value_type in NUMBERS and None not in value:
        return np.array(value, kind.value_type.to_pandas_dtype())
    if is_list:
        return [sample(item, kind.value_type) for item in value]
    return value


def assert_same(found, expected) -> None:
    """Compare samples: types, dtypes and values."""
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.flags.writeable
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected
