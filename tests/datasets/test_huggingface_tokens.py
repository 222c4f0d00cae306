"""Hugging Face datasets of texts and tokens: tokenised by the batch, and padded."""

import datasets
import pytest
import torch
from datasets import Features, List, Value
from huggingface_rows import CONVERSIONS, ROWS, assert_same, split_into_words, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import LINES, small_tokenizer
from support import plain

from dataporter import (
    OptionError,
    create_resumable_dataloader,
)
from dataporter.datasets import HFDatasetWrapper
from dataporter.errors import CollationError, ConversionError

# Tokenisation


def test_texts_are_tokenised_by_the_batch_and_padded():
    reviews = datasets.Dataset.from_dict({"text": ["a bb", "ccc", "d e f"], "label": [1, 0, 1]})
    dataset = HFDatasetWrapper(reviews, CONVERSIONS, tokenizer=split_into_words, max_length=2)
    batch = dataset.collate_fn(dataset.__getitems__([0, 1, 2]))
    assert list(batch) == ["label", "input_ids", "attention_mask"]
    assert batch["input_ids"].tolist() == [[1, 2], [3, 0], [1, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert batch["input_ids"].dtype is torch.int32
    assert batch["attention_mask"].dtype is torch.uint8
    assert_same(batch, dataset.collate_fn([dataset[0], dataset[1], dataset[2]]))


def test_without_a_tokenizer_texts_stay():
    dataset = HFDatasetWrapper(datasets.Dataset.from_dict({"text": ["a bb", "ccc"]}))
    assert dataset.collate_fn(dataset.__getitems__([1, 0])) == {"text": ["ccc", "a bb"]}


def test_another_text_column_may_be_named():
    rows = datasets.Dataset.from_dict({"review": ["a bb"]})
    dataset = HFDatasetWrapper(rows, tokenizer=split_into_words, text_column="review")
    assert dataset.collate_fn([dataset[0]])["input_ids"].tolist() == [[1, 2]]


def test_a_missing_text_column_is_named_with_the_one_that_was_meant():
    rows = datasets.Dataset.from_dict({"texts": ["a"], "label": [1]})
    with pytest.raises(
        OptionError, match=r"text_column 'text' is not in.*mean 'texts'.*'texts', 'label'"
    ):
        HFDatasetWrapper(rows, tokenizer=split_into_words)
    plain_rows = HFDatasetWrapper([{"texts": "a"}], tokenizer=split_into_words)
    with pytest.raises(OptionError, match="text_column 'text' is not in"):
        plain_rows.collate_fn([plain_rows[0]])


def test_a_text_that_is_none_is_named():
    rows = datasets.Dataset.from_dict({"text": ["a", None]})
    dataset = HFDatasetWrapper(rows, tokenizer=split_into_words)
    with pytest.raises(CollationError, match="text: row 1 of the batch is None"):
        dataset.collate_fn(dataset.__getitems__([0, 1]))


# Tokens of unequal lengths


lengths = st.lists(st.integers(0, 5), min_size=1, max_size=6)
FILLS = {
    "input_ids": 9,
    "attention_mask": 0,
    "labels": -100,
    "token_type_ids": 0,
    "special_tokens_mask": 1,
}


def padded_by_hand(rows, fill, side):
    width = max(1, *map(len, rows))
    missing = [[fill] * (width - len(row)) for row in rows]
    if side == "left":
        return [gap + list(row) for row, gap in zip(rows, missing, strict=True)]
    return [list(row) + gap for row, gap in zip(rows, missing, strict=True)]


@settings(max_examples=30)
@given(
    lengths,
    st.fixed_dictionaries(
        {},
        optional={
            "input_ids": st.sampled_from(["int32", "int16", "uint16"]),
            "attention_mask": st.sampled_from(["uint8", "bool", "bfloat16"]),
            "labels": st.sampled_from(["int8", "float16", "bfloat16"]),
        },
    ),
    st.sampled_from(["left", "right"]),
    st.sampled_from([None, "numpy", "torch"]),
)
def test_tokens_of_any_lengths_are_padded_from_arrow_as_from_rows(
    lengths, conversions, side, layout
):
    whole = {
        name: [
            [1 + (row + place) % 8 for place in range(length)] for row, length in enumerate(lengths)
        ]
        for name in FILLS
    }
    whole["attention_mask"] = [[1] * length for length in lengths]
    kinds = Features({name: List(Value("int64")) for name in FILLS})
    rows = datasets.Dataset.from_dict(whole, features=kinds).with_format(layout)
    tokenizer = small_tokenizer(padding_side=side)
    dataset = HFDatasetWrapper(rows, conversions, tokenizer=tokenizer, pad_token_id=9)
    one_by_one = dataset.collate_fn([dataset[i] for i in range(len(rows))])
    at_once = dataset.collate_fn(dataset.__getitems__(list(range(len(rows)))))
    assert_same(at_once, one_by_one)
    for name, fill in FILLS.items():
        assert at_once[name].dtype is getattr(torch, conversions.get(name, "int64")), name
        assert at_once[name].tolist() == padded_by_hand(whole[name], fill, side), name


def test_a_tokenised_dataset_gives_the_batches_that_its_tokenizer_would_pad():
    tokenizer = small_tokenizer()
    texts = datasets.Dataset.from_dict({"text": LINES})
    rows = texts.map(lambda row: dict(tokenizer(row["text"])), remove_columns="text")
    dataset = HFDatasetWrapper(rows, CONVERSIONS, tokenizer=tokenizer)
    batch = dataset.collate_fn(dataset.__getitems__([0, 1, 2]))
    wanted = tokenizer.pad(rows[[0, 1, 2]], return_tensors="pt")
    assert {name: plain(batch[name]) for name in batch} == {
        name: plain(wanted[name]) for name in wanted
    }
    assert [str(batch[name].dtype) for name in ("input_ids", "attention_mask")] == [
        "torch.int32",
        "torch.uint8",
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_documented_call_batches_tokens_of_unequal_lengths(num_workers):
    rows = datasets.Dataset.from_dict(
        {
            "input_ids": [list(range(1, 2 + i % 5)) for i in range(ROWS)],
            "attention_mask": [[1] * (1 + i % 5) for i in range(ROWS)],
            "label": [i % 2 for i in range(ROWS)],
        }
    )
    dataset = HFDatasetWrapper(rows, dtype_conversions=CONVERSIONS)
    loader = create_resumable_dataloader(
        dataset,
        batch_size=4,
        shuffle=True,
        collate_fn=dataset.collate_fn,
        num_workers=num_workers,
    )
    batches = list(loader)
    assert [batch["input_ids"].dtype for batch in batches] == [torch.int32] * 3
    seen = [row for batch in batches for row in batch["attention_mask"].sum(1).tolist()]
    assert sorted(seen) == sorted(1 + i % 5 for i in range(ROWS))


def test_without_an_attention_mask_the_padding_token_must_be_known_and_then_is_used():
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]]})
    bare = HFDatasetWrapper(rows)
    with pytest.raises(
        OptionError, match=r"no padding token and no attention_mask\. Pass pad_token_id=, or tok"
    ):
        bare.collate_fn(bare.__getitems__([0, 1]))
    tokenizer = small_tokenizer()
    for options in ({"pad_token_id": tokenizer.pad_token_id}, {"tokenizer": tokenizer}):
        dataset = HFDatasetWrapper(rows, **options)
        batch = dataset.collate_fn(dataset.__getitems__([0, 1]))
        assert batch["input_ids"].tolist() == [[1, 2], [3, tokenizer.pad_token_id]]


