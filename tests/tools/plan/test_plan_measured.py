"""The figures of a plan agree with real runs within 10 %.

Each rank is a process, and a node is a cache that its ranks share, as on real machines. The ranks
make their steps together, as a training does.
"""

import contextlib
import functools
import multiprocessing
import threading
from typing import NamedTuple

import numpy as np
import pytest
from porters import tidy

from dataporter import ResumableDataLoader
from dataporter.errors import ShardCacheError
from dataporter.law import Plan, Topology
from dataporter.law.tracks import TracksOrder
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.shards.cache import NoRoomError, _victims
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.parquet import ParquetFormat
from dataporter.shards.schedule import Standing, bytes_ahead, distances
from dataporter.tools.plan.figures import figures_of
from dataporter.tools.plan.planned_run import PlannedRun

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BLOCKS, FILES = 256, 8
ROW = 4096  # bytes
FORMAT = ParquetFormat(ReadOptions())


@pytest.fixture(autouse=True)
def _tracks(monkeypatch, tmp_path):
    """Order small data by tracks too, and leave the user's cache alone."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Parquet files with blocks of 8 to 24 rows."""
    folder = tmp_path_factory.mktemp("planned")
    random = np.random.default_rng(0)
    written = 0
    for file in range(FILES):
        path = folder / f"part-{file}.parquet"
        schema = pa.schema([("id", pa.int64()), ("x", pa.binary())])
        with pq.ParquetWriter(path, schema, use_dictionary=False, write_statistics=False) as writer:
            for rows in random.integers(8, 25, BLOCKS // FILES):
                values = [random.bytes(ROW) for _ in range(rows)]
                ids = range(written, written + rows)
                writer.write_table(pa.table({"id": ids, "x": values}, schema))
                written += rows
    return folder


class Told(NamedTuple):
    """What a rank tells at its end."""

    decoded: int  # blocks
    ids: list[int]  # of samples


def _rank(data, cache, cache_bytes, run, rank, start, barrier, out):
    """Be one rank: read an epoch, and tell what came and how many blocks were decoded."""
    corpus = ShardedDataset(data, cache=cache, cache_bytes=cache_bytes)
    loader = ResumableDataLoader(
        corpus, run.batch, shuffle=True, seed=run.seed, rank=rank, world_size=run.world_size
    )
    loader.seek(0, start)
    try:
        ids = []
        for batch in loader:
            ids += batch["id"].tolist()
            barrier.wait(60)
        out.send(Told(corpus.stats()["decoded"], ids))
    except ShardCacheError as error:
        barrier.abort()
        out.send(str(error))
    except threading.BrokenBarrierError:
        out.send("another rank failed")
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait(60)  # all have told, and none takes blocks away from another
    corpus._porter.close()


def measured(data, folder, run, cache_bytes, start=0):
    """Run all ranks; what each of them tells."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(run.world_size)
    pipes, ranks = [], []
    for rank in range(run.world_size):
        here, there = context.Pipe()
        cache = folder / f"node {rank // run.ranks}"
        arguments = (data, cache, cache_bytes, run, rank, start, barrier, there)
        ranks.append(context.Process(target=_rank, args=arguments))
        pipes.append(here)
        ranks[-1].start()
        there.close()
    try:
        told = [pipe.recv() for pipe in pipes]
        for rank in ranks:
            rank.join()
    finally:
        for rank in ranks:
            rank.kill()
    return told


@pytest.mark.parametrize(
    ("nodes", "ranks", "batch", "is_resumed"),
    [(2, 1, 8, False), (3, 1, 5, False), (3, 1, 5, True), (2, 2, 4, False)],
)
def test_nodes_read_and_decode_what_is_planned(data, tmp_path, nodes, ranks, batch, is_resumed):
    run = PlannedRun(nodes=nodes, ranks=ranks, batch=batch, workers=0, resume_at=0.3)
    index = ShardedDataset(data).index
    planned = figures_of(index, FORMAT, run)
    assert planned.order == "tracks"
    fetching = planned.resumed if is_resumed else planned.fresh
    cache = 2 * planned.good_cache
    told = measured(data, tmp_path, run, cache, fetching.position)
    read = {
        (rank // ranks, block)
        for rank, each in enumerate(told)
        for block in np.unique(index.locate(np.array(each.ids))[0]).tolist()
    }
    assert len(read) / nodes == fetching.blocks_per_node
    assert len(read) / len({block for _, block in read}) == fetching.reads_per_block
    # A porter also brings blocks of the next epoch: an eighth of the cache for each rank, at most.
    ahead = ranks * bytes_ahead(cache) / (index.decoded.sum() / BLOCKS)
    decoded = sum(each.decoded for each in told) / nodes
    assert 0.95 * len(read) / nodes <= decoded <= 1.05 * len(read) / nodes + ahead
    if ranks == 1:
        assert decoded == pytest.approx(fetching.blocks_per_node, rel=0.1)


def test_the_least_cache_is_enough_and_a_smaller_one_is_not(data, tmp_path):
    run = PlannedRun(nodes=2, ranks=2, batch=4, workers=0)
    needed = figures_of(ShardedDataset(data).index, FORMAT, run).in_use.bytes_most
    told = measured(data, tmp_path / "enough", run, int(1.1 * needed))
    assert all(isinstance(each, Told) for each in told), told
    told = measured(data, tmp_path / "too small", run, int(0.9 * needed))
    assert any("The cache is too small" in str(each) for each in told)


# Later epochs


def served(order, nodes, batch, cache, epochs):
    """Share of a node's blocks that a cache of so many blocks serves, by the porter's own rule."""
    ends = np.cumsum(order.rows)
    shares = np.zeros((nodes, epochs))
    for rank in range(nodes):
        topology = Topology(rank=rank, world_size=nodes)
        plan = Plan(length=order.length, batch_size=batch, topology=topology)
        held = np.zeros(len(order.rows), np.int64)
        for epoch in range(epochs):
            seen, hits = set(), 0
            for step, batch_ in enumerate(plan.batches(0, functools.partial(order.deal, epoch))):
                blocks = np.searchsorted(ends, order.indices(epoch, batch_), side="right")
                for block in np.unique(blocks).tolist():
                    hits += block not in seen and held[block] > 0
                    seen.add(block)
                    if not held[block]:
                        start = step * plan.step_size
                        standing = Standing(order, plan, epoch, start, start + plan.step_size)
                        far = distances(standing, len(held))
                        held[_victims(held, far, int(held.sum()) + 1 - cache, 0)] = 0
                        held[block] = 1
            shares[rank, epoch] = hits / len(seen)
    return shares.mean(axis=0)


@pytest.mark.parametrize(("nodes", "share"), [(1, 0.25), (1, 0.75), (4, 0.25), (4, 0.5)])
def test_a_cache_serves_the_share_of_later_epochs_that_is_planned(nodes, share, data):
    order = TracksOrder(np.full(512, 16), tracks=32)
    index = ShardedDataset(data).index
    found = served(order, nodes, 32 // nodes, int(512 * share), epochs=5)
    run = PlannedRun(nodes=nodes, batch=4, cache_bytes=int(share * index.decoded.sum()))
    planned = figures_of(index, FORMAT, run).cache
    assert planned.later_epochs == pytest.approx(share, abs=0.001)
    assert found[0] == 0
    assert found[1] == pytest.approx(planned.second_epoch, abs=0.03)
    assert found[-1] == pytest.approx(planned.later_epochs, abs=0.03)


def test_less_than_the_blocks_in_use_is_no_cache():
    order = TracksOrder(np.full(512, 16), tracks=32)
    with pytest.raises(NoRoomError):
        served(order, 1, 32, 31, epochs=1)
