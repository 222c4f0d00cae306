"""Arrow files and streams: samples are those of pyarrow and datasets, mapped as they lie."""

import numpy as np
import pyarrow as pa
import pytest
from arrow_values import assert_same, samples_of, tables
from foreign_files import FOREIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import read_all, read_blocks

from dataporter.errors import ShardChangedError, ShardFormatError, ShardSchemaError
from dataporter.shards import ShardedDataset
from dataporter.shards.formats import arrow
from dataporter.shards.formats.arrow import ArrowFormat
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.shard_file import LocalFile

TABLE = pa.table(
    {
        "id": range(100),
        "text": [None if n % 7 == 0 else "é" * (n % 9) for n in range(100)],
        "emb": pa.array([[float(n)] * 4 for n in range(100)], pa.list_(pa.float32())),
        "image": [{"bytes": bytes([n]), "path": None} for n in range(100)],
    }
)
ENCODED = TABLE.append_column("kind", pa.array(["a", "b", None, "c"] * 25).dictionary_encode())
WRITERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def arrow_format(columns=None):
    return ArrowFormat(ReadOptions(columns=columns))


def write(path, table, kind="file", rows=10, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with WRITERS[kind](str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def scan(path, columns=None):
    return arrow_format(columns).scan(LocalFile(path))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("table", [TABLE, ENCODED], ids=["plain", "dictionary"])
def test_every_kind_of_file_has_its_rows(tmp_path, kind, compression, table):
    path = write(tmp_path / "a.arrow", table, kind, compression=compression)
    found = scan(path)
    assert arrow_format().is_mapped(found.schema) is (compression is None)
    assert_same(read_all(arrow_format(), path), samples_of(table))
    assert_same(
        read_all(arrow_format(("emb", "id")), path), samples_of(table.select(["emb", "id"]))
    )


@settings(max_examples=25)
@given(tables(), st.sampled_from([*WRITERS]), st.sampled_from([None, "zstd"]), st.integers(1, 9))
def test_samples_are_those_of_pyarrow(tmp_path_factory, table, kind, compression, rows):
    path = tmp_path_factory.mktemp("arrow") / "a.arrow"
    write(path, table, kind, rows, compression)
    assert_same(read_all(arrow_format(), path), samples_of(table))


@pytest.mark.parametrize("kind", WRITERS)
def test_blocks_are_runs_of_record_batches(tmp_path, kind, monkeypatch):
    path = write(tmp_path / "a.arrow", TABLE, kind)
    (whole,) = scan(path).blocks
    monkeypatch.setattr(arrow, "TARGET", whole.size // 5)
    blocks = scan(path).blocks
    assert len(blocks) > 2
    assert [block.offset + block.size for block in blocks[:-1]] == [b.offset for b in blocks[1:]]
    assert len({block.checksum for block in blocks}) == len(blocks)
    assert {block.rows % 10 for block in blocks} == {0}
    found = read_blocks(arrow_format(), path)
    assert_same([sample for block in found for sample in block], samples_of(TABLE))


def test_decoded_bytes_are_those_of_the_decompressed_data(tmp_path):
    table = pa.table({"a": ["x" * 100] * 1000})
    (plain,) = scan(write(tmp_path / "a.arrow", table, rows=1000)).blocks
    (packed,) = scan(write(tmp_path / "b.arrow", table, rows=1000, compression="zstd")).blocks
    assert packed.size < plain.size / 10
    assert packed.decoded == pytest.approx(plain.decoded, rel=0.01)


def test_a_file_with_dictionaries_is_one_block(tmp_path, monkeypatch):
    path = write(tmp_path / "a.arrow", ENCODED)
    (block,) = scan(path).blocks
    assert (block.offset, block.size, block.rows) == (0, path.stat().st_size, 100)
    assert scan(path).schema["columns"]["kind"] == "string"
    monkeypatch.setattr(arrow, "LARGE", 1000)
    (warning,) = scan(path).warnings
    assert "dictionary_decode" in warning


def test_a_stream_may_replace_its_dictionaries(tmp_path):
    parts = [pa.array(["a", "b"]), pa.array(["c", "a"])]
    batches = [pa.record_batch({"a": part.dictionary_encode()}) for part in parts]
    for compression in (None, "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(str(tmp_path / "a"), batches[0].schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        found = read_all(arrow_format(), tmp_path / "a")
        assert [sample["a"] for sample in found] == ["a", "b", "c", "a"]


def test_opening_a_block_copies_nothing(tmp_path):
    path = write(tmp_path / "a.arrow", pa.table({"a": [b"x" * 1_000_000] * 5}), rows=1)
    (block,) = scan(path).blocks
    data = path.read_bytes()
    before = pa.total_allocated_bytes()
    rows = arrow_format().open(memoryview(data), block, {})
    assert pa.total_allocated_bytes() - before < 100_000
    assert rows([4]) == [{"a": b"x" * 1_000_000}]


@pytest.mark.imports_much
def test_folders_of_datasets_are_read_as_they_lie(tmp_path):
    import datasets

    features = datasets.Features(
        {
            "grid": datasets.Array2D((2, 3), "float32"),
            "open": datasets.Array3D((None, 1, 2), "int64"),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "image": datasets.Image(),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "inner": {"grid": datasets.Array2D((1, 2), "uint8")},
            "grids": [datasets.Array2D((1, 2), "uint8")],
        }
    )
    rows = {
        "grid": [np.full((2, 3), n, np.float32) for n in range(10)],
        "open": [np.full((n, 1, 2), n).tolist() for n in range(10)],
        "label": [n % 2 for n in range(10)],
        "image": [{"bytes": bytes([n]), "path": None} for n in range(10)],
        "tokens": [list(range(n)) for n in range(10)],
        "inner": [{"grid": [[n, n]]} for n in range(10)],
        "grids": [[[[n, n]]] * (n % 3) for n in range(10)],
    }
    datasets.Dataset.from_dict(rows, features).save_to_disk(tmp_path, num_shards=3)
    files = sorted(tmp_path.glob("data-*.arrow"))
    assert len(files) == 3
    assert len({str(scan(file).schema) for file in files}) == 1
    samples = [sample for file in files for sample in read_all(arrow_format(), file)]
    expected = [
        {
            "grid": np.full((2, 3), n, np.float32),
            "open": np.full((n, 1, 2), n),
            "label": n % 2,
            "image": {"bytes": bytes([n]), "path": None},
            "tokens": np.arange(n, dtype=np.int32),
            "inner": {"grid": np.full((1, 2), n, np.uint8)},
            "grids": [np.full((1, 2), n, np.uint8)] * (n % 3),
        }
        for n in range(10)
    ]
    assert_same(samples, expected)


@pytest.mark.imports_much
def test_a_dataset_with_indices_is_read_in_the_order_of_its_file(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"a": list(range(20))}).save_to_disk(tmp_path)
    (file,) = tmp_path.glob("data-*.arrow")
    assert [sample["a"] for sample in read_all(arrow_format(), file)] == list(range(20))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_without_rows_has_no_blocks(tmp_path, kind):
    assert not scan(write(tmp_path / "a.arrow", TABLE.slice(0, 0), kind)).blocks
    empty = pa.record_batch({"a": pa.array([], pa.int64())})
    with WRITERS[kind](str(tmp_path / "b.arrow"), empty.schema) as writer:
        writer.write_batch(empty)
    assert not scan(tmp_path / "b.arrow").blocks


def test_a_missing_column_is_named(tmp_path):
    source = arrow_format(("txt",))
    with pytest.raises(ShardSchemaError, match="Did you mean 'text'"):
        source.check(source.scan(LocalFile(write(tmp_path / "a.arrow", TABLE))).schema)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_named(tmp_path, kind):
    path = tmp_path / "a.arrow"
    path.write_bytes(FOREIGN[kind])
    with pytest.raises(ShardFormatError) as caught:
        scan(path)
    for part in (str(path), "not an Arrow IPC file or stream", kind, "again"):
        assert part in str(caught.value)


def test_an_empty_file_is_no_arrow(tmp_path):
    (tmp_path / "a.arrow").touch()
    with pytest.raises(ShardFormatError, match="an empty file"):
        scan(tmp_path / "a.arrow")


@settings(max_examples=100)
@given(st.sampled_from([*WRITERS]), st.sampled_from([None, "zstd"]), st.booleans(), st.data())
def test_a_file_that_is_cut_off_is_an_error(tmp_path_factory, kind, compression, encoded, data):
    path = tmp_path_factory.mktemp("cut") / "a.arrow"
    write(path, ENCODED if encoded else TABLE, kind, compression=compression)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole) - 1))
    # Cut anywhere, or exactly between two messages, which lie at multiples of 8.
    start -= data.draw(st.sampled_from([0, start % 8]))
    path.write_bytes(whole[:start])
    with pytest.raises(ShardFormatError, match="again"):
        read_all(arrow_format(), path)


