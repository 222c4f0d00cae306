"""The figures of a planned run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import OptionError
from dataporter.law import Order, SequentialOrder
from dataporter.law.datasets import Asked
from dataporter.law.tracks import TracksOrder
from dataporter.shards.dataset import order_over
from dataporter.shards.formats.format import Format
from dataporter.shards.index import Index
from dataporter.shards.schedule import bytes_ahead
from dataporter.shards.storage.storage import PART
from dataporter.shards.storage.stored import StorageOptions
from dataporter.tools.plan.planned_run import (
    EVALUATED,
    FirstStep,
    PlannedRun,
    Reads,
    on_nodes,
    over_epoch,
    reads_of,
)

Kind = Literal["tracks", "whole shuffle", "in order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """The blocks that nodes fetch from a position to the end of an epoch, into empty caches."""

    position: int
    reads_per_block: float  # different pairs of a node and a block, for each block
    blocks_per_node: float  # the mean
    bytes_per_node: float  # stored; the mean
    most_bytes: float  # of one node
    seconds: float  # of the node that fetches most, at the bandwidth
    samples_per_second: float  # of all nodes, that the links carry
    evaluated: int  # steps that were evaluated; the others are taken to be like these
    steps: int
    by_node: tuple[float, ...] = field(repr=False)  # stored bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """The blocks that a node has to hold at a time. Without these, a run cannot go on."""

    blocks_mean: float
    blocks_most: float
    bytes_mean: float  # decoded
    bytes_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A cache of a node, and what it is good for."""

    bytes: int
    is_enough: bool
    has_room_ahead: bool  # for the blocks that come next
    second_epoch: float  # share of reads that it serves
    later_epochs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    """The first step of the node that fetches most for it."""

    blocks: int
    bytes: int  # stored
    round_trips: int  # one after the other; 0 of local files
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """The quality of the shuffle: how well a step is mixed."""

    mates: float  # other samples of its block that a sample meets in a step; the mean
    mates_if_perfect: float  # the same under a perfect shuffle
    # The variance of a step's mean is 1 + this x correlation within a block, of a perfect one's.
    inflation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """The figures of one run over the data of an index."""

    root: str
    format: str
    run: PlannedRun
    samples: int
    blocks: int  # with rows
    block_bytes: int  # decoded; the median
    steps: int  # of an epoch
    order: Kind
    tracks: int | None
    stored_bytes: int
    decoded_bytes: int
    is_stored_at_most: bool  # only some columns are fetched, whose stored bytes are not known
    needs_cache: bool  # False if files are mapped where they lie
    is_local: bool
    fresh: Fetching
    resumed: Fetching | None
    in_use: InUse
    ahead_bytes: int  # that each rank's porter brings ahead, at most
    good_cache: int  # the least cache with room for blocks ahead
    cache: Cache | None
    first_batch: FirstBatch
    shuffle: Shuffle | None  # None: not shuffled
    # Decoded bytes in use by evaluated step, of the node with the most and of all in the mean.
    curve: tuple[NDArray[np.float64], NDArray[np.float64]] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """All of it as builtins, for JSON."""
        names = ("nodes", "ranks", "batch", "workers", "step_size", "bandwidth", "latency")
        found = asdict(self) | {name: getattr(self.run, name) for name in names}
        del found["curve"], found["run"]
        return found


