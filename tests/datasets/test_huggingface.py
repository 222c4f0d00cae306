"""Hugging Face datasets come with the dtypes that are asked for."""

import os
import subprocess
import sys
import warnings

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Features, List, Value
from huggingface_rows import CONVERSIONS, ROWS, assert_same, split_into_words, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain
from torch.utils.data import DataLoader, Subset

from dataporter import (
    OptionError,
    OptionTypeError,
    ResumableDataLoader,
    StateMismatchError,
    create_resumable_dataloader,
)
from dataporter.datasets import HFDatasetWrapper
from dataporter.errors import CollationError, ConversionError, UnmatchedKeyWarning


@pytest.fixture
def reads(monkeypatch):
    """The keys by which Hugging Face datasets are read."""
    keys = []
    real = datasets.Dataset.__getitem__
    monkeypatch.setattr(
        datasets.Dataset, "__getitem__", lambda rows, key: keys.append(key) or real(rows, key)
    )
    return keys


# Samples and batches


def test_the_documented_call_works():
    hf_dataset = tokens()
    dataset = HFDatasetWrapper(
        hf_dataset,
        dtype_conversions={
            "input_ids": "int32",
            "attention_mask": "uint8",
            "label": "int32",
        },
    )
    dataloader = create_resumable_dataloader(
        dataset, batch_size=4, shuffle=True, collate_fn=dataset.collate_fn
    )
    batch = next(iter(dataloader))
    assert {name: str(part.dtype) for name, part in batch.items() if name != "text"} == {
        "input_ids": "torch.int32",
        "attention_mask": "torch.uint8",
        "label": "torch.int32",
    }
    assert batch["input_ids"].shape == (4, 3)
    assert [f"row {ids[0]}" for ids in batch["input_ids"].tolist()] == batch["text"]


def test_columns_that_a_dataset_lacks_are_ignored():
    reviews = datasets.Dataset.from_dict({"text": ["good", "bad"], "label": [1, 0]})
    dataset = HFDatasetWrapper(reviews, dtype_conversions=CONVERSIONS)
    batch = dataset.collate_fn([dataset[0], dataset[1]])
    assert batch["text"] == ["good", "bad"]
    assert torch.equal(batch["label"], torch.tensor([1, 0], dtype=torch.int32))


def test_a_column_that_looks_misspelled_is_told():
    dataset = HFDatasetWrapper(tokens(), {"input_id": "int32"})
    with pytest.warns(UnmatchedKeyWarning, match="mean 'input_ids'"):
        dataset[0]


def test_a_sample_is_a_row_with_its_named_columns_as_tensors():
    dataset = HFDatasetWrapper(tokens(), CONVERSIONS)
    assert len(dataset) == ROWS
    row = dataset[np.int64(3)]
    assert torch.equal(row["input_ids"], torch.tensor([3, 4, 5], dtype=torch.int32))
    assert torch.equal(row["label"], torch.tensor(1, dtype=torch.int32))
    assert row["text"] == "row 3"
    assert HFDatasetWrapper(tokens())[3] == tokens()[3]
    assert plain(dataset[-1]["input_ids"]) == [11, 12, 13]


def test_a_batch_is_one_read(reads):
    dataset = HFDatasetWrapper(tokens(), CONVERSIONS)
    batch = dataset.collate_fn(dataset.__getitems__([5, 0, 2]))
    assert reads == [[5, 0, 2]]
    assert batch["text"] == ["row 5", "row 0", "row 2"]


def test_a_read_batch_can_be_used_as_the_list_of_its_rows():
    dataset = HFDatasetWrapper(tokens(), CONVERSIONS)
    rows = dataset.__getitems__([5, 0])
    assert len(rows) == 2
    assert [row["text"] for row in rows] == ["row 5", "row 0"]
    assert plain(rows[-1]) == plain(dataset[0])
    assert plain(rows[:1]) == [plain(dataset[5])]
    assert list(dataset.__getitems__([])) == []


