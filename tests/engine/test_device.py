"""Batches go ahead to a device and change nothing: neither data, nor states, nor errors.

Where there is no CUDA device, one is pretended: what is copied stays where it is, and all
else is as with a real one. What a real one is needed for is skipped there, and says so.
"""

import functools
import itertools
import os
import signal
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support import Augmented, Ids, Stateful, one_pass, pass_with_states, passes, plain
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import IterableDataset

from dataporter import (
    OptionError,
    OptionTypeError,
    ResumableDataLoader,
    WorkerRestartWarning,
)
from dataporter.converters import DtypeConverter, KeyBasedDtypeConverter
from dataporter.engine.device import sent_ahead
from dataporter.engine.interface import Results

HAS_CUDA = torch.cuda.is_available()
LENGTH, BATCH = 37, 4

ENGINES = [
    pytest.param({}, id="inline"),
    pytest.param({"num_workers": 2}, id="processes"),
    pytest.param({"num_workers": 2, "persistent_workers": True}, id="persistent"),
    pytest.param({"num_workers": 2, "engine": "threads"}, id="threads"),
]


class PretendedCopies:
    """Says that it copies, and hands over the batch itself."""

    def __init__(self, device: torch.device) -> None:
        assert device.index is not None

    def __call__(self, batch: Any) -> Any:
        return lambda: batch


@pytest.fixture
def device(monkeypatch) -> str:
    if not HAS_CUDA:
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
        monkeypatch.setattr("dataporter.engine.device.CudaCopies", PretendedCopies)
    return "cuda"


def make(dataset: Any = None, **options: Any) -> ResumableDataLoader:
    dataset = Augmented(LENGTH, "own") if dataset is None else dataset
    options = {"batch_size": BATCH, "shuffle": True, "seed": 5, **options}
    return ResumableDataLoader(dataset, **options)


@functools.cache
def reference() -> list[list[Any]]:
    """Three epochs without a device and without workers."""
    return passes(make(), 3)


# The same data and the same states


@pytest.mark.parametrize("options", ENGINES)
@pytest.mark.parametrize("depth", [1, 2, 7])
def test_several_epochs_are_those_without_a_device(device, options, depth):
    loader = make(device=device, device_prefetch=depth, **options)
    assert passes(loader, 3) == reference()


@pytest.mark.parametrize("options", ENGINES)
def test_the_states_are_those_without_a_device(device, options):
    expected, found = make(), make(device=device, **options)
    for _ in range(2):
        assert pass_with_states(found) == pass_with_states(expected)


@pytest.mark.parametrize("options", ENGINES)
def test_a_resume_at_every_batch_is_exact(device, options):
    first, states = pass_with_states(make(device=device, **options))
    assert first == reference()[0]
    for done, state in list(enumerate(states[:-1]))[::3]:
        resumed = make(device=device, **options)
        resumed.load_state_dict(state)
        assert one_pass(resumed) == reference()[0][done:]
        assert one_pass(resumed) == reference()[1]


@pytest.mark.parametrize("options", ENGINES)
def test_a_pass_that_is_broken_off_forgets_what_was_copied_ahead(device, options):
    loader = make(device=device, **options)
    seen = [plain(batch) for batch in itertools.islice(loader, 3)]
    state = loader.state_dict()
    assert one_pass(loader) == reference()[1]
    loader.load_state_dict(state)
    assert seen + one_pass(loader) == reference()[0]


@pytest.mark.parametrize("options", ENGINES)
def test_a_sampler_with_a_state_is_where_the_delivered_batch_left_it(device, options):
    def loader(**more):
        return make(shuffle=False, sampler=Stateful(LENGTH, LENGTH), **options, **more)

    expected, states = pass_with_states(loader())
    assert pass_with_states(loader(device=device))[0] == expected
    resumed = loader(device=device)
    resumed.load_state_dict(states[4])
    assert one_pass(resumed) == expected[4:]


def test_batches_that_are_delivered_as_they_come_are_all_counted(device):
    loader = make(device=device, in_order=False, num_workers=3)
    seen = [plain(batch) for batch in itertools.islice(loader, 4)]
    state = loader.state_dict()
    resumed = make(device=device, in_order=False, num_workers=2)
    resumed.load_state_dict(state)
    rest = one_pass(resumed)
    indices = sorted(index for ids, _ in seen + rest for index in ids)
    assert indices == list(range(LENGTH))


class Lines(IterableDataset):
    """Numbers, and how many were read: a stream with a state."""

    def __init__(self, length: int) -> None:
        self.length, self.read = length, 0

    def __iter__(self):
        while self.read < self.length:
            self.read += 1
            yield torch.tensor([self.read, self.read**2])
        self.read = 0

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


@pytest.mark.parametrize("options", ENGINES)
def test_streams_are_read_on_from_what_was_delivered(device, options):
    def loader(**more):
        return ResumableDataLoader(Lines(26), 4, seed=1, **options, **more)

    expected, _ = pass_with_states(loader())
    found, states = pass_with_states(loader(device=device))
    assert found == expected
    for done, state in list(enumerate(states[:-1]))[::2]:
        resumed = loader(device=device)
        resumed.load_state_dict(state)
        assert one_pass(resumed) == expected[done:]