def figures_of(
    index: Index,
    format: Format,  # noqa: A002  the word of that room
    run: PlannedRun,
    most: int = EVALUATED,
) -> PlanFigures:
    """Compute the figures of a run, from about `most` positions of an epoch."""
    if not len(index):
        msg = f"The dataset is empty: {index.root} has {len(index.paths):,} files without rows."
        raise OptionError(msg)
    asked = Asked(run.shuffle, run.seed, run.step_size, run.world_size)
    order = order_over(index, index.rows, asked)
    kind = _kind(order)
    reads = reads_of(order, index, run, most=most)
    resumed = None
    if run.resume_at is not None:
        # An odd position: an even one might fit the steps of this run by chance, while runs with
        # other batches or ranks stop anywhere.
        start = min(int(run.resume_at * order.length) | 1, order.length - 1)
        resumed = _fetching(reads_of(order, index, run, start, most), index, run)
    fresh = _fetching(reads, index, run)
    kept = _kept_bytes(index, format)
    needs_cache = bool(kept.any())
    amounts = kept if needs_cache else index.decoded
    in_use, curve = _in_use(reads, amounts, order, run)
    if kind == "whole shuffle":  # any block may come next, in every epoch
        blocks, bytes_ = float(np.count_nonzero(index.rows)), float(amounts.sum())
        in_use = InUse(blocks_mean=blocks, blocks_most=blocks, bytes_mean=bytes_, bytes_most=bytes_)
    return PlanFigures(
        root=str(index.root),
        format=index.format,
        run=run,
        samples=order.length,
        blocks=int(np.count_nonzero(index.rows)),
        block_bytes=int(np.median(index.decoded[index.rows > 0])),
        steps=run.plan(order.length).num_steps(),
        order=kind,
        tracks=order.tracks if isinstance(order, TracksOrder) else None,
        stored_bytes=int(index.size.sum()),
        decoded_bytes=int(index.decoded.sum()),
        is_stored_at_most=format.options.columns is not None and "columns" in format.scan_options,
        needs_cache=needs_cache,
        is_local=index.is_local,
        fresh=fresh,
        resumed=resumed,
        in_use=in_use,
        ahead_bytes=min(
            bytes_ahead(2**62 if run.cache_bytes is None else run.cache_bytes), int(kept.sum())
        ),
        good_cache=_with_room_ahead(in_use.bytes_most, int(kept.sum())),
        cache=_cache(run, in_use, fresh, int(kept.sum())) if needs_cache else None,
        first_batch=_first_batch(reads.first_step, index, format, run),
        shuffle=_shuffle(reads, index, run) if run.shuffle else None,
        curve=curve,
    )


def _kind(order: Order) -> Kind:
    if isinstance(order, TracksOrder):
        return "tracks"
    return "in order" if isinstance(order, SequentialOrder) else "whole shuffle"


def _kept_bytes(index: Index, format: Format) -> NDArray[np.int64]:  # noqa: A002  likewise
    """Return the bytes that each block takes in a cache: none, if its file is mapped."""
    is_mapped = [index.is_local and format.is_mapped(schema) for schema in index.schemas]
    of_blocks = np.array(is_mapped, dtype=bool)[index.schema_of][index.file]
    return np.where(of_blocks, 0, index.decoded)


def _fetching(reads: Reads, index: Index, run: PlannedRun) -> Fetching:
    node, block = reads.pairs()
    different = len(np.unique(block))
    per_block = len(block) / different
    by_node = np.bincount(node, index.size[block].astype(np.float64), run.nodes).astype(np.float64)
    plan = run.plan(len(index))
    steps = plan.num_steps(reads.start)
    rest = np.unique(reads.uses.blocks[reads.uses.last >= reads.start])
    if not reads.is_whole:  # the other steps are taken to be like these
        read = float(index.size[np.unique(block)].sum())
        by_node *= float(index.size[rest].sum()) / max(read, 1.0)
    most = float(by_node.max())
    seconds = most / run.bandwidth
    samples = plan.remaining(reads.start)
    return Fetching(
        position=reads.start,
        reads_per_block=per_block,
        blocks_per_node=per_block * len(rest) / run.nodes,
        bytes_per_node=float(by_node.mean()),
        most_bytes=most,
        seconds=seconds,
        samples_per_second=samples / max(seconds, 1e-9),
        evaluated=reads.steps,
        steps=steps,
        by_node=tuple(by_node.tolist()),
    )


