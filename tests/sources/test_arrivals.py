"""`in_order=False`: delivered and resumed make the dataset, nothing twice, nothing lost."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Augmented, Ids, Stateful, Stateless, flat, one_pass, plain
from torch.utils.data import IterableDataset, RandomSampler, Sampler, get_worker_info
from watching import until

from dataporter import ResumableDataLoader, StateFormatError, StateMismatchError
from dataporter.fetch import Fetcher
from dataporter.law import Ranks, Topology
from dataporter.law.ranges import size_of
from dataporter.samplers import ResumableSampler
from dataporter.sources.planned import PlannedSource, ShownSampler
from dataporter.sources.sampled import SampledSource
from dataporter.sources.source import Source
from dataporter.sources.users_sampler import UsersSampler


class Growing(Sampler):
    """Batches of 1, 2, ... up to a largest, and 1 again."""

    def __init__(self, length: int, largest: int) -> None:
        self.length, self.largest = length, largest

    def __iter__(self):
        left, size = list(range(self.length)), 1
        while left:
            yield left[:size]
            left, size = left[size:], size % self.largest + 1


def source_of(kind: str, length: int, batch_size: int) -> Source:
    fetch = Fetcher(Ids(length), collate_fn=None)
    if kind == "own":
        sampler = ResumableSampler(Ids(length), shuffle=True, seed=3)
        return PlannedSource(
            Ids(length),
            fetch,
            sampler.shared,
            epochs=ShownSampler(sampler),
            batch_size=batch_size,
            tail="uneven",
            grows=False,
            in_order=False,
        )
    users = {
        "list": list(range(length)),
        "generator": RandomSampler(range(length), generator=torch.Generator().manual_seed(1)),
        "stateful": Stateful(5, length),
        "batches": Growing(length, batch_size),
    }[kind]
    is_batches = kind == "batches"
    return SampledSource(
        Ids(length),
        fetch,
        UsersSampler(users, yields_batches=is_batches),
        batch_size=None if is_batches else batch_size,
        drop_last=False,
        ranks=Ranks(Topology()),
        seed=3,
        seed_is_given=True,
        in_order=False,
    )


@pytest.mark.parametrize("kind", ["own", "list", "generator", "stateful", "batches"])
@settings(max_examples=50)
@given(
    st.integers(1, 60),
    st.lists(
        st.tuples(st.integers(1, 7), st.integers(1, 6), st.integers(0, 5), st.randoms()), max_size=4
    ),
)
def test_whatever_arrives_when_every_position_is_delivered_once(kind, length, legs):
    """Each leg: batch size, how many are on their way, how many arrive before a resume."""
    seen: list[int] = []
    progress = source_of(kind, length, 1).fresh(2)
    reading = source_of(kind, length, 1).begin(progress, same_workers=False)
    whole = [index for task in reading.tasks for index in task.payload.indices]
    for batch_size, window, steps, rng in [*legs, (3, 4, 99, random.Random(1))]:
        source = source_of(kind, length, batch_size)
        source.restore(progress)
        reading = source.begin(progress, same_workers=False)
        on_their_way: list[Any] = []
        for _ in range(steps):
            while len(on_their_way) < window and (task := next(reading.tasks, None)):
                on_their_way.append(task)
            if not on_their_way:
                break
            task = on_their_way.pop(rng.randrange(len(on_their_way)))
            samples = task.payload
            seen += samples.positions.tolist()
            assert list(samples.indices) == [whole[position] for position in samples.positions]
            (progress, _), _ = reading.received(task, None)
            assert sorted(seen) == [
                *range(progress.samples_processed),
                *(p for start, stop in progress.ahead for p in range(start, stop)),
            ]
    assert sorted(seen) == list(range(length))
    # A sampler's state is as of what was drawn of it, so a prefix may end before what is ahead.
    assert progress.samples_processed + size_of(progress.ahead) == length
    assert kind != "own" or not progress.ahead


class Uneven(Ids):
    """Some samples take a while, so that batches overtake each other."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.005 if index % 9 == 0 else 0)
        return super().__getitem__(index)


class Gated(Ids):
    """One sample is there once a file is."""

    def __init__(self, length: int, late: int, gate: Path) -> None:
        super().__init__(length)
        self.late, self.gate = late, gate

    def __getitem__(self, index: int) -> int:
        if index == self.late:
            until(self.gate.exists, seconds=60)
        return super().__getitem__(index)


def make(dataset: Any = None, batch_size: int = 3, **options: Any) -> ResumableDataLoader:
    given = {"num_workers": 3, "in_order": False, **options}
    if "sampler" not in given and "batch_sampler" not in given:
        given |= {"shuffle": True, "seed": 1}
    return ResumableDataLoader(Uneven(60) if dataset is None else dataset, batch_size, **given)


def until_one_overtakes(loader: ResumableDataLoader, batches: Iterator[Any]) -> list[Any]:
    """What comes until a batch came before one that is held up."""
    seen = []
    while not loader.state_dict().get("ahead"):
        seen.append(plain(next(batches)))
    return seen


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_batches_come_as_they_are_ready_each_as_it_is_in_order(engine, tmp_path):
    ordered = one_pass(make(in_order=True, engine=engine))
    dataset = Gated(60, ordered[4][0], tmp_path / "gate")
    loader = make(dataset, engine=engine)
    batches = iter(loader)
    delivered = until_one_overtakes(loader, batches)
    dataset.gate.touch()
    delivered += map(plain, batches)
    assert delivered != ordered
    assert sorted(delivered) == sorted(ordered)


