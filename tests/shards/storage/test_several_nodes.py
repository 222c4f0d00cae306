"""Several nodes, each with a cache of its own: each fetches what its ranks read, and only once.

Each rank is a process, and a node is a cache that its ranks share. What a node reads follows from
the order, the plan and the index alone. What it has fetched lies in its cache.
"""

import functools
import json
import multiprocessing
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from porters import tidy
from support import plain
from watching import until

from dataporter import ResumableDataLoader
from dataporter.law import Plan, Topology
from dataporter.law.tracks import TracksOrder
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.shards.index import Index
from dataporter.shards.opening import open_dataset
from dataporter.shards.schedule import Lookahead, Standing, bytes_ahead

BLOCKS, ROWS, TRACKS = 80, 8, 8
LENGTH = BLOCKS * ROWS
FIRST = 1000  # the id of row 0, so that all blocks have the same size
RANKS = 2  # of each node
BATCH = 4
HALF = 5  # steps of 8 nodes that are half of an epoch
SEED = 3


@pytest.fixture(autouse=True)
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)


@pytest.fixture(autouse=True)
def _one_survey(monkeypatch):
    """List and index the files once: all ranks would get the same answer, but start a process."""
    answers = []

    @contextmanager
    def surveyed_once(wanted):
        answers[:] = answers or [open_dataset(wanted)]
        yield *answers[0], None

    monkeypatch.setattr(dataset_module, "surveyed", surveyed_once)


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


@pytest.fixture(scope="session")
def numbered(server):
    """Files of JSON lines in a bucket, each one block; row i is {"id": FIRST + i}."""
    ids = np.arange(FIRST, FIRST + LENGTH).reshape(BLOCKS, ROWS).tolist()
    files = {
        f"numbered/{file:02}.jsonl": "".join(f'{{"id": {number}}}\n' for number in numbers).encode()
        for file, numbers in enumerate(ids)
    }
    server.upload("nodes-bucket", files)
    return server


@pytest.fixture
def open_on(numbered, tmp_path):
    """Open the files on a node, whose cache holds half as much again as its share of them."""

    def open_one(nodes: int, node: int) -> ShardedDataset:
        size = ROWS * len(f'{{"id": {FIRST}}}\n')
        return ShardedDataset(
            "s3://nodes-bucket/numbered/",
            index=tmp_path / "index",
            cache=tmp_path / f"{nodes} nodes" / f"node {node}",
            cache_bytes=3 * BLOCKS * size // (2 * nodes),
            storage_options=numbered.options,
            max_requests=4,
        )

    return open_one


# What follows from functions alone


@dataclass(frozen=True)
class Share:
    """What one rank reads from a position to the end of an epoch."""

    index: Index
    plan: Plan
    start: int = 0

    @functools.cached_property
    def order(self) -> TracksOrder:
        return TracksOrder(self.index.rows, TRACKS, SEED)

    def blocks(self, epoch: int, start: int = 0) -> set[int]:
        """The blocks that the rank reads in an epoch."""
        deal = functools.partial(self.order.deal, epoch)
        positions = np.concatenate(list(self.plan.batches(start, deal)))
        found, _ = self.index.locate(self.order.indices(epoch, positions))
        return set(found.tolist())

    def brought(self, bound: int) -> set[int]:
        """The blocks that its porter brings, with those of the next epoch that it looks ahead."""
        ahead = Lookahead(self.index.decoded, bound)
        ahead.announce(Standing(self.order, self.plan, 0, self.start, LENGTH))
        return {need.block for need in iter(ahead.next, None)}


def shares(index: Index, nodes: int, start: int = 0) -> list[list[Share]]:
    """The shares of all ranks, by node."""
    world = nodes * RANKS
    plans = [
        Plan(
            length=LENGTH,
            batch_size=BATCH,
            topology=Topology(rank=rank, world_size=world),
            tail="uneven",
        )
        for rank in range(world)
    ]
    of_ranks = [Share(index, plan, start) for plan in plans]
    return [of_ranks[first : first + RANKS] for first in range(0, world, RANKS)]


# Processes


@dataclass(frozen=True)
class Report:
    """What a rank has to tell at its end."""

    ids: list[int]  # that it delivered
    half: int  # of them, in the first steps
    state: dict[str, Any]  # after these
    stats: dict[str, int]


def _run(open_one: Callable[[], ShardedDataset], options: dict[str, Any], state: Any, out) -> None:
    corpus = open_one()
    loader = ResumableDataLoader(corpus, BATCH, shuffle=True, seed=SEED, tail="uneven", **options)
    if state is not None:
        loader.load_state_dict(state)
    delivered, half, middle = [], 0, {}
    for number, batch in enumerate(loader, start=1):
        delivered += plain(batch["id"])
        if number == HALF:
            half, middle = len(delivered), loader.state_dict()
    out.send(None)  # it has read all
    out.recv()  # and what is looked ahead has come
    out.send(Report(delivered, half, json.loads(json.dumps(middle)), corpus._porter.stats()))
    out.recv()  # the others have told as well
    corpus._porter.close()


