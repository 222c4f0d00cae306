"""Jobs over a storage, some of whose processes die every second; every sample is accounted for.

`make soak` runs it. DATAPORTER_SOAK_SECONDS sets another length, DATAPORTER_SOAK_SEED another run.
"""

import gc
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from killed_jobs import assert_tidy, quiet_steps, steps_through_kills
from object_servers import seaweed
from porters import tidy
from proxy_process import ProxyProcess
from support import plain

from dataporter import ResumableDataLoader
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module

SECONDS = float(os.environ.get("DATAPORTER_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("DATAPORTER_SOAK_SEED", "1"))
KINDS = ("porter", "porter", "porter", "worker", "worker", "rank", "job", "opening")
LATENCY = 0.01  # seconds of each request, so that kills meet some on their way


def written(folder: Path) -> Path:
    """Write Parquet files of 600 rows in 60 row groups; row i is {"id": i, "text": …}."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for file in range(12):
        ids = list(range(50 * file, 50 * file + 50))
        table = pa.table({"id": ids, "text": [f"text {number} " * 50 for number in ids]})
        pq.write_table(table, folder / f"part-{file}.parquet", row_group_size=10)
    return folder


def some_kills(chance: random.Random) -> Iterator[str]:
    return iter(chance.choices(KINDS, k=chance.randrange(12)))


@pytest.mark.soak
@pytest.mark.long(SECONDS + 300, reason="it runs for as long as it was asked to")
def test_whatever_is_killed_an_epoch_is_that_of_a_quiet_run_and_the_cache_stays_sound(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(dataset_module, "SMALL", 0)  # order small data by tracks too
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    local = written(tmp_path / "local")
    sizes = ShardedDataset(local).index.decoded
    index, cache = tmp_path / "index", tmp_path / "cache"
    deadline, rounds = time.monotonic() + SECONDS, 0
    with (
        seaweed(tmp_path) as server,
        ProxyProcess(server.endpoint) as proxy,
        tidy(),
    ):
        server.upload(
            "soak-bucket", {path.name: path.read_bytes() for path in local.glob("*.parquet")}
        )
        proxy.delay(LATENCY)
        options = server.through(proxy.url).options
        while rounds == 0 or time.monotonic() < deadline:
            seed = SEED * 1000 + rounds
            chance = random.Random(seed)
            if rounds == 0 or chance.random() < 0.3:
                shutil.rmtree(cache, ignore_errors=True)
                budget = int(sizes.sum() * chance.choice([0.4, 0.7, 2]))
            if chance.random() < 0.3:
                shutil.rmtree(index, ignore_errors=True)

            def open_one(budget: int = budget) -> ShardedDataset:
                return ShardedDataset(
                    "s3://soak-bucket/",
                    index=index,
                    cache=cache,
                    cache_bytes=budget,
                    storage_options=options,
                )

            found = steps_through_kills(open_one, seed, chance, some_kills(chance))
            assert found == quiet_steps(ShardedDataset(local), seed), f"round of seed {seed}"
            assert quiet_steps(open_one(), seed) == found
            assert_tidy(cache, budget)
            assert [path.suffix for path in index.iterdir()] == [".arrow"]
            rounds += 1


def ids_of(files: str | Path, during: Callable[[], None], **options: Any) -> list[list[int]]:
    """Read all samples, two batches before something happens and the others after it."""
    corpus = ShardedDataset(files, **options)
    batches = iter(ResumableDataLoader(corpus, 4, shuffle=True, seed=SEED, num_workers=2))
    found = [next(batches), next(batches)]
    during()
    found += batches
    assert corpus.stats().get("failed", 0) == 0
    return [plain(batch["id"]) for batch in found]


@pytest.mark.soak
def test_a_server_that_is_away_for_a_minute_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    local = written(tmp_path / "local")
    with seaweed(tmp_path) as server, ProxyProcess(server.endpoint) as proxy, tidy():
        server.upload(
            "away-bucket", {path.name: path.read_bytes() for path in local.glob("*.parquet")}
        )

        def leave_for_a_minute() -> None:
            proxy.go_away()
            time.sleep(60)
            proxy.come_back()

        proxy.delay(0.2)  # so that not all has come before
        options = server.through(proxy.url).options
        found = ids_of("s3://away-bucket/", leave_for_a_minute, storage_options=options)
        assert found == ids_of(local, lambda: None)
        gc.collect()  # a loader is part of a cycle
