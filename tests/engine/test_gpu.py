"""On a real CUDA device: page-locked in place, copied ahead, never overwritten, all given back."""

import gc
from typing import Any

import pytest
import torch
from support import Ids, pass_with_states
from watching import run_script

from dataporter import PageLockWarning, ResumableDataLoader
from dataporter.converters import DtypeConverter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MIB = 2**20


class Numbered(Ids):
    """Sample i is 1 MiB of i."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2**18,), index, dtype=torch.int32)


class Mixed(Ids):
    """Sample i in several dtypes, with what is no tensor beside it."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        chance = torch.Generator().manual_seed(index)
        values = torch.randn(3, 64, 64, generator=chance)
        return {
            "image": values,
            "half": values.half(),
            "brain": values.bfloat16(),
            "mask": values > 0,
            "ids": (values * 100).long(),
            "index": index,
            "name": str(index),
        }


class Runtime:
    """CUDA's own, with a book of what is page-locked."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.locked: dict[int, int] = {}
        self.times = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Any:  # noqa: N802
        outcome = self._runtime.cudaHostRegister(address, size, flags)
        assert int(outcome) == 0
        self.locked[address] = size
        self.times += 1
        return outcome

    def cudaHostUnregister(self, address: int) -> Any:  # noqa: N802
        del self.locked[address]
        outcome = self._runtime.cudaHostUnregister(address)
        assert int(outcome) == 0
        return outcome


@pytest.fixture
def runtime(monkeypatch) -> Runtime:
    runtime = Runtime(torch.cuda.cudart())
    monkeypatch.setattr("torch.cuda.cudart", lambda: runtime)
    return runtime


ENGINES = [
    pytest.param({}, id="inline"),
    pytest.param({"num_workers": 3, "persistent_workers": True}, id="processes"),
    pytest.param({"num_workers": 2, "engine": "threads"}, id="threads"),
]


def make(dataset: Any = None, **options: Any) -> ResumableDataLoader:
    dataset = Mixed(50) if dataset is None else dataset
    options = {"batch_size": 4, "shuffle": True, "seed": 5, **options}
    return ResumableDataLoader(dataset, **options)


def bits(batch: Any) -> Any:
    """A batch as builtins, tensors by their bytes."""
    if isinstance(batch, torch.Tensor):
        raw = batch.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return raw, batch.dtype, tuple(batch.shape)
    if isinstance(batch, dict):
        return {name: bits(part) for name, part in batch.items()}
    return batch


def keep_busy(milliseconds: float = 50) -> None:
    """Give the current stream something to do that takes so long."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


# Pinned


@pytest.mark.parametrize("options", ENGINES)
def test_batches_arrive_page_locked(options):
    for batch in make(pin_memory=True, **options):
        tensors = [part for part in batch.values() if isinstance(part, torch.Tensor)]
        assert len(tensors) == 6
        assert all(tensor.is_pinned() for tensor in tensors)


def test_batches_of_workers_are_page_locked_where_they_lie_and_each_slot_once(runtime):
    loader = make(Numbered(256), pin_memory=True, num_workers=3, persistent_workers=True)
    for _ in range(10):
        for batch in loader:
            start = batch.data_ptr()
            assert any(at <= start < at + size for at, size in runtime.locked.items())
        torch.cuda.synchronize()
    assert runtime.times <= 200
    assert runtime.times == len(runtime.locked)


@pytest.mark.parametrize("stream", ["default", "current", "left"])
def test_a_slot_is_not_used_again_before_copies_out_of_it_are_done(stream):
    """They are made behind 50 ms of other work, and the batches dropped at once."""
    side = torch.cuda.default_stream() if stream == "default" else torch.cuda.Stream()
    loader = make(Numbered(400), pin_memory=True, num_workers=3, shuffle=False)
    copies = []
    if stream == "current":
        torch.cuda.set_stream(side)
    try:
        for number, batch in enumerate(loader):
            with torch.cuda.stream(side):
                if number % 8 == 0:
                    keep_busy()
                copies.append(batch.to("cuda", non_blocking=True))
            del batch
        torch.cuda.synchronize()
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())
    for number, copy in enumerate(copies):
        expected = torch.arange(4 * number, 4 * number + 4, device="cuda")
        assert (copy == expected[:, None]).all(), number


