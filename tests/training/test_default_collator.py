"""Default collation with the row named that does not fit; and no collator of the kit is seeded."""

import random
from collections import OrderedDict

import pytest
import torch
from torch.utils.data import default_collate

from dataporter import CollationError, ResumableDataLoader
from dataporter.converters import DtypeConverter, KeyBasedDtypeConverter
from dataporter.datasets import HFDatasetWrapper
from dataporter.fetch import draws_nothing
from dataporter.training import (
    DefaultCollator,
    LanguageModelingDataCollator,
    VisionDataCollator,
)
from dataporter.training.tensor_collator import TensorCollator


@pytest.mark.parametrize(
    "rows",
    [
        [{"x": torch.zeros(2), "y": 1, "s": "a"}, {"x": torch.ones(2), "y": 2, "s": "b"}],
        [(torch.zeros(2), 1.5), (torch.ones(2), 2.5)],
        [torch.zeros(2), torch.ones(2)],
        [OrderedDict(a=1), OrderedDict(a=2)],
        [1, 2],
    ],
)
def test_rows_are_collated_as_torch_does(rows):
    found, wanted = DefaultCollator()(rows), default_collate(rows)
    assert type(found) is type(wanted)
    assert str(found) == str(wanted)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "the batch is empty"),
        (
            [{"x": torch.zeros(2)}, {"x": torch.zeros(3)}],
            r"column 'x' .* row 1 has shape \(3,\), row 0 has shape \(2,\)",
        ),
        ([torch.zeros(2), torch.zeros(3)], r"the rows cannot .* row 1 has shape \(3,\)"),
        ([{"x": 1}, {"y": 1}], "row 1 has the columns 'y', but row 0 has 'x'"),
        ([{"x": 1}, {"x": 1, "y": 1}], "row 1 has the columns 'x', 'y'"),
        ([{"x": None}], "column 'x' .* row 0 has None"),
        ([[1, 2], [1]], "row 1 has list of 1, row 0 has list of 2"),
        ([{"x": object()}], "column 'x' cannot be made into one batch: .*object"),
    ],
)
def test_the_row_that_does_not_fit_is_named(rows, said):
    with pytest.raises(CollationError, match=said):
        DefaultCollator()(rows)


class Looked(list):
    """A list that notes torch's seed where its length is asked for."""

    def __init__(self, numbers, seeds):
        super().__init__(numbers)
        self.seeds = seeds

    def __len__(self):
        self.seeds.append(torch.initial_seed())
        return super().__len__()


def looking(rows):
    return [len(row["more"]) for row in rows]


@draws_nothing
def first(rows):
    return rows[0]


@pytest.mark.parametrize(
    ("options", "is_seeded"),
    [
        ({"collate_fn": DefaultCollator()}, False),
        ({"collate_fn": VisionDataCollator()}, False),
        ({"collate_fn": LanguageModelingDataCollator()}, False),
        ({"collate_fn": TensorCollator()}, False),
        ({"collate_fn": HFDatasetWrapper([{"image": 1}]).collate_fn}, False),
        ({"collate_fn": looking}, True),
        ({"collate_fn": first, "converter": KeyBasedDtypeConverter({"more": "float16"})}, False),
        ({"collate_fn": first, "converter": lambda row: len(row["more"])}, True),
        ({"collate_fn": looking, "converter": DtypeConverter("float16")}, True),
    ],
)
def test_a_loader_seeds_no_generators_for_collators_and_converters_of_the_kit(options, is_seeded):
    seeds: list[int] = []
    row = {"image": torch.zeros(3, 2, 2), "input_ids": [1, 2], "more": Looked([1.0, 2.0], seeds)}
    torch.manual_seed(5)
    loader = ResumableDataLoader([row, row], **{"batch_size": 2, "seed": 1, **options})
    next(iter(loader))
    assert seeds
    assert ({*seeds} != {5}) == is_seeded


def with_dropout(texts, **_):
    return {"input_ids": [[random.randint(1, 9) for _ in text] for text in texts]}


class Noisy(dict):
    """A row that draws where it is read."""

    def __getitem__(self, name):
        return super().__getitem__(name) + torch.rand(())


TEXTS = [{"text": "some words"} for _ in range(8)]
WITH_TOKENIZER = HFDatasetWrapper(TEXTS, tokenizer=with_dropout, text_column="text")


@pytest.mark.parametrize(
    ("rows", "collate_fn"),
    [
        (TEXTS, LanguageModelingDataCollator(with_dropout)),
        (TEXTS, WITH_TOKENIZER.collate_fn),
        ([Noisy(pixel_values=torch.zeros(1, 2, 2))] * 8, VisionDataCollator()),
    ],
)
def test_a_users_tokenizer_or_row_that_draws_has_the_numbers_of_its_batch(rows, collate_fn):
    def batches(drawn_before):
        random.seed(drawn_before)
        torch.manual_seed(drawn_before)
        loader = ResumableDataLoader(rows, 2, seed=1, collate_fn=collate_fn)
        found = [str(batch) for batch in loader]
        assert torch.initial_seed() == drawn_before
        return found

    found = batches(1)
    assert found == batches(2)
    assert len({*found}) == len(found)  # each batch has its own