@settings(max_examples=8)
@given(st.integers(0, 20), st.integers(1, 5), st.booleans(), st.sampled_from([0, 2]))
def test_a_resume_at_any_point_delivers_the_rest(done, batch_size, in_order, num_workers):
    loader = make(engine="threads")
    batches = iter(loader)
    seen = [plain(next(batches)) for _ in range(done)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["batches_processed"] == done
    resumed = make(
        batch_size=batch_size, in_order=in_order, num_workers=num_workers, engine="threads"
    )
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state | {"batch_size": batch_size}
    assert sorted(flat(seen) + flat(one_pass(resumed))) == list(range(60))
    assert sorted(flat(one_pass(resumed))) == list(range(60))


def test_worker_processes_keep_the_state_exact_too(tmp_path):
    dataset = Gated(60, one_pass(make(num_workers=0))[7][0], tmp_path / "gate")
    loader = make(dataset)
    batches = iter(loader)
    seen = until_one_overtakes(loader, batches)
    dataset.gate.touch()
    resumed = make(num_workers=0)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(flat(seen) + flat(one_pass(resumed))) == list(range(60))
    with pytest.raises(StopIteration):
        [next(batches) for _ in range(99)]
    assert loader.state_dict()["ahead"] == []


def test_augmentation_belongs_to_the_position_whenever_it_comes():
    def of(**options: Any) -> list[Any]:
        loader = ResumableDataLoader(Augmented(40), 4, shuffle=True, seed=2, **options)
        return sorted(one_pass(loader))

    assert of(num_workers=3, in_order=False) == of()


@pytest.mark.parametrize("stateful", [False, True])
def test_a_users_sampler_is_resumed_around_what_came_early(stateful, tmp_path):
    def of(dataset: Any = None, **options: Any) -> ResumableDataLoader:
        torch.manual_seed(5)
        sampler = Stateful(60, 60) if stateful else Stateless(60)
        return make(dataset, sampler=sampler, seed=1, engine="threads", **options)

    reference = flat(one_pass(of(in_order=True)))
    late = next(n for p, n in enumerate(reference) if p > 12 and n not in reference[:p])
    dataset = Gated(60, late, tmp_path / "gate")
    loader = of(dataset)
    batches = iter(loader)
    seen = until_one_overtakes(loader, batches)
    dataset.gate.touch()
    resumed = of()
    resumed.load_state_dict(loader.state_dict())
    assert sorted(flat(seen) + flat(one_pass(resumed))) == sorted(reference)


def test_an_error_ahead_of_its_turn_costs_its_batch_and_no_other():
    class Failing(Uneven):
        failed = False

        def __getitem__(self, index: int) -> int:
            if index == 30 and not self.failed:
                self.failed = True
                raise OSError(index)
            return super().__getitem__(index)

    dataset = Failing(60)
    loader = ResumableDataLoader(
        dataset, 3, shuffle=True, seed=1, num_workers=3, engine="threads", in_order=False
    )
    batches = iter(loader)
    seen: list[Any] = []
    with pytest.raises(OSError):
        seen.extend(plain(batch) for batch in batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert sorted(flat(seen) + flat(one_pass(resumed))) == list(range(60))
    seen += [plain(batch) for batch in batches]
    assert len(seen) == 19
    assert 30 not in flat(seen)


def test_several_ranks_deliver_in_order_since_they_share_a_state():
    def of(**options: Any) -> list[Any]:
        return one_pass(make(rank=1, world_size=2, **options))

    assert of() == of(in_order=True)


@pytest.mark.parametrize("damaged", [3, [[4, 2]], [[1, 2, 3]], [["a", "b"]], [[-1, 2]]])
def test_a_damaged_list_of_what_came_early_is_refused(damaged):
    loader = make()
    with pytest.raises(StateFormatError, match="ahead"):
        loader.load_state_dict(loader.state_dict() | {"ahead": damaged})


def test_what_came_early_past_the_end_is_refused_or_cut():
    loader = make()
    state = loader.state_dict() | {"ahead": [[50, 70]]}
    with pytest.raises(StateMismatchError, match="past the end"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, strict=False)
    assert len(flat(one_pass(loader))) == 50


class SlowSecondLane(IterableDataset):
    """Two lanes of five numbers; the second begins once a first lane has come to its end."""

    def __init__(self, ended: Path) -> None:
        self.ended = ended

    def __iter__(self):
        lane = get_worker_info().id
        if lane == 1:
            until(self.ended.exists, seconds=60)
        yield from range(5 * lane, 5 * lane + 5)
        self.ended.touch()


def test_a_slow_lane_of_an_iterable_does_not_hold_up_the_others(tmp_path):
    dataset = SlowSecondLane(tmp_path / "ended")
    loader = ResumableDataLoader(dataset, 1, num_workers=2, in_order=False)
    assert flat(one_pass(loader)) == list(range(10))
    loader = ResumableDataLoader(dataset, 1, num_workers=2)
    assert flat(one_pass(loader)) == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