columns = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(0, 100),
    "float": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(),
    "text": st.text(max_size=3) | st.none(),
    "pair": st.lists(st.integers(0, 100), min_size=2, max_size=2),
    "square": st.lists(st.lists(st.floats(-8, 8), min_size=2, max_size=2), min_size=1, max_size=1),
    "words": st.lists(st.text(max_size=2), max_size=2),
}
features = Features(
    {
        "int": Value("int64"),
        "small": Value("uint8"),
        "float": Value("float32"),
        "bool": Value("bool"),
        "text": Value("string"),
        "pair": List(Value("int16")),
        "square": List(List(Value("float64"))),
        "words": List(Value("string")),
    }
)


@settings(max_examples=30)
@given(
    st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=4),
    st.fixed_dictionaries(
        {},
        optional={
            "small": st.sampled_from(["int8", "float16", "bool", "uint8"]),
            "float": st.sampled_from(["float16", "float32", "bfloat16"]),
            "pair": st.sampled_from(["int8", "float16"]),
            "square": st.sampled_from(["float16", "bfloat16"]),
            "*": st.just("float64"),
        },
    ),
    st.data(),
)
def test_columns_from_arrow_equal_rows_one_by_one(rows, conversions, data):
    table = datasets.Dataset.from_list(rows, features=features)
    dataset = HFDatasetWrapper(table, conversions, on_overflow="clamp")
    wanted = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), min_size=1, max_size=5))
    at_once = dataset.collate_fn(dataset.__getitems__(wanted))
    one_by_one = dataset.collate_fn([dataset[index] for index in wanted])
    assert_same(at_once, one_by_one)


def test_unnamed_numbers_are_what_torch_makes_of_them():
    rows = datasets.Dataset.from_dict(
        {"i": [1, 2], "f": [0.5, 1.5], "b": [True, False]},
        features=Features({"i": Value("int8"), "f": Value("float32"), "b": Value("bool")}),
    )
    dataset = HFDatasetWrapper(rows)
    ours = next(iter(DataLoader(dataset, batch_size=2, collate_fn=dataset.collate_fn)))
    assert_same(ours, next(iter(DataLoader(rows, batch_size=2))))


@pytest.mark.parametrize("prepare", ["select", "shuffle", "concatenate", "disk", "columns"])
def test_datasets_of_any_making_are_read_right(prepare, tmp_path):
    rows = tokens()
    made = {
        "select": lambda: rows.select([5, 3, 3, 0]),
        "shuffle": lambda: rows.shuffle(seed=1),
        "concatenate": lambda: datasets.concatenate_datasets([rows, rows.select([1])]),
        "disk": lambda: (
            rows.save_to_disk(tmp_path / "rows") or datasets.load_from_disk(tmp_path / "rows")
        ),
        "columns": lambda: rows.with_format(columns=["label", "input_ids"]),
    }[prepare]()
    dataset = HFDatasetWrapper(made, CONVERSIONS)
    at_once = dataset.collate_fn(dataset.__getitems__([3, 1]))
    assert_same(at_once, dataset.collate_fn([dataset[3], dataset[1]]))
    assert at_once["input_ids"].tolist() == [made[3]["input_ids"], made[1]["input_ids"]]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_format_is_respected(kind):
    dataset = HFDatasetWrapper(tokens().with_format(kind), CONVERSIONS)
    batch = dataset.collate_fn(dataset.__getitems__([4, 1]))
    assert batch["input_ids"].tolist() == [[4, 5, 6], [1, 2, 3]]
    assert batch["input_ids"].dtype is torch.int32


def test_a_transform_is_respected_and_one_set_later_is_not_for_this_wrapper():
    rows = tokens()
    before = HFDatasetWrapper(rows, {"n": "int16"})
    rows.set_transform(lambda batch: {"n": [len(ids) for ids in batch["input_ids"]]})
    after = HFDatasetWrapper(rows, {"n": "int16"})
    batch = after.collate_fn(after.__getitems__([0, 1]))
    assert torch.equal(batch["n"], torch.tensor([3, 3], dtype=torch.int16))
    assert "text" in before[0]
    assert "text" in before.collate_fn(before.__getitems__([0, 1]))


