"""Data in files under real gloo groups: one order, shared by tracks, decoded once a machine."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from groups import on_ranks, without_a_group
from support import flat, plain
from tracked import Tracked, numbered_rows

from dataporter import ResumableDataLoader

BLOCKS, ROWS = 130, 3
LENGTH = BLOCKS * ROWS
STEPS = 20


def rows_in(folder: Path) -> Tracked:
    return Tracked(folder / "rows.parquet", cache=folder / "cache")


def a_loader(corpus: Tracked, batch_size: int = 3, **options: Any) -> ResumableDataLoader:
    return ResumableDataLoader(corpus, batch_size, shuffle=True, tail="uneven", **options)


def ids(batches: Any) -> list[int]:
    return flat(plain(batch["id"]) for batch in batches)


def build_early_and_late(_rank: int, folder: str) -> dict[str, Any]:
    """Build loaders without a group and one under it; begin with one, pass one, resume one."""
    with without_a_group(Path(folder) / "second"):
        early = a_loader(rows_in(Path(folder)))  # each rank draws another seed
        alone = early.state_dict()["order"]
    batches = iter(early)
    begun = ids(next(batches) for _ in range(STEPS))
    state = early.state_dict()
    rest = ids(batches)
    with without_a_group(Path(folder) / "third"):
        resumed = a_loader(early.dataset)
        resumed.load_state_dict(state)
    again = ids(resumed)
    late = a_loader(rows_in(Path(folder)), seed=5, num_workers=1)
    whole = ids(late)
    dist.barrier()  # both have read everything
    decoded = [loader.dataset._porter.stats()["decoded"] for loader in (early, late)]
    return {
        "orders": [alone, state["order"], late.state_dict()["order"]],
        "begun": begun,
        "state": state,
        "rest": rest,
        "again": again,
        "whole": whole,
        "decoded": decoded,
    }


@pytest.mark.long(400, reason="ranks and porters import for minutes if the machine is busy")
def test_ranks_share_a_sharded_epoch_and_decode_each_block_once(tmp_path):
    numbered_rows(tmp_path / "rows.parquet", LENGTH, rows=ROWS)
    ranks = on_ranks(2, build_early_and_late, str(tmp_path))
    everything = list(range(LENGTH))
    state = ranks[0]["state"]
    for answer in ranks:
        assert answer["state"] == state
        assert answer["again"] == answer["rest"]
        # The number of tracks follows the ranks, when they are known.
        eight, *sixteen = answer["orders"]
        assert eight.startswith("tracks-1, 8 side by side")
        assert all(each.startswith("tracks-1, 16 side by side") for each in sixteen)
        assert len(sixteen) == 2
    assert sorted(flat(answer["begun"] + answer["rest"] for answer in ranks)) == everything
    assert sorted(flat(answer["whole"] for answer in ranks)) == everything
    # Both ranks and both loaders have porters of their own, which share a cache.
    assert sum(flat(answer["decoded"] for answer in ranks)) == BLOCKS

    begun = flat(answer["begun"] for answer in ranks)
    assert len(begun) == state["samples_processed"] == 2 * 3 * STEPS
    corpus = rows_in(tmp_path)
    for world_size in (1, 3):
        rest = []
        for rank in range(world_size):
            resumed = a_loader(corpus, 4, rank=rank, world_size=world_size)
            resumed.load_state_dict(state)
            rest += ids(resumed)
            assert resumed.state_dict()["order"].startswith("tracks-1, 16 side by side")
        assert sorted(begun + rest) == everything
