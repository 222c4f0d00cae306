"""Rows, and a tokenizer, for tests of Hugging Face datasets."""

import datasets
import torch
from datasets import ClassLabel, Features, List, Value
from support import plain

ROWS = 12
CONVERSIONS = {"input_ids": "int32", "attention_mask": "uint8", "label": "int32"}


def tokens():
    return datasets.Dataset.from_dict(
        {
            "input_ids": [[i, i + 1, i + 2] for i in range(ROWS)],
            "attention_mask": [[1, 1, 0]] * ROWS,
            "label": [i % 2 for i in range(ROWS)],
            "text": [f"row {i}" for i in range(ROWS)],
        },
        features=Features(
            {
                "input_ids": List(Value("int64")),
                "attention_mask": List(Value("int8")),
                "label": ClassLabel(names=["no", "yes"]),
                "text": Value("string"),
            }
        ),
    )


def split_into_words(texts, padding, truncation, max_length):
    """A tokenizer with the manners of those of `transformers`: a word's token is its length."""
    assert padding
    assert truncation == (max_length is not None)
    ids = [[len(word) for word in text.split()][:max_length] for text in texts]
    width = max(map(len, ids))
    return {
        "input_ids": [row + [0] * (width - len(row)) for row in ids],
        "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in ids],
    }


def assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    for name in ours:
        assert type(ours[name]) is type(theirs[name]), name
        if isinstance(ours[name], torch.Tensor):
            assert ours[name].dtype is theirs[name].dtype, name
        assert plain(ours[name]) == plain(theirs[name]), name
