"""Any batch of the past or the future by its position, and what the batch in hand consists of."""

import copy
import pickle
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_in_step import ranks
from support import Augmented, Ids, Stateful, Stateless, one_pass, plain
from torch.utils.data import DistributedSampler, IterableDataset

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, OptionTypeError
from dataporter.views import LengthBatches, where

topologies = st.tuples(st.integers(1, 4), st.integers(1, 5))  # world size, batch size


@settings(max_examples=40)
@given(
    st.integers(1, 40), topologies, st.integers(0, 2), st.sampled_from(["pad", "drop", "uneven"])
)
def test_any_batch_of_a_run_is_found_again_with_its_augmentation(length, topology, epoch, tail):
    for loader in ranks(length, *topology, Augmented, shuffle=True, tail=tail):
        loader.set_epoch(epoch)
        found = [(loader.delivered, plain(batch)) for batch in loader]
        other = copy.deepcopy(loader)
        for delivered, batch in found:
            assert delivered.epoch == epoch
            assert plain(other.batch_at(epoch, delivered.position)) == batch
            assert repr(other.contents_at(epoch, delivered.position)) == repr(delivered)
            samples = other.samples_at(epoch, delivered.positions)
            assert plain([index for index, _ in samples]) == batch[0]
            assert [drawn for _, drawn in samples] == [
                list(each) for each in zip(*batch[1], strict=True)
            ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_look_changes_nothing_of_the_run(workers):
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 1, "num_workers": workers}
    expected = one_pass(ResumableDataLoader(Augmented(20), **options))
    loader = ResumableDataLoader(Augmented(20), **options)
    seen = []
    for batch in loader:
        seen.append(plain(batch))
        state, delivered = loader.state_dict(), repr(loader.delivered)
        generators = random.getstate(), torch.get_rng_state().tolist()
        loader.batch_at(0, 0)
        loader.samples_at(7, [19, 0])
        assert (loader.state_dict(), repr(loader.delivered)) == (state, delivered)
        assert (random.getstate(), torch.get_rng_state().tolist()) == generators
    assert seen == expected


def test_a_batch_is_found_as_it_is_delivered():
    def collate(samples: list[int]) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor(samples)}

    loader = ResumableDataLoader(
        Ids(9),
        4,
        collate_fn=collate,
        converter=lambda batch: {"x": batch["x"] + 100},
        device="cpu",
        device_converter=lambda batch: {"x": batch["x"].float()},
    )
    assert loader.batch_at(0, 4)["x"].tolist() == [104.0, 105.0, 106.0, 107.0]
    assert loader.samples_at(0, 4) == [4]
    single = ResumableDataLoader(Ids(9), None, shuffle=True, seed=4)
    assert [single.batch_at(2, at) for at in range(9)] == single.samples_at(2, range(9))


def test_batches_by_length_are_found_too():
    lengths = [3, 9, 4, 8, 5, 7]
    loader = ResumableDataLoader(Ids(6), batch_sampler=LengthBatches(lengths, max_tokens=16))
    for batch in loader:
        delivered = loader.delivered
        assert loader.batch_at(0, delivered.position).tolist() == batch.tolist()
        assert loader.samples_at(0, delivered.position) == batch.tolist()
        assert delivered.indices.tolist() == batch.tolist()
        assert not delivered.padding.any()


def test_batches_delivered_as_they_come_say_what_they_are():
    loader = ResumableDataLoader(
        Ids(40), 3, shuffle=True, seed=2, num_workers=2, in_order=False, persistent_workers=True
    )
    for batch in loader:
        assert loader.samples_at(0, loader.delivered.positions) == batch.tolist()


def test_a_sampler_of_ones_own_is_told_of_but_cannot_be_looked_into():
    loader = ResumableDataLoader(Ids(10), 4, sampler=Stateless(10))
    for batch in loader:
        assert loader.delivered.indices == batch.tolist()
    assert loader.delivered.positions.tolist() == [8, 9]
    for sampler in (Stateless(10), Stateful(10, 6)):
        loader = ResumableDataLoader(Ids(10), 4, sampler=sampler)
        with pytest.raises(OptionError, match="the state of the sampler says where"):
            loader.batch_at(0, 0)
        with pytest.raises(OptionError, match="finds any sample by its position"):
            loader.exclude(0, 0, 1)


def test_ranks_of_a_users_sampler_deliver_a_step_at_one_position():
    positions = []
    for rank in (0, 1):
        sampler = DistributedSampler(range(12), 2, rank, shuffle=False)
        loader = ResumableDataLoader(range(12), 2, sampler=sampler)
        positions.append([loader.delivered.position for _ in loader])
    assert positions == [[0, 4, 8], [0, 4, 8]]