def test_a_loader_may_go_while_its_batches_are_still_being_copied(runtime):
    with torch.cuda.stream(torch.cuda.Stream()):
        keep_busy(200)
        iterator = iter(make(Numbered(64), pin_memory=True, num_workers=2, shuffle=False))
        copies = [next(iterator).to("cuda", non_blocking=True) for _ in range(8)]
        del iterator
    gc.collect()
    assert not runtime.locked
    torch.cuda.synchronize()
    for number, copy in enumerate(copies):
        assert copy[:, 0].tolist() == list(range(4 * number, 4 * number + 4))


def test_a_batch_may_be_dropped_while_a_graph_is_captured():
    iterator = iter(make(Numbered(64), pin_memory=True, num_workers=2, shuffle=False))
    batch, total = next(iterator), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total += 1
        del batch
    graph.replay()
    assert total.tolist() == [1] * 4
    assert [int(batch[0, 0]) for batch in iterator] == list(range(4, 64, 4))


def test_a_refusal_is_one_warning_and_leaves_cuda_as_it_was(monkeypatch):
    real = torch.cuda.cudart()

    class Refusing:
        cudaHostUnregister = real.cudaHostUnregister  # noqa: N815
        cudaGetErrorString = real.cudaGetErrorString  # noqa: N815

        @staticmethod
        def cudaHostRegister(_address: int, size: int, flags: int) -> Any:  # noqa: N802
            return real.cudaHostRegister(0, size, flags)  # of nothing: refused in earnest

    monkeypatch.setattr("torch.cuda.cudart", Refusing)
    with pytest.warns(PageLockWarning, match="could not be page-locked") as caught:
        batches = list(make(Numbered(64), pin_memory=True, num_workers=2, shuffle=False))
    assert [warning.category for warning in caught].count(PageLockWarning) == 1
    assert all(batch.is_pinned() for batch in batches)
    assert [int(batch[0, 0]) for batch in batches] == list(range(0, 64, 4))
    assert torch.ones(3, device="cuda").sum() == 3  # no error was left for the next launch


# On the device


@pytest.mark.parametrize("options", ENGINES)
@pytest.mark.parametrize("size", [1, 4], ids=["copied at delivery", "copied ahead"])
def test_batches_are_bit_identical_with_the_device_and_without_and_so_is_a_resume(options, size):
    options = {**options, "batch_size": size}
    expected = [bits(batch) for batch in make(batch_size=size)]
    loader = make(device="cuda", **options)
    found, states = [], []
    for batch in loader:
        assert batch["image"].device == torch.device("cuda", 0)
        found.append(bits(batch))
        states.append(loader.state_dict())
    assert found == expected
    assert states == pass_with_states(make(batch_size=size))[1][1:-1]
    for done in (1, 6, 12):
        resumed = make(device="cuda", **options)
        resumed.load_state_dict(states[done - 1])
        assert [bits(batch) for batch in resumed] == expected[done:]


@pytest.mark.parametrize("options", ENGINES)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_are_whole_however_late_they_are_used(options, depth):
    loader = make(Numbered(200), shuffle=False, device="cuda", device_prefetch=depth, **options)
    sums = []
    for batch in loader:
        keep_busy(1)
        sums.append(batch.sum(dtype=torch.int64))
        del batch
    expected = [sum(range(4 * n, 4 * n + 4)) * 2**18 for n in range(50)]
    assert torch.stack(sums).tolist() == expected


@pytest.mark.parametrize("options", ENGINES)
def test_small_batches_are_whole_however_late_they_are_copied(options):
    dataset = torch.utils.data.TensorDataset(torch.arange(2**16).view(-1, 64))
    sums = []
    for (batch,) in make(dataset, shuffle=False, device="cuda", **options):
        if len(sums) % 20 == 0:
            keep_busy(5)
        sums.append(batch.sum())
        del batch
    assert torch.stack(sums).tolist() == dataset.tensors[0].view(-1, 256).sum(1).tolist()


@pytest.mark.parametrize("options", ENGINES)
def test_the_consumer_may_use_another_stream_for_every_batch(options):
    streams = [torch.cuda.Stream() for _ in range(3)]
    iterator = iter(make(Numbered(200), shuffle=False, device="cuda", **options))
    sums = []
    for number in range(50):
        with torch.cuda.stream(streams[number % 3]):
            batch = next(iterator)
            keep_busy(1)
            sums.append(batch.sum(dtype=torch.int64))
            del batch
    torch.cuda.synchronize()
    expected = [sum(range(4 * n, 4 * n + 4)) * 2**18 for n in range(50)]
    assert [int(total) for total in sums] == expected


