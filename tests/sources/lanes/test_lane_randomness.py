"""The random numbers of lanes: seeded only from the first draw on, and exact after any resume.

The samples themselves say which generator they draw from, so streams draw never, always, here
and there, or from some sample on.
"""

import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import (
    IteratorShards,
    OwnIterator,
    Shards,
    StatefulShards,
    lane_and_count,
    loaded,
    reading_again,
    reference,
)
from support import one_pass, pass_with_states, passes, plain
from watching import worker_pids

from dataporter import ResumableDataLoader, sample_rng
from dataporter.fetch.generators import capture, seed_all
from dataporter.fetch.randomness import EpochKeys

GENERATORS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "gauss": lambda: random.gauss(0, 1),  # makes two numbers; one waits
    "numpy": lambda: float(np.random.random_sample()),
    "normal": lambda: float(np.random.standard_normal()),  # likewise
    "torch": lambda: float(torch.rand(())),
    "sample_rng": lambda: float(sample_rng().random()),
}


class Drawing:
    """Sample s is s, and what it draws: that is for `drawn` to say, by s."""

    drawn: Mapping[int, str] = {}

    def shown(self, sample: int) -> tuple[int, float]:
        name = self.drawn.get(sample)
        return sample, 0.0 if name is None else GENERATORS[name]()


class DrawingShards(Drawing, StatefulShards): ...


class DrawingIterator(Drawing, IteratorShards): ...


class DrawingItself(Drawing, OwnIterator): ...


class DrawingAgain(Drawing, Shards):
    """Has no state, so it is read again up to its place."""


KINDS = [DrawingShards, DrawingIterator, DrawingItself, DrawingAgain]
LENGTHS = [9, 4, 12, 7]
SAMPLES = [100 * shard + j for shard, length in enumerate(LENGTHS) for j in range(length)]
OFTEN = {
    "never": {},
    "always": dict.fromkeys(SAMPLES, "numpy"),
    "sometimes": dict(zip(SAMPLES[2::3], itertools.cycle(GENERATORS), strict=False)),
    "late": {sample: "torch" for sample in SAMPLES if sample % 100 >= 3},
    "once": {5: "normal", 203: "gauss"},
}


def made(kind: type, drawn: Mapping[int, str], lengths: list[int] = LENGTHS) -> Any:
    dataset = kind(lengths)
    dataset.drawn = drawn
    return dataset


class Masking:
    """A collate function that draws for batches that begin with some samples."""

    def __init__(self, drawing: set[int]) -> None:
        self.drawing = drawing

    def __call__(self, samples: list[Any]) -> Any:
        return samples, random.random() if samples[0][0] in self.drawing else 0.0


@st.composite
def drawings(draw: Any) -> tuple[list[int], dict[int, str]]:
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    samples = [100 * shard + j for shard, length in enumerate(lengths) for j in range(length)]
    if not samples:
        return lengths, {}
    names = st.sampled_from(list(GENERATORS))
    return lengths, draw(st.dictionaries(st.sampled_from(samples), names))


@pytest.mark.filterwarnings("ignore::dataporter.errors.FastForwardWarning")
@settings(max_examples=80)
@given(
    kind=st.sampled_from(KINDS),
    drawing=drawings(),
    masked=st.sets(st.integers(0, 6)),
    lanes=st.integers(1, 3),
    size=st.integers(1, 3),
    every=st.integers(1, 4),
    loop_draws=st.booleans(),
)
def test_a_resume_at_any_batch_sees_the_numbers_of_the_run_that_was_not_interrupted(
    kind, drawing, masked, lanes, size, every, loop_draws
):
    lengths, drawn = drawing
    options = {"batch_size": size, "lanes": lanes, "snapshot_every_n_steps": every, "seed": 3}
    options["collate_fn"] = Masking(masked)
    loader = ResumableDataLoader(made(kind, drawn, lengths), **options)
    batches, states = zip(*(pass_with_states(loader) for _ in range(2)), strict=True)
    for k, state in enumerate(states[0]):
        resumed = ResumableDataLoader(made(kind, drawn, lengths), **options)
        resumed.load_state_dict(state)
        if k == len(states[0]) - 1:  # after the end
            assert one_pass(resumed) == batches[1]
            continue
        following = []
        for batch in resumed:
            following.append(plain(batch))
            if loop_draws:
                random.random(), np.random.standard_normal(), torch.rand(())
        assert following == batches[0][k:]
        assert one_pass(resumed) == batches[1]