def test_samples_that_are_left_out_stay_left_out(device):
    class Faulty(Ids):
        def __getitem__(self, index: int) -> int:
            if 8 <= index < 14:
                raise ValueError(index)
            return super().__getitem__(index)

    loader = make(Faulty(20), device=device, on_error="skip", num_workers=2, shuffle=False)
    assert one_pass(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [14, 15], [16, 17, 18, 19]]


class OddError(Exception):
    pass


class FailsAt(Ids):
    def __getitem__(self, index: int) -> int:
        if index == 14:
            raise OddError(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("options", ENGINES)
def test_an_error_comes_after_the_batches_before_it_and_those_after_it_follow(device, options):
    loader = make(FailsAt(LENGTH), shuffle=False, device=device, **options)
    iterator = iter(loader)
    assert [next(iterator)[0].item() for _ in range(3)] == [0, 4, 8]
    with pytest.raises(OddError):
        next(iterator)
    assert loader.state_dict()["samples_processed"] == 12
    assert [batch[0].item() for batch in iterator] == [16, 20, 24, 28, 32, 36]


# Any container


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Record:
    x: Any
    note: str = "kept"


# Each made of an image of 2x3x4
BATCHES = {
    "tensor": lambda image: image,
    "list": lambda image: [image, "text", 1, None],
    "tuple": lambda image: (image, b"bytes", {"a": [image + 1]}),
    "named": lambda image: Pair(image, {"z": image.half()}),
    "ordered": lambda image: OrderedDict(b=image, a=2.5),
    "dataclass": Record,
    "permuted": lambda image: image.permute(2, 0, 1),
    "expanded": lambda image: torch.ones(3, 1).expand(3, 5),
    "empty": lambda image: torch.empty(0, 3),
    "bfloat16": lambda image: image.bfloat16(),
    "bool": lambda image: image > 3,
    "scalar": lambda image: torch.tensor(3),
    "strings": lambda image: ["a", "b"],
    "array": lambda image: np.arange(4),
    "sparse": lambda image: image[0].to_sparse(),
    "quantised": lambda image: torch.quantize_per_tensor(image, 0.1, 0, torch.qint8),
    "packed": lambda image: pack_sequence([torch.ones(3), torch.ones(2)]),
    "graph": lambda image: torch.ones(3, requires_grad=True),
}


def as_it_is(batch: Any) -> Any:
    return batch


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        one, other = one.detach(), other.detach().cpu()
        if one.layout is not torch.strided:
            one, other = one.to_dense(), other.to_dense()
        if one.is_quantized:
            one, other = one.dequantize(), other.dequantize()
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, Record):
        return alike(vars(one), vars(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.filterwarnings("ignore")  # torch deprecates what is quantised
def test_any_container_arrives_as_it_is(device, target, workers, kind):
    batch = BATCHES[kind](torch.arange(24.0).view(2, 3, 4))
    loader = ResumableDataLoader(
        [batch], None, collate_fn=as_it_is, num_workers=workers, device=target
    )
    (found,) = loader
    assert type(found) is type(batch)
    assert alike(batch, found)
    if target == "cuda" and HAS_CUDA and isinstance(batch, torch.Tensor):
        assert found.device == torch.device("cuda", 0)
        if kind not in ("expanded", "sparse"):
            assert found.stride() == batch.stride()


def test_what_is_in_a_batch_twice_is_one_thing_on_the_device(device):
    image = torch.ones(2, 3)
    loader = ResumableDataLoader([(image, [image])], None, collate_fn=as_it_is, device=device)
    ((first, (second,)),) = loader
    assert first is second


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("options", ENGINES)
def test_what_is_narrow_on_its_way_is_wide_on_the_device(device, target, options):
    rows = [{"image": torch.full((3,), i / 8), "ids": torch.tensor([i])} for i in range(16)]
    loader = ResumableDataLoader(
        rows,
        4,
        converter=KeyBasedDtypeConverter({"image": "float16", "ids": "uint8"}),
        device=target,
        device_converter=KeyBasedDtypeConverter({"image": "float32", "ids": "int64"}),
        **options,
    )
    expected = ResumableDataLoader(rows, 4)
    for found, batch in zip(loader, expected, strict=True):
        assert {name: part.dtype for name, part in found.items()} == {
            "image": torch.float32,
            "ids": torch.int64,
        }
        assert plain(found) == plain(batch)


def test_on_the_cpu_nothing_is_fetched_ahead():
    fetched = []

    class Noted(Ids):
        def __getitem__(self, index: int) -> int:
            fetched.append(index)
            return index

    iterator = iter(ResumableDataLoader(Noted(6), 2, device="cpu"))
    next(iterator)
    assert fetched == [0, 1]


# What goes ahead, and how far


def results_of(each: Any, there: Any = lambda: True) -> Results:
    return Results(((number, number) for number in each), there)


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_so_many_are_on_their_way_and_no_more(depth):
    under_way: deque[int] = deque()
    most = 0

    def send(batch):
        nonlocal most
        under_way.append(batch)
        most = max(most, len(under_way))
        return under_way.popleft

    found = []
    for task, batch in sent_ahead(results_of(range(20)), send, depth):
        found.append((task, batch))
        assert len(under_way) == min(depth, len(found), 20 - len(found))
    assert found == [(number, number) for number in range(20)]
    assert most == depth + 1


def test_nobody_waits_for_a_result_while_another_is_on_its_way():
    pulled = []

    def each():
        for number in range(4):
            pulled.append(number)
            yield number

    there = False
    ahead = sent_ahead(results_of(each(), lambda: there), lambda batch: lambda: batch, 2)
    assert next(ahead) == (0, 0)
    assert pulled == [0]  # it was needed
    there = True
    assert next(ahead) == (1, 1)
    there = False
    assert pulled == [0, 1, 2]
    assert next(ahead) == (2, 2)
    assert pulled == [0, 1, 2]
    assert list(ahead) == [(3, 3)]


def test_what_ends_an_engine_is_raised_when_it_is_its_turn():
    def each():
        yield from range(3)
        raise OddError

    ahead = sent_ahead(results_of(each()), lambda batch: lambda: batch, 5)
    assert [next(ahead) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(OddError):
        next(ahead)


def test_an_interrupt_is_not_kept_for_later():
    def each():
        yield 0
        raise KeyboardInterrupt

    ahead = sent_ahead(results_of(each()), lambda batch: lambda: batch, 1)
    with pytest.raises(KeyboardInterrupt):
        next(ahead)


# Bad input


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"device": "gpu"}, OptionError, "found 'gpu'"),
        ({"device": 1}, OptionTypeError, "found int 1"),
        ({"device": "meta"}, OptionError, "has no data"),
        ({"device": "xla"}, OptionError, "device='xla' cannot be used with torch"),
        ({"pin_memory_device": "gpu"}, OptionError, "found 'gpu'"),
        ({"device": "cuda:99"}, OptionError, "cuda:99"),
        ({"device": "cpu", "pin_memory_device": "cuda"}, OptionError, "contradicts device='cpu'"),
        ({"device": "cpu", "device_prefetch": 0}, OptionError, "at least 1, found 0"),
        ({"device": "cpu", "device_prefetch": 1.5}, OptionTypeError, "found float 1.5"),
        ({"device": "cpu", "device_converter": 3}, OptionTypeError, "device_converter"),
        ({"device_converter": DtypeConverter("float32")}, OptionError, "device=None"),
    ],
)
def test_devices_that_cannot_work_are_refused_in_words(options, error, words):
    with pytest.raises(error) as raised:
        ResumableDataLoader(Ids(4), **options)
    assert words in str(raised.value)


