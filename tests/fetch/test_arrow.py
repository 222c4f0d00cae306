import datetime as dt

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from sameness import assert_same, assert_same_batches, outcome
from samples import ARRAY_DTYPES
from torch.utils.data import DataLoader, Subset

from dataporter import ResumableDataLoader
from dataporter.fetch.arrow import arrow_gather

ROWS = 7
COLUMNS = {
    "int": list(range(ROWS)),
    "float": [i / 4 for i in range(ROWS)],
    "bool": [i % 2 == 0 for i in range(ROWS)],
    "string": [f"row {i}" for i in range(ROWS)],
}


@pytest.fixture
def rows():
    return Dataset.from_dict(COLUMNS)


def assert_as_torch(dataset, **options):
    assert_same_batches(
        ResumableDataLoader(dataset, batch_size=3, **options),
        DataLoader(dataset, batch_size=3, **options),
    )


def assert_gathered_as_torch_collates(dataset):
    assert arrow_gather(dataset) is not None
    assert_as_torch(dataset)


def assert_left_to_the_dataset(dataset):
    assert arrow_gather(dataset) is None
    assert_as_torch(dataset)


# What a column holds


def test_ints_floats_bools_and_strings_are_gathered(rows):
    assert_gathered_as_torch_collates(rows)


@pytest.mark.parametrize("dtype", [d for d in ARRAY_DTYPES if not d.startswith("complex")])
def test_numbers_of_any_width_are_gathered(dtype):
    features = Features({"x": Value(dtype)})
    assert_gathered_as_torch_collates(Dataset.from_dict({"x": [1, 0, 1, 1]}, features=features))


@pytest.mark.parametrize("dtype", ["string", "large_string", "binary", "large_binary"])
def test_text_is_gathered(dtype):
    text = ["", "a", "äöü 😀"]
    content = text if "string" in dtype else [string.encode() for string in text]
    dataset = Dataset.from_dict({"x": content}, features=Features({"x": Value(dtype)}))
    assert_gathered_as_torch_collates(dataset)


def test_special_numbers_come_through():
    dataset = Dataset.from_dict(
        {"int": [2**63 - 1, -(2**63), 0], "float": [float("nan"), float("-inf"), -0.0]}
    )
    assert_gathered_as_torch_collates(dataset)


@pytest.mark.parametrize(
    "column",
    [
        [[1, 2], [3, 4], [5, 6]],
        [[[1.0], [2.0]], [[3.0], [4.0]]],
        [["a", "b"], ["c", "d"]],
        [[], []],
        [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}],
        [[{"x": 1}], [{"x": 2}]],
    ],
    ids=["lists", "nested lists", "strings", "empty lists", "structs", "lists of structs"],
)
def test_nested_columns_are_gathered(column):
    assert_gathered_as_torch_collates(Dataset.from_dict({"x": column, "i": range(len(column))}))


@pytest.mark.parametrize(
    "features",
    [
        Features({"x": List(Value("float32"))}),
        Features({"x": List(Value("int16"), length=2)}),
        Features({"x": datasets.LargeList(Value("int64"))}),
    ],
    ids=["float32", "fixed length", "large"],
)
def test_lists_of_any_make_are_gathered(features):
    dataset = Dataset.from_dict({"x": [[1, 2], [3, 4]]}, features=features)
    assert_gathered_as_torch_collates(dataset)


def test_class_labels_and_arrays_are_gathered():
    features = Features(
        {"label": ClassLabel(names=["no", "yes"]), "image": datasets.Array2D((1, 2), "float32")}
    )
    content = {"label": [0, 1, 1], "image": [[[1.0, 2.0]]] * 3}
    assert_gathered_as_torch_collates(Dataset.from_dict(content, features=features))


@pytest.mark.parametrize(
    "column",
    [
        [1, None, 3],
        [None, 1.5],
        [True, None],
        [None, None],
        ["a", None],
        [[1, None], [1, 2]],
        [[1, 2], [1]],
        [dt.datetime(2026, 11, 15)] * 2,  # noqa: DTZ001  Arrow's plain kind
        [dt.date(2026, 11, 15)] * 2,
    ],
    ids=str,
)
def test_what_torch_cannot_collate_ends_as_in_torch(column):
    dataset = Dataset.from_dict({"x": column})
    ours, theirs = (
        outcome(list, loader(dataset, batch_size=3)) for loader in (ResumableDataLoader, DataLoader)
    )
    assert_same(ours, theirs)


