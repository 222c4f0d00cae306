"""Porters, workers, ranks and whole jobs over a storage are killed: nobody sees it in the data."""

import random

import pytest
from killed_jobs import assert_tidy, quiet_steps, steps_through_kills
from porters import tidy

from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module

SEED = 5
KILLS = ("opening", "porter", "worker", "rank", "porter", "job")


@pytest.fixture(autouse=True)
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


def test_jobs_that_lose_any_of_their_processes_deliver_what_a_quiet_one_does(
    server, texts, tmp_path
):
    server.upload(
        "kills-bucket", {path.name: path.read_bytes() for path in texts.glob("*.parquet")}
    )
    local = ShardedDataset(texts)
    budget = int(local.index.decoded.sum()) * 3 // 4
    expected = quiet_steps(local, SEED)
    del local  # and its porter

    def open_one() -> ShardedDataset:
        return ShardedDataset(
            "s3://kills-bucket/",
            index=tmp_path / "index",
            cache=tmp_path / "cache",
            cache_bytes=budget,
            storage_options=server.options,
            max_requests=4,
        )

    found = steps_through_kills(open_one, SEED, random.Random(SEED), iter(KILLS))
    assert found == expected
    assert quiet_steps(open_one(), SEED) == expected  # from the cache that was left
    assert_tidy(tmp_path / "cache", budget)
    assert [path.suffix for path in (tmp_path / "index").iterdir()] == [".arrow"]