def test_texts_are_tokenised_also_if_the_tokenizer_has_no_padding_token():
    texts = datasets.Dataset.from_dict({"text": LINES})
    without = small_tokenizer("pad_token")
    dataset = HFDatasetWrapper(texts, tokenizer=without, pad_token_id=0)
    batch = dataset.collate_fn(dataset.__getitems__([0, 1]))
    wanted = small_tokenizer()(LINES[:2], padding=True, return_tensors="pt")
    assert torch.equal(batch["input_ids"], wanted["input_ids"])
    assert torch.equal(batch["attention_mask"], wanted["attention_mask"])


def test_padding_that_a_dtype_lacks_is_named_with_one_that_has_it():
    rows = datasets.Dataset.from_dict({"labels": [[1, 2], [3]]})
    for on_overflow in ("raise", "clamp", "wrap"):
        dataset = HFDatasetWrapper(rows, {"labels": "uint8"}, on_overflow=on_overflow)
        for batch in (dataset.__getitems__([0, 1]), [dataset[0], dataset[1]], [rows[0], rows[1]]):
            with pytest.raises(
                ConversionError, match=r"padding value -100 does not fit into uint8.*: 'int32'"
            ):
                dataset.collate_fn(batch)
    mended = HFDatasetWrapper(rows, dtype_conversions={"labels": "int32"})
    assert mended.collate_fn(mended.__getitems__([0, 1]))["labels"].tolist() == [[1, 2], [3, -100]]


def test_a_label_that_is_one_number_or_words_is_no_sequence_of_tokens():
    rows = datasets.Dataset.from_dict({"labels": [1, 0]})
    words = datasets.Dataset.from_dict({"labels": [["O", "B"], ["O"]]})
    for data, wanted in ((rows, [1, 0]), (words, [["O", "B"], ["O"]])):
        dataset = HFDatasetWrapper(data)
        for batch in (dataset.__getitems__([0, 1]), [dataset[0], dataset[1]]):
            assert plain(dataset.collate_fn(batch)["labels"]) == wanted


def test_rows_that_are_tokenised_already_cannot_be_cut():
    with pytest.raises(OptionError, match=r"max_length=2 applies to texts.*Remove max_length"):
        HFDatasetWrapper(tokens().remove_columns("text"), tokenizer=len, max_length=2)
