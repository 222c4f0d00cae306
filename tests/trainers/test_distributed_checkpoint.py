"""torch.distributed.checkpoint: real checkpoints of real groups, and other numbers of ranks."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from groups import on_ranks
from guides import blocks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Augmented, Ids, flat, one_pass, plain
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset, get_worker_info
from tracked import Tracked, numbered_lines
from watching import until

from dataporter import ResumableDataLoader
from dataporter.errors import (
    OptionError,
    StateFormatError,
    StateMismatchError,
    StateMissingError,
)
from dataporter.trainers.distributed_checkpoint import WholeState, load_loader

# What it says of a process without a group, which is what is meant here.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

LENGTH = 61  # a prime: no number of ranks divides it


class Shards(IterableDataset):
    """Lane l of L reads every L-th sample. Its state holds tensors and keys that come and go."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length, self.next, self.seen = length, 0, []

    def __iter__(self):
        info = get_worker_info()
        lane, count = (0, 1) if info is None else (info.id, info.num_workers)
        own = range(lane, self.length, count)
        while self.next < len(own):
            self.next += 1
            self.seen.append(own[self.next - 1])
            yield own[self.next - 1]
        self.next, self.seen = 0, []

    def state_dict(self) -> dict[str, Any]:
        return {
            "next": torch.tensor(self.next),
            "seen": {index: {"place": place} for place, index in enumerate(self.seen)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = int(state["next"])
        self.seen = list(state["seen"])
        assert all(isinstance(index, int) for index in self.seen)  # as they were saved


class Counting:
    """A sampler with a state of its own."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length, self.next = length, 0

    def __iter__(self):
        while self.next < self.length:
            self.next += 1
            yield self.length - self.next
        self.next = 0

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[Any, Any]:
        return {1: self.next}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.next = state[1]


class Held(Ids):
    """Its first samples wait for a file, so that others come ahead of them."""

    def __init__(self, length: int, gate: Path) -> None:
        super().__init__(length)
        self.gate = gate

    def __getitem__(self, index: int) -> int:
        if index < 4:
            until(self.gate.exists, seconds=60)
        return super().__getitem__(index)


def a_loader(kind: str, **options: Any) -> ResumableDataLoader:
    options = {"batch_size": 4, **options}
    if kind == "lanes":
        return ResumableDataLoader(Shards(), lanes=5, tail="uneven", **options)
    if kind == "stream":
        return ResumableDataLoader(Shards(), **{"num_workers": 2, **options})
    if kind == "sampler":
        return ResumableDataLoader(Ids(LENGTH), sampler=Counting(), **options)
    return ResumableDataLoader(Augmented(LENGTH), shuffle=True, tail="uneven", **options)


def take(loader: ResumableDataLoader, steps: int) -> list[Any]:
    return [plain(batch) for _, batch in zip(range(steps), loader, strict=False)]


def ids_of(kind: str, batches: list[Any]) -> list[int]:
    return flat([ids for ids, *_ in batches] if kind == "map" else batches)


def same(one: Any, other: Any) -> bool:
    """Equal, tensors and types of keys included."""
    return repr(one) == repr(other)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.integers(0, 15), kind=st.sampled_from(["map", "lanes", "sampler"]))
def test_a_state_comes_back_exactly_from_any_step(tmp_path_factory, steps, kind):
    folder = tmp_path_factory.mktemp("checkpoint")
    loader = a_loader(kind)
    batches = iter(loader)
    seen = [plain(next(batches)) for _ in range(steps)]
    dcp.save({"loader": WholeState(loader)}, checkpoint_id=folder)
    resumed = a_loader(kind)
    dcp.load({"loader": WholeState(resumed)}, checkpoint_id=folder)
    assert same(resumed.state_dict(), loader.state_dict())
    rest = [plain(batch) for batch in batches]
    assert one_pass(resumed) == rest
    assert Counter(ids_of(kind, seen + rest)) == Counter(range(LENGTH))


def test_data_in_files_keeps_its_order_and_resumes(tmp_path):
    corpus = Tracked(numbered_lines(tmp_path / "data", LENGTH))
    loader = ResumableDataLoader(corpus, 4, shuffle=True)
    batches = iter(loader)
    seen = flat(plain(next(batches)["id"]) for _ in range(5))
    dcp.save({"loader": WholeState(loader), "bare": loader}, checkpoint_id=tmp_path / "saved")
    rest = flat(plain(batch["id"]) for batch in batches)
    assert Counter(seen + rest) == Counter(range(LENGTH))
    whole, bare = (ResumableDataLoader(corpus, 3, shuffle=True) for _ in range(2))
    dcp.load({"loader": WholeState(whole), "bare": bare}, checkpoint_id=tmp_path / "saved")
    for resumed in (whole, bare):
        assert resumed.state_dict()["order"] == loader.state_dict()["order"]
        assert flat(plain(batch["id"]) for batch in resumed) == rest
    assert loader.state_dict()["order"].startswith("tracks-1, 4 side by side")


@pytest.mark.parametrize("kind", ["map", "lanes", "stream", "sampler"])
def test_a_loader_that_has_begun_goes_on_where_the_checkpoint_says(tmp_path, kind):
    loader = a_loader(kind)
    batches = iter(loader)
    [next(batches) for _ in range(5)]
    dcp.save({"loader": WholeState(loader)}, checkpoint_id=tmp_path)
    rest = [plain(batch) for batch in batches]
    begun = a_loader(kind)
    one_pass(begun)
    going = iter(begun)
    [next(going) for _ in range(9)]
    dcp.load({"loader": WholeState(begun)}, checkpoint_id=tmp_path)
    assert [plain(batch) for batch in going] == rest


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["map", "unordered"])
def test_a_map_style_loader_needs_no_wrapping(tmp_path, kind, whole):
    gate = tmp_path / "gate"

    def a_loader_of_kind() -> ResumableDataLoader:
        if kind == "map":
            return a_loader("map")
        return ResumableDataLoader(Held(LENGTH, gate), 4, num_workers=2, in_order=False)

    loader = a_loader_of_kind()
    batches = iter(loader)
    seen = [plain(next(batches)) for _ in range(4)]
    assert bool(loader.state_dict()["ahead"]) == (kind == "unordered")
    dcp.save({"loader": WholeState(loader) if whole else loader}, checkpoint_id=tmp_path)
    gate.touch()
    del batches
    resumed = a_loader_of_kind()
    assert load_loader(resumed, tmp_path)
    assert resumed.state_dict() == loader.state_dict()
    assert Counter(ids_of(kind, seen + one_pass(resumed))) == Counter(range(LENGTH))


def test_lanes_that_were_taken_apart_are_refused(tmp_path):
    loader = a_loader("stream", num_workers=0)
    take(loader, 4)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path)
    resumed = a_loader("stream", num_workers=0)
    with pytest.raises(StateFormatError, match="wrap the loader in WholeState"):
        dcp.load({"loader": resumed}, checkpoint_id=tmp_path)
    assert len(flat(one_pass(resumed))) == LENGTH


def test_an_asynchronous_save_has_the_state_of_the_call(tmp_path):
    for kind in ("map", "stream"):
        loader, folder = a_loader(kind, num_workers=0), tmp_path / kind
        batches = iter(loader)
        [next(batches) for _ in range(6)]
        at_call = loader.state_dict()
        saving = dcp.async_save({"loader": WholeState(loader)}, checkpoint_id=folder)
        rest = [plain(batch) for batch in batches]
        saving.result()
        resumed = a_loader(kind, num_workers=0)
        dcp.load({"loader": WholeState(resumed)}, checkpoint_id=folder)
        assert same(resumed.state_dict(), at_call)
        assert one_pass(resumed) == rest


def test_a_checkpoint_without_a_loader_is_an_error_or_a_beginning(tmp_path):
    dcp.save({"model": nn.Linear(2, 1).state_dict(), "step": 3}, checkpoint_id=tmp_path)
    loader = a_loader("map")
    with pytest.raises(StateMissingError, match=r"key 'loader'\. It holds model, step.*'begin'"):
        load_loader(loader, tmp_path)
    with pytest.raises(KeyError):
        load_loader(loader, storage_reader=dcp.FileSystemReader(tmp_path), key="model")
    assert not load_loader(loader, tmp_path, missing="begin")
    guide = {"loader": loader, "folder": tmp_path}
    exec(blocks("torch_checkpoint.md", "python")[1], guide)  # noqa: S102
    assert Counter(ids_of("map", one_pass(loader))) == Counter(range(LENGTH))
    with pytest.raises(
        CheckpointException, match=r"Missing key in checkpoint state_dict: loader\.state"
    ):
        dcp.load({"loader": WholeState(loader)}, checkpoint_id=tmp_path)
    nowhere = tmp_path / "nowhere"
    with pytest.raises(StateMissingError, match=f"in {nowhere}. It holds nothing"):
        load_loader(loader, nowhere)
    assert not load_loader(loader, nowhere, missing="begin")
    with pytest.raises(OptionError, match="'raise' or 'begin', found 'ignore'"):
        load_loader(loader, tmp_path, missing="ignore")
    with pytest.raises(OptionError, match="checkpoint_id or a storage_reader"):
        load_loader(loader)


def test_a_state_in_a_part_of_the_checkpoint_is_named_and_found(tmp_path):
    saved, loader = a_loader("map"), a_loader("map")
    next(iter(saved))
    dcp.save({"app": {"data": WholeState(saved).state_dict()}}, checkpoint_id=tmp_path)
    with pytest.raises(StateMissingError, match=r"key 'loader'\. It holds app\.data\."):
        load_loader(loader, tmp_path)
    assert load_loader(loader, tmp_path, key="app.data")
    assert loader.state_dict() == saved.state_dict()


def test_the_state_of_another_loader_is_refused(tmp_path):
    dcp.save({"loader": WholeState(a_loader("map"))}, checkpoint_id=tmp_path)
    other = ResumableDataLoader(Ids(7), 4, shuffle=True)
    with pytest.raises(StateMismatchError, match="num_samples changed"):
        dcp.load({"loader": WholeState(other)}, checkpoint_id=tmp_path)
    for found in ({}, {"state": 3}, other.state_dict(), [b"x"]):
        with pytest.raises(StateFormatError, match="dict with bytes under 'state'"):
            WholeState(other).load_state_dict(found)
    assert flat(one_pass(other)) != []


# Groups of two and of three ranks are started once each; what is shown is in the test below.

STEPS = 3
SHOWN = ["map", "lanes"]


def a_model(rank: int, world_size: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(world_size)  # groups of other sizes begin with other weights
    model = nn.Linear(8, 6)
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    return model, torch.optim.Adam(model.parameters())


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """One step; the whole weight after it."""
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model.weight.full_tensor().flatten().tolist()


def own_stream(rank: int) -> ResumableDataLoader:
    """Not shared out by the loader: each rank has data of its own, that of rank 0 ends first."""
    return ResumableDataLoader(Shards(40 + 8 * rank), 4, seed=1)


def finish_what_one_began_and_begin_anew(rank: int, folder: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"rest": {}, "seen": {}, "after": {}, "equal": {}}
    for kind in SHOWN:
        loader = a_loader(kind)
        dcp.load({"loader": WholeState(loader)}, checkpoint_id=f"{folder}/one-{kind}")
        answer["rest"][kind] = ids_of(kind, one_pass(loader))

    model, optimizer = a_model(rank, 2)
    trained(model, optimizer)
    loaders = {kind: a_loader(kind) for kind in SHOWN}
    passes = {kind: iter(loader) for kind, loader in loaders.items()}
    for kind, batches in passes.items():
        answer["seen"][kind] = ids_of(kind, [plain(next(batches)) for _ in range(STEPS)])
    weights, moments = get_state_dict(model, optimizer)
    parts = {"model": weights, "optimizer": moments, "bare": loaders["map"]}
    parts |= {kind: WholeState(loader) for kind, loader in loaders.items()}
    answer["weight"] = model.weight.full_tensor().flatten().tolist()
    saving = dcp.async_save(parts, checkpoint_id=f"{folder}/two")
    for kind, batches in passes.items():  # goes on while that is written
        answer["after"][kind] = ids_of(kind, [plain(batch) for batch in batches])
    saving.result()
    answer["next weight"] = trained(model, optimizer)
    own = own_stream(rank)
    batches = iter(own)
    [next(batches) for _ in range(9 + rank)]
    dcp.save({"loader": WholeState(own)}, checkpoint_id=f"{folder}/own")
    rest = [plain(batch) for batch in batches]
    # As many ranks as before: each goes on as it did.
    again = own_stream(rank)
    dcp.load({"loader": WholeState(again)}, checkpoint_id=f"{folder}/own")
    answer["equal"]["own"] = one_pass(again) == rest
    # One rank alone, while the other does something else.
    alone = dist.new_group([0])
    if rank == 0:
        here = {"process_group": alone}
        dcp.save({"loader": WholeState(again, **here)}, checkpoint_id=f"{folder}/alone", **here)
        once_more = own_stream(rank)
        load_loader(once_more, f"{folder}/alone", **here)
        answer["equal"]["alone"] = same(once_more.state_dict(), again.state_dict())
    for kind in SHOWN:
        again = a_loader(kind)
        load_loader(again, f"{folder}/two", key=kind)
        answer["equal"][kind] = ids_of(kind, one_pass(again)) == answer["after"][kind]
    return answer


def finish_on_three(rank: int, folder: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"rest": {}}
    model, optimizer = a_model(rank, 3)
    trained(model, optimizer)  # so that the optimizer has moments to load into
    loaders = {kind: a_loader(kind) for kind in SHOWN}
    bare = a_loader("map")
    weights, moments = get_state_dict(model, optimizer)
    parts = {"model": weights, "optimizer": moments, "bare": bare}
    parts |= {kind: WholeState(loader) for kind, loader in loaders.items()}
    dcp.load(parts, checkpoint_id=f"{folder}/two")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=parts["optimizer"])
    answer["weight"] = model.weight.full_tensor().flatten().tolist()
    answer["next weight"] = trained(model, optimizer)
    for kind, loader in loaders.items():
        answer["rest"][kind] = ids_of(kind, one_pass(loader))
    try:
        dcp.load({"loader": WholeState(own_stream(rank))}, checkpoint_id=f"{folder}/own")
    except StateMismatchError as error:
        answer["refused"] = str(error)
    answer["bare rest"] = ids_of("map", one_pass(bare))
    return answer


def test_an_epoch_is_finished_on_other_numbers_of_ranks_beside_sharded_weights(tmp_path):
    everything = Counter(range(LENGTH))
    begun = {}
    for kind in SHOWN:
        loader = a_loader(kind)
        begun[kind] = ids_of(kind, take(loader, STEPS))
        dcp.save({"loader": WholeState(loader)}, checkpoint_id=tmp_path / f"one-{kind}")

    two = on_ranks(2, finish_what_one_began_and_begin_anew, str(tmp_path))
    for kind in SHOWN:
        assert Counter(begun[kind] + flat(rank["rest"][kind] for rank in two)) == everything
    assert all(all(rank["equal"].values()) for rank in two)
    seen = {kind: flat(rank["seen"][kind] for rank in two) for kind in SHOWN}
    assert len(seen["map"]) == 2 * STEPS * 4

    for kind in SHOWN:
        alone = a_loader(kind)
        assert load_loader(alone, Path(tmp_path, "two"), key=kind)
        assert Counter(seen[kind] + ids_of(kind, one_pass(alone))) == everything

    three = on_ranks(3, finish_on_three, str(tmp_path))
    for kind in SHOWN:
        assert Counter(seen[kind] + flat(rank["rest"][kind] for rank in three)) == everything
    assert Counter(seen["map"] + flat(rank["bare rest"] for rank in three)) == everything
    for rank in three:
        assert "saved on 2 ranks, this run has 3" in rank["refused"]
        assert rank["weight"] == two[0]["weight"]
        assert rank["next weight"] == pytest.approx(two[0]["next weight"], abs=1e-6)
