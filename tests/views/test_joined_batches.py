"""Batches of views are gathered from what they are made of, and are those of their samples."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sameness import assert_same, assert_same_batches, outcome
from torch.utils.data import Subset, TensorDataset, default_collate

from dataporter import ResumableDataLoader
from dataporter.fetch.vectorised import gather_for
from dataporter.shards import ShardedDataset
from dataporter.views import Mixture, packed, where

LENGTH = 16  # tokens of a packed sample


class Rows:
    """Dicts of rows, which are gathered by a dataset's own code; `bad` samples are damaged."""

    def __init__(self, rows, names=("x", "y"), bad=()):
        self.rows, self.names, self.bad = rows, names, bad
        self.gathered = 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"sample {index} is damaged")
        return dict.fromkeys(self.names, self.rows[index])

    def batch_gather(self):
        def gather(indices, empty):
            if set(self.bad).intersection(indices.tolist()):
                raise OSError("damaged")
            self.gathered += 1
            return {name: self.rows[torch.from_numpy(indices)] for name in self.names}

        return gather


class Crooked(Rows):
    """Rows whose gather forgets one of them."""

    def batch_gather(self):
        return lambda indices, _: dict.fromkeys(self.names, self.rows[indices[1:]])


def rows_of(dtype, *shape, count=20):
    numbers = torch.arange(count * int(np.prod(shape))).reshape(count, *shape)
    return numbers.to(dtype)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Documents in Arrow files, by the dtype of their tokens."""

    def written(number, dtype):
        folder = tmp_path_factory.mktemp(f"corpus{number}")
        lengths = np.random.default_rng(number).integers(0, 40, 60)
        documents = [1000 * number + np.arange(n) for n in lengths]
        table = pa.table({"tokens": pa.array(documents, pa.list_(dtype))})
        with (
            pa.OSFile(str(folder / "a.arrow"), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table, max_chunksize=20)
        return ShardedDataset(folder)

    return [
        written(number, dtype)
        for number, dtype in enumerate([pa.uint16(), pa.uint16(), pa.uint16(), pa.int32()])
    ]


@pytest.fixture(scope="module")
def makes(corpora):
    """Datasets that can be gathered, in groups whose batches are alike, and one that cannot."""
    packs = [corpora[number].packed(LENGTH) for number in range(3)]
    marked = [corpora[number].packed(LENGTH, boundaries=True, pad_id=9) for number in range(2)]
    listed = [list(range(number, number + number % 30)) for number in range(40)]
    bins = corpora[0].packed(LENGTH, kind="best-fit", boundaries=["loss_mask", "position_ids"])
    pairs = [TensorDataset(rows_of(torch.bfloat16, 3), rows_of(kind)) for kind in (torch.int8,) * 2]
    return [
        [*packs, Subset(packs[0], [4, 0, 2, 2]), Mixture({"a": (packs[0], 2), "b": (packs[1], 1)})],
        [*marked, corpora[2].packed(LENGTH, boundaries=True)],
        [bins, corpora[1].packed(LENGTH, boundaries=["loss_mask", "position_ids"])],
        [corpora[3].packed(LENGTH)],
        [packed(listed, LENGTH), packed(listed, LENGTH, end_id=7, kind="best-fit")],
        [corpora[0].packed(LENGTH, end_id=3), corpora[1].packed(LENGTH, end_id=4)],
        [*pairs, where(pairs[0], is_even, num_workers=0)],
        [rows_of(torch.complex64, 2), Subset(rows_of(torch.complex64, 2), range(3, 9))],
        [rows_of(torch.float64).numpy(), rows_of(torch.float64)],
        [rows_of(torch.uint16, 2, 2).numpy(), rows_of(torch.uint16, 2, 2)],
        [rows_of(torch.float32, 9000), rows_of(torch.float32, 9000, count=5)],
        [rows_of(torch.uint32, 9000), rows_of(torch.bfloat16, 9000)],
        [Rows(rows_of(torch.int64)), Rows(rows_of(torch.int64))],
        [Rows(rows_of(torch.int64), "yx"), Rows(rows_of(torch.int64), "xyz")],
        [Crooked(rows_of(torch.int64)), Rows(rows_of(torch.int64))],
        [rows_of(torch.float32, 2).requires_grad_(), rows_of(torch.float32, 2)],
        [list(rows_of(torch.float32, 2))],
    ]


def is_even(sample):
    return int(sample[1]) % 2 == 0


def mixed(parts):
    return Mixture({str(number): (part, 1 + number) for number, part in enumerate(parts)})


@given(data=st.data())
def test_a_gathered_batch_of_a_mixture_is_the_collation_of_its_samples(makes, data):
    anything = list(itertools.chain.from_iterable(makes))
    group = data.draw(st.sampled_from([*makes, *makes, anything]))
    parts = data.draw(st.lists(st.sampled_from(group), min_size=1, max_size=4))
    mixture = mixed(parts)
    gather = mixture.batch_gather()
    placed = set()

    def empty(shape, dtype):
        tensor = torch.empty(shape, dtype=dtype)
        placed.add(tensor.data_ptr())
        return tensor

    if gather is None:
        assert any(gather_for(part) is None for part in parts)
        return
    indices = st.lists(st.integers(0, mixture.index_space - 1), min_size=1, max_size=20)
    for wanted in data.draw(st.lists(indices, min_size=1, max_size=3)):
        chosen = data.draw(st.sampled_from([None, empty]))
        batch = gather(np.array(wanted), chosen)
        samples = outcome(default_collate, mixture.__getitems__(wanted))
        # A number of an array and one of a tensor cannot be collated, but joined.
        if batch is not None and samples is not TypeError:
            assert_same(batch, samples)


@pytest.mark.parametrize("group", [0, 1, 4, 5])  # in files or a list, with and without an end_id
def test_a_mixture_of_packed_parts_is_gathered_into_the_memory_of_the_batch(makes, group):
    mixture = mixed(makes[group])
    placed = []

    def empty(shape, dtype):
        placed.append(torch.empty(shape, dtype=dtype))
        return placed[-1]

    order = mixture.epoch_order(shuffle=True, seed=1, step_size=8, world_size=1)
    indices = order.indices(3, np.arange(24))
    assert indices.max() >= len(mixture)  # windows of a shuffled epoch
    batch = mixture.batch_gather()(indices, empty)
    assert batch["tokens"].data_ptr() in {tensor.data_ptr() for tensor in placed}
    assert_same(batch, default_collate(mixture.__getitems__(indices.tolist())))


def test_batches_whose_rows_are_large_are_written_once(makes):
    mixture = mixed(makes[10])
    placed = []

    def empty(shape, dtype):
        placed.append(torch.empty(shape, dtype=dtype))
        return placed[-1]

    batch = mixture.batch_gather()(np.array([21, 3, 0, 24]), empty)
    assert [batch.data_ptr()] == [tensor.data_ptr() for tensor in placed]
    assert_same(batch, default_collate(mixture.__getitems__([21, 3, 0, 24])))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_of_packed_parts_delivers_what_it_makes_of_samples(makes, num_workers):
    for parts in (*makes[:3], *makes[4:6]):
        options = {"shuffle": True, "seed": 3, "num_workers": num_workers}
        gathered = ResumableDataLoader(mixed(parts), 6, **options)
        of_samples = ResumableDataLoader(mixed(parts), 6, collate_fn=default_collate, **options)
        assert_same_batches(gathered, of_samples)
        assert_same_batches(gathered, of_samples)  # another epoch, of other windows


UNLIKE = {
    "dtypes": (rows_of(torch.int32), rows_of(torch.int64)),
    "dimensions": (rows_of(torch.int32, 2), rows_of(torch.int32, 2, 1)),
    "widths": (rows_of(torch.int32, 3), rows_of(torch.int32, 1)),
    "names": (Rows(rows_of(torch.int64), "xy"), Rows(rows_of(torch.int64), "xz")),
    "sequences of names": (Rows(rows_of(torch.int64), "xy"), Rows(rows_of(torch.int64), "yx")),
    "containers": (rows_of(torch.int64), TensorDataset(rows_of(torch.int64))),
    "numbers of columns": (
        TensorDataset(rows_of(torch.int64)),
        TensorDataset(rows_of(torch.int64), rows_of(torch.int64)),
    ),
    "numbers of rows": (Crooked(rows_of(torch.int64)), Rows(rows_of(torch.int64))),
    "gradients": (rows_of(torch.float32), rows_of(torch.float32).requires_grad_()),
}


@pytest.mark.parametrize("unlike", UNLIKE)
def test_batches_of_parts_that_are_unlike_are_made_of_samples(unlike):
    mixture = mixed(UNLIKE[unlike])
    assert mixture.batch_gather()(np.array([3, 21]), None) is None
    loaders = (
        ResumableDataLoader(mixture, 2),
        ResumableDataLoader(mixture, 2, collate_fn=default_collate),
    )
    assert_same(*(outcome(next, iter(loader)) for loader in loaders))


def test_parts_that_are_unlike_are_gathered_once_a_pass():
    parts = Rows(rows_of(torch.int64), "xy"), Rows(rows_of(torch.int64), "yx")
    loader = ResumableDataLoader(mixed(parts), 5)
    for passes in (1, 2):
        assert len(list(loader)) == 12
        assert [part.gathered for part in parts] == [passes, passes]


def test_parts_without_rows_in_a_batch_are_not_asked():
    parts = Rows(rows_of(torch.int64)), Rows(rows_of(torch.int64)), Rows(rows_of(torch.int64))
    mixture = mixed(parts)
    assert mixture.batch_gather()(np.array([45, 3]), None)["x"].tolist() == [5, 3]
    assert [part.gathered for part in parts] == [1, 0, 1]


def test_an_index_out_of_range_is_named_whoever_makes_the_batch(makes):
    mixture = mixed(makes[12])
    for batch_sampler in ([[3, 40]], [[3, 1000]]):
        with pytest.raises(IndexError, match=r"is out of range: the mixture has 40 samples"):
            list(ResumableDataLoader(mixture, batch_sampler=batch_sampler))


def test_damaged_samples_of_a_part_are_left_out_one_by_one():
    parts = Rows(rows_of(torch.int64), bad=[5]), Rows(rows_of(torch.int64))
    loader = ResumableDataLoader(mixed(parts), 4, shuffle=True, seed=2, on_error="skip")
    batches = list(loader)
    expected = ResumableDataLoader(mixed(parts), 4, shuffle=True, seed=2)
    with pytest.raises(OSError, match="damaged"):
        list(expected)
    assert [skipped.index for skipped in loader.skipped] == [5]
    assert sum(len(batch["x"]) for batch in batches) == 60 - 1
    assert parts[0].gathered > 0


def test_what_is_excluded_is_not_gathered(makes):
    loader = ResumableDataLoader(mixed(makes[0][:2]), 4, shuffle=True, seed=2)
    of_samples = ResumableDataLoader(
        mixed(makes[0][:2]), 4, shuffle=True, seed=2, collate_fn=default_collate
    )
    for each in (loader, of_samples):
        each.exclude(0, 3, 9)
    assert_same_batches(loader, of_samples)


def columns(**dtypes):
    """Two datasets of three and two rows, whose batches are dicts; the second has these dtypes."""
    from datasets import Dataset

    one = Dataset.from_dict({"x": [0, 1, 2], "y": [0.0, 0.5, 1.0]})
    return one, Dataset.from_dict({name: [kind(3), kind(4)] for name, kind in dtypes.items()})


@pytest.mark.imports_much
def test_dicts_of_columns_are_joined_in_the_order_of_the_indices():
    gather = mixed(columns(x=int, y=float)).batch_gather()
    batch = gather(np.array([4, 0, 3, 2]), None)
    assert list(batch) == ["x", "y"]
    assert torch.equal(batch["x"], torch.tensor([4, 0, 3, 2]))
    assert torch.equal(batch["y"], torch.tensor([4.0, 0.0, 3.0, 1.0], dtype=torch.float64))


@pytest.mark.imports_much
@pytest.mark.parametrize("second", [{"x": int}, {"x": float, "y": float}, {"x": int, "z": float}])
def test_dicts_of_other_columns_or_dtypes_are_not_joined(second):
    gather = mixed(columns(**second)).batch_gather()
    assert gather(np.array([4, 0, 3, 2]), None) is None
