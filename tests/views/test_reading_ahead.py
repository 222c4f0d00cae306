"""Views of data in files are fetched ahead, and evicted, by what their orders say they read."""

import gc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from porters import tidy

from dataporter import ResumableDataLoader
from dataporter.law.datasets import leaves_of
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.views import Mixture, packed, where

_BLOCKS = 80
_LONG = 3


@pytest.fixture
def corpus_of(tmp_path, monkeypatch):
    """Make a corpus of documents in 80 blocks, read by tracks, with a cache for a part of them."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    sizes = []

    def make(name: str, first: int, share: float = 0.6) -> ShardedDataset:
        folder = tmp_path / name
        if not folder.exists():
            folder.mkdir()
            for file in range(8):
                ids = first + 1000 * file + np.arange(100)
                tokens = pa.array([[number] * (number % 7) for number in ids], pa.list_(pa.int32()))
                table = pa.table({"tokens": tokens})
                pq.write_table(table, folder / f"{file}.parquet", row_group_size=10)
        if not sizes:  # all corpora have the same
            whole = ShardedDataset(folder)
            whole.__getitems__(range(len(whole)))
            sizes.append(whole.stats()["bytes"])
        cache = tmp_path / f"cache of {name}"
        return ShardedDataset(folder, cache=cache, cache_bytes=int(share * sizes[0]))

    with tidy():
        yield make
        gc.collect()  # a loader is part of a cycle


def is_long(document):
    return len(document["tokens"]) > _LONG


def tokens_of(loader):
    return [token for batch in loader for token in batch["tokens"].flatten().tolist()]


def assert_evicted_well(parts, epochs):
    for part in parts:
        stats = part.stats()
        assert stats["ahead"] > 0
        assert stats["evicted"] > 0
        assert stats["decoded"] < epochs * _BLOCKS  # some stay for the next epoch


def test_packed_parts_of_a_mixture_within_a_mixture_evict_what_is_needed_last(corpus_of):
    corpora = [corpus_of(name, 10_000 * at) for at, name in enumerate(("web", "code", "math"), 1)]
    web, code, math = (packed(corpus, 16, pad_id=-1) for corpus in corpora)
    inner = Mixture({"code": (code, 1), "math": (math, 1)})
    mixture = Mixture({"web": (web, 1), "rest": (inner, 2)}, epoch=3 * len(web))
    assert [leaf.leaf for leaf in leaves_of(mixture)] == [corpus.leaf for corpus in corpora]
    loader = ResumableDataLoader(mixture, 8, shuffle=True, seed=1)
    for _ in range(2):
        found = tokens_of(loader)
        assert {token // 10_000 for token in found if token >= 0} == {1, 2, 3}
    assert_evicted_well(corpora, epochs=3)  # and once to count


@pytest.mark.parametrize(
    "make",
    [
        lambda corpus: packed(where(corpus, is_long, num_workers=0), 16, pad_id=-1),
        lambda corpus: packed(corpus, 100, pad_id=-1),  # a window spans several blocks
    ],
    ids=["filtered", "long windows"],
)
def test_packed_documents_are_fetched_ahead_and_evicted(corpus_of, make):
    corpus = corpus_of("web", 10_000, share=0.7)
    view = make(corpus)
    loader = ResumableDataLoader(view, 4, shuffle=True, seed=1)
    before = corpus.stats().get("decoded", 0)
    epochs = [sorted(token for token in tokens_of(loader) if token >= 0) for _ in range(2)]
    assert epochs[0] == epochs[1]
    stats = corpus.stats()
    assert stats["ahead"] > 0
    assert stats["decoded"] - before < 2 * _BLOCKS


def test_a_part_that_is_first_read_in_a_later_epoch_is_fetched_ahead_then(corpus_of):
    web, code = corpus_of("web", 10_000), corpus_of("code", 20_000)
    schedule = [(0, {"web": 1}), (1600, {"web": 1, "code": 1})]
    mixture = Mixture({"web": (web, 1), "code": (code, 1)}, schedule=schedule, epoch=800)
    ahead = []
    loader = ResumableDataLoader(mixture, 8, shuffle=True, seed=1, collate_fn=len)
    for _ in range(3):
        assert sum(loader) == 800
        ahead.append(code.stats().get("ahead", 0))
    assert ahead[-1] > 0


def test_one_corpus_in_two_parts_is_told_of_both(corpus_of):
    corpus = corpus_of("web", 10_000)
    views = {"windows": (packed(corpus, 16, pad_id=-1), 1), "documents": (corpus, 1)}
    mixture = Mixture(views, epoch=400)
    assert len(leaves_of(mixture)) == 1
    loader = ResumableDataLoader(mixture, 8, shuffle=True, seed=1, collate_fn=len)
    order = loader.sampler.order
    uses = order.uses(corpus.leaf, 0)
    parts = [part.order for part in order.parts.values()]
    blocks = {
        int(block) for part in parts for block in part.reads(corpus.leaf, 0, np.arange(150))[1]
    }
    assert blocks <= set(uses.blocks.tolist())
    assert [sum(loader) for _ in range(2)] == [400, 400]
    assert corpus.stats()["ahead"] > 0