@settings(max_examples=40)
@given(kind=st.sampled_from(KINDS), drawing=drawings(), lanes=st.integers(1, 3))
def test_what_the_training_loop_draws_is_as_without_a_loader(kind, drawing, lanes):
    lengths, drawn = drawing

    def step() -> list[float]:
        return [draw() for name, draw in GENERATORS.items() if name != "sample_rng"]

    before = capture()
    try:
        seed_all(7)
        loader = ResumableDataLoader(made(kind, drawn, lengths), 2, lanes=lanes, seed=3)
        seen = [step() for _ in loader]
        seed_all(7)
        assert seen == [step() for _ in seen]
    finally:
        before.restore()


def by_hand(drawn: Mapping[int, str], *, lanes: int, size: int, epoch: int, old: bool) -> Any:
    """The numbers by the rule as it is written down, for each sample."""
    keys, numbers = EpochKeys(3, epoch), {}
    before = capture()
    for lane in range(lanes):
        samples = [sample for sample in SAMPLES if sample // 100 % lanes == lane]
        has_drawn = False
        for number in range(-(-len(samples) // size)):
            seed_all(keys.lane_key(lane, number if has_drawn or old else 0))
            mine = samples[number * size : (number + 1) * size]
            numbers |= {s: GENERATORS[drawn[s]]() if s in drawn else 0.0 for s in mine}
            has_drawn = has_drawn or any(sample in drawn for sample in mine)
    before.restore()
    return numbers


def numbers_of(batches: list[Any]) -> dict[int, float]:
    return {s: number for batch in batches for s, number in zip(*batch, strict=True)}


GLOBAL = {name: {s: g for s, g in d.items() if g != "sample_rng"} for name, d in OFTEN.items()}


@pytest.mark.parametrize("often", OFTEN)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_start_as_the_first_one_until_one_has_drawn_and_by_their_number_after_it(
    kind, often
):
    loader = ResumableDataLoader(made(kind, GLOBAL[often]), 2, lanes=3, seed=3)
    for epoch in range(2):
        expected = by_hand(GLOBAL[often], lanes=3, size=2, epoch=epoch, old=False)
        assert numbers_of(one_pass(loader)) == expected


@pytest.mark.parametrize("often", OFTEN)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_that_does_not_say_it_goes_on_with_every_batch_seeded(often, num_workers):
    loader = ResumableDataLoader(made(DrawingShards, GLOBAL[often]), 2, lanes=3, seed=3)
    state = loader.state_dict()
    for lane in state["lanes"]["each"].values():
        del lane["seeded_from"]
    options = {"batch_size": 2, "lanes": 3, "num_workers": num_workers}
    loader = loaded(state, made(DrawingShards, GLOBAL[often]), **options)
    for epoch in range(2):  # the run stays as it began
        expected = by_hand(GLOBAL[often], lanes=3, size=2, epoch=epoch, old=True)
        batches, states = pass_with_states(loader)
        assert numbers_of(batches) == expected
        resumed = loaded(states[3], made(DrawingShards, GLOBAL[often]), **options)
        assert one_pass(resumed) == batches[3:]


def test_a_stream_that_draws_in_every_batch_has_the_numbers_it_always_had():
    drawn = OFTEN["always"]
    expected = by_hand(drawn, lanes=2, size=3, epoch=0, old=True)
    assert by_hand(drawn, lanes=2, size=3, epoch=0, old=False) == expected
    loader = ResumableDataLoader(made(DrawingShards, drawn), 3, lanes=2, seed=3)
    assert numbers_of(one_pass(loader)) == expected


@pytest.mark.parametrize("often", OFTEN)
@pytest.mark.parametrize("kind", [DrawingShards, DrawingAgain])
def test_workers_change_no_number(kind, often):
    options = {"batch_size": 2, "lanes": 3, "seed": 3}
    expected = passes(ResumableDataLoader(made(kind, OFTEN[often]), **options), 2)
    read = ResumableDataLoader(made(kind, OFTEN[often]), num_workers=2, **options)
    batches = iter(read)
    delivered = [plain(next(batches)) for _ in range(5)]
    state = read.state_dict()
    assert delivered + one_pass(batches) == expected[0]
    for num_workers in (0, 1):
        resumed = ResumableDataLoader(made(kind, OFTEN[often]), num_workers=num_workers, **options)
        with reading_again(Shards if kind is DrawingAgain else kind):
            resumed.load_state_dict(state)
        assert passes(resumed, 2) == [expected[0][5:], expected[1]]


@pytest.mark.filterwarnings("ignore::dataporter.errors.WorkerRestartWarning")
@pytest.mark.parametrize("often", ["sometimes", "late", "once"])
@pytest.mark.parametrize("kind", [DrawingShards, DrawingAgain])
def test_killed_workers_change_no_number(kind, often):
    options = {"batch_size": 2, "lanes": 3, "seed": 3}
    expected = one_pass(ResumableDataLoader(made(kind, OFTEN[often]), **options))
    loader = ResumableDataLoader(
        made(kind, OFTEN[often]), num_workers=2, max_restarts=10**6, prefetch_factor=1, **options
    )
    delivered = []
    for number, batch in enumerate(loader):
        delivered.append(plain(batch))
        # None may be left: deaths are noticed when a batch is missing.
        for pid in worker_pids()[:1] if number % 4 == 1 else ():
            os.kill(pid, signal.SIGKILL)
    assert delivered == expected


class DrawsForItsState(DrawingShards):
    def state_dict(self) -> dict[str, Any]:
        torch.rand(2)
        return super().state_dict()


def test_draws_for_a_state_change_no_number():
    (often,), (rarely,) = (
        reference(made(DrawsForItsState, OFTEN["late"]), 1, lanes=2, snapshot_every_n_steps=every)[
            0
        ]
        for every in (1, 5)
    )
    assert often == rarely


def test_passes_side_by_side_change_no_number():
    options = {"batch_size": 2, "lanes": 2, "seed": 3}
    loader = ResumableDataLoader(made(DrawingShards, OFTEN["late"]), **options)
    expected = passes(loader, 2)
    loader = ResumableDataLoader(made(DrawingShards, OFTEN["late"]), **options)
    side_by_side = itertools.zip_longest(iter(loader), iter(loader))
    first, second = (
        [plain(b) for b in each if b is not None] for each in zip(*side_by_side, strict=True)
    )
    assert [first, second] == expected


class TellsItsLane(DrawingShards):
    def shown(self, sample: int) -> tuple[int, float]:
        return lane_and_count()[0], super().shown(sample)[1]


def test_lanes_have_numbers_of_their_own_and_so_have_epochs():
    drawn = {sample: "python" for sample in SAMPLES if sample % 100 == 3}
    loader = ResumableDataLoader(made(TellsItsLane, drawn), 1, lanes=4, seed=3)
    numbers = [number for epoch in passes(loader, 2) for _, [number] in epoch if number]
    assert len(set(numbers)) == len(numbers) == 8


class DrawingAtStart(DrawingShards):
    """Draws whenever it begins, also where it goes on from a state."""

    def __iter__(self) -> Iterator[Any]:
        torch.rand(3)
        yield from super().__iter__()


@pytest.mark.parametrize("often", OFTEN)
def test_a_stream_that_draws_when_it_begins_has_its_numbers_from_the_next_batch_on(often):
    # The batch after a resume sees generators that have moved, as in any loader.
    (batches,), (states,) = reference(made(DrawingAtStart, OFTEN[often]), 1, batch_size=2)
    for k, state in enumerate(states[:-2]):
        resumed = loaded(state, made(DrawingAtStart, OFTEN[often]), batch_size=2)
        assert one_pass(resumed)[1:] == batches[k + 1 :]
