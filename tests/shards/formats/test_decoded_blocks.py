"""Blocks of data elsewhere: every format decodes each of them from the bytes that it needs."""

import gzip
import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from counted_file import CountedFile
from portable import same
from reading import listed_files

from dataporter.errors import (
    ShardChangedError,
    ShardFormatError,
    ShardsNotFoundError,
    StorageError,
)
from dataporter.shards.formats import arrow, jsonl, tar, tokens
from dataporter.shards.formats.arrow import ArrowFormat
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.jsonl import JsonLinesFormat
from dataporter.shards.formats.litdata import LitDataFormat
from dataporter.shards.formats.mds import MdsFormat
from dataporter.shards.formats.parquet import ParquetFormat
from dataporter.shards.formats.tar import TarFormat
from dataporter.shards.formats.tokens import TokensFormat
from dataporter.shards.shard_file import LocalFile

ROWS = [
    {"id": n, "text": f"text {n} " * (n % 50), "image": bytes([n % 256]) * n} for n in range(400)
]
TABLE = pa.Table.from_pylist(ROWS)
ENCODED = TABLE.append_column("kind", pa.array(["a", "b", None, "c"] * 100).dictionary_encode())
LINES = b"".join(
    json.dumps({"id": row["id"], "text": row["text"]}).encode() + b"\n" for row in ROWS
)
FRAMES = [LINES[start : start + 3000] for start in range(0, len(LINES), 3000)]


def write_arrow(path, table, new=pa.ipc.new_file, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=20)


def write_arrow_without_schema_message(path):
    write_arrow(path, TABLE)
    whole = bytearray(path.read_bytes())
    whole[8:16] = bytes(8)  # as by polars
    path.write_bytes(whole)


def write_tar(path):
    with tarfile.open(path, "w") as file:
        for row in ROWS:
            for suffix, body in (("bin", row["image"]), ("txt", row["text"].encode())):
                info = tarfile.TarInfo(f"{row['id']:05}.{suffix}")
                info.size = len(body)
                file.addfile(info, io.BytesIO(body))


WRITTEN = {
    "a.parquet": lambda path: pq.write_table(TABLE, path, row_group_size=50),
    "file.arrow": lambda path: write_arrow(path, TABLE),
    "footer.arrow": write_arrow_without_schema_message,
    "stream.arrow": lambda path: write_arrow(path, TABLE, pa.ipc.new_stream),
    "file_zstd.arrow": lambda path: write_arrow(path, TABLE, compression="zstd"),
    "stream_lz4.arrow": lambda path: write_arrow(path, TABLE, pa.ipc.new_stream, "lz4"),
    "dictionary.arrow": lambda path: write_arrow(path, ENCODED),
    "dictionary_stream.arrow": lambda path: write_arrow(path, ENCODED, pa.ipc.new_stream),
    "dictionary_zstd.arrow": lambda path: write_arrow(path, ENCODED, compression="zstd"),
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.jsonl.gz": lambda path: path.write_bytes(b"".join(map(gzip.compress, FRAMES))),
    "a.jsonl.zst": lambda path: path.write_bytes(b"".join(map(zstandard.compress, FRAMES))),
    "a.tar": write_tar,
    "a.bin": lambda path: np.arange(50_000, dtype=np.uint16).tofile(path),
    "a.npy": lambda path: np.save(path, np.arange(50_000, dtype=">i4")),
    "rows.npy": lambda path: np.save(path, np.arange(60_000, dtype=np.int32).reshape(-1, 30)),
}
FORMATS = {
    "parquet": ParquetFormat, "arrow": ArrowFormat, "jsonl": JsonLinesFormat, "gz": JsonLinesFormat,
    "zst": JsonLinesFormat, "tar": TarFormat, "bin": TokensFormat, "npy": TokensFormat,
    "mds": MdsFormat, "litdata": LitDataFormat,
}  # fmt: skip
OPTIONS = {
    "a.bin": {"window": 100, "dtype": "uint16"},
    "a.npy": {"window": 100},
    "litdata/tokens": {"window": 8},
    "litdata/tokens_numpy": {"window": 8},
    "litdata/pickled": {"allow_pickle": True},
    "mds/pickled": {"allow_pickle": True},
}
MDS = [f"mds/{name}" for name in ("all", "hashed", "pickled", "zstd", "gz", "bz2")]
LITDATA = [
    f"litdata/{name}"
    for name in (
        "full", "nested", "rows", "rows_zstd", "raw", "pairs", "single", "pickled", "tokens",
        "tokens_numpy", "chunk", "batch", "sample", "frames",
    )
]  # fmt: skip
NAMES = [*WRITTEN, *MDS, *LITDATA]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(arrow, "TARGET", 10_000)
    monkeypatch.setattr(jsonl, "TARGET", 10_000)
    monkeypatch.setattr(tar, "_BLOCK_BYTES", 50_000)
    monkeypatch.setattr(tokens, "_BLOCK_BYTES", 20_000)