def test_numbers_past_63_bits_end_as_in_torch():
    dataset = Dataset(pa.table({"x": pa.array([2**64 - 1, 1], pa.uint64())}))
    expected = outcome(list, DataLoader(dataset, batch_size=2))
    assert outcome(list, ResumableDataLoader(dataset, batch_size=2)) is expected


def test_nulls_are_no_matter_in_a_batch_without_them():
    dataset = Dataset.from_dict({"x": [1, 2, 3, None]})
    batches = iter(ResumableDataLoader(dataset, batch_size=3))
    assert next(batches)["x"].tolist() == [1, 2, 3]


# How a dataset was made


def test_selected_rows_are_gathered(rows):
    assert_gathered_as_torch_collates(rows.select([5, 0, 0, 3]))
    assert_gathered_as_torch_collates(rows.select(range(2, 6)))


def test_shuffled_rows_are_gathered(rows):
    assert_gathered_as_torch_collates(rows.shuffle(seed=1))
    assert_gathered_as_torch_collates(rows.shuffle(seed=1).shuffle(seed=2).select([3, 1]))


def test_joined_datasets_are_gathered(rows):
    joined = datasets.concatenate_datasets([rows, rows.select([1, 2]), rows.shuffle(seed=3)])
    assert_gathered_as_torch_collates(joined)


def test_renamed_and_removed_columns_are_gathered(rows):
    assert_gathered_as_torch_collates(rows.rename_column("int", "id").remove_columns("bool"))


def test_a_dataset_read_from_disk_is_gathered(rows, tmp_path):
    rows.save_to_disk(tmp_path / "rows")
    assert_gathered_as_torch_collates(datasets.load_from_disk(tmp_path / "rows"))


@pytest.mark.parametrize("indices", [[6, -1, 0], np.array([3, 1]), torch.tensor([3, 1]), range(2)])
def test_a_subset_of_rows_is_gathered(rows, indices):
    assert_as_torch(Subset(rows, indices))


def test_a_sampler_may_count_from_the_end(rows):
    assert_as_torch(rows, sampler=[-1, 0, -ROWS])


def test_an_index_past_the_end_is_an_index_error(rows):
    with pytest.raises(IndexError):
        list(ResumableDataLoader(rows, batch_size=1, sampler=[ROWS]))


# Formats and transforms


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_format_is_respected(rows, kind):
    rows.set_format(kind)
    assert_left_to_the_dataset(rows)


def test_the_columns_of_a_format_are_respected(rows):
    assert_as_torch(rows.with_format("torch", columns=["float"]))
    assert_as_torch(rows.with_format(columns=["string", "int"]))


@pytest.mark.parametrize("kind", [None, "torch"])
def test_columns_that_a_format_leaves_as_they_are_come_too(rows, kind):
    assert_as_torch(rows.with_format(kind, columns=["int"], output_all_columns=True))


def test_a_transform_is_applied(rows):
    rows.set_transform(lambda batch: {"tripled": [3 * value for value in batch["int"]]})
    assert_left_to_the_dataset(rows)


def test_a_format_that_is_set_between_two_passes_is_respected(rows):
    loader = ResumableDataLoader(rows, batch_size=ROWS)
    assert set(next(iter(loader))) == set(COLUMNS)
    rows.set_transform(lambda batch: {"tripled": [3 * value for value in batch["int"]]})
    assert next(iter(loader))["tripled"].tolist() == [3 * i for i in range(ROWS)]


class Labelled(Dataset):
    """Hands out its samples in its own way."""

    def __getitem__(self, key):
        return {"label": 1, "row": super().__getitem__(key)}

    def __getitems__(self, keys):
        return [self[key] for key in keys]


def test_a_subclass_is_not_gathered(rows):
    assert_left_to_the_dataset(Labelled(rows.data))


def test_writing_into_a_batch_leaves_the_rows_unchanged(rows):
    for batch in ResumableDataLoader(rows, batch_size=ROWS):
        batch["int"].fill_(9)
        batch["float"].fill_(9)
    assert rows["int"][:] == COLUMNS["int"]
    assert rows["float"][:] == COLUMNS["float"]


def test_other_data_is_not_of_this_module():
    assert arrow_gather([{"x": 1}]) is None
    assert arrow_gather(torch.arange(3)) is None