def test_structs_are_stacked_part_by_part():
    answers = [{"start": 3, "word": "a"}, {"start": 5, "word": "b"}]
    dataset = HFDatasetWrapper(
        datasets.Dataset.from_dict({"answer": answers}), {"answer.start": "int16"}
    )
    for rows in (dataset.__getitems__([0, 1]), [dataset[0], dataset[1]], [{"answer": answers[0]}]):
        batch = dataset.collate_fn(rows)
        assert batch["answer"]["start"].dtype is torch.int16
        assert batch["answer"]["start"].tolist() == [3, 5][: len(rows)]
        assert batch["answer"]["word"] == ["a", "b"][: len(rows)]


def test_arrays_and_images_that_datasets_decodes_are_stacked():
    image = Features({"image": datasets.Array2D((1, 2), "float32")})
    rows = datasets.Dataset.from_dict({"image": [[[1.0, 2.0]]] * 3}, features=image)
    dataset = HFDatasetWrapper(rows, {"image": "float16"})
    batch = dataset.collate_fn(dataset.__getitems__([0, 2]))
    assert (batch["image"].dtype, batch["image"].shape) == (torch.float16, (2, 1, 2))


def test_writing_into_a_batch_leaves_the_rows_unchanged():
    rows = tokens()
    dataset = HFDatasetWrapper(rows, {"input_ids": "int64", "attention_mask": "int8"})
    for part in dataset.collate_fn(dataset.__getitems__([0, 1])).values():
        if isinstance(part, torch.Tensor):
            part.fill_(9)
    assert rows[:] == tokens()[:]


def test_the_savings_can_be_asked_for():
    dataset = HFDatasetWrapper(tokens(), CONVERSIONS)
    assert dataset.converter.report(tokens()[0]).saved == 1 - (12 + 3 + 4) / 56


# What cannot be done


def test_rows_of_unequal_shapes_are_named():
    rows = datasets.Dataset.from_dict({"ids": [[1, 2], [1, 2], [3]]})
    for conversions in ({}, {"ids": "int32"}):
        dataset = HFDatasetWrapper(rows, conversions)
        for batch in (dataset.__getitems__([0, 1, 2]), [dataset[i] for i in range(3)]):
            message = (
                r"ids: rows of unequal shapes.* row 0 of the batch has \(2,\), row 2 has \(1,\)"
            )
            with pytest.raises(CollationError, match=message):
                dataset.collate_fn(batch)


def test_each_remedy_for_rows_of_unequal_shapes_works():
    rows = datasets.Dataset.from_dict({"ids": [[1, 2], [1, 2], [3]], "label": [0, 1, 2]})
    in_the_dataset = rows.map(lambda row: {"ids": (row["ids"] + [0, 0])[:2]})
    for mended, options in (
        (in_the_dataset, {}),
        (rows.remove_columns("ids"), {}),
        (rows.rename_column("ids", "input_ids"), {"pad_token_id": 0}),
    ):
        dataset = HFDatasetWrapper(mended, **options)
        assert dataset.collate_fn(dataset.__getitems__([0, 1, 2]))["label"].tolist() == [0, 1, 2]
    loader = ResumableDataLoader(HFDatasetWrapper(rows), batch_size=3, collate_fn=list)
    assert [row["ids"] for row in next(iter(loader))] == [[1, 2], [1, 2], [3]]


