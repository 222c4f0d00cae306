"""The figures of a plan, compared with slow models and with what is known of orders."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_index import FORMAT, index_of

from dataporter.errors import OptionError, OptionTypeError
from dataporter.law.tracks import TracksOrder
from dataporter.shards import dataset as dataset_module
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.jsonl import JsonLinesFormat
from dataporter.shards.formats.parquet import ParquetFormat
from dataporter.shards.storage.stored import Url
from dataporter.sources.shared_epoch import steps_announced
from dataporter.tools.plan.figures import figures_of
from dataporter.tools.plan.planned_run import (
    PlannedRun,
    dealt,
    on_nodes,
    over_epoch,
    reads_of,
    uses_of,
)


@pytest.fixture(autouse=True)
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)


def figures(rows, most=4_000_000, **options):
    sizes = {name: options.pop(name) for name in ("decoded", "stored", "files") if name in options}
    return figures_of(index_of(rows, **sizes), FORMAT, PlannedRun(**options), most)


# Slow models


@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any),
    power=st.integers(0, 4),
    run=st.builds(
        PlannedRun,
        nodes=st.integers(1, 3),
        ranks=st.integers(1, 2),
        batch=st.integers(1, 5),
        workers=st.integers(0, 2),
    ),
    data=st.data(),
)
def test_reads_and_blocks_in_use_are_those_of_a_slow_model(rows, power, run, data):
    index = index_of(rows)
    order = TracksOrder(index.rows, 1 << power, seed=data.draw(st.integers(0, 5)))
    start = data.draw(st.integers(0, order.length - 1))
    reads = reads_of(order, index, run, start)
    steps, ranks, positions = (
        np.concatenate(column)
        for column in zip(*dealt(order, run, start, order.length), strict=True)
    )
    blocks = np.searchsorted(index.ends, order.indices(0, positions), side="right")
    nodes = ranks // run.ranks
    assert set(zip(*(each.tolist() for each in reads.pairs()), strict=True)) == set(
        zip(nodes.tolist(), blocks.tolist(), strict=True)
    )
    same_step, same_block = steps[:, None] == steps, blocks[:, None] == blocks
    mates = (same_step & same_block).sum(axis=1) - 1
    assert reads.mates == pytest.approx(mates.mean())
    # A padded position comes at the end and may lie before the start; leave those aside.
    if len(positions) != order.length - start:
        return
    held = on_nodes(reads, run, np.ones(len(rows), np.int64))
    announced = steps_announced(run.plan(order.length))
    runs = list(runs_of_use(order, len(rows)))
    for node in range(run.nodes):
        for step in range(reads.steps):
            in_use = set()
            for block, first, last in runs:
                here = (nodes == node) & (blocks == block) & (steps <= step)
                begun = (here & (positions >= first) & (positions <= last)).any()
                # The porter was told before this step which steps were delivered then.
                told = step - step % announced - 2 * run.workers
                if begun and (last - start) // run.step_size >= told:
                    in_use.add(block)
            assert held[node, step] == len(in_use)


def runs_of_use(order, blocks):
    """Yield each block with the first and the last of positions that use it without a pause."""
    uses = order.uses("", 0)
    at = np.arange(order.length)
    for block in range(blocks):
        of = uses.blocks == block
        used = ((at >= uses.first[of, None]) & (at <= uses.last[of, None])).any(axis=0)
        borders = np.flatnonzero(np.diff(used, prepend=False, append=False))
        for first, end in borders.reshape(-1, 2).tolist():
            yield block, first, end - 1


@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any),
    power=st.integers(0, 4),
    data=st.data(),
)
def test_the_load_over_an_epoch_is_that_of_a_slow_model(rows, power, data):
    index = index_of(rows)
    order = TracksOrder(index.rows, 1 << power)
    uses = uses_of(order)
    start = data.draw(st.integers(0, order.length - 1))
    stop = data.draw(st.integers(start + 1, order.length))
    amounts = np.arange(1, len(rows) + 1)
    held = [
        amounts[np.unique(uses.blocks[(uses.first <= at) & (uses.last >= at)])].sum()
        for at in range(start, stop)
    ]
    load = over_epoch(uses, amounts, start, stop)
    assert (load.mean, load.most) == pytest.approx((np.mean(held), max(held)))


# What is known


def test_a_power_of_two_of_nodes_reads_each_block_on_one_node():
    found = figures([64] * 4096, nodes=8, ranks=8, batch=8, workers=0, resume_at=0.5)
    assert (found.order, found.tracks, found.run.step_size) == ("tracks", 512, 512)
    assert found.steps == 512
    assert found.fresh.reads_per_block == 1
    assert found.fresh.bytes_per_node == 512_000
    assert found.fresh.blocks_per_node == 512
    assert found.in_use.blocks_most == 64
    assert found.in_use.bytes_most == 64 * 3_000
    assert found.shuffle.inflation == 0
    assert found.resumed.position == 131_073
    assert 1 <= found.resumed.reads_per_block < 1.1
    assert found.resumed.bytes_per_node == pytest.approx(256_000, rel=0.15)


def test_workers_hold_blocks_for_the_steps_that_they_are_ahead():
    # Tracks change blocks at the same time, since all have whole blocks of equal sizes.
    without = figures([64] * 512, batch=512, workers=0)
    assert without.in_use.blocks_most == without.tracks == 64
    assert figures([64] * 512, batch=512, workers=2).in_use.blocks_most == 128


@pytest.mark.parametrize(("nodes", "ranks", "batch"), [(3, 2, 5), (8, 8, 16), (13, 8, 16)])
def test_a_part_of_an_epoch_stands_for_the_whole(nodes, ranks, batch):
    rows = np.random.default_rng(0).integers(100, 200, 8192)
    options = {"nodes": nodes, "ranks": ranks, "batch": batch, "resume_at": 0.3}
    whole = figures(rows, **options)
    part = figures(rows, most=250_000, **options)
    assert part.fresh.evaluated < part.fresh.steps == whole.fresh.evaluated
    for name in ("fresh", "resumed"):
        one, other = getattr(whole, name), getattr(part, name)
        assert other.reads_per_block == pytest.approx(one.reads_per_block, rel=0.05)
        assert other.bytes_per_node == pytest.approx(one.bytes_per_node, rel=0.05)
    assert part.in_use.bytes_most == pytest.approx(whole.in_use.bytes_most, rel=0.1)
    assert part.in_use.bytes_mean == pytest.approx(whole.in_use.bytes_mean, rel=0.1)
    assert part.shuffle.mates == pytest.approx(whole.shuffle.mates, rel=0.2, abs=0.01)


def test_fewer_tracks_than_samples_in_a_step_show_in_the_shuffle():
    found = figures([1000] * 64, batch=512)
    assert found.tracks == 8
    assert found.shuffle.mates == pytest.approx(512 / 8 - 1, rel=0.1)
    assert found.shuffle.mates_if_perfect == pytest.approx(511 / 64, rel=0.1)
    assert found.shuffle.inflation == pytest.approx(512 / 8 - 1 - 511 / 64, rel=0.1)


def test_a_small_dataset_is_in_use_as_a_whole_on_every_node(monkeypatch):
    monkeypatch.setattr(dataset_module, "SMALL", 10**9)
    found = figures([100] * 50, nodes=4, batch=8, cache_bytes=150_000)
    assert (found.order, found.tracks) == ("whole shuffle", None)
    assert found.fresh.reads_per_block == 4
    assert (found.in_use.blocks_most, found.in_use.bytes_most) == (50, 150_000)
    assert found.cache.is_enough
    assert found.cache.has_room_ahead
    assert (found.cache.second_epoch, found.cache.later_epochs) == (1, 1)
    assert found.shuffle.inflation < 0.05
    assert not figures([100] * 50, nodes=4, batch=8, cache_bytes=149_999).cache.is_enough


def test_without_a_shuffle_blocks_come_one_after_the_other():
    found = figures([100] * 50, nodes=2, batch=5, shuffle=False, workers=0)
    assert (found.order, found.tracks, found.shuffle) == ("in order", None, None)
    assert found.fresh.reads_per_block == 2
    assert found.in_use.blocks_most <= 2
    assert figures([100] * 50, batch=5, shuffle=False).fresh.reads_per_block == 1


def test_the_first_batch_takes_the_bytes_and_round_trips_of_its_blocks():
    options = {"nodes": 2, "ranks": 2, "batch": 16, "bandwidth": 1e6, "latency": 0.5}
    index = index_of([64] * 1024, stored=20_000_000, files=64)
    local = figures_of(index, FORMAT, PlannedRun(**options)).first_batch
    assert (local.blocks, local.round_trips) == (32, 0)
    assert local.seconds == local.bytes / 1e6 == 32 * 20
    object.__setattr__(index, "root", Url.of("s3://bucket/data"))
    stored = figures_of(index, FORMAT, PlannedRun(**options)).first_batch
    # A rank sends 3 requests for each of 16 blocks, 32 at a time, and first those for footers.
    assert stored.round_trips == 3
    assert stored.seconds == pytest.approx(32 * 20 + 1.5)


def test_mapped_files_need_no_cache():
    index = index_of([64] * 512)
    found = figures_of(index, JsonLinesFormat(ReadOptions()), PlannedRun(batch=8, cache_bytes=1))
    assert not found.needs_cache
    assert found.cache is None
    assert found.in_use.bytes_most > 0


def test_columns_of_parquet_make_stored_bytes_an_upper_bound():
    format_ = ParquetFormat(ReadOptions(columns=("text",)))
    assert figures_of(index_of([64] * 512), format_, PlannedRun(batch=8)).is_stored_at_most
    assert not figures([64] * 512, batch=8).is_stored_at_most


def test_a_billion_rows_are_planned_from_a_part():
    found = figures([5_000] * 200_000, most=100_000, nodes=8, ranks=8, batch=16)
    assert (found.samples, found.tracks) == (10**9, 2048)
    assert found.fresh.steps == 976_563
    assert found.fresh.reads_per_block == 1
    assert found.in_use.blocks_most == pytest.approx(256, rel=0.05)


# Bad input


def test_a_dataset_without_rows_is_an_error():
    with pytest.raises(OptionError, match="The dataset is empty"):
        figures([0, 0], batch=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch must be at least 1, found 0"),
        ({"batch": 1, "nodes": 0}, "nodes must be at least 1"),
        ({"batch": 1, "resume_at": 1.0}, "resume_at must be below 1"),
        ({"batch": 1, "bandwidth": 0}, "bandwidth must be finite and above 0"),
        ({"batch": 1, "latency": -1.0}, "latency must be finite and at least 0"),
        ({"batch": 1, "cache_bytes": 0}, "cache must be at least 1"),
    ],
)
def test_a_run_that_cannot_be_says_why(options, words):
    with pytest.raises(OptionError, match=words):
        PlannedRun(**options)


def test_a_run_of_other_types_is_an_error():
    with pytest.raises(OptionTypeError, match="batch must be an int"):
        PlannedRun(batch=1.5)