class Unreadable(Ids):
    def __getitem__(self, index):
        if index in {2, 6}:
            msg = "unreadable"
            raise OSError(msg)
        return super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"sampler": range(7)}])
def test_samples_that_are_skipped_are_not_said_to_be_in_the_batch(options):
    loader = ResumableDataLoader(Unreadable(7), 3, on_error="skip", **options)
    for batch in loader:
        assert list(loader.delivered.indices) == batch.tolist()
    assert [each.index for each in loader.skipped] == [2, 6]


def test_a_skipped_sample_among_the_padding_counts_for_no_metric():
    loader = ResumableDataLoader(Unreadable(7), 2, on_error="skip", rank=2, world_size=3)
    counted = [loader.delivered.real_samples(batch).tolist() for batch in loader]
    assert counted == [[5], []]


class FailsAtFirst(Ids):
    """Sample 2 cannot be read in the first batch."""

    attempts = 0

    def __getitem__(self, index):
        self.attempts += index == 2
        if index == 2 and self.attempts <= 2:  # in the batch, and then by itself
            msg = "unreadable"
            raise OSError(msg)
        return super().__getitem__(index)


def test_a_sample_that_failed_once_and_was_read_later_is_in_the_batch():
    loader = ResumableDataLoader(FailsAtFirst(7), 4, on_error="skip")
    state = loader.state_dict()
    batches = iter(loader)
    assert next(batches).tolist() == list(loader.delivered.indices) == [0, 1, 3]
    loader.load_state_dict(state)
    again = next(batches)
    assert again.tolist() == list(loader.delivered.indices) == [0, 1, 2, 3]
    assert loader.delivered.real_samples(again) is again
    assert [each.index for each in loader.skipped] == [2]  # what was ever left out


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"sampler": range(7)}])
def test_samples_that_pass_no_lazy_filter_are_not_said_to_be_in_the_batch(options):
    odd = where(range(7), lambda number: number % 2 == 1, "odd", lazy=True)
    loader = ResumableDataLoader(odd, 4, **options)
    found = [(batch.tolist(), [*loader.delivered.indices]) for batch in loader]
    assert found == [([1, 3], [1, 3]), ([5], [5])]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_a_stream_has_no_positions():
    loader = ResumableDataLoader(Stream(), 2)
    assert [batch.tolist() for batch in loader if loader.delivered is None] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]
    with pytest.raises(OptionError, match="the state of the dataset says where"):
        loader.samples_at(0, [1])


def test_nothing_is_in_hand_before_the_first_batch_and_after_a_load():
    loader = ResumableDataLoader(Ids(4), 2)
    assert loader.delivered is None
    list(loader)
    assert loader.delivered.positions.tolist() == [2, 3]  # the last one, also after the pass
    loader.load_state_dict(loader.state_dict())
    assert loader.delivered is None


def test_a_loader_with_a_batch_in_hand_can_be_pickled():
    for options in ({}, {"sampler": Stateless(5)}):
        loader = ResumableDataLoader(Ids(5), 2, **options)
        next(iter(loader))
        assert pickle.loads(pickle.dumps(loader)).delivered.position == 0


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda loader: loader.batch_at(0, 10), OptionError, r"must be in \[0, 10\), found 10"),
        (lambda loader: loader.batch_at(0, -1), OptionError, "position must be at least 0"),
        (lambda loader: loader.samples_at(0, [3, 12]), OptionError, "found 12"),
        (lambda loader: loader.samples_at(0, ["a"]), OptionTypeError, "must be integers"),
        (lambda loader: loader.exclude(0, 5, 5), OptionError, "0 <= start < stop <= 10"),
        (lambda loader: loader.exclude(0, 5, 11), OptionError, "found start=5, stop=11"),
        (lambda loader: loader.exclude(-1, 0, 1), OptionError, "epoch"),
    ],
)
def test_what_cannot_be_is_said(ask, error, words):
    loader = ResumableDataLoader(Ids(10), 2)
    before = loader.state_dict()
    with pytest.raises(error, match=words):
        ask(loader)
    assert loader.state_dict() == before


# Excluded spans, as a user meets them


@settings(max_examples=40)
@given(st.integers(2, 40), topologies, st.data())
def test_a_batch_beside_an_excluded_span_is_found_as_the_run_delivered_it(length, topology, data):
    start = data.draw(st.integers(0, length - 2))
    stop = data.draw(st.integers(start + 1, length - 1))
    for loader in ranks(length, *topology, Augmented, shuffle=True):
        loader.exclude(0, start, stop)
        for batch in loader:
            delivered = loader.delivered
            assert plain(loader.batch_at(0, delivered.position)) == plain(batch)
            assert repr(loader.contents_at(0, delivered.position)) == repr(delivered)


