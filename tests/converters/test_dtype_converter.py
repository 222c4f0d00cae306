"""Batches come out with other dtypes, and with nothing else changed."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from support import plain
from torch.utils.data import Dataset

from dataporter import OptionError, OptionTypeError
from dataporter.converters import DtypeConverter, KeyBasedDtypeConverter
from dataporter.errors import ConversionError, DataPorterError, UnmatchedKeyWarning

halved = DtypeConverter("float16")

# What a dtype may be


@pytest.mark.parametrize(
    "dtype",
    ["float16", "torch.float16", "half", torch.float16, torch.half, np.float16, np.dtype("f2")],
    ids=repr,
)
def test_a_dtype_may_be_said_in_many_ways(dtype):
    assert DtypeConverter(dtype)(torch.ones(1)).dtype is torch.float16
    assert KeyBasedDtypeConverter({"x": dtype})({"x": 1})["x"].dtype is torch.float16


@pytest.mark.parametrize("dtype", ["flaot16", "float_16", "torch.flot16"])
def test_an_unknown_dtype_is_refused_with_the_one_that_was_meant(dtype):
    with pytest.raises(OptionError, match="Did you mean 'float16'") as raised:
        DtypeConverter(dtype)
    assert repr(dtype) in str(raised.value)
    with pytest.raises(OptionError, match="the dtype for 'image' is unknown"):
        KeyBasedDtypeConverter({"image": dtype})


@pytest.mark.parametrize("dtype", ["qint8", torch.qint8, "", "int4", np.dtype("U3"), np.datetime64])
def test_a_dtype_that_cannot_be_converted_to_is_refused(dtype):
    with pytest.raises(OptionError, match="Known dtypes: bfloat16, bool"):
        DtypeConverter(dtype)


@pytest.mark.parametrize("dtype", [float, None, 16, torch.ones(1)], ids=repr)
def test_what_is_no_dtype_is_refused(dtype):
    with pytest.raises(OptionTypeError, match="must be a name such as 'float16'"):
        DtypeConverter(dtype)


def test_other_arguments_are_checked():
    with pytest.raises(OptionError, match=r"'raise', 'clamp' or 'wrap', found 'ignore'"):
        DtypeConverter("int8", on_overflow="ignore")
    with pytest.raises(OptionError, match="'raise', 'clamp' or 'wrap'"):
        KeyBasedDtypeConverter({}, on_overflow=None)
    with pytest.raises(OptionTypeError, match="conversions must be a dict"):
        KeyBasedDtypeConverter("float16")
    with pytest.raises(OptionTypeError, match="a key must be a path"):
        KeyBasedDtypeConverter({1.5: "int8"})
    with pytest.raises(OptionError, match="a key must not be empty"):
        KeyBasedDtypeConverter({"": "int8"})


# What is converted


def test_all_tensors_and_arrays_are_converted_and_nothing_else():
    batch = {
        "image": torch.ones(2),
        "label": torch.tensor([1, 2]),
        "mask": torch.tensor([True]),
        "array": np.ones(2),
        "text": ["a", "b"],
        "number": 5,
        "none": None,
        "date": np.array(["2026-11-15"], "datetime64[D]"),
        "objects": np.array([None, "a"]),
    }
    converted = halved.convert_batch(batch)
    for name in ("image", "label", "mask"):
        assert converted[name].dtype is torch.float16
    assert converted["array"].dtype == np.float16
    for name in ("text", "number", "none", "date", "objects"):
        assert converted[name] is batch[name]


def test_floating_only_leaves_labels_and_masks_alone():
    batch = [torch.ones(1), torch.tensor([70000]), torch.tensor([True]), np.ones(1), np.arange(2)]
    converted = DtypeConverter("bfloat16", floating_only=True)(batch)
    assert [part.dtype for part in converted[:4]] == [
        *(torch.bfloat16, torch.int64, torch.bool, torch.bfloat16)
    ]
    assert converted[4] is batch[4]


def test_a_bare_tensor_or_array_is_a_batch_too():
    assert halved(torch.ones(2)).dtype is torch.float16
    assert halved(np.ones(2)).dtype == np.float16
    assert halved("text") == "text"


@pytest.mark.parametrize(
    "array",
    [
        np.ones(()),
        np.ones((2, 0)),
        np.arange(6.0)[::-1],
        np.arange(6.0).reshape(2, 3).T,
        np.arange(3).astype(">i4"),
        np.frombuffer(b"\1\2", np.uint8),
    ],
    ids=["0-d", "empty", "backwards", "transposed", "big-endian", "read-only"],
)
def test_arrays_of_any_layout_become_arrays(array):
    converted = halved(array)
    assert type(converted) is np.ndarray
    assert (converted.dtype, converted.shape) == (np.float16, array.shape)
    np.testing.assert_array_equal(converted, array)
    assert not np.shares_memory(converted, array)


def test_numpy_scalars_become_numpy_scalars():
    converted = halved(np.float64(1.5))
    assert type(converted) is np.float16
    assert converted == 1.5


@pytest.mark.parametrize("name", ["bool", "uint8", "uint64", "int16", "float64", "complex64"])
def test_arrays_stay_arrays_where_numpy_has_the_dtype(name):
    converted = DtypeConverter(name)(np.array([0, 1], np.int32))
    assert type(converted) is np.ndarray
    assert converted.dtype == np.dtype(name)


def test_arrays_become_tensors_where_numpy_lacks_the_dtype():
    converted = DtypeConverter("bfloat16")(np.ones(2))
    assert torch.equal(converted, torch.ones(2, dtype=torch.bfloat16))


def test_arrays_are_checked_as_tensors_are():
    convert = KeyBasedDtypeConverter({"ids": "int16"})
    with pytest.raises(ConversionError, match=r"^ids: 40000 does not fit into int16"):
        convert({"ids": np.array([1, 40000])})
    with pytest.raises(ConversionError, match=r"^ids: 40000 does not fit into int16"):
        convert({"ids": np.int64(40000)})
    clamp = KeyBasedDtypeConverter({"ids": "int16"}, on_overflow="clamp")
    assert clamp({"ids": np.array([1, 40000])})["ids"].tolist() == [1, 32767]


# Numbers under named keys


@pytest.mark.parametrize("number", [3, True, 3.0, 2**40])
def test_a_plain_number_becomes_a_tensor_of_that_dtype_where_it_is_named(number):
    row = KeyBasedDtypeConverter({"label": "int64"})({"label": number, "other": number})
    assert torch.equal(row["label"], torch.tensor(number, dtype=torch.int64))
    assert row["other"] is number


@pytest.mark.parametrize(("numbers", "shape"), [([1, 2, 3], (3,)), ([[1, 2], [3, 4]], (2, 2))])
def test_a_list_of_numbers_becomes_one_tensor_where_it_is_named(numbers, shape):
    row = KeyBasedDtypeConverter({"ids": "int32"})({"ids": numbers})
    assert (row["ids"].dtype, row["ids"].shape) == (torch.int32, shape)
    assert row["ids"].tolist() == numbers


def test_rows_of_unequal_lengths_become_one_tensor_each():
    row = KeyBasedDtypeConverter({"ids": "int32"})({"ids": [[1, 2], [3]]})
    assert [part.tolist() for part in row["ids"]] == [[1, 2], [3]]
    assert {part.dtype for part in row["ids"]} == {torch.int32}


def test_what_has_no_numbers_stays_where_a_star_leads_to_it():
    row = {"x": ["a", "b"], "y": "c", "z": [], "image": Image.new("L", (2, 2)), "none": None}
    assert KeyBasedDtypeConverter({"*": "int32"})(row) is row


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a", "a str"),
        (["a", "b"], "a list of str"),
        (Image.new("L", (2, 2)), "a Image"),
        (np.array(["a"]), "a ndarray"),
    ],
)
def test_a_key_that_names_what_has_no_numbers_is_told_once(value, found):
    converter = KeyBasedDtypeConverter({"x": "float16"})
    with pytest.warns(UnmatchedKeyWarning, match=f"'x' names {found}, which has no numbers"):
        assert converter({"x": value})["x"] is value
    assert converter({"x": value})["x"] is value  # a warning would be an error here
    strict = KeyBasedDtypeConverter({"x": "float16"}, strict=True)
    with pytest.raises(ConversionError, match=f"'x' names {found}, which has no numbers"):
        strict({"x": value})


def test_a_missing_value_stays_missing():
    row = {"mask": None}
    assert KeyBasedDtypeConverter({"mask": "uint8"}, strict=True)(row) is row


@pytest.mark.parametrize(("value", "shape"), [([], (0,)), ([[], []], (2, 0))])
def test_an_empty_list_becomes_an_empty_tensor_where_it_is_named(value, shape):
    for converter in (
        KeyBasedDtypeConverter({"boxes": "float16"}),
        KeyBasedDtypeConverter({"targets.boxes": "float16", "targets": "int8"}),
    ):
        row = converter({"boxes": value, "targets": {"boxes": value, "tags": []}})
        boxes = row["targets"]["boxes"] if "targets" in converter._keys else row["boxes"]
        assert (boxes.dtype, boxes.shape) == (torch.float16, shape)
        assert row["targets"]["tags"] == []


def test_an_empty_row_becomes_a_tensor_as_its_neighbours_do():
    rows = KeyBasedDtypeConverter({"ids": "int32"})({"ids": [[1, 2], [], [3]]})["ids"]
    assert [row.tolist() for row in rows] == [[1, 2], [], [3]]
    assert {row.dtype for row in rows} == {torch.int32}


@pytest.mark.parametrize("numbers", [[1.0, None], [None, 1.0], ["a", 1], [[1, 2], [3, None]]])
@pytest.mark.parametrize("key", ["x", "*"])
def test_numbers_beside_other_things_are_refused(numbers, key):
    with pytest.raises(ConversionError, match=r"^x.*: a list of numbers holds (None|'a') too"):
        KeyBasedDtypeConverter({key: "float16"})({"x": numbers})


@pytest.mark.parametrize(
    "numbers",
    [[2**53 + 1, 1.0], [0.5, 2**63 + 1], [-(2**53) - 1, 1j], [10**400, 1.0], [[2**53 + 1], [1.0]]],
)
@pytest.mark.parametrize("dtype", ["int64", "float64", "complex128"])
def test_integers_that_floats_lack_are_not_rounded_beside_floats(numbers, dtype):
    with pytest.raises(ConversionError, match=r"^x"):
        KeyBasedDtypeConverter({"x": dtype})({"x": numbers})


def test_integers_that_floats_have_may_stand_beside_them():
    row = KeyBasedDtypeConverter({"x": "float64"})({"x": [2**53, 2**64, 0.5, float("inf")]})
    assert row["x"].tolist() == [2**53, 2**64, 0.5, float("inf")]


@pytest.mark.parametrize("number", [300, -1, 2**64, 2**100, 0.5, float("nan")])
def test_a_plain_number_that_does_not_fit_is_refused(number):
    with pytest.raises(ConversionError, match=r"^label: "):
        KeyBasedDtypeConverter({"label": "uint8"})({"label": number})


@pytest.mark.parametrize("numbers", [[2**64, 1], [2**63, -1], [[2**70]]])
def test_lists_of_numbers_that_no_dtype_holds_are_refused(numbers):
    for dtype in ("int64", "float32"):
        with pytest.raises(ConversionError, match=r"^x: .*does not fit into 64 bits"):
            KeyBasedDtypeConverter({"x": dtype})({"x": numbers})


def test_integers_past_63_bits_are_not_rounded():
    numbers = [2**64 - 1, 1]
    assert KeyBasedDtypeConverter({"x": "uint64"})({"x": numbers})["x"].tolist() == numbers


# Keys


def nested():
    return {
        "image": torch.ones(1),
        "inputs": {"image": torch.ones(1), "depth": torch.ones(1)},
        "arrays": [np.ones(1), np.ones(1)],
        "boxes": [{"xy": torch.ones(1), "id": 5}, {"xy": torch.ones(1), "id": 6}],
        "left.png": torch.ones(1),
    }


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("image", {"image"}),
        ("inputs.image", {"inputs.image"}),
        ("inputs", {"inputs.image", "inputs.depth"}),
        ("*.image", {"inputs.image"}),
        ("inputs.*", {"inputs.image", "inputs.depth"}),
        ("arrays[0]", {"arrays[0]"}),
        ("arrays", {"arrays[0]", "arrays[1]"}),
        ("arrays[*]", {"arrays[0]", "arrays[1]"}),
        ("boxes[1].xy", {"boxes[1].xy"}),
        ("boxes[*].xy", {"boxes[0].xy", "boxes[1].xy"}),
        ("boxes.*.xy", {"boxes[0].xy", "boxes[1].xy"}),
        ("*.*.xy", {"boxes[0].xy", "boxes[1].xy"}),
        ("left.png", {"left.png"}),
    ],
)
def test_a_key_is_a_path_from_the_batch(key, named):
    report = KeyBasedDtypeConverter({key: "float16"}, strict=True).report(nested())
    assert {row.key for row in report.rows if row.dtype_after == "float16"} == named
    assert {row.dtype_before for row in report.rows} == {"float32", "float64"}


def test_a_number_names_a_place_in_a_tuple():
    image, label = KeyBasedDtypeConverter({0: "float16", 1: "int32"})((torch.ones(1), 3))
    assert (image.dtype, label.dtype) == (torch.float16, torch.int32)


def test_a_bare_star_names_everything():
    converted = KeyBasedDtypeConverter({"*": "float16"})((torch.ones(1), {"x": torch.ones(1)}))
    assert (converted[0].dtype, converted[1]["x"].dtype) == (torch.float16, torch.float16)


def test_the_longer_key_wins_then_the_one_with_fewer_stars():
    convert = KeyBasedDtypeConverter(
        {"inputs.*": "float64", "inputs": "int8", "inputs.depth": "float16", "*.image": "int16"}
    )
    inputs = convert(nested())["inputs"]
    assert (inputs["image"].dtype, inputs["depth"].dtype) == (torch.float64, torch.float16)
    whole = KeyBasedDtypeConverter({"inputs": "int8", "inputs.depth": "float16"})(nested())
    assert whole["inputs"]["image"].dtype is torch.int8
    assert whole["inputs"]["depth"].dtype is torch.float16


def test_a_part_of_a_name_is_no_match():
    batch = {"images": torch.ones(1), "image_2": torch.ones(1), "im": torch.ones(1)}
    converter = KeyBasedDtypeConverter({"image": "float16"})
    with pytest.warns(UnmatchedKeyWarning):
        assert converter(batch) is batch


def test_keys_that_a_batch_lacks_are_ignored():
    convert = KeyBasedDtypeConverter({"input_ids": "int32", "pixel_values": "float16"})
    assert convert({"input_ids": 3, "text": "a"})["input_ids"].dtype is torch.int32
    assert convert({"text": "a"}) == {"text": "a"}


def test_a_key_that_looks_misspelled_is_told_once():
    convert = KeyBasedDtypeConverter({"lable": "int32"})
    with pytest.warns(UnmatchedKeyWarning, match="'lable' matches nothing.*mean 'label'"):
        convert({"label": 3})
    convert({"label": 3})


def test_a_key_that_is_further_inside_is_told():
    convert = KeyBasedDtypeConverter({"image": "float16"})
    with pytest.warns(UnmatchedKeyWarning, match=r"mean 'inputs\.image'"):
        convert({"inputs": {"image": torch.ones(1)}})


def test_a_key_similar_to_another_key_of_the_converter_is_not_misspelled():
    convert = KeyBasedDtypeConverter({"label": "int32", "labels": "int32"})
    assert convert({"label": 3})["label"].dtype is torch.int32


def test_strict_refuses_a_key_that_matches_nothing_and_says_what_was_meant():
    convert = KeyBasedDtypeConverter({"image": "float16", "lable": "int32"}, strict=True)
    for _ in range(2):
        with pytest.raises(ConversionError) as raised:
            convert({"image": torch.ones(1), "label": 3})
        assert str(raised.value) == (
            "the key 'lable' matches nothing in the batch. Did you mean 'label'? The batch "
            "has: image, label. Correct the key, or pass strict=False to ignore it."
        )
    with pytest.raises(ConversionError, match="The batch has: no keys"):
        convert(torch.ones(1))


# The report


@pytest.mark.parametrize(
    ("source", "dtype", "saved"),
    [
        ("float32", "float16", 0.5),
        ("int64", "int32", 0.5),
        ("int64", "int16", 0.75),
        ("int64", "uint8", 0.875),
    ],
)
@pytest.mark.parametrize("make", [torch.ones, np.ones], ids=["tensor", "array"])
def test_the_savings_are_measured(make, source, dtype, saved):
    kinds = torch if make is torch.ones else np
    report = KeyBasedDtypeConverter({"x": dtype}).report(
        {"x": make((4, 8), dtype=getattr(kinds, source))}
    )
    (row,) = report.rows
    assert (row.dtype_before, row.dtype_after) == (source, dtype)
    assert report.saved == saved
    assert row.bytes_after == 32 * np.dtype(dtype).itemsize


def test_the_report_counts_what_is_left_alone_too():
    batch = {"image": torch.ones(10), "weight": torch.ones(10), "text": ["a"], "n": [1, 2]}
    report = KeyBasedDtypeConverter({"image": "float16", "n": "int8"}).report(batch)
    assert [tuple(row) for row in report.rows] == [
        ("image", "float32", "float16", 40, 20),
        ("weight", "float32", "float32", 40, 40),
        ("n", "int64", "int8", 16, 2),
    ]
    assert (report.bytes_before, report.bytes_after) == (96, 62)


def test_the_report_reads_as_a_table():
    batch = {"image": torch.ones(1000), "inputs": {"mask": torch.ones(8, dtype=torch.int64)}}
    report = KeyBasedDtypeConverter({"image": "float16", "inputs.mask": "uint8"}).report(batch)
    assert str(report).splitlines() == [
        "key          before   after    bytes before  bytes after   saved",
        "image        float32  float16         4,000        2,000  50.0 %",
        "inputs.mask  int64    uint8              64            8  87.5 %",
        "total                                 4,064        2,008  50.6 %",
    ]


def test_an_empty_report_saves_nothing():
    assert halved.report({"text": "a"}).saved == 0.0
    assert halved.report(torch.ones(4)).saved == 0.5


# How users call it


class OptimizedDataset(Dataset):
    def __init__(self, base_dataset, converter):
        self.dataset = base_dataset
        self.converter = converter

    def __getitem__(self, idx):
        item = self.dataset[idx]
        return self.converter.convert_batch(item)


def test_a_dataset_that_converts_its_items_works():
    converter = KeyBasedDtypeConverter(
        {
            "image": "float16",
            "label": "int32",
            "attention_mask": "uint8",
            "token_ids": "int32",
        }
    )
    item = {
        "image": torch.rand(3, 8, 8),
        "label": 7,
        "attention_mask": torch.ones(16, dtype=torch.int64),
        "token_ids": torch.arange(16),
    }
    converted = OptimizedDataset([item], converter)[0]
    assert {name: str(part.dtype) for name, part in converted.items()} == {
        "image": "torch.float16",
        "label": "torch.int32",
        "attention_mask": "torch.uint8",
        "token_ids": "torch.int32",
    }
    assert plain(converted["token_ids"]) == list(range(16))


@pytest.mark.parametrize(
    "converter",
    [DtypeConverter("int8", on_overflow="clamp"), KeyBasedDtypeConverter({"x": "int8"})],
    ids=repr,
)
def test_converters_go_through_pickle(converter):
    again = pickle.loads(pickle.dumps(converter))
    assert repr(again) == repr(converter)
    assert again({"x": torch.tensor([5])})["x"].dtype is torch.int8


def test_errors_go_through_pickle_and_are_of_our_own():
    with pytest.raises(DataPorterError) as raised:
        DtypeConverter("int8")(torch.tensor(1000))
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (ConversionError, str(raised.value))
