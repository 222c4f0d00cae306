"""Plain indices: `view[i]` for each i below `len(view)` reads what an epoch of the view reads."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from dataporter import ResumableDataLoader
from dataporter.errors import LeftOutError
from dataporter.views import LengthBatches, Mixture, packed, where

_LONG = 5  # documents of more tokens pass the filters


def documents_of(first: int, lengths: list[int]) -> list[list[int]]:
    return [[100 * (first + number) + at for at in range(n)] for number, n in enumerate(lengths)]


def is_long(document: list[int]) -> bool:
    return len(document) > _LONG


@st.composite
def corpora(draw: Any, first: int) -> Any:
    """Documents: as they are, filtered, packed, or filtered as they are read."""
    lengths = [*draw(st.lists(st.integers(1, 12), max_size=6)), 12]
    documents: Any = documents_of(first, lengths)
    kind = draw(st.sampled_from(["list", "where", "lazy", "windows", "best-fit"]))
    if kind == "lazy":
        return where(documents, is_long, lazy=True)
    if kind == "where" or draw(st.booleans()):
        documents = where(documents, is_long, num_workers=0)
    if kind in ("list", "where"):
        return documents
    return packed(documents, draw(st.integers(1, 12)), kind=kind, pad_id=-1, num_workers=0)


@st.composite
def mixtures(draw: Any, depth: int = 2, first: int = 0) -> Any:
    """Mixtures whose epochs read each part once: weights are their numbers of samples."""
    parts = {}
    for number, name in enumerate("abc"[: draw(st.integers(1, 3))]):
        start = first + 100_000 * (number + 1) * 10**depth
        is_leaf = depth == 0 or draw(st.booleans())
        data = draw(corpora(start) if is_leaf else mixtures(depth - 1, start))
        parts[name] = (data, len(data))
    return Mixture(parts, epoch=sum(len(data) for data, _ in parts.values()))


def tokens_of(sample: Any) -> list[int]:
    found = sample["tokens"] if isinstance(sample, dict) else sample
    return torch.as_tensor(found).tolist()


def read_each(view: Any) -> list[list[int]]:
    found = []
    for index in range(len(view)):
        try:
            found.append(tokens_of(view[index]))
        except LeftOutError:
            continue
    return found


@given(view=mixtures())
def test_all_plain_indices_read_what_an_epoch_in_order_reads(view):
    loader = ResumableDataLoader(view, 3, shuffle=False, collate_fn=list)
    epoch = [tokens_of(sample) for batch in loader for sample in batch]
    assert sorted(read_each(view)) == sorted(epoch)


@given(view=mixtures(), data=st.data())
def test_every_way_to_read_by_index_agrees(view, data):
    numbers = st.lists(st.integers(-len(view), len(view) - 1), min_size=1, max_size=9)
    numbers = data.draw(numbers)
    if view.leaves_samples_out:
        return
    expected = [tokens_of(view[number % len(view)]) for number in numbers]
    assert [tokens_of(view[number]) for number in numbers] == expected
    assert [tokens_of(sample) for sample in view.__getitems__(numbers)] == expected
    assert [tokens_of(sample) for sample in map(Subset(view, numbers).__getitem__, [0])] == [
        expected[0]
    ]
    copy = pickle.loads(pickle.dumps(view))
    assert [tokens_of(sample) for sample in copy.__getitems__(np.array(numbers))] == expected


@pytest.fixture
def mixture() -> Mixture:
    first, second = documents_of(1, [7] * 5), documents_of(50, [4] * 6)
    return Mixture({"a": (packed(first, 5), 7), "b": (packed(second, 5), 5)}, epoch=12)


def test_a_mixture_of_packed_parts_is_read_whole_by_plain_indices(mixture):
    samples = [tokens_of(mixture[index]) for index in range(len(mixture))]
    assert len(samples) == 12
    assert [sample[0] // 1000 for sample in samples] == [0] * 7 + [5] * 5
    assert tokens_of(mixture[-1]) == samples[-1]
    assert [tokens_of(sample) for sample in mixture] == samples
    loader = DataLoader(mixture, batch_size=None, shuffle=True)
    assert sorted(map(tokens_of, loader)) == sorted(samples)
    halves = random_split(mixture, [6, 6])
    assert sorted(tokens_of(s) for half in halves for s in half) == sorted(samples)
    both = ConcatDataset([mixture, mixture])
    assert [tokens_of(both[index]) for index in range(24)] == samples * 2


def test_views_over_subsets_of_a_mixture_of_packed_parts_read_their_samples(mixture):
    samples = [tokens_of(mixture[index]) for index in range(len(mixture))]
    loader = ResumableDataLoader(Subset(mixture, range(5, 12)), 2, shuffle=True, seed=1)
    found = [tokens_of(row) for batch in loader for row in batch["tokens"]]
    assert sorted(found) == sorted(samples[5:])
    again = Mixture({"rest": (Subset(mixture, [11, 6, -1]), 1), "more": (mixture, 4)}, epoch=15)
    loader = ResumableDataLoader(again, 1, seed=1)
    found = [tokens_of(row) for batch in loader for row in batch["tokens"]]
    assert sorted(found) == sorted([*samples, samples[11], samples[6], samples[11]])
    late = where(mixture, lambda sample: sample["tokens"][0] >= 5000, name="late", lazy=True)
    assert read_each(late) == samples[7:]
    by_length = LengthBatches([5] * 12, max_tokens=15)
    loader = ResumableDataLoader(mixture, batch_sampler=by_length, seed=1)
    assert sorted(tokens_of(row) for batch in loader for row in batch["tokens"]) == sorted(samples)


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_was_delivered_is_found_again_by_position_and_index(mixture, shuffle):
    loader = ResumableDataLoader(mixture, 4, shuffle=shuffle, seed=1)
    for batch in loader:
        told = loader.delivered
        again = loader.samples_at(told.epoch, told.positions.tolist())
        rows = [tokens_of(row) for row in batch["tokens"]]
        assert [tokens_of(sample) for sample in again] == rows
        assert [tokens_of(mixture[index]) for index in told.indices.tolist()] == rows
    for number, batch in enumerate(itertools.islice(loader, 2)):
        assert torch.equal(loader.batch_at(1, 4 * number)["tokens"], batch["tokens"])


def test_indices_beyond_all_samples_are_refused(mixture):
    space = mixture.index_space
    for index in (-13, space, 10**18):
        with pytest.raises(IndexError, match="out of range: the mixture has 12 samples"):
            mixture[index]
        with pytest.raises(IndexError, match="out of range: the mixture has 12 samples"):
            mixture.__getitems__([0, index])
    windows = packed([[1, 2, 3]] * 4, 4)
    for index in (-4, windows.index_space):
        with pytest.raises(IndexError, match="out of range: there are 3 samples"):
            windows.__getitems__([0, index])