def _in_use(
    reads: Reads, amounts: NDArray[np.int64], order: Order, run: PlannedRun
) -> tuple[InUse, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    found = []
    for each in (np.ones_like(amounts), amounts):
        held = on_nodes(reads, run, each)
        mean, most = float(held.mean()), float(held.max())
        if not reads.is_whole:  # the rest of the epoch may have larger blocks
            stop = reads.start + reads.steps * run.step_size
            part = over_epoch(reads.uses, each, reads.start, stop)
            whole = over_epoch(reads.uses, each, 0, order.length)
            mean, most = mean * whole.mean / part.mean, most * whole.most / part.most
        found += [mean, most]
    names = ("blocks_mean", "blocks_most", "bytes_mean", "bytes_most")
    curve = held.max(axis=0), held.mean(axis=0)
    return InUse(**dict(zip(names, found, strict=True))), curve


def _with_room_ahead(in_use: float, all_bytes: int) -> int:
    """Return the least cache that holds the blocks in use and those that one rank has ahead."""
    size = needed = math.ceil(in_use)
    while (wanted := needed + bytes_ahead(size)) > size:
        size = wanted
    return min(size, all_bytes)


def _cache(run: PlannedRun, in_use: InUse, fresh: Fetching, all_bytes: int) -> Cache | None:
    """Say what a cache is good for.

    A node reads other blocks in each epoch. So a full cache has the part of them that it has of
    all data; and after the first epoch it is filled by the blocks of one epoch.
    """
    size = run.cache_bytes
    if size is None:
        return None
    later = min(1.0, size / all_bytes)
    is_enough = size >= in_use.bytes_most
    return Cache(
        bytes=size,
        is_enough=is_enough,
        has_room_ahead=size >= _with_room_ahead(in_use.bytes_most, all_bytes),
        second_epoch=min(later, fresh.reads_per_block / run.nodes) if is_enough else 0.0,
        later_epochs=later if is_enough else 0.0,
    )


def _first_batch(
    first: FirstStep,
    index: Index,
    format: Format,  # noqa: A002  likewise
    run: PlannedRun,
) -> FirstBatch:
    count = len(index.rows)
    pairs = np.unique(first.rank // run.ranks * count + first.block)
    node, block = pairs // count, pairs % count
    by_node = np.bincount(node, index.size[block].astype(np.float64), run.nodes)
    worst = int(by_node.argmax())
    trips = 0 if index.is_local else _round_trips(first, index, format)
    return FirstBatch(
        blocks=int((node == worst).sum()),
        bytes=int(by_node[worst]),
        round_trips=trips,
        seconds=float(by_node[worst]) / run.bandwidth + trips * run.latency,
    )


def _round_trips(first: FirstStep, index: Index, format: Format) -> int:  # noqa: A002  likewise
    """Count the requests that one rank sends one after the other, at most, for its first batch.

    A rank sends `max_requests` at a time. What all blocks of a file share is fetched before them.
    """
    at_a_time = StorageOptions().max_requests
    parts = np.maximum(-(-index.size[first.block] // PART), 1)
    trips = -(-int(np.bincount(first.rank, parts).max()) // at_a_time)
    if format.shared_part(0, 1, 2) is not None:
        files = np.unique(first.rank * len(index.paths) + index.file[first.block])
        trips += -(-int(np.bincount(files // len(index.paths)).max()) // at_a_time)
    return trips


def _shuffle(reads: Reads, index: Index, run: PlannedRun) -> Shuffle:
    length = len(index)
    rows = index.rows.astype(np.float64)
    together = float((rows * (rows - 1)).sum()) / max(length * (length - 1.0), 1.0)
    perfect = (min(run.step_size, length) - 1) * together
    return Shuffle(
        mates=reads.mates,
        mates_if_perfect=perfect,
        inflation=max(reads.mates - perfect, 0.0),
    )
