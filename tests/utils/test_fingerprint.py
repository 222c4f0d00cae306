"""Fingerprints: other data at a resume is noticed where it lies open, and costs nothing."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from support import Ids, one_pass
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from dataporter import ResumableDataLoader, StateMismatchError, StateMismatchWarning
from dataporter.sources.fingerprint import dataset_fingerprint


def state_of(dataset, batches=1) -> dict:
    loader = ResumableDataLoader(dataset, 2, seed=1, collate_fn=list)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


def resume(dataset, state) -> None:
    ResumableDataLoader(dataset, 2, seed=1, collate_fn=list).load_state_dict(state)


def mapped(array: np.ndarray, folder: Path) -> np.ndarray:
    file = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(file, array)
    return np.load(file, mmap_mode="r")


KINDS = {
    "tensor": lambda array, _: torch.from_numpy(array),
    "array": lambda array, _: array,
    "transposed": lambda array, _: np.ascontiguousarray(array.T).T,
    "memmap": mapped,
    "bfloat16": lambda array, _: torch.from_numpy(array).bfloat16(),
    "complex": lambda array, _: torch.from_numpy(array).to(torch.complex128),
    "TensorDataset": lambda array, _: TensorDataset(
        torch.from_numpy(array), torch.zeros(len(array))
    ),
    "Subset": lambda array, _: Subset(TensorDataset(torch.from_numpy(array)), range(90)),
    "ConcatDataset": lambda array, _: ConcatDataset(
        [TensorDataset(torch.from_numpy(array)), Ids(5)]
    ),
    "list of tensors": lambda array, _: list(torch.from_numpy(array)),
    "list of pairs": lambda array, _: [(row, 1) for row in array],
    "list of dicts": lambda array, _: [{"x": row, "name": "a"} for row in array],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_data_resumes_and_other_values_of_the_same_length_are_refused(kind, tmp_path):
    make = KINDS[kind]
    values = np.arange(300, dtype=np.float64).reshape(100, 3)
    state = state_of(make(values, tmp_path))
    resume(make(values.copy(), tmp_path), state)
    others = [values + 1000, values[::-1].copy(), values.reshape(100, 3, 1)]
    if kind not in ("bfloat16", "complex"):  # which are made of any
        others.append(values.astype(np.float32))
    for other in others:
        with pytest.raises(StateMismatchError, match="fingerprint changed"):
            resume(make(other, tmp_path), state)


@given(np_st.arrays(np.int32, np_st.array_shapes(max_dims=3)), st.data())
def test_a_small_array_is_known_to_the_last_bit(array, data):
    before = dataset_fingerprint(array)
    assert dataset_fingerprint(array.copy(order="F")) == before
    place = tuple(data.draw(st.integers(0, size - 1)) for size in array.shape)
    array[place] ^= 1 << data.draw(st.integers(0, 30))
    if array.size <= 256:
        assert dataset_fingerprint(array) != before


def test_a_state_without_a_fingerprint_loads():
    values = torch.arange(10)
    for dataset in (TensorDataset(values), Subset(TensorDataset(values), range(8)), values):
        state = state_of(dataset)
        # As earlier versions saved it: nothing of tensors, of a subset its indices.
        inner, bracket, indices = state["fingerprint"].partition("[")
        assert inner.startswith("contents-")
        resume(dataset, state | {"fingerprint": (bracket + indices) or None})


def test_another_split_is_refused_whatever_is_known_of_the_data():
    state = state_of(Subset(TensorDataset(torch.arange(10)), [1, 2, 3]))
    for saved in (state["fingerprint"], "[" + state["fingerprint"].partition("[")[2]):
        with pytest.raises(StateMismatchError, match="fingerprint changed"):
            resume(
                Subset(TensorDataset(torch.arange(10)), [1, 2, 4]), state | {"fingerprint": saved}
            )


def test_data_that_changes_from_pass_to_pass_has_no_fingerprint_and_resumes():
    buffer = torch.zeros(10, 2)
    loader = ResumableDataLoader(TensorDataset(buffer), 2, seed=1)
    assert loader.state_dict()["fingerprint"] is not None
    one_pass(loader)
    buffer += 1  # in place
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert state["fingerprint"] is None
    resume(TensorDataset(torch.ones(10, 2) * 7), state)


def test_data_that_grows_in_the_middle_of_a_pass_resumes():
    rows = [torch.full((2,), float(number)) for number in range(6)]
    loader = ResumableDataLoader(rows, 2, seed=1)
    batches = iter(loader)
    next(batches)
    rows.append(torch.ones(2))
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    resumed = ResumableDataLoader(list(rows), 2, seed=1)
    resumed.load_state_dict(state)
    assert one_pass(resumed) == rest


def test_values_filled_in_after_the_loader_was_made_are_those_of_its_first_pass():
    buffer = torch.zeros(10, 2)
    loader = ResumableDataLoader(TensorDataset(buffer), 2, seed=1)
    buffer += 1
    next(iter(loader))
    resume(TensorDataset(torch.ones(10, 2)), loader.state_dict())


def test_a_changed_fingerprint_can_be_let_pass_or_replaced_by_ones_own():
    state = state_of(TensorDataset(torch.zeros(10)))
    loader = ResumableDataLoader(TensorDataset(torch.ones(10)), 2, seed=1)
    with pytest.warns(StateMismatchWarning, match=r"fingerprint changed.*fingerprint\(\)"):
        loader.load_state_dict(state, strict=False)
    assert len(one_pass(loader)) == 4

    class Buffer(TensorDataset):
        def fingerprint(self):
            return "buffer"

    resume(Buffer(torch.ones(10)), state_of(Buffer(torch.zeros(10))))


def test_a_fingerprint_of_the_users_own_is_asked_for_once():
    class Hashed(Ids):
        asked = 0

        def fingerprint(self):
            self.asked += 1
            return "hash of a terabyte"

    for dataset in (Hashed(6), Subset(Hashed(6), range(4))):
        loader = ResumableDataLoader(dataset, 2)
        for _ in range(3):
            one_pass(loader)
            loader.state_dict()
        assert getattr(dataset, "dataset", dataset).asked == 1


def test_states_do_not_look_at_the_data():
    values = np.zeros(10**6)
    loader = ResumableDataLoader(values, 100)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()["fingerprint"]
    values += 1
    assert loader.state_dict()["fingerprint"] == before


class Pictures(Dataset):
    """Lists its files as torchvision's folders do."""

    def __init__(self, folder: Path) -> None:
        self.samples = [(str(path), 0) for path in sorted(folder.iterdir())]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return Path(self.samples[index][0]).read_bytes()