def test_rows_that_are_uneven_in_themselves_are_named():
    for conversions in ({}, {"ids": "int32"}):
        dataset = HFDatasetWrapper(
            datasets.Dataset.from_dict({"ids": [[[1], [1, 2]]] * 2}), conversions
        )
        for batch in (dataset.__getitems__([0, 1]), [dataset[0], dataset[1]]):
            message = r"ids: rows of unequal shapes.*\(2, Ellipsis\)"
            with pytest.raises(CollationError, match=message):
                dataset.collate_fn(batch)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("x", [1, None]),
        ("x", [None, 0.5]),
        ("x", [[1], None]),
        ("x", [[1, None], [1, 2]]),
        ("labels", [[1], None]),
        ("labels", [[1, None], [1]]),
    ],
)
def test_missing_numbers_are_named(name, column):
    rows = datasets.Dataset.from_dict({name: column})
    for conversions in ({}, {name: "int32"}):
        dataset = HFDatasetWrapper(rows, conversions, on_overflow="clamp")
        for fetch in (dataset.__getitems__, lambda numbers: [dataset[each] for each in numbers]):
            if conversions and [1, None] in column:
                with pytest.raises(ConversionError, match=rf"^{name}.*: a list of numbers holds N"):
                    fetch([0, 1])
                continue
            batch = fetch([0, 1])
            with pytest.raises(CollationError, match=rf"^{name}: (row \d|some values) of the b"):
                dataset.collate_fn(batch)


def test_a_value_that_does_not_fit_is_named():
    dataset = HFDatasetWrapper(datasets.Dataset.from_dict({"label": [1, 300]}), {"label": "uint8"})
    for read in (lambda: dataset[1], lambda: dataset.collate_fn(dataset.__getitems__([0, 1]))):
        with pytest.raises(ConversionError, match=r"^label: 300 does not fit into uint8"):
            read()


def test_numbers_past_63_bits_need_a_dtype():
    rows = datasets.Dataset(pa.table({"x": pa.array([2**64 - 1, 1], pa.uint64())}))
    unnamed, named = HFDatasetWrapper(rows), HFDatasetWrapper(rows, {"x": "uint64"})
    for read in (
        lambda: unnamed.__getitems__([0, 1]),
        lambda: unnamed.collate_fn([unnamed[0], unnamed[1]]),
    ):
        with pytest.raises(ConversionError, match=r"^x: 18446744073709551615 .*\{'x': 'uint64'\}"):
            read()
    for batch in (named.__getitems__([0, 1]), [named[0], named[1]]):
        assert named.collate_fn(batch)["x"].tolist() == [2**64 - 1, 1]


def test_rows_that_lack_a_column_of_the_first_are_named():
    dataset = HFDatasetWrapper([{"x": 1, "y": 2}, {"x": 1}])
    with pytest.raises(CollationError, match="row 1 has the columns 'x', but row 0 has 'x', 'y'"):
        dataset.collate_fn([dataset[0], dataset[1]])


def test_what_is_no_batch_is_refused():
    dataset = HFDatasetWrapper(tokens())
    with pytest.raises(CollationError, match="at least one row"):
        dataset.collate_fn([])
    with pytest.raises(CollationError, match="row 0 is a int, expected a dict of columns"):
        dataset.collate_fn([1, 2])
    with pytest.raises(OptionTypeError, match=r"takes a list of rows, found dict.*\(\[row\]\)"):
        dataset.collate_fn(dataset[0])


@pytest.mark.parametrize("index", ["label", slice(2), [1], None, 1.5], ids=repr)
def test_an_index_that_is_no_number_is_refused(index):
    with pytest.raises(OptionTypeError, match="a sample index must be an int"):
        HFDatasetWrapper(tokens())[index]


def test_an_index_past_the_end_is_an_index_error():
    dataset = HFDatasetWrapper(tokens())
    with pytest.raises(IndexError):
        dataset[ROWS]
    with pytest.raises(IndexError):
        dataset.__getitems__([ROWS])


