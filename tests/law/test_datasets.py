"""What datasets may offer is declared, and a dataset that offers nothing is a dataset too."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import dataporter
from dataporter.law import Plan, SequentialOrder, ShuffledOrder
from dataporter.law.datasets import (
    Leaf,
    chooses_batches,
    declares_fingerprint,
    explanation_rows_of,
    has_flat_columns,
    index_space,
    leaves_of,
    leaves_samples_out,
    results_folder_of,
    stats_of,
)

SOURCE = Path(dataporter.__file__).parent


class Other(list):
    """A dataset that has such names for something else."""

    stats = ("mean", 3)
    fingerprint = "f1"
    leaf = "oak"


def test_a_dataset_that_offers_nothing_has_a_length_and_no_more():
    for data in (["a", "b"], Other("ab")):
        assert index_space(data) == 2
        assert leaves_of(data) == []
        assert explanation_rows_of(data) == ()
        assert not leaves_samples_out(data)
        assert not chooses_batches(data)
        assert not declares_fingerprint(data)
        assert not has_flat_columns(data)
        assert results_folder_of(data) is None
        assert stats_of(data) is None


class Fetched(list):
    leaf = "fetched"

    def announce(self, order, epoch, start, stop, plan):
        pass


class Made:
    def __init__(self, *parts):
        self.parts = parts

    def leaves(self):
        return [leaf for part in self.parts for leaf in leaves_of(part)]


def test_leaves_are_found_once_however_deep_they_lie():
    one, other = Fetched("ab"), Fetched("ab")
    assert isinstance(one, Leaf)
    assert list(map(id, leaves_of(Made(one, Made(other, ["c"]), one)))) == [id(one), id(other)]


def test_an_order_that_knows_no_leaf_reads_nothing_of_any():
    for order in (SequentialOrder(10**12), ShuffledOrder(10**12)):
        places, blocks = order.reads("fetched", 3, np.arange(5))
        assert len(places) == len(blocks) == len(order.uses("fetched", 3).blocks) == 0


class InFives(SequentialOrder):
    """An order that says what it reads, and leaves the rest to the base."""

    leaves = frozenset({"fetched"})

    def reads(self, leaf, epoch, positions):  # noqa: ARG002
        return np.arange(len(positions)), positions // 5


def test_the_uses_of_an_order_follow_from_what_it_reads():
    uses = InFives(12).uses("fetched", 0)
    assert [column.tolist() for column in uses] == [[0, 1, 2], [0, 5, 10], [4, 9, 11]]
    assert Plan(length=12, batch_size=4).num_batches() == 3


def test_orders_of_views_are_read_without_torch():
    modules = "bins, length_batches, mixture_order, windows"
    script = (
        f"import sys\nfrom dataporter.views import {modules}\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_nothing_that_datasets_may_offer_is_asked_for_by_name_elsewhere():
    """Names of the protocols appear in no getattr: the protocols are asked."""
    declared = (SOURCE / "law" / "datasets.py").read_text()
    names = set(re.findall(r"^    def ([a-z]\w+)", declared, re.MULTILINE))
    assert {"block_rows", "leaves", "stats"} <= names
    asks = re.compile(rf"attr\(\w*data\w*, \"({'|'.join(names)})\"")
    for path in SOURCE.rglob("*.py"):
        assert not asks.findall(path.read_text()), path