class Lines(IterableDataset):
    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.iterdir())

    def __iter__(self):
        for path in self.files:
            yield from path.read_text().splitlines()


@pytest.mark.parametrize("kind", [Pictures, Lines])
def test_files_that_a_dataset_lists_are_known_by_name_and_size(kind, tmp_path):
    def folder(name: str, texts: dict[str, str]) -> Path:
        made = tmp_path / name
        made.mkdir()
        for file, text in texts.items():
            (made / file).write_text(text)
        return made

    first = folder("first", {"a.txt": "1\n2\n3\n", "b.txt": "4\n"})
    copied = folder("elsewhere", {"a.txt": "1\n2\n3\n", "b.txt": "4\n"})
    os.utime(copied / "a.txt", (1, 1))
    longer = folder("longer", {"a.txt": "1\n2\n33\n", "b.txt": "4\n"})
    renamed = folder("renamed", {"a.txt": "1\n2\n3\n", "c.txt": "4\n"})
    state = state_of(kind(first), batches=0)
    resume(kind(copied), state)
    for other in (longer, renamed):
        with pytest.raises(StateMismatchError, match="fingerprint changed"):
            resume(kind(other), state)


@pytest.mark.parametrize(
    "dataset",
    [Ids(5), ["a", "b"], [1, 2], range(5), {"a": torch.ones(2)}, [object()] * 3],
    ids=lambda dataset: type(dataset).__name__,
)
def test_what_does_not_lie_open_has_none(dataset):
    assert dataset_fingerprint(dataset) is None


def test_lists_of_names_that_are_no_files_are_none():
    dataset = Ids(3)
    for listed in (["no", "such"], ["\0"], ["x" * 10_000], [3], [()], [("a",)], []):
        dataset.samples = listed
        assert dataset_fingerprint(dataset) is None


def test_every_kind_of_tensor_and_array_has_one(recwarn):
    for odd in (
        torch.empty(0, 3),
        torch.tensor(3.0),
        torch.eye(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.rand(4, requires_grad=True),
        torch.nn.Parameter(torch.rand(3)),
        torch.ones(3, dtype=torch.cfloat).conj(),
        torch.zeros(2, dtype=torch.float8_e5m2),
        np.array([None, "a"], dtype=object),
        np.array(["a", "bc"]),
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
        np.array(5),
        np.ma.masked_array([1, 2]),
    ):
        assert dataset_fingerprint(odd).startswith("contents-")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_have_one_that_depends_on_nothing_but_them(layout):
    def rows(count):
        parts = [torch.ones(length) for length in range(1, count + 1)]
        return [torch.nested.nested_tensor(parts, layout=layout)]

    assert dataset_fingerprint(rows(3)) == dataset_fingerprint(rows(3))
    assert dataset_fingerprint(rows(3)) != dataset_fingerprint(rows(4))
    (batch,) = ResumableDataLoader(rows(3), collate_fn=list, num_workers=0)
    assert torch.equal(batch[0].unbind()[2], torch.ones(3))


def test_a_loader_that_was_copied_has_the_same_fingerprint():
    loader = ResumableDataLoader(TensorDataset(torch.arange(10)), 2, seed=1)
    before = loader.state_dict()
    assert pickle.loads(pickle.dumps(loader)).state_dict() == before