@dataclass(frozen=True)
class Run:
    """A run of all ranks to the end of an epoch."""

    reports: list[Report]
    index: Index
    planned: list[set[int]]  # blocks that each node reads
    next_epoch: list[set[int]]  # and in the epoch after that
    fetched: list[set[int]]  # blocks in the cache of each node
    bound: int  # bytes that a porter looks ahead

    @property
    def ids(self) -> list[int]:
        return [number for report in self.reports for number in report.ids]

    def amplification(self, nodes: list[set[int]]) -> float:
        """How often a block is fetched, over all nodes."""
        return sum(map(len, nodes)) / len(set().union(*self.planned))


def run_on(open_on: Any, folder: Path, nodes: int, *, state: Any = None, workers: int = 0) -> Run:
    """Run all ranks of some nodes to the end of the epoch, until all that is due has come."""
    index = open_on(nodes, 0).index
    context = multiprocessing.get_context("fork")
    pipes, ranks = [], []
    for rank in range(nodes * RANKS):
        here, there = context.Pipe()
        options = {"rank": rank, "world_size": nodes * RANKS, "num_workers": workers}
        open_one = functools.partial(open_on, nodes, rank // RANKS)
        ranks.append(context.Process(target=_run, args=(open_one, options, state, there)))
        pipes.append(here)
        ranks[-1].start()
        there.close()
    start = 0 if state is None else state["samples_processed"]
    by_node = shares(index, nodes, start)
    bound = bytes_ahead(3 * int(index.decoded.sum()) // (2 * nodes))
    due = [set().union(*(share.brought(bound) for share in node)) for node in by_node]
    try:
        for pipe in pipes:
            assert pipe.recv() is None
        folders = [folder / f"{nodes} nodes" / f"node {node}" for node in range(nodes)]
        until(lambda: all(map(set.issuperset, map(held, folders), due)), seconds=100)
        fetched = [held(each) for each in folders]
        for pipe in pipes:
            pipe.send(None)
        reports = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(None)
        for rank in ranks:
            rank.join()
    finally:
        for rank in ranks:
            rank.kill()
    return Run(
        reports,
        index,
        [set().union(*(share.blocks(0, start) for share in node)) for node in by_node],
        [set().union(*(share.blocks(1) for share in node)) for node in by_node],
        fetched,
        bound,
    )


def held(cache: Path) -> set[int]:
    """The blocks that lie in a cache."""
    return {int(path.stem) for path in cache.rglob("*.block")}


# Tests


def assert_each_node_fetched_what_it_reads_once(run: Run) -> None:
    size = int(run.index.size[0])
    reports = iter(run.reports)
    for planned, later, fetched in zip(run.planned, run.next_epoch, run.fetched, strict=True):
        assert planned <= fetched <= planned | later
        # A porter looks ahead beyond the epoch's end by a bound of bytes, and at least one block.
        beyond = len(fetched - planned)
        assert beyond * size <= RANKS * max(run.bound, size)
        stats = [next(reports).stats for _ in range(RANKS)]
        assert sum(each["decoded"] for each in stats) == len(fetched)
        assert sum(each["fetched"] for each in stats) == len(fetched) * size
        # A busy machine answers late, and late requests are sent again.
        sent = [each.get("requests", 0) for each in stats]
        again = [each.get("hedges", 0) + each.get("retries", 0) for each in stats]
        assert sum(sent) - sum(again) == len(fetched)
        assert not any(each["evicted"] for each in stats)


@pytest.mark.long(400, reason="many porters import for minutes if the machine is busy")
@pytest.mark.parametrize(("nodes", "workers"), [(2, 1), (4, 0)])
def test_each_block_of_a_fresh_epoch_is_fetched_by_one_node(open_on, tmp_path, nodes, workers):
    run = run_on(open_on, tmp_path, nodes, workers=workers)
    assert sorted(run.ids) == list(range(FIRST, FIRST + LENGTH))
    assert run.amplification(run.planned) == 1.0
    assert run.amplification(run.fetched) <= 1.4
    assert_each_node_fetched_what_it_reads_once(run)


@pytest.mark.long(400, reason="many porters import for minutes if the machine is busy")
def test_other_numbers_of_nodes_go_on_in_mid_epoch_and_fetch_little_more_than_the_rest(
    open_on, tmp_path
):
    fresh = run_on(open_on, tmp_path, 8)
    assert sorted(fresh.ids) == list(range(FIRST, FIRST + LENGTH))
    assert fresh.amplification(fresh.planned) == 1.0
    assert_each_node_fetched_what_it_reads_once(fresh)

    state = fresh.reports[0].state
    assert all(report.state == state for report in fresh.reports)
    assert state["samples_processed"] == LENGTH // 2
    before = [number for report in fresh.reports for number in report.ids[: report.half]]
    for nodes, most in ((4, 1.0), (3, 1.3)):
        resumed = run_on(open_on, tmp_path, nodes, state=state)
        assert sorted(before + resumed.ids) == list(range(FIRST, FIRST + LENGTH))
        assert resumed.amplification(resumed.planned) <= most
        assert_each_node_fetched_what_it_reads_once(resumed)
