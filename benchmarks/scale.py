"""What one rank of thousands pays, by evaluating the law alone: no data, no other process.

Costs: the start of a loader to its first batch, the plan of a later step, and a resume from half
as many ranks, with the most memory that Python allocates at the start. Twice: for samples that are
shuffled one by one, and for data in blocks of 8,192 samples, shuffled by tracks.
Once: every sample of an epoch, over all ranks, with a resume on another number of them on the way.
Reads: nodes that read a block, and the bytes that come to a node, by blocks of 16 MB.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from measure import count, table
from numpy.typing import NDArray
from workloads import Nothing

from dataporter import ResumableDataLoader
from dataporter.law import Order, Plan, SequentialOrder, ShuffledOrder, Topology
from dataporter.law.tracks import TracksOrder, tracks_for
from dataporter.tools.plan.planned_run import PlannedRun, dealt

WORLDS = [8, 64, 512, 4096, 16384]
SAMPLES = [10**6, 10**9, 10**12]
IN_BLOCKS = [10**6, 10**9, 10**10]  # a block takes 50 bytes of an index, so 10^12 need 6 GB
BATCH_SIZE = 16
ROWS = 8192  # of a block
BLOCK_BYTES = 16e6
RANKS_PER_NODE = 8
ROUNDS = 5
STEPS = 40  # of which the plan is timed
ENUMERATED = 200_000  # samples, over all ranks
MOST_RANKS = 2048  # of which each is asked for its share of an epoch
EVALUATED = 4_000_000  # positions whose reads are counted


class Blocks(Nothing):
    """A dataset in blocks that costs nothing, with the order of data in files."""

    def epoch_order(self, *, shuffle: bool, seed: int, step_size: int, world_size: int) -> Order:
        """Return tracks, as `ShardedDataset` chooses them for large data."""
        if not shuffle:
            return SequentialOrder(len(self), seed)
        return tracks_of(len(self), step_size, world_size, seed)


def tracks_of(length: int, step_size: int, world_size: int, seed: int = 1) -> TracksOrder:
    """Return the order of data in equal blocks; the last one is shorter."""
    rows = np.full(-(-length // ROWS), ROWS, dtype=np.int64)
    rows[-1] = length - ROWS * (len(rows) - 1)
    tracks = tracks_for(len(rows), step_size=step_size, world_size=world_size)
    return TracksOrder(rows, tracks=tracks, seed=seed)


def costs(kind: type[Nothing], samples: int, world_size: int, rounds: int = ROUNDS) -> list[str]:
    """Measure what a rank in the middle pays; the cells of a row."""

    def loader(ranks: int) -> ResumableDataLoader[Any]:
        place: dict[str, Any] = {"rank": ranks // 2, "world_size": ranks}
        return ResumableDataLoader(kind(samples), BATCH_SIZE, shuffle=True, seed=1, **place)

    def start() -> Any:
        return next(iter(loader(world_size)))

    earlier = loader(max(world_size // 2, 1))
    earlier.seek(0, samples // 2)
    state = earlier.state_dict()
    resumed = loader(world_size)

    def resume() -> Any:
        resumed.load_state_dict(state)
        return next(iter(resumed))

    begun, memory = _median(start, rounds), _allocated(start)
    went_on = _median(resume, rounds)
    planned = statistics.median(_step_seconds(loader(world_size)) for _ in range(rounds))
    return [
        count(samples),
        f"{world_size:,}",
        f"{begun * 1e3:.1f} ms",
        f"{memory / 1e6:.1f} MB",
        f"{planned * 1e6:.1f} us",
        f"{went_on * 1e3:.1f} ms",
        f"{len(json.dumps(state))} bytes",
    ]


def _median(run: Callable[[], object], rounds: int) -> float:
    """Return the seconds of a run; what it needs once a process is not counted."""
    run()
    found = []
    for _ in range(rounds):
        _forget_epochs()
        gc.collect()
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def _allocated(run: Callable[[], object]) -> int:
    _forget_epochs()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _forget_epochs() -> None:
    """Empty what is kept of all orders, as in a new process: new orders have nothing else."""
    from dataporter.law import tracks  # noqa: PLC0415  the cache is private

    tracks._scrambled.cache_clear()  # noqa: SLF001  a measurement of the first use


def _step_seconds(loader: ResumableDataLoader[Any]) -> float:
    """Return the seconds in which the positions and indices of one more step are planned."""
    ours: Any = loader  # with an order, hence a plan
    order = ours.sampler.order
    blocks = _blocks(order, ours.plan)
    order.indices(0, next(blocks))  # what an epoch needs once counts for the start
    begun, planned = time.perf_counter(), 0
    for block in blocks:  # as a loader does, so the cost of a call is shared by its batches
        order.indices(0, block)
        planned += len(block) // BATCH_SIZE
        if planned >= STEPS:
            break
    return (time.perf_counter() - begun) / max(planned, 1)


def _blocks(order: Order, plan: Plan, start: int = 0) -> Iterator[NDArray[np.int64]]:
    deal = functools.partial(order.deal, 0)
    return plan.blocks(start, deal, functools.partial(order.dealt_between, 0))


def times_delivered(order: Order, worlds: Sequence[int], steps: int) -> NDArray[np.int64]:
    """Count how often each sample comes: some steps on each number of ranks, then all the rest."""
    delivered = np.zeros(order.length, dtype=np.int64)
    start = 0
    for leg, world_size in enumerate(worlds, start=1):
        is_last = leg == len(worlds)
        for rank in range(world_size):
            topology = Topology(rank=rank, world_size=world_size)
            plan = Plan(length=order.length, batch_size=1, topology=topology, tail="uneven")
            shares = [np.empty(0, dtype=np.int64), *_blocks(order, plan, start)]
            positions = np.concatenate(shares)[: None if is_last else steps]
            np.add.at(delivered, order.indices(0, positions), 1)
        start = min(start + steps * world_size, order.length)
    return delivered


def once(samples: int, worlds: Sequence[int]) -> list[list[str]]:
    """Check every sample of an epoch on all ranks of each number; rows of a table."""
    rows = []
    for world_size in worlds:
        chain = (world_size, max(world_size * 3 // 4, 1), world_size)
        for name, order in (
            ("one by one", ShuffledOrder(samples, seed=1)),
            ("by tracks", tracks_of(samples, world_size, world_size)),
        ):
            often = times_delivered(order, chain, steps=5)
            verdict = "each once" if (often == 1).all() else f"{np.sum(often != 1)} NOT ONCE"
            rows.append([name, " -> ".join(f"{ranks:,}" for ranks in chain), verdict])
    return rows


def reads(samples: int, world_size: int) -> list[str]:
    """Count the nodes that read a block, and the bytes that come to a node; cells of a row."""
    run = PlannedRun(nodes=world_size // RANKS_PER_NODE, ranks=RANKS_PER_NODE, batch=BATCH_SIZE)
    order = tracks_of(samples, run.step_size, world_size)
    pairs = np.empty(0, dtype=np.int64)
    blocks = len(order.rows)
    for part in dealt(order, run, 0, EVALUATED):
        read = order.indices(0, part.positions) // ROWS
        node = part.ranks // RANKS_PER_NODE
        pairs = np.union1d(pairs, node * blocks + read)
    different = len(np.unique(pairs % blocks))
    nodes_a_block = len(pairs) / different
    gigabytes = nodes_a_block * blocks * BLOCK_BYTES / run.nodes / 1e9
    return [
        count(samples),
        f"{world_size:,}",
        f"{order.tracks:,}",
        f"{nodes_a_block:.2f}",
        f"{gigabytes:,.0f} GB of {blocks * BLOCK_BYTES / 1e9:,.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=WORLDS[-1], help="at most")
    parser.add_argument("--samples", type=float, default=SAMPLES[-1], help="at most")
    chosen = parser.parse_args(arguments)
    worlds = [world for world in WORLDS if world <= chosen.ranks]
    columns = ("samples", "ranks", "start", "memory", "a step's plan", "resume", "state")
    for title, kind, sizes in (
        ("Shuffled one by one", Nothing, SAMPLES),
        (f"In blocks of {ROWS:,}, shuffled by tracks", Blocks, IN_BLOCKS),
    ):
        wanted = [size for size in sizes if size <= chosen.samples]
        rows = [costs(kind, samples, world) for samples in wanted for world in worlds]
        print(table(f"{title}: one rank, batches of {BATCH_SIZE}", columns, rows), flush=True)
    enumerable = [world for world in worlds if world <= MOST_RANKS]
    rows = once(ENUMERATED, enumerable)
    print(table(f"{ENUMERATED:,} samples over all ranks", ("order", "ranks", "delivered"), rows))
    largest = [size for size in IN_BLOCKS if size <= chosen.samples][-1]
    rows = [reads(largest, world) for world in worlds]
    heads = ("samples", "ranks", "tracks", "nodes that read a block", "bytes to a node")
    print(table(f"Reads, {RANKS_PER_NODE} ranks a node, in an epoch's first part", heads, rows))


if __name__ == "__main__":
    main()
