"""Costs of one rank of many: tests run the tables, and do not judge the times."""

import numpy as np
import scale
from scale import Blocks, once, reads, times_delivered

from dataporter.law import ShuffledOrder


def test_every_cost_of_a_rank_is_measured(monkeypatch):
    monkeypatch.setattr(scale, "STEPS", 2)
    cells = scale.costs(Blocks, 10**6, 512, rounds=1)
    assert cells[:2] == ["10^6", "512"]
    assert [cell.split()[-1] for cell in cells[2:]] == ["ms", "MB", "us", "ms", "bytes"]


def test_all_ranks_of_a_chain_of_resumes_are_enumerated():
    assert [row[2] for row in once(3_000, [1, 8, 60])] == ["each once"] * 6


def test_a_sample_that_comes_twice_or_never_is_noticed(monkeypatch):
    class Wrong(ShuffledOrder):
        def indices(self, epoch, positions):
            return np.maximum(super().indices(epoch, positions), 1)

    often = times_delivered(Wrong(50, seed=1), [4, 3], steps=2)
    assert often[:2].tolist() == [0, 2]
    monkeypatch.setattr(scale, "ShuffledOrder", Wrong)
    assert once(50, [4])[0][2] == "2 NOT ONCE"


def test_nodes_that_read_a_block_are_counted(monkeypatch):
    monkeypatch.setattr(scale, "EVALUATED", 100_000)
    samples, ranks, tracks, nodes, amount = reads(10**6, 16)
    assert (samples, ranks, tracks) == ("10^6", "16", "8")
    assert 1 <= float(nodes) <= 2
    assert amount.endswith(" GB of 2")
