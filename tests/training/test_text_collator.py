"""Token batches: what goes in comes out, padded, attended to, and labelled."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import LINES, small_tokenizer
from transformers import DataCollatorForLanguageModeling

from dataporter import CollationError, OptionError, OptionTypeError
from dataporter.errors import ConversionError
from dataporter.training import (
    CollatorRegistry,
    LanguageModelingDataCollator,
    TaskSpec,
    TextCollator,
)

TOKENIZER = small_tokenizer()
# Without the padding token, which transformers' collator takes for padding anywhere.
ids = st.lists(st.integers(1, 20), max_size=9)
batches = st.lists(ids, min_size=1, max_size=5)
sides = st.sampled_from(["left", "right"])
multiples = st.sampled_from([None, 1, 4, 8])
kinds = {
    "lists": list,
    "tuples": tuple,
    "arrays": np.array,
    "small arrays": lambda row: np.array(row, dtype=np.int32),
    "tensors": torch.tensor,
    "small tensors": lambda row: torch.tensor(row, dtype=torch.int16),
}


def rows_of(batch, **more):
    return [{"input_ids": row, **more} for row in batch]


@given(batches, sides, multiples, st.integers(0, 30))
def test_every_row_comes_out_as_it_went_in_and_padding_is_nowhere_attended_to(
    batch, side, multiple, pad
):
    collator = TextCollator(padding_side=side, pad_to_multiple_of=multiple, pad_token_id=pad)
    out = collator(rows_of(batch))
    assert list(out) == ["input_ids", "attention_mask", "labels"]
    assert {tensor.dtype for tensor in out.values()} == {torch.int64}
    longest = max(1, *map(len, batch))
    width = out["input_ids"].shape[1]
    assert longest <= width < longest + (multiple or 1)
    assert width % (multiple or 1) == 0
    for row, found, mask, labels in zip(batch, *out.values(), strict=True):
        gap = width - len(row)
        here = slice(gap, None) if side == "left" else slice(0, len(row))
        assert found[here].tolist() == labels[here].tolist() == row
        assert mask[here].tolist() == [1] * len(row)
        assert mask.sum() == len(row)
        assert found.tolist().count(pad) == gap + row.count(pad)
        assert labels.tolist().count(-100) == gap


@settings(max_examples=50)
@given(st.lists(ids.filter(bool), min_size=1, max_size=5), sides, st.sampled_from([None, 8]))
def test_batches_equal_those_of_transformers(batch, side, multiple):
    tokenizer = small_tokenizer(padding_side=side)
    theirs = DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=multiple)
    ours = TextCollator(tokenizer, pad_to_multiple_of=multiple)
    wanted, found = theirs(rows_of(batch)), ours(rows_of(batch))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in wanted.items()
    }


@given(batches, st.lists(st.sampled_from(sorted(kinds)), min_size=5, max_size=5))
def test_lists_arrays_and_tensors_are_the_same_rows(batch, chosen):
    collator = TextCollator()
    wanted = collator(rows_of(batch))
    mixed = [kinds[kind](row) for kind, row in zip(chosen, batch, strict=False)]
    alike = [kinds[chosen[0]](row) for row in batch]
    for rows in (mixed, alike, rows_of(mixed), rows_of(alike)):
        found = collator(rows)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_token_that_has_the_padding_id_is_still_attended_to_and_learned():
    out = TextCollator(TOKENIZER)(rows_of([[0, 5, 0], [0]]))
    assert out["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert out["labels"].tolist() == [[0, 5, 0], [0, -100, -100]]


def test_rows_own_labels_are_kept():
    rows = [
        {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
        {"input_ids": [8], "labels": [9]},
    ]
    out = TextCollator(TOKENIZER, padding_side="left")(rows)
    assert out["labels"].tolist() == [[-100, 6, 7], [-100, -100, 9]]
    assert out["input_ids"].tolist() == [[5, 6, 7], [0, 0, 8]]


@pytest.mark.parametrize("labels", [[5, 6], [-100, 6], 1])
def test_rows_with_labels_are_refused_where_masking_makes_the_labels(labels):
    collator = CollatorRegistry().get_collator(
        task_spec=TaskSpec(name="a", modality="text", task_type="mlm"), tokenizer=TOKENIZER
    )
    with pytest.raises(CollationError, match=r"mlm=True makes the labels, .* Remove that column"):
        collator(rows_of([[5, 6]], labels=labels))
    out = collator(rows_of([[5, 6]], label=1))
    assert out["label"].tolist() == [1]


# Columns of anything but tokens


multi_hot = [1, 0] * 100
embedding = torch.linspace(0, 1, 768)


@pytest.mark.parametrize("name", ["label", "labels"])
@pytest.mark.parametrize("kind", sorted(kinds))
@pytest.mark.parametrize("length", [1, 2, 200])
def test_labels_of_two_hundred_classes_are_kept_whole(name, kind, length):
    collator = CollatorRegistry().get_collator(
        task_spec=TaskSpec.cls_tiny(), pad_to_multiple_of=7, padding_side="left"
    )
    batch = [{"input_ids": list(range(length)), name: kinds[kind](multi_hot)} for _ in range(2)]
    assert collator(batch)["labels"].tolist() == [multi_hot] * 2


@pytest.mark.parametrize("values", [embedding, embedding.numpy(), embedding.tolist()])
@pytest.mark.parametrize("length", [3, 768])
def test_an_embedding_is_kept_whole_beside_texts_of_any_length(values, length):
    collator = TextCollator(max_length=128, pad_to_multiple_of=100)
    out = collator(rows_of([list(range(length))] * 2, embedding=values))
    assert torch.equal(out["embedding"].float(), torch.stack([embedding] * 2))
    assert out["input_ids"].shape == (2, 200 if length > 100 else 100)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    ],
)
@pytest.mark.parametrize("batch", [[[1, 0]], [[1, 0], [1, 1]], [[1], [], [1, 0, 1]], [[], []]])
def test_a_column_keeps_its_dtype_in_every_batch(dtype, batch):
    rows = [torch.tensor(row, dtype=torch.float32).to(dtype) for row in batch]
    kinds_of_rows = [rows]
    if "bfloat16" not in str(dtype) and "float8" not in str(dtype):
        kinds_of_rows.append([row.numpy() for row in rows])
    for values in kinds_of_rows:
        out = TextCollator(max_length=1)([{"input_ids": [5], "x": each} for each in values])["x"]
        assert out.dtype is dtype
        numbers = (out.real if out.is_complex() else out).float()
        assert [
            row[: len(each)].tolist() for row, each in zip(numbers, batch, strict=True)
        ] == batch


@pytest.mark.parametrize(
    ("batch", "dtype"),
    [
        ([[0.5], []], torch.float64),
        ([[1700000000.123]], torch.float64),
        ([[1, 2], [3]], torch.int64),
        ([[True], [False]], torch.bool),
        ([[2**63 - 1], [-(2**63)]], torch.int64),
        ([(1.5, 2), (3, 4)], torch.float64),
    ],
)
def test_numbers_of_python_keep_their_values(batch, dtype):
    out = TextCollator()([{"input_ids": [5], "x": row} for row in batch])["x"]
    assert out.dtype is dtype
    assert [row[: len(each)].tolist() for row, each in zip(out, batch, strict=True)] == [
        list(row) for row in batch
    ]


@pytest.mark.parametrize("numbers", [[1, 1700000000.123], [0.5, 2]])
def test_integers_and_floats_in_a_column_are_floats_in_every_batch(numbers):
    out = TextCollator()([{"input_ids": [5], "x": number} for number in numbers])["x"]
    assert out.dtype is torch.float64
    assert out.tolist() == numbers


def test_unsigned_integers_keep_their_values():
    rows = [{"input_ids": [5], "x": np.array([2**64 - 1, 1], dtype=np.uint64)}]
    assert TextCollator()(rows)["x"].tolist() == [[2**64 - 1, 1]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[2**63], [1]], "column 'x': 9223372036854775808 does not fit into int64"),
        ([[2**53 + 1, 0.5]], "column 'x': 9007199254740993 stands beside floats"),
        ([[1, None]], "column 'x': expected sequences of numbers"),
        ([[1, [2]]], "column 'x': expected sequences of numbers"),
        ([np.ones(1, dtype=np.uint64), [1]], "there are int64 and uint64 among them"),
        ([torch.tensor([2**24 + 1]), torch.ones(1)], "row 0: 16777217 does not fit into float32"),
        ([np.array(["a"])], "found an array of <U1"),
    ],
)
def test_numbers_that_would_change_are_refused(values, said):
    with pytest.raises((CollationError, ConversionError), match=said):
        TextCollator()([{"input_ids": [5], "x": value} for value in values])


@pytest.mark.parametrize("name", ["input_ids", "token_type_ids"])
def test_tokens_that_int64_lacks_are_refused(name):
    ids = np.array([2**64 - 1], dtype=np.uint64)
    with pytest.raises(CollationError, match=f"'{name}', row 0: 184467.* does not fit into int64"):
        TextCollator()([{"input_ids": [5], name: ids}])


def test_tokens_of_a_dtype_that_numpy_lacks_are_named():
    with pytest.raises(CollationError, match=r"row 0: .* found torch.bfloat16. .* \.float\(\)"):
        TextCollator()([{"input_ids": [5], "loss_mask": torch.ones(1, dtype=torch.bfloat16)}])


@pytest.mark.parametrize(
    ("row", "dtype"),
    [
        ([0.5, 1e300], torch.float64),
        (np.array([0.5, 1.5], dtype=np.float32), torch.float32),
        (torch.tensor([0.5, 1.5]).half(), torch.float16),
    ],
)
def test_weights_of_tokens_keep_their_dtype(row, dtype):
    batch = [{"input_ids": [5, 6], "weight": row}, {"input_ids": [5], "weight": row[:0]}]
    out = TextCollator(token_columns=["weight"])(batch)["weight"]
    assert out.tolist() == [list(row), [0, 0]]
    assert out.dtype is dtype


def test_columns_of_tokens_are_cut_and_padded_with_the_tokens():
    names = ["token_type_ids", "position_ids", "loss_mask", "decoder_input_ids", "mine"]
    rows = [{"input_ids": row, **dict.fromkeys(names, row)} for row in ([1] * 9, [1] * 2)]
    collator = TextCollator(max_length=5, pad_to_multiple_of=4, token_columns=["mine"])
    out = collator(rows)
    for name in names:
        assert out[name].tolist() == [[1] * 5 + [0] * 3, [1] * 2 + [0] * 6]


def test_all_that_a_tokenizer_returns_are_columns_of_tokens():
    def by_characters_with_weights(texts, **_):
        ids = [list(map(ord, text)) for text in texts]
        return {"input_ids": ids, "heavy": [[1.5] * len(row) for row in ids]}

    out = TextCollator(by_characters_with_weights, max_length=2, pad_token_id=0)(["abc", "a"])
    assert out["heavy"].tolist() == [[1.5, 1.5], [1.5, 0]]


@pytest.mark.parametrize("task_type", ["seq2seq", "token_classification"])
def test_labels_that_are_tokens_are_cut(task_type):
    spec = TaskSpec(name="a", modality="text", task_type=task_type, max_length=2)
    collator = CollatorRegistry().get_collator(task_spec=spec)
    rows = [{"input_ids": [5] * 3, "labels": [6] * 3}, {"input_ids": [5], "labels": [6]}]
    assert collator(rows)["labels"].tolist() == [[6, 6], [6, -100]]


def test_labels_of_other_things_than_tokens_are_not_cut_in_language_modelling():
    collator = CollatorRegistry().get_collator(task_spec=TaskSpec.lm_tiny())
    with pytest.raises(
        CollationError, match=r"row 0: 200 labels for 2 input ids .* own_labels_only"
    ):
        collator(rows_of([[5, 6]], labels=multi_hot))


def test_padding_that_labels_cannot_hold_is_refused():
    rows = [{"input_ids": [5], "labels": np.ones(n, dtype=np.uint8)} for n in (1, 2)]
    with pytest.raises(CollationError, match=r"'labels' .*padding -100 does not fit into uint8"):
        TextCollator(own_labels_only=True)(rows)


def test_padding_that_the_rows_bring_along_has_no_labels():
    row = {"input_ids": [5, 6, 7, 7], "attention_mask": [1, 1, 0, 0]}
    for mlm in (False, True):
        out = TextCollator(TOKENIZER, mlm=mlm, mlm_probability=1.0)([row])
        assert out["attention_mask"].tolist() == [[1, 1, 0, 0]]
        assert out["labels"].tolist() == [[5, 6, -100, -100]]


def test_labels_of_a_seq2seq_task_have_a_length_of_their_own():
    rows = [
        {"input_ids": [5], "labels": [6, 7, 8]},
        {"input_ids": [5, 6], "labels": [7]},
    ]
    out = TextCollator(own_labels_only=True)(rows)
    assert out["labels"].tolist() == [[6, 7, 8], [7, -100, -100]]
    assert out["input_ids"].shape == (2, 2)


@pytest.mark.parametrize("name", ["label", "labels"])
def test_a_text_may_have_a_class(name):
    rows = [{"input_ids": [5, 6], name: 1}, {"input_ids": [7], name: 0}]
    assert TextCollator(own_labels_only=True)(rows)["labels"].tolist() == [1, 0]


def test_the_class_of_a_text_is_no_label_of_its_tokens():
    out = TextCollator()([{"input_ids": [5, 6], "label": 1}])
    assert out["labels"].tolist() == [[5, 6]]
    assert out["label"].tolist() == [1]


def test_without_labels_of_its_own_a_classified_text_has_none():
    assert "labels" not in TextCollator(own_labels_only=True)(rows_of([[5, 6]]))


def test_other_columns_are_kept_and_sequences_padded_with_zero():
    rows = [
        {"input_ids": [5, 6], "token_type_ids": [1, 1], "weight": [0.5, 1.5], "id": 7, "name": "a"},
        {"input_ids": [5], "token_type_ids": [1], "weight": [2.5], "id": 8, "name": "b"},
    ]
    out = TextCollator(padding_side="left")(rows)
    assert out["token_type_ids"].tolist() == [[1, 1], [0, 1]]
    assert out["weight"].tolist() == [[0.5, 1.5], [0.0, 2.5]]
    assert out["id"].tolist() == [7, 8]
    assert out["name"] == ["a", "b"]


def test_text_is_tokenised_and_cut_and_empty_lines_are_tolerated():
    out = TextCollator(TOKENIZER, max_length=6)([{"text": line} for line in LINES])
    wanted = TOKENIZER(LINES, truncation=True, max_length=6, padding=True, return_tensors="pt")
    assert torch.equal(out["input_ids"], wanted["input_ids"])
    assert torch.equal(out["attention_mask"], wanted["attention_mask"])
    assert "text" not in out
    assert out["input_ids"].shape[1] == 6


def test_a_row_may_be_the_text_itself():
    rows = [{"text": line} for line in LINES]
    by_dict, by_text = TextCollator(TOKENIZER)(rows), TextCollator(TOKENIZER)(LINES)
    assert torch.equal(by_dict["input_ids"], by_text["input_ids"])


def by_characters(texts, **limits):
    cut = limits.get("max_length")
    return {"input_ids": [list(map(ord, text))[:cut] for text in texts]}


def test_any_function_from_texts_to_ids_will_do_as_a_tokenizer():
    collator = TextCollator(by_characters, max_length=2, pad_token_id=1)
    out = collator([{"text": "abc"}, {"text": ""}])
    assert out["input_ids"].tolist() == [[97, 98], [1, 1]]
    assert out["attention_mask"].tolist() == [[1, 1], [0, 0]]


def test_a_tokenizer_may_answer_with_tensors_that_it_has_padded():
    def padding(texts):
        return TOKENIZER(texts, padding=True, return_tensors="pt")

    found, wanted = TextCollator(padding)(LINES), TextCollator(TOKENIZER)(LINES)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("answer", [{}, {"input_ids": [[1]]}, {"ids": [[1], [2]]}])
def test_a_tokenizer_that_answers_otherwise_is_an_error(answer):
    with pytest.raises(CollationError, match="must return 2 'input_ids', one for each text"):
        TextCollator(lambda texts: answer)(["a", "b"])


def test_a_batch_of_nothing_but_empty_lines_has_one_column_of_padding():
    out = TextCollator(by_characters, pad_token_id=1)([{"text": ""}] * 2)
    assert out["input_ids"].tolist() == [[1], [1]]
    assert out["labels"].tolist() == [[-100], [-100]]


@given(batches, st.integers(1, 6))
def test_no_sequence_is_longer_than_max_length(batch, longest):
    rows = [{"input_ids": row, "attention_mask": [1] * len(row), "labels": row} for row in batch]
    cut = [{name: row[name][:longest] for name in row} for row in rows]
    found, wanted = TextCollator(max_length=longest)(rows), TextCollator()(cut)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("mlm", [False, True])
def test_a_collator_is_picklable_with_its_tokenizer_and_generator(mlm):
    collator = TextCollator(TOKENIZER, mlm=mlm, seed=3)
    again = pickle.loads(pickle.dumps(collator))
    for _ in range(2):
        one, other = collator(LINES), again(LINES)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_tokenizer_without_a_padding_token_will_do_until_there_is_padding():
    collator = TextCollator(small_tokenizer("pad_token"))
    assert collator(rows_of([[1, 2], [3, 4]]))["input_ids"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(OptionError, match=r"no padding token, .* Pass pad_token_id="):
        collator(rows_of([[1, 2], [3]]))
    filled = TextCollator(small_tokenizer("pad_token"), pad_token_id=9)
    assert filled(rows_of([[1, 2], [3]]))["input_ids"].tolist() == [[1, 2], [3, 9]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "the batch is empty"),
        ([{"ids": [1]}], "neither 'input_ids' nor 'text', found the columns 'ids'"),
        ([{"input_ids": [1]}, {"text": "a"}], "row 1 has the columns 'text', but row 0"),
        ([{"input_ids": [1]}, [2]], "row 1 is a list, expected a dict of columns"),
        ([{"input_ids": [1, 2]}, {"input_ids": [[1], [2]]}], r"row 1: .* of shape \(2, 1\)"),
        ([{"input_ids": [1]}, {"input_ids": None}], r"row 1: .* found NoneType of shape \(\)"),
        ([{"input_ids": [0.5]}], "'input_ids' must hold integers, found floats"),
        ([{"input_ids": ["a"]}], "row 0: expected numbers"),
        ([{"input_ids": [1, [2]]}], "row 0: expected a sequence of numbers"),
        ([{"input_ids": [1], "attention_mask": []}], "row 0: expected 1 numbers, one per input id"),
        ([{"text": "a"}, {"text": None}], "'text', row 1: expected a str, found None"),
        ([{"input_ids": [1], "x": None}], "'x' cannot be made into one batch: row 0 has None"),
        (
            [{"input_ids": [1], "x": torch.zeros(2, n)} for n in (2, 3)],
            r"'x' .* row 1 has shape \(2, 3\), row 0 has shape \(2, 2\)",
        ),
    ],
)
def test_rows_that_make_no_batch_are_named(rows, said):
    with pytest.raises(CollationError, match=said):
        TextCollator(TOKENIZER)(rows)


def test_text_without_a_tokenizer_is_an_error_that_says_so():
    with pytest.raises(CollationError, match=r"a tokenizer is required, .* Pass tokenizer="):
        TextCollator()([{"text": "a"}])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"tokenizer": "gpt2"}, OptionTypeError, "tokenizer must be callable or None, found str"),
        ({"padding_side": "both"}, OptionError, "padding_side must be 'left' or 'right'"),
        ({"max_length": 0}, OptionError, "max_length must be at least 1, found 0"),
        ({"pad_to_multiple_of": 2.0}, OptionTypeError, "pad_to_multiple_of must be an int"),
        ({"mlm": True}, OptionError, r"requires a mask token.* mask_token_id="),
        ({"mlm": True, "mask_token_id": 4}, OptionError, r"requires the size of.*pass vocab_size="),
        ({"token_columns": "mine"}, OptionTypeError, r"found the str 'mine'. Pass \['mine'\]"),
        ({"mlm_probability": 0}, OptionError, "mlm_probability must be above 0"),
        (
            {"mlm": True, "own_labels_only": True},
            OptionError,
            "mlm=True conflicts with",
        ),
        ({"seed": 1, "generator": torch.Generator()}, OptionError, "seed conflicts with generator"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options, error, said):
    with pytest.raises(error, match=said):
        LanguageModelingDataCollator(**options)


def test_the_two_names_are_one_class():
    assert TextCollator is LanguageModelingDataCollator


@pytest.mark.parametrize("preset", ["lm_tiny", "cls_tiny", "seq2seq_tiny", "vision_tiny"])
def test_a_preset_is_named_after_itself_and_is_a_value(preset):
    spec = getattr(TaskSpec, preset)()
    assert spec.name == preset
    assert spec == pickle.loads(pickle.dumps(spec))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"modality": None}, OptionTypeError, "modality must be a str, found NoneType"),
        ({"task_type": ""}, OptionError, "task_type must not be empty"),
        ({"max_length": 0}, OptionError, "max_length must be at least 1, found 0"),
        ({"max_length": "8"}, OptionTypeError, "max_length must be an int or None, found str"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        TaskSpec(**{"name": "a", "modality": "text", "task_type": "lm", **options})