def test_the_schema_of_a_file_is_that_of_its_footer(tmp_path):
    path = write(tmp_path / "a.arrow", TABLE)
    whole = bytearray(path.read_bytes())
    whole[8:16] = bytes(8)  # polars writes no message there
    path.write_bytes(whole)
    assert_same(read_all(arrow_format(), path), samples_of(TABLE))


def test_compressed_dictionaries_of_views_are_decoded(tmp_path):
    values = pa.array(["a", "b" * 20], pa.string_view())  # as by polars
    encoded = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), values)
    table = pa.table({"text": encoded, "view": pa.array(["c", None, "d" * 20], pa.string_view())})
    path = write(tmp_path / "a.arrow", table, compression="zstd")
    assert read_all(arrow_format(), path) == table.to_pylist()


def test_a_stream_cut_between_messages_is_an_error(tmp_path):
    path = write(tmp_path / "a.arrow", TABLE, "stream")
    (block,) = scan(path).blocks
    path.write_bytes(path.read_bytes()[: block.offset + block.size])
    with pytest.raises(ShardFormatError, match="without the end-of-stream marker"):
        scan(path)


def test_two_streams_in_one_file_are_an_error(tmp_path):
    path = write(tmp_path / "a.arrow", TABLE, "stream")
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ShardFormatError, match="bytes follow the end-of-stream marker"):
        scan(path)


