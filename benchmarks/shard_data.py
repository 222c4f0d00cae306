"""Samples of `shards.py`, written once in the format of every contender.

Texts of about 1 kB are words drawn by Zipf's law, which zstd compresses two to three times. JPEGs
are a header and bytes that nothing compresses. Both depend on their number alone. Parquet is
written first; every other format is a copy of it, made by the library that reads it. Writers run
in processes of their own, so that a player can import what it likes.
"""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

TITLES = {"texts": "texts of 1 kB", "jpegs": "JPEGs of 40 kB"}
FILES = 20  # of Parquet, tar and JSON lines; peers deal whole files to their workers
_WORDS = 20_000
_TEXT = 1_000  # bytes
_JPEG = 40_000  # bytes
_SHARD = 16 << 20  # bytes in a file of MDS or LitData, so that workers have several
_DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Samples of one kind, in a folder for each format."""

    kind: str  # "texts" or "jpegs"
    rows: int
    folder: Path

    @property
    def column(self) -> str:
        """The name of the only column; also the extension in tar files."""
        return {"texts": "txt", "jpegs": "jpg"}[self.kind]

    @property
    def group(self) -> int:
        """Rows in a Parquet row group and in an Arrow batch: 1 MB of texts, 4 MB of JPEGs."""
        return {"texts": 1000, "jpegs": 100}[self.kind]

    def files(self, form: str) -> list[Path]:
        """The files of a format, in order."""
        return sorted(path for path in (self.folder / form).rglob("*.*") if path.is_file())

    def has(self, form: str) -> bool:
        """The format was written."""
        return (self.folder / form / _DONE).exists()


def make(kind: str, rows: int, folder: Path, libraries: Sequence[Path] = ()) -> Data:
    """Write samples in every format whose library is installed, unless they are there.

    `libraries` are folders in which a library is looked for too.
    """
    data = Data(kind=kind, rows=rows, folder=folder / f"{kind}-{rows}")
    for form, (needs, write) in WRITERS.items():
        at = [str(each) for each in libraries if (each / needs).exists()][:1]
        is_there = at or find_spec(needs) is not None
        if data.has(form) or not is_there or (form == "jsonl" and kind == "jpegs"):
            continue  # JSON has no bytes
        place = data.folder / form
        shutil.rmtree(place, ignore_errors=True)  # the part that a killed run has left
        place.mkdir(parents=True)
        writer = multiprocessing.get_context("fork").Process(
            target=_write, args=(write, data, place, at)
        )
        writer.start()
        writer.join()
        if writer.exitcode == 0:
            (place / _DONE).touch()
        else:
            print(f"not written: {kind} as {form} (status {writer.exitcode})")
    return data


def _write(write: Callable[[Data, Path], None], data: Data, place: Path, at: list[str]) -> None:
    sys.path[:0] = at
    write(data, place)


def values(kind: str, rows: int) -> Iterator[Any]:
    """Make the samples, one after the other."""
    return itertools.islice(_texts() if kind == "texts" else _jpegs(), rows)


def _texts() -> Iterator[str]:
    random = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    lengths = random.integers(2, 11, _WORDS)
    words = ["".join(random.choice(letters, length)) for length in lengths]
    chances = 1 / np.arange(2, _WORDS + 2)
    edges = np.cumsum(chances / chances.sum())
    for number in itertools.count():
        drawn = np.searchsorted(edges, np.random.default_rng([2, number]).random(_TEXT // 5))
        text = " ".join([words[min(place, _WORDS - 1)] for place in drawn])
        yield f"{number} {text}"[:_TEXT]


def _jpegs() -> Iterator[bytes]:
    for number in itertools.count():
        random = np.random.default_rng([3, number])
        size = int(random.integers(_JPEG // 2, _JPEG * 3 // 2))
        yield b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + random.bytes(size) + b"\xff\xd9"


def _parquet(data: Data, place: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415  of this format only, here and below
    import pyarrow.parquet as pq  # noqa: PLC0415

    made = values(data.kind, data.rows)
    for number, rows in enumerate(_shares(data.rows)):
        table = pa.table({data.column: list(itertools.islice(made, rows))})
        path = place / f"{number:03}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=data.group)


def _shares(rows: int) -> list[int]:
    """Rows of each file."""
    return [len(share) for share in np.array_split(np.arange(rows), min(FILES, rows))]


def _stored(data: Data) -> Iterator[tuple[Path, list[Any]]]:
    """The values of each Parquet file, as other formats copy them."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    for path in data.files("parquet"):
        yield path, pq.read_table(path).column(data.column).to_pylist()


def _arrow(data: Data, place: Path) -> None:
    """Write a stream of record batches, as `save_to_disk` of Hugging Face does."""
    import pyarrow as pa  # noqa: PLC0415

    for path, listed in _stored(data):
        table = pa.table({data.column: listed})
        with pa.ipc.new_stream(str(place / f"{path.stem}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=data.group)


def _jsonl(data: Data, place: Path) -> None:
    for path, listed in _stored(data):
        lines = [json.dumps({data.column: value}) for value in listed]
        (place / f"{path.stem}.jsonl").write_text("\n".join(lines) + "\n")


def _tar(data: Data, place: Path) -> None:
    numbers = itertools.count()
    for path, listed in _stored(data):
        with tarfile.open(place / f"{path.stem}.tar", "w") as archive:
            for value in listed:
                body = value.encode() if isinstance(value, str) else value
                member = tarfile.TarInfo(f"{next(numbers):08}.{data.column}")
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))


def _mds(data: Data, place: Path) -> None:
    from streaming import MDSWriter  # noqa: PLC0415

    shutil.rmtree(place)  # it must not be there
    kind = {"texts": "str", "jpegs": "bytes"}[data.kind]
    with MDSWriter(out=str(place), columns={data.column: kind}, size_limit=_SHARD) as writer:
        for _, listed in _stored(data):
            for value in listed:
                writer.write({data.column: value})


def _litdata(data: Data, place: Path) -> None:
    from litdata.streaming.writer import BinaryWriter  # noqa: PLC0415

    writer = BinaryWriter(str(place), chunk_bytes=_SHARD)
    numbers = itertools.count()
    for _, listed in _stored(data):
        for value in listed:
            writer.add_item(next(numbers), {data.column: value})
    writer.done()
    writer.merge()


def _array_record(data: Data, place: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter  # noqa: PLC0415

    for path, listed in _stored(data):
        # A group of one record is what the documentation recommends for random access.
        name = str(place / f"{path.stem}.array_record")
        writer = ArrayRecordWriter(name, "group_size:1,uncompressed")
        for value in listed:
            writer.write(value.encode() if isinstance(value, str) else value)
        writer.close()


# The module that a format needs, and its writer.
WRITERS: dict[str, tuple[str, Callable[[Data, Path], None]]] = {
    "parquet": ("pyarrow", _parquet),
    "arrow": ("pyarrow", _arrow),
    "jsonl": ("pyarrow", _jsonl),
    "tar": ("pyarrow", _tar),
    "mds": ("streaming", _mds),
    "litdata": ("litdata", _litdata),
    "array_record": ("array_record", _array_record),
}


def size_of(data: Data, form: str) -> int:
    """Bytes of a format's files."""
    return sum(path.stat().st_size for path in data.files(form))