@pytest.fixture(scope="module")
def written(tmp_path_factory, fixtures):
    """Return a function that writes a file if need be: a name to its path and its format."""
    folder = tmp_path_factory.mktemp("written")

    def find(name, **options):
        if name in WRITTEN:
            path = folder / name
            if not path.exists():
                WRITTEN[name](path)
            kind = name.rpartition(".")[2]
        else:
            path = fixtures / name / listed_files(fixtures / name)[0]
            kind = name.partition("/")[0]
        return path, FORMATS[kind](ReadOptions(**OPTIONS.get(name, {}), **options))

    return find


def decoded_rows(format_, file, scanned, block, to):
    format_.decode(file, block, scanned.schema, to)
    data = to.read_bytes()
    rows = format_.open(memoryview(data), block._replace(offset=0, size=len(data)), scanned.schema)
    return rows(range(block.rows))


def elsewhere(format_, path, scanned):
    """Return a file elsewhere that holds the part that all blocks share, and that part."""
    file = CountedFile.of(path)
    begin = scanned.blocks[0].offset
    end = max(block.offset + block.size for block in scanned.blocks)
    part = format_.shared_part(begin, end, file.size)
    if part is not None:
        file.hold([part])
    return file, part or (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_scan_elsewhere_finds_the_same(written, name):
    path, format_ = written(name)
    assert format_.scan(CountedFile.of(path)).blocks == format_.scan(LocalFile(path)).blocks


@pytest.mark.parametrize("name", NAMES)
def test_decoded_blocks_have_the_rows_of_mapped_ones(written, tmp_path, name):
    path, format_ = written(name)
    scanned = format_.scan(LocalFile(path))
    for block in scanned.blocks:
        file, _ = elsewhere(format_, path, scanned)
        rows = decoded_rows(format_, file, scanned, block, tmp_path / "decoded")
        if format_.is_mapped(scanned.schema):
            mapped = format_.open(memoryview(path.read_bytes()), block, scanned.schema)
            expected = mapped(range(block.rows))
        else:
            local = LocalFile(path)
            expected = decoded_rows(format_, local, scanned, block, tmp_path / "local")
        assert len(rows) == block.rows
        same(rows, expected)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_reads_the_block_and_the_shared_part_alone(written, tmp_path, name):
    path, format_ = written(name)
    scanned = format_.scan(LocalFile(path))
    assert name not in WRITTEN or len(scanned.blocks) > 1 or "dictionary" in name
    if name == "footer.arrow":
        return  # its schema is in the footer, which is not shared
    for block in scanned.blocks:
        file, part = elsewhere(format_, path, scanned)
        format_.decode(file, block, scanned.schema, tmp_path / "decoded")
        assert file.trips == 1
        ends = block.offset + block.size
        for begin, end in file.read_ranges:
            in_block = block.offset <= begin and end <= ends
            assert in_block or (part[0] <= begin and end <= part[1])


def test_decoding_parquet_reads_the_chosen_columns_alone(written, tmp_path):
    path, format_ = written("a.parquet", columns=("text",))
    scanned = format_.scan(LocalFile(path))
    for number, block in enumerate(scanned.blocks):
        file, part = elsewhere(format_, path, scanned)
        rows = decoded_rows(format_, file, scanned, block, tmp_path / "decoded")
        assert [row["text"] for row in rows] == TABLE["text"].to_pylist()[50 * number :][:50]
        column = pq.ParquetFile(path).metadata.row_group(number).column(1)
        begin = column.dictionary_page_offset
        chunk = (begin, begin + column.total_compressed_size)
        assert {found for found in file.read_ranges if found[0] < part[0]} == {chunk}
        assert file.trips == 1


@pytest.mark.parametrize(
    ("name", "trips"),
    [
        ("a.parquet", 1),
        ("file.arrow", 2),
        ("file_zstd.arrow", 3),
        ("stream.arrow", 2),
        ("a.jsonl", 1),
        ("a.jsonl.gz", 1),
        ("a.tar", 1),
        ("a.bin", 1),
        ("a.npy", 2),
        ("mds/hashed", 1),
        ("mds/zstd", 0),
        ("litdata/raw", 1),
        ("litdata/tokens", 2),
        ("litdata/chunk", 1),
        ("litdata/batch", 1),
        ("litdata/sample", 2),
    ],
)
def test_a_scan_waits_a_few_times(written, monkeypatch, name, trips):
    monkeypatch.setattr("dataporter.shards.formats.arrow_messages.PROBE", 4096)
    path, format_ = written(name)
    file = CountedFile.of(path)
    format_.scan(file)
    assert file.trips == trips


def test_a_long_footer_of_parquet_is_read_in_two_parts(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"column {n}": [n] for n in range(2000)}), path)
    file = CountedFile.of(path)
    assert ParquetFormat(ReadOptions()).scan(file).blocks
    assert file.trips == 2
    assert len(set(file.read_ranges)) == 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "mds/hashed", "mds/zstd"])
