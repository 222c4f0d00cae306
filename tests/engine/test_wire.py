"""What travels: every kind of batch arrives as it left, and stays as it is while it is held."""

import dataclasses
import gc
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from watching import arena_bytes

from dataporter import ResumableDataLoader


class Made:
    """Sample i is what the i-th function makes."""

    def __init__(self, functions: list[Callable[[], Any]]) -> None:
        self.functions = functions

    def __len__(self) -> int:
        return len(self.functions)

    def __getitem__(self, index: int) -> Any:
        return self.functions[index]()


def as_it_is(sample: Any) -> Any:
    return sample


def sent(*functions: Callable[[], Any]) -> list[Any]:
    """What arrives of what the functions make in a worker."""
    loader = ResumableDataLoader(
        Made(list(functions)), None, num_workers=1, collate_fn=as_it_is, shuffle=False
    )
    return list(loader)


def sent_by_torch(*functions: Callable[[], Any]) -> list[Any]:
    return list(DataLoader(Made(list(functions)), None, num_workers=1, collate_fn=as_it_is))


def same(found: Any, expected: Any) -> None:
    """Fail unless two things are equal in value, type, dtype and layout, to the last part."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.layout == expected.layout
        assert found.requires_grad == expected.requires_grad
        assert found.device == expected.device
        if expected.layout is torch.strided and not expected.is_nested and expected.numel():
            assert found.stride() == expected.stride()
        assert values(found) == values(expected)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.size == 0 or found.strides == expected.strides
        assert found.flags["WRITEABLE"] == expected.flags["WRITEABLE"]
        same(found.tolist(), expected.tolist())
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, value in expected.items():
            same(found[name], value)
    elif isinstance(expected, list | tuple | deque):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif hasattr(expected, "__dict__") and not isinstance(expected, type):
        same(vars(found), vars(expected))
    else:
        assert found == expected


def values(tensor: torch.Tensor) -> Any:
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        return values(tensor.indices()), values(tensor.values())
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout is not torch.strided or tensor.is_nested:
        return [part.tolist() for part in tensor.to_dense().unbind()]
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return flat.view(torch.uint8).tolist() if flat.numel() else []


def dtypes() -> list[torch.dtype]:
    """Every dtype that a tensor can be made of here."""
    found = []
    for name in sorted(vars(torch)):
        dtype = getattr(torch, name)
        if isinstance(dtype, torch.dtype) and dtype not in found:
            try:
                torch.empty(2, dtype=dtype).clone()
            except (RuntimeError, TypeError):
                continue
            if not torch.empty(0, dtype=dtype).is_quantized:
                found.append(dtype)
    return found


def bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of any dtype, its bytes counting up."""
    count = int(np.prod(shape))
    raw = torch.arange(count * dtype.itemsize, dtype=torch.int64).to(torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


EXPERIMENTAL = pytest.mark.filterwarnings(
    "ignore:.*Complex.* support is experimental", "ignore:torch.quantize_per_tensor"
)


@EXPERIMENTAL
def test_tensors_of_every_dtype_arrive():
    assert {torch.bool, torch.uint64, torch.bfloat16, torch.float8_e5m2, torch.complex64} <= set(
        dtypes()
    )
    for shape in ((3, 4), (), (1,), (0, 3)):
        makers = [lambda d=dtype, s=shape: bits(d, *s) for dtype in dtypes()]
        for found, make in zip(sent(*makers), makers, strict=True):
            same(found, make())


@EXPERIMENTAL
def test_tensors_of_every_dtype_are_collated_and_gathered_as_without_workers():
    for dtype in dtypes():
        for dataset in (bits(dtype, 6, 2), list(bits(dtype, 6, 2).unbind())):
            try:
                expected = list(ResumableDataLoader(dataset, 4))
            except (RuntimeError, NotImplementedError):
                continue  # torch itself cannot stack or index these
            same(list(ResumableDataLoader(dataset, 4, num_workers=1)), expected)


LAYOUTS = {
    "transposed": lambda: torch.rand(4, 5).t(),
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last 3d": lambda: torch.rand(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "permuted": lambda: torch.rand(2, 3, 4, 5).permute(3, 0, 2, 1),
    "expanded": lambda: torch.arange(3.0).view(3, 1).expand(3, 4),
    "expanded in front": lambda: torch.arange(3.0).expand(5, 3),
    "expanded scalar": lambda: torch.tensor(2.5).expand(2, 3),
    "expanded and transposed": lambda: torch.rand(4, 3).t().unsqueeze(1).expand(3, 6, 4),
    "permuted bfloat16": lambda: bits(torch.bfloat16, 2, 3, 4).permute(2, 0, 1),
    "requires grad": lambda: torch.rand(3).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative view": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "empty": lambda: torch.empty(0),
    "empty transposed": lambda: torch.empty(0, 3).t(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_every_layout_arrive(layout):
    make = LAYOUTS[layout]
    torch.manual_seed(0)
    expected = make()

    def made():
        torch.manual_seed(0)
        return make()

    (found,) = sent(made)
    if layout in ("conjugate", "negative view"):
        assert values(found) == values(expected)
        assert found.shape == expected.shape
        return
    same(found, expected)
    assert found.is_leaf


STEPS = {
    "every second column": lambda: torch.arange(12.0).view(3, 4)[:, ::2],
    "a column": lambda: torch.arange(12.0).view(3, 4)[:, 1],
    "a slice": lambda: torch.arange(12.0)[3:7],
    "a diagonal": lambda: torch.arange(16).view(4, 4).diagonal(),
    "a window": lambda: torch.arange(10).unfold(0, 4, 1),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_view_of_part_of_a_tensor_arrives_without_the_rest(kind):
    (found,) = sent(STEPS[kind])
    assert found.dtype == STEPS[kind]().dtype
    assert found.tolist() == STEPS[kind]().tolist()


def test_an_expanded_tensor_is_not_blown_up_on_the_way():
    huge = torch.ones(1).expand(2**28)  # 1 GiB, if every element had a place of its own
    (found,) = sent(lambda: huge)
    assert found.shape == huge.shape
    assert found[-1] == 1
    assert found.untyped_storage().nbytes() < 1000


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Labelled:
    image: Any
    label: Any = None
    others: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    image: torch.Tensor


class Custom:
    def __init__(self) -> None:
        self.tensors = {"a": torch.ones(2), "b": [torch.zeros(1, dtype=torch.int8)]}
        self.array = np.arange(4.0)
        self.text = "text"


class Marked(torch.Tensor):
    pass


STRUCTURED = np.dtype([("id", "i4"), ("name", "U3"), ("at", "f8", (2,))])

OBJECTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "numbers": lambda: [1, -2.5, 3 + 4j, 2**80, True, float("inf")],
    "text": lambda: ["", "naïve ✓", "a" * 100_000],
    "bytes": lambda: [b"", b"\x00\xff", b"x" * 300_000, bytearray(b"abc")],
    "large bytes": lambda: {"jpg": [b"x" * 50_000, b"", b"y" * 9_000], "key": ["a", "b", "c"]},
    "columns": lambda: {"a": ["x", ""], "b": (1, 2), "c": [1.5, None, b"z"], "t": torch.ones(2)},
    "mixed columns": lambda: {"a": ["x", torch.ones(2)], "b": [1, np.ones(3), "y"]},
    "containers": lambda: {"a": [torch.ones(2), (1, {"b": torch.zeros(3)})], 5: (), "c": {}},
    "sets": lambda: [{1, 2}, frozenset("ab")],
    "ordered": lambda: OrderedDict(b=torch.ones(1), a=2),
    "counted": lambda: Counter("abca"),
    "defaults": lambda: defaultdict(list, a=[torch.ones(1)]),
    "deque": lambda: deque([torch.ones(1), 2], maxlen=3),
    "named tuple": lambda: Point(torch.arange(3), Point(1, "y")),
    "dataclass": lambda: Labelled(torch.rand(0, 3), "cat", [torch.ones(1), np.ones(2)]),
    "custom": Custom,
    "tensor subclass": lambda: torch.arange(3.0).as_subclass(Marked),
    "dtypes and devices": lambda: [torch.float32, torch.device("cpu"), torch.Size([2, 3])],
    "many tensors": lambda: [torch.full((2, 3), i) for i in range(1000)],
    "array": lambda: np.arange(12, dtype=np.int16).reshape(3, 4),
    "0-d array": lambda: np.array(7.5),
    "empty arrays": lambda: [np.empty(0), np.empty((0, 3), np.int8), np.empty((2, 0), "U4")],
    "fortran order": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "structured": lambda: np.array([(1, "ab", (1.0, 2.0)), (2, "c", (0.0, -1.0))], STRUCTURED),
    "record": lambda: np.array([(1, "ab", (1.0, 2.0))], STRUCTURED)[0],
    "objects": lambda: np.array([None, "a", 1, (2, 3)], dtype=object),
    "times": lambda: np.array(["2024-01-01", "NaT"], "M8[D]").astype("i8"),
    "strings": lambda: np.array(["a", "bcd"]),
    "byte strings": lambda: np.array([b"a", b"bcd"]),
    "half": lambda: np.arange(4, dtype=np.float16),
    "long double": lambda: np.arange(4, dtype=np.longdouble),
    "complex": lambda: np.arange(4) * 1j,
    "scalars": lambda: [np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("a")],  # noqa: FBT003
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_batches_of_every_kind_arrive_as_from_torchs_loader(kind):
    make = OBJECTS[kind]
    (found,), (by_torch,) = sent(make), sent_by_torch(make)
    same(found, make())
    same(found, by_torch)


def test_a_frozen_dataclass_with_slots_arrives():
    (found,) = sent(lambda: Frozen(torch.arange(3)))
    assert type(found) is Frozen
    same(found.image, torch.arange(3))


def test_an_array_of_foreign_byte_order_arrives():
    (found,) = sent(lambda: np.arange(4, dtype=">i4"))
    same(found, np.arange(4, dtype=">i4"))


@pytest.mark.parametrize(
    "make", [lambda: np.arange(12).reshape(3, 4)[:, ::2], lambda: np.arange(6)[::-1]]
)
def test_an_array_with_gaps_arrives_with_its_values(make):
    (found,) = sent(make)
    assert found.dtype == make().dtype
    assert found.tolist() == make().tolist()


def test_a_tensor_that_is_twice_in_a_batch_arrives_as_one():
    def make():
        tensor = torch.arange(4.0)
        return {"a": tensor, "b": [tensor, tensor]}

    (found,) = sent(make)
    assert found["a"] is found["b"][0] is found["b"][1]
    found["a"][0] = 9
    assert found["b"][1].tolist() == [9, 1, 2, 3]


def test_a_batch_may_be_written_to():
    for batch in ResumableDataLoader(torch.zeros(40, 3), 4, num_workers=2):
        assert batch.tolist() == [[0] * 3] * 4
        batch += 1


def test_an_array_may_be_written_to():
    for array in sent(*[lambda: np.zeros(3)] * 12):
        assert array.tolist() == [0] * 3
        array += 1


def test_batches_of_growing_size_arrive():
    makers = [lambda n=n: torch.arange(n) for n in (0, 1, 10, 10**5, 10**6, 3, 2 * 10**6, 7)]
    for found, make in zip(sent(*makers), makers, strict=True):
        assert torch.equal(found, make())


# What is held


class Batches:
    """Batch i: tensors and arrays that are all i."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "x": torch.full((30, 40), index),
            "y": [torch.full((7,), index, dtype=torch.bfloat16), torch.full((3, 2), index).t()],
            "z": np.full((20, 3), index, np.int32),
            "gone": torch.full((1000,), index),
        }


HELD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda batch: None,
    "all": lambda batch: list(_leaves(batch)),
    "a tensor": lambda batch: batch["x"],
    "a slice": lambda batch: batch["x"][3:5, ::7],
    "an element": lambda batch: batch["x"][2, 2],
    "a view": lambda batch: batch["x"].view(-1)[5:],
    "another dtype": lambda batch: batch["x"].view(torch.int32)[:, ::2],
    "as NumPy": lambda batch: batch["x"].numpy(),
    "a slice as NumPy": lambda batch: batch["x"][1:].numpy()[::3],
    "as NumPy and back": lambda batch: torch.from_numpy(batch["x"].numpy()[4]),
    "detached": lambda batch: batch["x"].detach(),
    "data": lambda batch: batch["x"].data,
    "storage": lambda batch: torch.tensor([], dtype=torch.int64).set_(
        batch["x"].untyped_storage(), 0, (30, 40)
    ),
    "bfloat16": lambda batch: batch["y"][0][1:],
    "transposed": lambda batch: batch["y"][1].t(),
    "an array": lambda batch: batch["z"],
    "part of an array": lambda batch: batch["z"][5:, 1],
    "an array as a tensor": lambda batch: torch.from_numpy(batch["z"])[2],
    "a memoryview": lambda batch: np.asarray(memoryview(batch["z"])[3:]),
    "a field": lambda batch: [batch["y"][0], batch["z"]],
}


def _leaves(batch: Any) -> Any:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch


def unchanged(held: Any, index: int) -> bool:
    return all(bool((part == index).all()) for part in _leaves(held) if part is not None)


def hold_and_look(choices: list[str], drops: list[int], workers: int = 2) -> None:
    """Hold parts of delivered batches, drop some now and then, and look at all, always."""
    loader = ResumableDataLoader(Batches(), None, num_workers=workers, collate_fn=as_it_is)
    held: dict[int, Any] = {}
    for index, batch in enumerate(loader):
        held[index] = HELD[choices[index % len(choices)]](batch)
        del batch
        held.pop(index - drops[index % len(drops)], None)
        assert all(unchanged(part, i) for i, part in held.items())


@pytest.mark.parametrize("kind", HELD)
def test_what_is_held_of_a_batch_never_changes(kind):
    hold_and_look([kind], [1000])


@settings(max_examples=12)
@given(
    st.lists(st.sampled_from(sorted(HELD)), min_size=1, max_size=60),
    st.lists(st.integers(0, 20), min_size=1, max_size=60),
)
def test_whatever_is_held_and_dropped_the_rest_never_changes(choices, drops):
    hold_and_look(choices, drops)


def test_what_is_held_outlives_the_loader_and_its_workers():
    chance = random.Random(0)
    held = [(i, HELD[chance.choice(sorted(HELD))](b)) for i, b in enumerate(sent(*_made(40)))]
    gc.collect()
    again = sent(*_made(40))
    assert all(unchanged(part, index) for index, part in held)
    assert all(unchanged(list(_leaves(batch)), index) for index, batch in enumerate(again))


def _made(count: int) -> list[Callable[[], Any]]:
    return [lambda i=i: Batches()[i] for i in range(count)]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_consumer_that_keeps_every_batch_has_them_all(persistent):
    loader = ResumableDataLoader(
        Batches(), None, num_workers=2, collate_fn=as_it_is, persistent_workers=persistent
    )
    kept = [list(loader) for _ in range(2)]
    for batches in kept:
        assert len(batches) == 60
        assert all(unchanged(list(_leaves(batch)), i) for i, batch in enumerate(batches))


class Megabytes:
    """A batch is a megabyte."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2**18,), index, dtype=torch.int32)


def test_memory_is_bounded_by_what_is_prefetched_and_held():
    loader = ResumableDataLoader(Megabytes(300), None, num_workers=2, prefetch_factor=2)
    for batch in loader:
        del batch
        # Four ahead, up to 16 times as many while a batch is late, and what the consumer has.
        assert arena_bytes() < 70 * 2**20


def test_memory_that_was_needed_to_hold_batches_is_given_back():
    loader = ResumableDataLoader(
        Megabytes(400), None, num_workers=2, prefetch_factor=2, persistent_workers=True
    )
    kept = list(loader)
    assert arena_bytes() > 400 * 2**20
    del kept
    assert arena_bytes() < 300 * 2**20  # 256 MB for what is fetched ahead of a late batch
    assert [int(batch[-1]) for batch in loader] == list(range(400))
    assert 2**20 < arena_bytes() < 300 * 2**20


def test_workers_leave_nothing_in_dev_shm_however_samples_are_collated():
    dataset = [Point(torch.ones(3), np.zeros(3)), Point(torch.zeros(3), np.ones(3))] * 8
    loader = ResumableDataLoader(dataset, 4, num_workers=1, worker_init_fn=_without_shared_memory)
    assert [batch.x.shape for batch in loader] == [(4, 3)] * 4


def _without_shared_memory(_worker: int) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("memory of torch's own is shared where ours is meant to be")

    torch.UntypedStorage._new_shared = refuse  # type: ignore[assignment,method-assign]
