"""Masked language modelling: by the recipe, reproducible, and of each row for itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizer import LINES, small_tokenizer
from support import one_pass, pass_with_states, plain

from dataporter import ResumableDataLoader
from dataporter.training import TextCollator

VOCABULARY, MASK = 1000, 4
SPECIAL = [0, 1, 2, 3, MASK]


def masking(**options):
    return TextCollator(
        **{
            "mlm": True,
            "mask_token_id": MASK,
            "vocab_size": VOCABULARY,
            "special_token_ids": SPECIAL,
            "seed": 7,
            **options,
        }
    )


def test_fifteen_of_a_hundred_tokens_are_chosen_of_which_most_are_masked():
    before = torch.randint(5, VOCABULARY, (200, 500), generator=torch.Generator().manual_seed(1))
    out = masking()(list(before))
    chosen = out["labels"] != -100
    assert torch.equal(out["labels"][chosen], before[chosen])
    assert torch.equal(out["input_ids"][~chosen], before[~chosen])
    # Six standard deviations of each share on 100,000 and 15,000 tokens.
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.007)
    now, then = out["input_ids"][chosen], before[chosen]
    masked = (now == MASK).float().mean().item()
    kept = (now == then).float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.02)
    assert kept == pytest.approx(0.1, abs=0.015)
    others = now[(now != MASK) & (now != then)]
    assert others.min() >= 0
    assert others.max() < VOCABULARY
    assert len(others.unique()) > 0.7 * VOCABULARY


def test_every_row_and_every_place_is_chosen_equally_often():
    collator, rows = masking(mlm_probability=0.5), [torch.full((16,), 9)] * 8
    chosen = sum((collator(rows)["labels"] != -100).float() for _ in range(2000)) / 2000
    assert (chosen - 0.5).abs().max() < 6 * 0.5 / 2000**0.5
    # Neighbours are chosen independently of each other.
    alike = [collator([torch.full((2000,), 9)])["labels"][0] != -100 for _ in range(5)]
    for row in alike:
        both = (row[1:] & row[:-1]).float().mean().item()
        assert both == pytest.approx(0.25, abs=0.06)


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=4))
def test_special_tokens_and_padding_are_never_chosen_and_all_others_may_be(batch):
    out = masking(mlm_probability=1.0, padding_side="left")([{"input_ids": row} for row in batch])
    for row, labels in zip(batch, out["labels"].tolist(), strict=True):
        gap = len(labels) - len(row)
        wanted = [-100 if token in SPECIAL else token for token in row]
        assert labels == [-100] * gap + wanted


def test_a_real_tokenizers_special_tokens_are_never_chosen():
    tokenizer = small_tokenizer()
    out = TextCollator(tokenizer, mlm=True, mlm_probability=1.0)(LINES)
    wanted = TextCollator(tokenizer)(LINES)["input_ids"]
    special = torch.isin(wanted, torch.tensor(tokenizer.all_special_ids))
    assert torch.equal(out["labels"] == -100, special)
    assert special.sum(1).min() >= 2  # each has a beginning and an end
    assert out["input_ids"].max() < len(tokenizer)


def test_what_a_row_itself_calls_special_is_never_chosen_and_not_handed_on():
    row = {"input_ids": [7, 8, 9], "special_tokens_mask": [1, 0, 1]}
    out = masking(mlm_probability=1.0)([row])
    assert out["labels"].tolist() == [[-100, 8, -100]]
    assert set(out) == {"input_ids", "attention_mask", "labels"}


def test_the_choice_does_not_depend_on_the_padding():
    rows = [list(range(5, 40)), list(range(5, 15))]
    right = masking()(rows)
    left = masking(padding_side="left", pad_to_multiple_of=64)(rows)
    for number, row in enumerate(rows):
        for name in ("input_ids", "labels"):
            assert right[name][number, : len(row)].tolist() == (
                left[name][number, 64 - len(row) :].tolist()
            )


def test_rows_are_left_as_they_were():
    rows = [np.arange(5, 105), torch.arange(5, 105), list(range(5, 105))]
    masking(mlm_probability=1.0)(rows)
    assert rows[0].tolist() == rows[1].tolist() == rows[2] == list(range(5, 105))


def test_outside_of_a_loader_the_seed_the_generator_or_torchs_own_decides():
    rows = [list(range(5, 105))]
    seeded = masking(seed=1)
    first, second = seeded(rows)["labels"], seeded(rows)["labels"]
    assert not torch.equal(first, second)
    assert torch.equal(masking(seed=1)(rows)["labels"], first)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(masking(seed=None, generator=generator)(rows)["labels"], first)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        assert torch.equal(masking(seed=None)(rows)["labels"], first)


class Sentences:
    """Sample i has tokens that tell which sample it is."""

    def __len__(self):
        return 26

    def __getitem__(self, index):
        tokens = range(5 + 30 * index, 5 + 30 * index + 12 + index % 7)
        return {"input_ids": list(tokens), "index": index}


class Faulty(Sentences):
    """Some samples cannot be fetched."""

    def __getitem__(self, index):
        if index % 5 == 0:
            raise ValueError(index)
        return super().__getitem__(index)


def masked_loader(batch_size=4, dataset=None, **options):
    return ResumableDataLoader(
        dataset or Sentences(),
        batch_size,
        shuffle=True,
        seed=3,
        collate_fn=options.pop("collate_fn", masking(seed=None)),
        **options,
    )


def by_sample(batches):
    """The masked rows of batches, without their padding, by sample."""
    return {
        index: (ids[: sum(mask)], labels[: sum(mask)])
        for batch in batches
        for ids, mask, labels, index in zip(*batch.values(), strict=True)
    }


def test_masks_are_the_same_for_any_number_of_workers_and_after_every_resume():
    loader = masked_loader()
    batches, states = pass_with_states(loader)
    second = one_pass(loader)
    assert batches != second
    for options in ({"num_workers": 2}, {"num_workers": 2, "engine": "threads"}):
        assert one_pass(masked_loader(**options)) == batches
    for number, state in enumerate(states[: len(batches) + 1]):
        resumed = masked_loader()
        resumed.load_state_dict(state)
        assert one_pass(resumed) == batches[number:]
        assert one_pass(resumed) == second


@pytest.mark.parametrize(
    ("batch_size", "options"),
    [(1, {}), (26, {}), (3, {"randomness": False}), (3, {"num_workers": 2})],
)
def test_the_mask_of_a_sample_is_the_same_whatever_the_batch_around_it(batch_size, options):
    wanted = by_sample(one_pass(masked_loader()))
    assert len(wanted) == 26
    assert by_sample(one_pass(masked_loader(batch_size, **options))) == wanted


def test_masks_go_on_alike_when_the_batch_size_changes_at_a_resume():
    loader = masked_loader()
    batches, states = pass_with_states(loader)
    resumed = masked_loader(9)
    resumed.load_state_dict(states[2])
    assert by_sample(one_pass(resumed)) == by_sample(batches[2:])


def test_masks_are_alike_on_any_number_of_ranks():
    ranks = [masked_loader(rank=rank, world_size=2) for rank in range(2)]
    shared = {index: row for loader in ranks for index, row in by_sample(one_pass(loader)).items()}
    assert shared == by_sample(one_pass(masked_loader()))


def test_a_sample_that_is_left_out_changes_no_other_samples_mask():
    wanted = by_sample(one_pass(masked_loader(on_error="skip", dataset=Faulty(), batch_size=26)))
    assert len(wanted) == 20
    found = by_sample(one_pass(masked_loader(on_error="skip", dataset=Faulty())))
    assert found == wanted


def only_one(rows):
    return masking(seed=None)(rows[:1])


def test_rows_that_are_not_the_samples_are_masked_reproducibly_too():
    first, again = (one_pass(masked_loader(collate_fn=only_one)) for _ in range(2))
    assert first == again


class Nested(Sentences):
    """Each sample is masked by itself, in the dataset."""

    def __getitem__(self, index):
        return plain(masking(seed=None)([super().__getitem__(index)]))


def inner_passes(rows):
    return one_pass(ResumableDataLoader(Nested(), 1, seed=8))


def test_a_loader_within_a_collate_function_knows_its_own_samples():
    wanted = inner_passes(None)
    assert one_pass(masked_loader(collate_fn=inner_passes, batch_size=1))[0] == wanted


def test_masks_are_made_in_spawned_workers_too():
    tokenizer = small_tokenizer()
    wanted, found = (
        [
            plain(batch)
            for batch in ResumableDataLoader(
                LINES, 2, seed=3, collate_fn=TextCollator(tokenizer, mlm=True), **options
            )
        ]
        for options in ({}, {"num_workers": 1, "multiprocessing_context": "spawn"})
    )
    assert found == wanted


def test_masking_in_a_loader_leaves_the_callers_generator_alone():
    before = torch.get_rng_state()
    one_pass(masked_loader())
    assert torch.equal(torch.get_rng_state(), before)