def test_an_excluded_batch_can_still_be_looked_at():
    loader = ResumableDataLoader(Ids(10), 3)
    loader.exclude(0, 2, 5)
    assert loader.batch_at(0, 2).tolist() == [2, 3, 4]
    assert loader.batch_at(0, 1).tolist() == [1, 5, 6]


def test_a_rank_without_a_batch_there_says_so():
    loader = ResumableDataLoader(Ids(10), 4, tail="drop")
    with pytest.raises(OptionError, match="rank 0 has no batch at position 9 of epoch 0: with"):
        loader.batch_at(0, 9)


def test_excluded_spans_are_in_the_state_and_in_words():
    loader = ResumableDataLoader(Ids(100), 10, shuffle=True, seed=3)
    loader.exclude(0, 20, 30)
    loader.exclude(0, 30, 40)
    loader.exclude(2, 0, 5)
    assert loader.excluded == [(0, 20, 40), (2, 0, 5)]
    batches = iter(loader)
    next(batches), next(batches)
    assert "positions 20 to 39 of epoch 0, 0 to 4 of epoch 2" in str(loader.explain())
    assert loader.explain().remaining == 60
    assert loader.explain().next_indices == loader.samples_at(0, range(40, 44))
    other = ResumableDataLoader(Ids(100), 7, shuffle=True, seed=3)
    other.load_state_dict(loader.state_dict())
    assert other.excluded == loader.excluded
    assert sum(len(batch) for batch in other) == 60
    other.exclude(0, 0, 1)
    other.load_state_dict(loader.state_dict())
    assert other.excluded == loader.excluded  # those of the state, and no others


def test_workers_drop_what_they_have_fetched_ahead_of_an_exclusion():
    loader = ResumableDataLoader(Ids(60), 4, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    seen = next(batches).tolist()
    loader.exclude(0, 4, 44)
    seen += [index for batch in batches for index in batch.tolist()]
    assert seen == [0, 1, 2, 3, *range(44, 60)]
    assert len(one_pass(loader)) == 15


# Evaluation


@dataclass
class Predicted:
    scores: torch.Tensor
    names: list[str]


@pytest.mark.imports_much
def test_real_samples_are_those_that_are_no_padding_in_any_container():
    from transformers import BatchEncoding

    batches = []
    for loader in ranks(7, 3, 2):
        for batch in loader:
            real = loader.delivered.real_samples
            kept = real(batch).tolist()
            batches += kept
            rows = [str(index) for index in batch.tolist()]
            made = {
                "one": real(Predicted(batch * 0.5, rows)).names,
                "two": real([batch, batch + 1])[1].tolist(),
                "three": real(({"ids": batch.numpy()}, 0.25))[0]["ids"].tolist(),
                "four": real([{"row": row} for row in rows]),
                "five": real(torch.tensor(0.5)).item(),
                "six": real((tuple(rows), tuple(batch.tolist()))),  # as tuple(zip(*samples))
                "seven": real(tuple(rows)),
                "eight": real(BatchEncoding({"ids": batch, "rows": rows}))["rows"],
            }
            assert made == {
                "one": [str(index) for index in kept],
                "two": [index + 1 for index in kept],
                "three": kept,
                "four": [{"row": str(index)} for index in kept],
                "five": 0.5,
                "six": (tuple(map(str, kept)), tuple(kept)),
                "seven": tuple(map(str, kept)),
                "eight": [str(index) for index in kept],
            }
    assert sorted(batches) == list(range(7))


def test_what_is_no_row_stays():
    loader = ranks(4, 3, 3)[2]
    (batch,) = loader
    real = loader.delivered.real_samples
    loss = torch.tensor(0.5)
    assert real((0.25, 0.75)) == (0.25, 0.75)  # as many numbers as samples, but no rows
    assert real((loss, batch))[0] is loss
    assert real((loss, batch))[1].tolist() == [2]
    assert real({"n": 2, "none": None, "x": (batch, batch)})["x"][1].tolist() == [2]


def test_rows_that_are_not_of_the_batch_are_refused():
    loader = ranks(4, 3, 3)[2]
    (batch,) = loader
    assert loader.delivered.padding.tolist() == [False, True]
    with pytest.raises(
        OptionError, match="has 2 samples, of which 1 are padding, but a part of it has 5"
    ):
        loader.delivered.real_samples(np.zeros(5))
    assert loader.delivered.real_samples(batch).tolist() == [2]