@pytest.mark.parametrize("options", ENGINES)
def test_what_was_copied_ahead_and_dropped_overwrites_nothing(options):
    for _ in range(20):
        iterator = iter(make(Numbered(64), device="cuda", device_prefetch=4, **options))
        next(iterator)
        next(iterator)
        del iterator
        mine = [torch.full((4, 2**18), -7, dtype=torch.int32, device="cuda") for _ in range(6)]
        assert all((tensor == -7).all() for tensor in mine)
        del mine


@pytest.mark.parametrize("depth", [1, 4])
def test_the_devices_memory_is_bounded_however_far_the_host_is_ahead(depth):
    loader = make(Numbered(400), device="cuda", device_prefetch=depth, num_workers=3)
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    for batch in loader:
        keep_busy(3)
        batch.add_(1)
    assert torch.cuda.max_memory_allocated() - before <= (depth + 2) * batch.nbytes
    # What torch's pool holds grows in steps of 20 MiB.
    assert torch.cuda.memory_reserved() - reserved <= (depth + 2) * batch.nbytes + 20 * MIB


def test_the_host_does_not_wait_for_the_device():
    loader = make(Numbered(400), device="cuda", num_workers=3, persistent_workers=True)
    list(loader)
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)
    torch.cuda.synchronize()
    keep_busy(2000)
    for _ in range(3):
        batch = next(iterator)
    assert not torch.cuda.current_stream().query()  # all that while, it was busy
    torch.cuda.synchronize()
    del batch


def test_what_is_narrow_on_its_way_is_wide_on_the_device():
    narrow = {"converter": DtypeConverter("float16", floating_only=True)}
    wide = {"device_converter": DtypeConverter("float32", floating_only=True)}
    for batch in make(device="cuda", num_workers=2, **narrow, **wide):
        assert batch["image"].dtype == torch.float32
        assert torch.equal(batch["image"], batch["image"].half().float())


def test_the_current_device_of_the_caller_stays_what_it_is():
    iterator = iter(make(device="cuda:0", num_workers=2))
    before = torch.cuda.current_device(), torch.cuda.current_stream()
    next(iterator)
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == before


# Nothing is left behind


@pytest.mark.parametrize("to", [{"pin_memory": True}, {"device": "cuda"}])
@pytest.mark.parametrize("persistent", [False, True])
def test_no_page_lock_is_left_over_fifty_epochs(runtime, to, persistent):
    loader = make(Numbered(48), num_workers=2, persistent_workers=persistent, **to)
    most = 0
    for _ in range(50):
        for batch in loader:
            del batch
        gc.collect()
        most = max(most, sum(runtime.locked.values()))
        assert persistent or not runtime.locked
    assert most <= 300 * MIB
    if persistent:
        assert runtime.times <= 80
    del loader
    gc.collect()
    assert not runtime.locked


@pytest.mark.parametrize("to", [{"pin_memory": True}, {"device": "cuda"}])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "engine": "threads"}])
def test_the_pool_of_page_locked_memory_does_not_grow_over_fifty_epochs(options, to):
    loader = make(Numbered(48), **options, **to)
    sizes = []
    for _ in range(50):
        for batch in loader:
            del batch
        torch.cuda.synchronize()
        sizes.append(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    assert sizes[-1] - sizes[0] <= 64 * MIB  # 50 epochs have 2,400 MiB


def test_a_process_ends_in_silence_with_batches_and_copies_under_way():
    printed = run_script(
        """
import torch
from dataporter import ResumableDataLoader
loaders = [
    ResumableDataLoader(torch.rand(640, 2**16), 8, num_workers=2, **to)
    for to in ({"pin_memory": True}, {"device": "cuda"}, {"device": "cuda",
               "persistent_workers": True})
]
iterators = [iter(loader) for loader in loaders]
torch.cuda._sleep(300_000_000)
kept = [next(iterator).to("cuda", non_blocking=True) for iterator in iterators for _ in range(3)]
kept.append(kept)
print("done")
"""
    )
    assert printed == "done\n"


def test_pinning_on_or_off_the_states_are_the_same():
    expected = pass_with_states(make(Numbered(20)))[1]
    for to in ({"pin_memory": True}, {"device": "cuda"}):
        assert pass_with_states(make(Numbered(20), num_workers=2, **to))[1] == expected
