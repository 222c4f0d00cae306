import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sameness import assert_same, assert_same_batches
from samples import ARRAY_DTYPES, TENSOR_DTYPES
from torch.utils.data import DataLoader, Subset, TensorDataset

from dataporter import ResumableDataLoader
from dataporter.fetch.vectorised import gather_for

# NumPy has no such dtypes.
SHORT_FLOATS = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def numbers(dtype, *shape):
    return torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)


def assert_gathered_as_torch_collates(dataset, batch_size=3):
    assert gather_for(dataset) is not None
    assert_same_batches(
        ResumableDataLoader(dataset, batch_size=batch_size), DataLoader(dataset, batch_size)
    )


def assert_left_to_the_dataset(dataset):
    assert gather_for(dataset) is None
    assert_same_batches(ResumableDataLoader(dataset, batch_size=3), DataLoader(dataset, 3))


# The law


@st.composite
def plain_datasets(draw):
    """A tensor, array, TensorDataset, or a subset of one of these, or of such a subset."""
    length = draw(st.integers(1, 8))
    shape = (length, *draw(st.lists(st.integers(0, 3), max_size=2)))
    tensor = numbers(draw(st.sampled_from(TENSOR_DTYPES)), *shape)
    array = numbers(torch.int64, *shape).numpy().astype(draw(st.sampled_from(ARRAY_DTYPES)))
    if array.dtype == np.uint64 and array.ndim == 1:
        array = array.reshape(length, 1)  # torch cannot collate single uint64 numbers
    dataset = draw(
        st.sampled_from([tensor, array, TensorDataset(tensor, numbers(torch.int8, length))])
    )
    for _ in range(draw(st.integers(0, 2))):
        chosen = draw(st.lists(st.integers(-length, length - 1), min_size=1, max_size=10))
        kind = draw(st.sampled_from([list, tuple, np.array, torch.tensor]))
        dataset, length = Subset(dataset, kind(chosen)), len(chosen)
    return dataset


@given(dataset=plain_datasets(), batch_size=st.integers(1, 4))
def test_a_gathered_batch_is_what_torch_collates(dataset, batch_size):
    assert_gathered_as_torch_collates(dataset, batch_size)


# Tensors and arrays


@pytest.mark.parametrize("shape", [(7,), (7, 2), (7, 2, 3), (7, 0)], ids=str)
@pytest.mark.parametrize("dtype", [*TENSOR_DTYPES, *SHORT_FLOATS], ids=str)
def test_a_tensor_is_gathered(dtype, shape):
    assert_gathered_as_torch_collates(numbers(dtype, *shape))


# One name each: some dtypes have several.
ALL_DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)


