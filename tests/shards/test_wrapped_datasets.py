"""Datasets of users' own over data in files: what they declare is enough to be fetched ahead."""

import pytest
from porters import tidy
from support import plain
from tracks_order import SideBySide

from dataporter import ResumableDataLoader
from dataporter.shards import ShardedDataset


class Wrapped:
    """Samples of a corpus, in an order that another class has."""

    def __init__(self, corpus):
        self.corpus = corpus

    def __len__(self):
        return len(self.corpus)

    def __getitem__(self, index):
        return self.corpus[index]["id"]

    def leaves(self):
        return [self.corpus]

    def epoch_order(self, *, shuffle, seed, step_size, world_size):  # noqa: ARG002
        return SideBySide(40, 15, 4, seed, self.corpus.leaf)


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield


def test_a_dataset_that_names_its_leaves_is_fetched_ahead(texts, tmp_path):
    corpus = ShardedDataset(texts, cache=tmp_path)
    loader = ResumableDataLoader(Wrapped(corpus), 8, shuffle=True, seed=1)
    assert sorted(sample for batch in loader for sample in plain(batch)) == list(range(600))
    assert corpus.stats()["ahead"] > 0
    del loader, corpus
