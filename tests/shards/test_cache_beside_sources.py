"""Caches in, above and below the folder of the data: refused or harmless, nothing of it is lost."""

import gc
import os
from pathlib import Path

import pytest
from porters import tidy
from support import plain

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.shards.cache import BlockCache

# Files of the user's that are named as those of a cache are.
ALIKE = ("00000000.block", "00000001.tmp", "sizes", "alone-host-1-x/00000000.block")


@pytest.fixture(autouse=True)
def _tidy(monkeypatch):
    monkeypatch.setattr(dataset_module, "SMALL", 0)  # order small data by tracks too
    with tidy():
        yield
        gc.collect()  # a loader is part of a cycle


@pytest.fixture
def data(texts, tmp_path):
    """Two folders of Parquet files, beside files that are named as those of a cache are."""
    for number, path in enumerate(sorted(texts.glob("*.parquet"))):
        folder = tmp_path / "above" / "data" / f"{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    for folder in ("", "0", "0/cache"):
        for name in ALIKE:
            path = tmp_path / "above" / "data" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a file of the user's")
    return tmp_path / "above" / "data"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("cache", ["", "..", "../.."], ids=["itself", "parent", "grandparent"])
def test_a_cache_that_holds_the_data_is_refused(data, cache):
    before = contents(data)
    folder = Path(os.path.normpath(data / cache))
    with pytest.raises(OptionError, match=r"holds the data itself.*Pass another folder"):
        ShardedDataset(data, cache=folder, index=data.parent.parent / "index")
    assert contents(data) == before


@pytest.mark.parametrize("kind", ["child", "some files", "link to the data", "data by its URL"])
def test_a_cache_within_the_data_deletes_nothing_of_it(data, kind):
    link = data.parent.parent / "link"
    link.symlink_to(data)
    cache = {"child": data / "cache", "some files": data / "0", "link to the data": link}
    before = contents(data)
    folders = {"cache": cache.get(kind, data), "index": data.parent.parent / "index"}
    files = data if kind in cache else data.as_uri()
    size = int(ShardedDataset(files, **folders).index.decoded.sum()) // 2

    corpus = ShardedDataset(files, cache_bytes=size, **folders)
    loader = ResumableDataLoader(corpus, 4, shuffle=True, seed=1)
    for _ in range(2):
        assert sorted(number for batch in loader for number in plain(batch["id"])) == [*range(600)]
    porter = corpus._porter
    assert porter.stats()["evicted"] > 0
    # What a kill may leave, which a new start removes.
    part = porter._folder / "00000002.tmp"
    porter.close()
    part.write_bytes(b"a part")
    after = ShardedDataset(files, **folders)
    assert after.fingerprint() == corpus.fingerprint()
    assert len(list(after)) == 600
    assert not part.exists()
    entries = ((porter._folder / "sizes").stat().st_size // 8 - 1) // 3
    dropping = BlockCache(porter._folder, entries, None)
    for entry in range(entries):
        dropping.drop(entry)
    assert not list(porter._folder.glob("*.block"))
    found = contents(data)
    assert {path: found[path] for path in before} == before