@settings(max_examples=200)
@given(st.sampled_from([*WRITERS]), st.data())
def test_a_damaged_header_is_an_error_or_seen(tmp_path_factory, kind, data):
    path = tmp_path_factory.mktemp("damaged") / "a.arrow"
    write(path, TABLE.select(["id"]), kind)
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        found = read_all(arrow_format(), path)
    except (ShardFormatError, ShardChangedError, ShardSchemaError):
        return
    assert len(found) == 100  # a value or a name has changed, and no checksum is there to tell


def test_a_file_that_became_shorter_is_an_error(tmp_path):
    path = write(tmp_path / "a.arrow", TABLE)
    source = arrow_format()
    found = source.scan(LocalFile(path))
    with pytest.raises(ShardChangedError, match="became shorter since it was indexed"):
        source.open(memoryview(path.read_bytes()[:900]), found.blocks[0], found.schema)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_block_that_has_other_rows_than_when_it_was_indexed_is_an_error(tmp_path, compression):
    path = write(tmp_path / "a.arrow", TABLE, compression=compression)
    source = arrow_format()
    found = source.scan(LocalFile(path))
    indexed = found.blocks[0]._replace(rows=found.blocks[0].rows - 1)
    with pytest.raises(ShardChangedError, match=r"has changed .* has 100 rows, expected 99"):
        if compression is None:
            source.open(memoryview(path.read_bytes()), indexed, found.schema)
        else:
            source.decode(LocalFile(path), indexed, found.schema, tmp_path / "decoded")


def test_grouping_record_batches_looks_at_each_a_few_times():
    """A file may have many small batches, and a sum over a run for each of them takes minutes."""
    looks = 0

    class Batch:
        size = 100

        def __init__(self, number):
            self.offset = number * self.size

        @property
        def decoded(self):
            nonlocal looks
            looks += 1
            return self.size

    batches = [Batch(number) for number in range(1000)]
    assert [len(run) for run in arrow._runs(batches)] == [1000]
    assert looks <= 2 * len(batches)


def test_values_that_were_compressed_are_checked_before_they_are_read(tmp_path):
    offsets = pa.py_buffer(np.array([0, 3, 1, 4], dtype=np.int32))  # they may only grow
    texts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abcd")])
    batch = pa.RecordBatch.from_arrays([texts], ["text"])
    path = tmp_path / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(path, batch.schema, options=options) as file:
        file.write_batch(batch)
    with pytest.raises(ShardFormatError, match=r"Arrow data is damaged.*offset"):
        ShardedDataset(path)[1]