def test_arguments_are_checked():
    with pytest.raises(OptionTypeError, match=r"found a DatasetDict of 'test'\. .*\['test'\]"):
        HFDatasetWrapper(datasets.DatasetDict(test=tokens()))
    with pytest.raises(OptionTypeError, match=r"found IterableDataset\. Load it without streaming"):
        HFDatasetWrapper(tokens().to_iterable_dataset())
    with pytest.raises(OptionError, match="Did you mean 'int32'"):
        HFDatasetWrapper(tokens(), {"label": "itn32"})
    with pytest.raises(OptionTypeError, match="tokenizer must be callable, found str"):
        HFDatasetWrapper(tokens(), tokenizer="bert-base-uncased")
    with pytest.raises(OptionError, match="max_length=5 requires a tokenizer"):
        HFDatasetWrapper(tokens(), max_length=5)
    with pytest.raises(OptionError, match="max_length must be at least 1, found 0"):
        HFDatasetWrapper(tokens(), tokenizer=split_into_words, max_length=0)
    with pytest.raises(OptionTypeError, match="max_length must be an int"):
        HFDatasetWrapper(tokens(), tokenizer=split_into_words, max_length="5")


# In a loader


def loader_of(dataset, **options):
    return ResumableDataLoader(
        dataset, batch_size=4, shuffle=True, seed=3, collate_fn=dataset.collate_fn, **options
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"num_workers": 2, "engine": "threads"},
    ],
    ids=["fork", "spawn", "threads"],
)
def test_batches_are_the_same_from_workers(options):
    # On Python 3.12 and later, forking beside the threads that Arrow starts is warned of.
    reviews = HFDatasetWrapper(tokens(), CONVERSIONS, tokenizer=split_into_words)
    wanted = list(loader_of(reviews))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
        found = list(loader_of(reviews, **options))
    assert len(found) == 3
    for ours, theirs in zip(found, wanted, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_that_does_not_fit_can_be_left_out(num_workers):
    rows = datasets.Dataset.from_dict({"label": [1, 300, 3, 4]})
    dataset = HFDatasetWrapper(rows, {"label": "uint8"})
    loader = ResumableDataLoader(
        dataset,
        batch_size=4,
        collate_fn=dataset.collate_fn,
        on_error="skip",
        num_workers=num_workers,
    )
    assert [batch["label"].tolist() for batch in loader] == [[1, 3, 4]]
    assert [skipped.index for skipped in loader.skipped] == [1]


def test_a_subset_is_read_at_once_too(reads):
    dataset = HFDatasetWrapper(tokens(), CONVERSIONS)
    loader = DataLoader(Subset(dataset, [7, 2]), batch_size=2, collate_fn=dataset.collate_fn)
    assert next(iter(loader))["text"] == ["row 7", "row 2"]
    assert reads == [[7, 2]]


def test_the_default_collation_works_on_converted_rows():
    dataset = HFDatasetWrapper(tokens(), CONVERSIONS)
    batch = next(iter(ResumableDataLoader(dataset, batch_size=3)))
    assert batch["input_ids"].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert batch["input_ids"].dtype is torch.int32


def test_the_fingerprint_of_the_rows_is_in_the_loaders_state():
    rows = tokens()
    loader = loader_of(HFDatasetWrapper(rows, CONVERSIONS))
    state = loader.state_dict()
    assert rows._fingerprint in state.values()
    loader_of(HFDatasetWrapper(rows, {"label": "int8"})).load_state_dict(state)
    other = rows.map(lambda row: {"label": 1 - row["label"]})
    with pytest.raises(StateMismatchError, match=rows._fingerprint):
        loader_of(HFDatasetWrapper(other, CONVERSIONS)).load_state_dict(state)


def test_a_resume_gives_the_rest():
    dataset = HFDatasetWrapper(tokens(), CONVERSIONS)
    batches = [plain(batch) for batch in loader_of(dataset)]
    loader = loader_of(dataset)
    next(iter(loader))
    resumed = loader_of(dataset)
    resumed.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in resumed] == batches[1:]


def test_rows_that_are_no_hugging_face_dataset_need_no_datasets_package():
    script = (
        "import sys; sys.modules['datasets'] = None; sys.modules['pyarrow'] = None\n"
        "from dataporter.datasets import HFDatasetWrapper\n"
        "data = HFDatasetWrapper([{'x': 1}, {'x': 2}], {'x': 'int8'})\n"
        "print(data.collate_fn(data.__getitems__([1, 0])))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    answer = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "{'x': tensor([2, 1], dtype=torch.int8)}"
