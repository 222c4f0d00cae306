"""Wrong bytes that arrive while files are listed and indexed are fetched again, in every format."""

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from stored_files import QUICK

from dataporter.errors import ShardFormatError
from dataporter.shards.building import open_index
from dataporter.shards.formats.format import ReadOptions, find_files
from dataporter.shards.index import Index
from dataporter.shards.storage.stored import StorageOptions

TABLE = pa.table({"id": list(range(60)), "text": [f"text {number}" for number in range(60)]})
LINES = "".join(json.dumps({"id": number}) + "\n" for number in range(60)).encode()
OTHERS = Path(__file__).parents[1] / "fixtures"


def parquet(folder: Path) -> None:
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=15)


def arrow(folder: Path) -> None:
    with pa.ipc.new_file(str(folder / "a.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=15)


def jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_bytes(LINES)


def compressed(folder: Path) -> None:
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(LINES))


def tar(folder: Path) -> None:
    (folder / "000.jsonl").write_bytes(LINES)
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(folder / "000.jsonl", "000.jsonl")
    (folder / "000.jsonl").unlink()


def saved(folder: Path) -> None:
    """A folder of `save_to_disk`, with a cache beside the data."""
    arrow(folder)
    (folder / "cache-1.arrow").write_bytes((folder / "a.arrow").read_bytes())
    (folder / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')


def copied(name: str):
    def copy(folder: Path) -> None:
        for path in (OTHERS / name).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())

    return copy


WRITERS = {
    "parquet": parquet,
    "arrow": arrow,
    "jsonl": jsonl,
    "zst": compressed,
    "tar": tar,
    "save_to_disk": saved,
    "mds": copied("mds/hashed"),
    "litdata": copied("litdata/full"),
}
NOTICED = {"litdata": "/litdata/index.json"}  # in its chunks nothing tells


@pytest.fixture
def indexed(server, proxy, tmp_path):
    """Index a folder of a format through the proxy."""

    def index(kind: str, folder: str) -> Index:
        given = server.through(proxy.url).options
        url = f"s3://footers-bucket/{kind}/"
        options = StorageOptions(given=given, **QUICK)
        listing, format_ = find_files(url, ReadOptions(), None, options)
        try:
            return open_index(listing, format_, folder=tmp_path / folder)
        finally:
            listing.storage.close()

    return index


@pytest.fixture(params=WRITERS)
def kind(request, server, tmp_path):
    (tmp_path / "data").mkdir()
    WRITERS[request.param](tmp_path / "data")
    files = {
        f"{request.param}/{path.name}": path.read_bytes() for path in (tmp_path / "data").iterdir()
    }
    server.upload("footers-bucket", files)
    return request.param


def test_wrong_bytes_are_fetched_again_while_files_are_listed_and_indexed(kind, indexed, proxy):
    expected = indexed(kind, "quiet")
    data = {"path": NOTICED.get(kind, f"/{kind}/")}
    quiet = sum(count for path, count in proxy.requests.items() if data["path"] in path)
    for spared in range(quiet):
        proxy.heal()
        fault = proxy.fault("invert", times=2, after=spared, **data)
        index = indexed(kind, f"{spared} spared")
        assert (index.paths, index.fingerprint) == (expected.paths, expected.fingerprint)
        assert spared or not fault.times


def test_wrong_bytes_that_come_again_and_again_are_an_error(kind, indexed, proxy):
    proxy.fault("invert", path=f"/{kind}/")  # of a list too, without which all files are data
    with pytest.raises(ShardFormatError):
        indexed(kind, "never")