@pytest.mark.skipif(HAS_CUDA, reason="there is CUDA here")
def test_cuda_without_cuda_is_refused_before_anything_is_built():
    with pytest.raises(OptionError, match="needs CUDA, and torch"):
        ResumableDataLoader(Ids(4), device="cuda")


def test_a_device_that_is_not_there_is_named_with_those_that_are(device, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(OptionError, match="'cuda:2' does not exist: there are 'cuda:0' to"):
        ResumableDataLoader(Ids(4), device="cuda:2")
    with pytest.raises(OptionError, match="'cuda:1' contradicts device='cuda:0'"):
        ResumableDataLoader(Ids(4), device="cuda:0", pin_memory_device="cuda:1")
    ResumableDataLoader(Ids(4), device="cuda:1", pin_memory_device="cuda")


@pytest.mark.skipif(HAS_CUDA, reason="devices are pretended")
@pytest.mark.parametrize(
    ("current", "local_rank", "expected"), [(0, None, 0), (0, "1", 1), (1, "0", 1), (0, "7", 0)]
)
def test_cuda_is_the_device_of_this_rank(device, monkeypatch, current, local_rank, expected):
    used = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.current_device", lambda: current)
    monkeypatch.setattr(
        "dataporter.engine.device.CudaCopies",
        lambda device: used.append(device) or PretendedCopies(device),
    )
    if local_rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    list(ResumableDataLoader(Ids(4), device="cuda"))
    assert used == [torch.device("cuda", expected)]


class Kills(Lines):
    """Kills the process that reads it, once, at a number."""

    def __init__(self, length: int, at: int, note: Path) -> None:
        super().__init__(length)
        self.at, self.note = at, note

    def __iter__(self):
        for sample in super().__iter__():
            if self.read == self.at and not self.note.exists():
                self.note.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield sample


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("at", [1, 9, 13, 22])
def test_a_killed_reader_changes_nothing_of_what_is_on_its_way(device, tmp_path, at, depth):
    expected = one_pass(ResumableDataLoader(Lines(26), 4, seed=1, num_workers=2))
    dataset = Kills(26, at, tmp_path / "killed")
    loader = ResumableDataLoader(
        dataset, 4, seed=1, num_workers=2, device=device, device_prefetch=depth
    )
    with pytest.warns(WorkerRestartWarning):
        assert one_pass(loader) == expected
