"""A cache of the size that an error names decodes each block once an epoch."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from porters import tidy

from dataporter import ResumableDataLoader
from dataporter.errors import ShardCacheError
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BLOCKS = 40


@pytest.fixture(autouse=True)
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)
    with tidy():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Blocks of 64 rows: all tracks go on to other blocks at the same positions."""
    folder = tmp_path_factory.mktemp("even")
    random = np.random.default_rng(0)
    for file in range(4):
        rows = range(640 * file, 640 * file + 640)
        table = pa.table({"id": rows, "x": [random.bytes(100) for _ in rows]})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=64)
    return folder


def decoded(data: Path, cache: Path, cache_bytes: int, **options) -> int | str:
    """Read an epoch; count decoded blocks, also those of the next epoch. Or return the error."""
    corpus = ShardedDataset(data, cache=cache, cache_bytes=cache_bytes)
    try:
        loader = ResumableDataLoader(corpus, 6, shuffle=True, seed=1, **options)
        ids = [number for batch in loader for number in batch["id"].tolist()]
        assert sorted(ids) == list(range(64 * BLOCKS))
        return corpus.stats()["decoded"]
    except ShardCacheError as error:
        return str(error)
    finally:
        corpus._porter.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_of_the_named_size_decodes_each_block_once(data, tmp_path, workers):
    error = decoded(data, tmp_path / "small", 16000, num_workers=workers)
    named = int(re.search(r"Pass cache_bytes=(\d+)", error)[1])
    assert named < BLOCKS * 8000 / 2
    again = decoded(data, tmp_path / "named", named, num_workers=workers) - BLOCKS
    assert again <= named // 8 // 7000 + 1  # those of the next epoch


def test_a_cache_of_less_is_warned_of_and_serves_the_run(data, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="dataporter"):
        assert decoded(data, tmp_path, 5 * 8000, num_workers=0) >= BLOCKS
    assert "The cache holds the blocks that are read at a time, but not those of all" in caplog.text