def test_wrong_bytes_are_an_error(written, tmp_path, name):
    path, format_ = written(name)
    scanned = format_.scan(LocalFile(path))
    block = scanned.blocks[-1]
    file = CountedFile.of(path)
    contents = bytearray(path.read_bytes())
    contents[block.offset + block.size // 2] ^= 1
    file._folder[file._path] = bytes(contents)
    with pytest.raises((ShardChangedError, ShardFormatError), match="s3://bucket/"):
        format_.decode(file, block, scanned.schema, tmp_path / "decoded")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [StorageError, ShardsNotFoundError, ShardChangedError])
def test_errors_of_the_storage_are_raised_as_they_are(written, tmp_path, name, error):
    path, format_ = written(name)
    scanned = format_.scan(LocalFile(path))
    block = scanned.blocks[0]

    class Away(CountedFile):
        def read(self, offset, size):
            if self.name.endswith("index.json") or self._is_known(offset):
                return super().read(offset, size)
            raise error("the storage is away")

        def _is_known(self, offset):
            return not block.offset <= offset < block.offset + block.size

    away = Away.of(path)
    with pytest.raises(error, match="the storage is away"):
        format_.decode(away, block, scanned.schema, tmp_path / "decoded")


def test_damage_is_named_where_a_file_cannot_be_read_either(tmp_path):
    class Unreadable(CountedFile):
        def read(self, offset, size):
            if offset == 0:
                raise RuntimeError("the storage is away")
            return super().read(offset, size)

    file = Unreadable({"a.parquet": bytes(100_000)}, "a.parquet")
    with pytest.raises(ShardFormatError, match="a file that cannot be read"):
        ParquetFormat(ReadOptions()).scan(file)
