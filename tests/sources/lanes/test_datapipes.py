"""torch's DataPipes in lanes: shared out, shuffled and seeded as torch's own loader does."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
from groups import on_ranks, without_a_group
from support import flat, one_pass, passes, plain
from torch.utils.data import DataLoader

from dataporter import ResumableDataLoader
from dataporter.errors import FastForwardWarning, OptionError, StateMismatchError, TopologyError
from dataporter.sources.lanes import datapipes
from dataporter.stateful_dataloader import StatefulDataLoader

IterDataPipe = pytest.importorskip("torch.utils.data").IterDataPipe
IterableWrapper = pytest.importorskip("torch.utils.data.datapipes.iter").IterableWrapper
SequenceWrapper = pytest.importorskip("torch.utils.data.datapipes.map").SequenceWrapper

LENGTH = 26
EVERYTHING = list(range(LENGTH))


def double(number: int) -> int:
    return 2 * number


def shuffled() -> Any:
    return IterableWrapper(range(LENGTH)).shuffle().sharding_filter()


def loader_of(pipe: Any, num_workers: int = 0, **options: Any) -> ResumableDataLoader:
    options = {"batch_size": 3, "seed": 5, "num_workers": num_workers, **options}
    return ResumableDataLoader(pipe, **options)


def resumed(state: Any, pipe: Any, num_workers: int = 0, **options: Any) -> ResumableDataLoader:
    loader = loader_of(pipe, num_workers, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FastForwardWarning)
        loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_every_sample_comes_once_an_epoch_and_a_resume_goes_on(num_workers):
    loader = loader_of(shuffled(), num_workers)
    epochs = passes(loader, 3)
    assert [sorted(flat(epoch)) for epoch in epochs] == [EVERYTHING] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    running = iter(loader)
    seen = [plain(next(running)) for _ in range(4)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [plain(batch) for batch in running]
    assert sorted(flat(seen + rest)) == EVERYTHING
    for other in {0, num_workers}:
        again = resumed(state, shuffled(), other)
        assert one_pass(again) == rest
        if other == num_workers:
            again.set_epoch(1)
            assert one_pass(again) == epochs[1]


def test_workers_and_copies_never_reach_the_data():
    expected = passes(loader_of(shuffled(), lanes=3), 2)
    assert [sorted(flat(epoch)) for epoch in expected] == [EVERYTHING] * 2
    for options in (
        {"num_workers": 2},
        {"num_workers": 3, "persistent_workers": True},
        {"num_workers": 1, "engine": "threads"},
    ):
        assert passes(loader_of(shuffled(), lanes=3, **options), 2) == expected
    served = loader_of(shuffled(), 1, lanes=3, multiprocessing_context="forkserver")
    assert one_pass(served) == expected[0]


def test_pipes_with_lambdas_are_read_in_lanes():
    def make():
        return shuffled().map(lambda number: number + 1)

    expected = one_pass(loader_of(make(), lanes=2))
    assert sorted(flat(expected)) == [number + 1 for number in EVERYTHING]
    assert one_pass(loader_of(make(), 2)) == expected


def test_without_a_sharding_filter_every_lane_reads_everything_as_in_torch():
    pipe = IterableWrapper(range(4))
    found = sorted(flat(one_pass(loader_of(pipe, 2))))
    assert found == sorted(flat(one_pass(DataLoader(pipe, batch_size=3, num_workers=2))))


def test_two_sharding_filters_in_a_branch_are_refused_as_in_torch():
    pipe = shuffled().sharding_filter()
    for loader in (loader_of(pipe, lanes=2), DataLoader(pipe)):
        with pytest.raises(RuntimeError, match="Sharding twice"):
            one_pass(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("lanes", [None, 4])
def test_ranks_that_were_told_their_numbers_share_a_pipe(num_workers, lanes):
    def ranks():
        return [
            loader_of(shuffled(), num_workers, rank=rank, world_size=2, lanes=lanes)
            for rank in range(2)
        ]

    loaders = ranks()
    epochs = [passes(loader, 2) for loader in loaders]
    for epoch in zip(*epochs, strict=True):
        assert sorted(flat(flat(epoch))) == EVERYTHING
    for loader, again, own in zip(loaders, ranks(), epochs, strict=True):
        running = iter(loader)
        next(running)
        rest = [plain(batch) for batch in running]
        assert sorted(flat(rest)) != sorted(flat(own[0]))
        loader.set_epoch(1)
        next(iter(loader))
        with pytest.warns(FastForwardWarning):
            again.load_state_dict(loader.state_dict())
        assert one_pass(again) == own[1][1:]


def read_in_group(_rank: int, folder: str) -> dict[str, Any]:
    kinds = {"torch": DataLoader, "ours": ResumableDataLoader, "torchdata's": StatefulDataLoader}
    shared = {name: passes(kind(shuffled(), batch_size=3), 2) for name, kind in kinds.items()}
    with without_a_group(Path(folder) / "second"):
        late, alone = loader_of(shuffled()), loader_of(IterableWrapper(range(3)))
    try:
        iter(late)
    except TopologyError as error:
        return {"shared": shared, "refused": str(error), "alone": one_pass(alone)}
    return {}


def test_a_group_shares_a_pipe_and_one_that_came_up_late_is_refused(tmp_path):
    answers = on_ranks(2, read_in_group, str(tmp_path))
    for kind in answers[0]["shared"]:
        for epoch in zip(*(answer["shared"][kind] for answer in answers), strict=True):
            assert sorted(flat(flat(epoch))) == EVERYTHING
    for answer in answers:
        assert "Build it after torch.distributed.init_process_group()" in answer["refused"]
        assert answer["alone"] == [[0, 1, 2]]  # of which nobody is to have a share


def test_shuffle_turns_the_shuffling_of_a_pipe_on_and_off():
    in_order = [EVERYTHING[start : start + 3] for start in range(0, LENGTH, 3)]
    assert one_pass(loader_of(shuffled())) != in_order
    assert one_pass(loader_of(shuffled(), shuffle=True)) == one_pass(loader_of(shuffled()))
    assert one_pass(loader_of(shuffled(), shuffle=False)) == in_order
    off = shuffled()
    off.source_datapipe.set_shuffle(False)
    assert one_pass(loader_of(off)) == in_order
    assert one_pass(loader_of(off, shuffle=True)) != in_order
    for kind in (DataLoader, StatefulDataLoader):  # torch's own has no seed to compare by
        assert one_pass(kind(shuffled(), batch_size=3, shuffle=False)) == in_order
        assert one_pass(kind(shuffled(), batch_size=3)) != in_order


def test_a_pipe_without_a_shuffler_gets_one():
    with pytest.warns(UserWarning, match="does not contain a `Shuffler`"):
        loader = loader_of(IterableWrapper(range(LENGTH)).sharding_filter(), 2, shuffle=True)
    epochs = passes(loader, 2)
    assert [sorted(flat(epoch)) for epoch in epochs] == [EVERYTHING] * 2
    assert epochs[0] != epochs[1]


def test_a_state_belongs_to_the_shuffling_it_was_saved_with():
    loader = loader_of(shuffled(), shuffle=True)
    next(iter(loader))
    with pytest.raises(StateMismatchError, match=r"shuffle=True.*shuffle=False"):
        loader_of(shuffled(), shuffle=False).load_state_dict(loader.state_dict())


def test_other_iterables_still_decide_their_order_themselves():
    class Plain(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(4))

    with pytest.raises(OptionError, match="shuffle=True is for datasets that are read by index"):
        loader_of(Plain(), shuffle=True)
    assert flat(one_pass(loader_of(Plain(), shuffle=False))) == [0, 1, 2, 3]


class StatefulPipe(IterDataPipe):
    """A pipe that says where it stands."""

    def __init__(self, source: Any) -> None:
        self.source, self.at, self.read = source, 0, 0

    def __iter__(self):
        for number, sample in enumerate(self.source):
            if number < self.at:
                continue
            self.at, self.read = number + 1, self.read + 1
            yield sample
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pipe_with_a_state_is_put_back_by_it(num_workers):
    loader = loader_of(StatefulPipe(shuffled()), num_workers)
    running = iter(loader)
    seen = [plain(next(running)) for _ in range(4)]
    state = loader.state_dict()
    rest = [plain(batch) for batch in running]
    assert sorted(flat(seen + rest)) == EVERYTHING
    pipe = StatefulPipe(shuffled())
    again = loader_of(pipe)
    again.load_state_dict(state)  # without a warning
    assert one_pass(again) == rest
    assert num_workers or pipe.read == LENGTH - 12


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_map_pipe_is_read_by_index(num_workers, shuffle):
    pipe = SequenceWrapper(range(LENGTH)).map(double)
    loader = loader_of(pipe, num_workers, shuffle=shuffle)
    epochs = passes(loader, 2)
    assert [sorted(flat(epoch)) for epoch in epochs] == [[2 * i for i in EVERYTHING]] * 2
    assert (epochs[0] != epochs[1]) == shuffle
    running = iter(loader)
    next(running)
    again = resumed(loader.state_dict(), pipe, 2 - num_workers, shuffle=shuffle)
    assert one_pass(again) == [plain(batch) for batch in running]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_map_pipe_that_shuffles_is_read_in_lanes(num_workers):
    loader = loader_of(SequenceWrapper(range(LENGTH)).shuffle().sharding_filter(), num_workers)
    epochs = passes(loader, 2)
    assert [sorted(flat(epoch)) for epoch in epochs] == [EVERYTHING] * 2
    assert epochs[0] != epochs[1]


def test_a_torch_without_pipes_has_none(monkeypatch):
    # A simulation: the module as it would be imported there.
    monkeypatch.delattr(torch.utils.data, "graph_settings")
    monkeypatch.setitem(sys.modules, "torch.utils.data.graph_settings", None)
    spec = importlib.util.spec_from_file_location("without_pipes", datapipes.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pipe = shuffled()
    assert not module.is_datapipe(pipe)
    assert not module.is_shared_out(pipe)
    assert module.with_shuffling(pipe, shuffle=True) is pipe
    module.take_share(pipe, 2, 5)
    module.seed_pass(pipe, None)