@pytest.mark.filterwarnings("ignore:.*Complex.* support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if "q" not in str(d)], ids=str)
def test_a_tensor_of_any_dtype_is_gathered_whatever_of_it_torch_can_index(dtype):
    raw = torch.arange(7 * 2 * dtype.itemsize, dtype=torch.uint8)
    if dtype is torch.bool:
        raw %= 2
    dataset = raw.view(dtype).view(7, 2)
    assert_gathered_as_torch_collates(dataset)
    assert_gathered_as_torch_collates(TensorDataset(dataset, dataset[:, 0]))
    placed = []

    def empty(shape, dtype):
        placed.append(torch.zeros(shape, dtype=torch.uint8).repeat_interleave(dtype.itemsize, -1))
        placed[-1] = placed[-1].view(dtype)
        return placed[-1]

    gathered = gather_for(dataset)(np.array([4, 0]), empty)
    assert gathered.data_ptr() == placed[0].data_ptr()
    assert_same(gathered, torch.stack([dataset[4], dataset[0]]))


@pytest.mark.parametrize("shape", [(7,), (7, 2), (7, 2, 3), (7, 0)], ids=str)
@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
def test_an_array_is_gathered(dtype, shape):
    if dtype == "uint64" and shape == (7,):
        shape = (7, 1)  # torch cannot collate single uint64 numbers
    assert_gathered_as_torch_collates(numbers(torch.int64, *shape).numpy().astype(dtype))


def test_special_floats_come_through():
    dataset = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    assert_gathered_as_torch_collates(dataset)
    assert_gathered_as_torch_collates(dataset.numpy())


@pytest.mark.parametrize(
    "dataset",
    [
        numbers(torch.float32, 4, 6).T,
        numbers(torch.float32, 12, 2)[::2],
        numbers(torch.float32, 2).expand(6, 2),
        numbers(torch.float32, 6, 2).requires_grad_(),
        numbers(torch.complex64, 6, 2).conj(),
        numbers(torch.float32, 6, 2).numpy()[::-2],
        np.asfortranarray(numbers(torch.float32, 6, 2).numpy()),
    ],
    ids=[
        "transposed",
        "strided",
        "expanded",
        "requires grad",
        "conjugated",
        "backwards",
        "fortran",
    ],
)
def test_memory_may_be_laid_out_in_any_way(dataset):
    assert_gathered_as_torch_collates(dataset)


@pytest.mark.parametrize("shape", [(7,), (7, 2)], ids=str)
def test_a_mapped_file_is_gathered(tmp_path, shape):
    mapped = np.memmap(tmp_path / "tokens", dtype=np.uint16, mode="w+", shape=shape)
    mapped[:] = numbers(torch.int64, *shape).numpy()
    assert_gathered_as_torch_collates(mapped)


def test_a_file_that_is_mapped_for_reading_gives_batches_to_write_to(tmp_path):
    np.arange(14, dtype=np.int32).tofile(tmp_path / "tokens")
    mapped = np.memmap(tmp_path / "tokens", dtype=np.int32, mode="r", shape=(7, 2))
    first = next(iter(ResumableDataLoader(mapped, batch_size=3)))
    assert_same(first, torch.arange(6, dtype=torch.int32).reshape(3, 2))
    first += 1
    assert mapped.tolist() == np.arange(14).reshape(7, 2).tolist()


@pytest.mark.parametrize(
    "dataset",
    [
        np.array(["a", "b"]),
        torch.nn.Parameter(torch.ones(4)),
        torch.eye(3).to_sparse(),
        torch.ones(4).to(torch.float8_e5m2).requires_grad_(),
        np.ma.masked_array(np.arange(3), mask=[0, 1, 0]),
        [1, 2, 3],
        range(5),
    ],
    ids=["strings", "parameter", "sparse", "short floats with grad", "masked", "list", "range"],
)
def test_other_data_is_not_gathered(dataset):
    assert gather_for(dataset) is None


@pytest.mark.parametrize("dtype", [">i4", ">f8"])
def test_arrays_in_foreign_byte_order_are_left_to_torch(dtype):
    dataset = np.arange(6, dtype=dtype)
    assert_left_to_the_dataset(dataset)


# TensorDataset


@pytest.mark.parametrize("dtype", TENSOR_DTYPES, ids=str)
def test_a_tensor_dataset_is_gathered(dtype):
    dataset = TensorDataset(numbers(torch.float32, 7, 2), numbers(dtype, 7))
    assert_gathered_as_torch_collates(dataset)


class WithAName(TensorDataset):
    name = "train"


class Doubled(TensorDataset):
    def __getitem__(self, index):
        return tuple(2 * part for part in super().__getitem__(index))


class DoubledAtOnce(TensorDataset):
    def __getitems__(self, indices):
        return [tuple(2 * part for part in self[index]) for index in indices]


def test_a_subclass_that_changes_no_samples_is_gathered():
    assert_gathered_as_torch_collates(WithAName(torch.arange(7)))


@pytest.mark.parametrize("kind", [Doubled, DoubledAtOnce])
def test_a_subclass_that_makes_its_own_samples_is_not_gathered(kind):
    dataset = kind(torch.arange(7), torch.ones(7, 2))
    assert_left_to_the_dataset(dataset)
    assert next(iter(ResumableDataLoader(dataset, batch_size=3)))[0].tolist() == [0, 2, 4]


def test_tensors_of_a_kind_of_their_own_are_not_gathered():
    assert_left_to_the_dataset(TensorDataset(torch.nn.Parameter(torch.ones(7))))


# Subset


@pytest.mark.parametrize(
    "indices",
    [
        [5, 0, 0, 3],
        (5, 0, 0, 3),
        np.array([5, 0, 0, 3]),
        np.array([5, 0, 3], dtype=np.uint8),
        torch.tensor([5, 0, 0, 3]),
        torch.tensor([5, 0, 3], dtype=torch.int32),
        list(torch.tensor([5, 0, 3])),
        list(np.array([5, 0, 3])),
        range(5, 0, -2),
        [-1, 2, -6],
        np.array([-1, 2, -6]),
        torch.tensor([-1, 2, -6]),
        range(-1, -4, -1),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "dataset",
    [numbers(torch.int64, 6, 2), np.arange(6.0), TensorDataset(torch.arange(6), torch.eye(6))],
    ids=["tensor", "array", "TensorDataset"],
)
def test_a_subset_is_gathered(dataset, indices):
    assert_gathered_as_torch_collates(Subset(dataset, indices))


def test_a_subset_of_a_subset_is_gathered():
    dataset = TensorDataset(torch.arange(10), torch.eye(10))
    inner = Subset(Subset(dataset, torch.tensor([9, 7, 5, 3])), range(3, -1, -1))
    assert_gathered_as_torch_collates(Subset(inner, np.array([0, 2, 2, 1])))


def test_a_subset_of_what_is_not_gathered_is_not_gathered():
    assert_left_to_the_dataset(Subset([10, 20, 30], [2, 0]))
    assert_left_to_the_dataset(Subset(Doubled(torch.arange(7)), [6, -1, 0]))


class Marked(Subset):
    def __getitem__(self, index):
        return {"value": super().__getitem__(index), "mark": 1}

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_a_subset_that_makes_its_own_samples_is_not_gathered():
    assert_left_to_the_dataset(Marked(torch.arange(7), [3, 1, 2]))


@pytest.mark.parametrize("index", [3, 10**6, -4, -(10**6)])
@pytest.mark.parametrize(
    "dataset",
    [
        torch.arange(3),
        np.arange(3),
        TensorDataset(torch.arange(3)),
        Subset(torch.arange(3), [0] * 3),
    ],
    ids=["tensor", "array", "TensorDataset", "Subset"],
)
def test_an_index_past_either_end_is_an_index_error(dataset, index):
    with pytest.raises(IndexError):
        list(ResumableDataLoader(Subset(dataset, [0, index]), batch_size=2))
    with pytest.raises(IndexError):
        list(ResumableDataLoader(dataset, batch_size=2, sampler=[0, index]))


# Samplers of the user's own


@pytest.mark.parametrize(
    "indices",
    [[-1, 0, -3], [5, 5, 5], list(np.array([4, 1])), list(torch.tensor([4, 1]))],
    ids=repr,
)
@pytest.mark.parametrize(
    "dataset",
    [numbers(torch.int64, 6, 2), np.arange(6.0), TensorDataset(torch.arange(6))],
    ids=["tensor", "array", "TensorDataset"],
)
def test_indices_of_a_sampler_mean_what_they_mean_to_torch(dataset, indices):
    assert_same_batches(
        ResumableDataLoader(dataset, batch_size=2, sampler=indices),
        DataLoader(dataset, batch_size=2, sampler=indices),
    )


# What is gathered is a copy, of what is there now


def itself(data):
    return data


def whole_subset(data):
    return Subset(data, range(len(data)))


@pytest.mark.parametrize("batch_size", [1, 3, 6])
@pytest.mark.parametrize("wrap", [itself, TensorDataset, whole_subset])
def test_writing_into_a_batch_leaves_the_tensor_unchanged(wrap, batch_size):
    data = torch.zeros(6, 2)
    for batch in ResumableDataLoader(wrap(data), batch_size=batch_size):
        (batch[0] if isinstance(batch, list) else batch).fill_(1)
    assert not data.any()


@pytest.mark.parametrize("batch_size", [1, 3, 6])
@pytest.mark.parametrize("wrap", [itself, whole_subset])
def test_writing_into_a_batch_leaves_the_array_unchanged(tmp_path, wrap, batch_size):
    mapped = np.memmap(tmp_path / "zeros", dtype=np.float32, mode="w+", shape=(6, 2))
    for data in (np.zeros((6, 2)), np.zeros(6), mapped):
        for batch in ResumableDataLoader(wrap(data), batch_size=batch_size):
            batch.fill_(1)
        assert not data.any()


def test_a_change_of_the_data_is_seen_by_the_next_batch():
    data = torch.zeros(4)
    batches = iter(ResumableDataLoader(data, batch_size=2))
    assert next(batches).tolist() == [0, 0]
    data += 1
    assert next(batches).tolist() == [1, 1]


def test_a_module_of_the_users_own_may_be_called_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    rows = [{"a": i} for i in range(4)]
    assert_same_batches(ResumableDataLoader(rows, 2), DataLoader(rows, 2))
