"""Workers that read lanes are killed: the data does not change."""

import os
import random
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from streamed import (
    CarryingIterator,
    CarryingShards,
    OwnIterator,
    Packed,
    PackedWithoutState,
    Shards,
    StatefulShards,
)
from support import one_pass, passes, plain
from torch.utils.data import Dataset
from watching import until, worker_pids

from dataporter import ResumableDataLoader

LENGTHS = [14, 3, 22, 0, 9, 6]
RESTARTS = pytest.mark.filterwarnings("ignore::dataporter.errors.WorkerRestartWarning")
MANY = {"max_restarts": 10**6, "seed": 3, "batch_size": 2}
MANY_INLINE = {name: value for name, value in MANY.items() if name != "max_restarts"}


def kill_one(chance: random.Random) -> None:
    # None may be left: deaths are noticed when a batch is missing.
    if pids := worker_pids():
        os.kill(chance.choice(pids), signal.SIGKILL)


KINDS = [Shards, StatefulShards, OwnIterator, Packed, PackedWithoutState, CarryingShards]


@RESTARTS
@pytest.mark.parametrize("kind", [*KINDS, CarryingIterator])
def test_killed_workers_change_nothing(kind):
    # More lanes than workers, and less ahead than lanes: a worker has lanes that it was
    # not just reading.
    options = {"lanes": 6, "num_workers": 2, "prefetch_factor": 1, "persistent_workers": True}
    expected = passes(ResumableDataLoader(kind(LENGTHS, noisy=True), lanes=6, **MANY_INLINE), 3)
    chance = random.Random(kind.__name__)
    for prefetch in (1, 3):
        options["prefetch_factor"] = prefetch
        loader = ResumableDataLoader(kind(LENGTHS, noisy=True), **options, **MANY)
        for epoch in range(3):
            delivered = []
            for batch in loader:
                delivered.append(plain(batch))
                if chance.random() < 0.1:
                    kill_one(chance)
            assert delivered == expected[epoch]


@RESTARTS
@pytest.mark.parametrize("kind", [StatefulShards, Shards])
def test_kills_spread_over_a_pass_end_nothing_and_change_nothing(kind):
    lengths, options = [30, 40, 35], {"seed": 3, "batch_size": 2, "lanes": 3}
    expected = one_pass(ResumableDataLoader(kind(lengths, noisy=True), **options))
    # Few are fetched ahead, however long this process sleeps, so that deaths are noticed.
    few = {"prefetch_factor": 1, "prefetch_bytes": 1}
    loader = ResumableDataLoader(
        kind(lengths, noisy=True), num_workers=2, max_restarts=3, **few, **options
    )
    delivered, chance, kills = [], random.Random(0), 0
    for batch in loader:
        delivered.append(plain(batch))
        if len(delivered) % 5 == 1 and worker_pids():
            kill_one(chance)
            kills += 1
    assert delivered == expected
    assert kills > 4


class Slow(Shards):
    def shown(self, sample: int) -> Any:
        time.sleep(0.002)
        return super().shown(sample)


class SlowStateful(Slow, StatefulShards):
    pass


class SlowCarrying(Slow, CarryingShards):
    pass


@RESTARTS
@pytest.mark.parametrize(
    ("kind", "in_order"),
    [
        (Slow, True),
        (SlowStateful, False),
        (SlowCarrying, True),
        *(
            pytest.param(kind, in_order, marks=pytest.mark.soak)
            for kind, in_order in [(Slow, False), (SlowStateful, True), (SlowCarrying, False)]
        ),
    ],
)
def test_kills_at_any_moment(kind, in_order):
    lengths, options = [16, 9, 20], {"num_workers": 2, "lanes": 3, "in_order": in_order}
    # The pass after the kills shows that lanes go on where they were.
    expected = passes(ResumableDataLoader(kind(lengths, noisy=True), lanes=3, **MANY_INLINE), 3)
    loader = ResumableDataLoader(
        kind(lengths, noisy=True), persistent_workers=True, **options, **MANY
    )
    stop, chance = threading.Event(), random.Random(1)

    def kill() -> None:
        for _ in range(30):  # not for ever, or none lives to a batch where starts take long
            if stop.wait(chance.expovariate(1 / 0.03)):
                return
            with suppress(ProcessLookupError):  # it has ended by itself since
                if pids := worker_pids():
                    os.kill(chance.choice(pids), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = passes(loader, 2)
    finally:
        stop.set()
        killer.join()
    found += passes(loader, 1)
    for epoch, batches in enumerate(found):
        if in_order:
            assert batches == expected[epoch]
        else:
            assert sorted(map(str, batches)) == sorted(map(str, expected[epoch]))


@RESTARTS
def test_a_worker_that_died_between_two_epochs_is_replaced_with_what_it_carried():
    options = {"num_workers": 2, "persistent_workers": True}
    expected = passes(ResumableDataLoader(CarryingShards(LENGTHS), lanes=2, **MANY_INLINE), 3)
    loader = ResumableDataLoader(CarryingShards(LENGTHS), **options, **MANY)
    for epoch in range(3):
        assert one_pass(loader) == expected[epoch]
        for pid in worker_pids():
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: pid not in worker_pids())


@RESTARTS
def test_states_after_a_kill_resume_exactly():
    options = {"num_workers": 2, "lanes": 4, "persistent_workers": True}
    (expected,) = passes(ResumableDataLoader(OwnIterator(LENGTHS), lanes=4, **MANY_INLINE), 1)
    loader, chance = ResumableDataLoader(OwnIterator(LENGTHS), **options, **MANY), random.Random(0)
    states = []
    for _ in loader:
        states.append(loader.state_dict())
        if len(states) % 5 == 2:
            kill_one(chance)
    for k in range(1, len(expected) + 1, 4):
        resumed = ResumableDataLoader(OwnIterator(LENGTHS), **MANY_INLINE)
        resumed.load_state_dict(states[k - 1])
        assert one_pass(resumed) == expected[k:]


@RESTARTS
def test_a_stateful_dataset_read_by_index_survives_kills():
    options = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    expected = passes(ResumableDataLoader(Counter(60), **options, **MANY), 2)
    loader, chance = ResumableDataLoader(Counter(60), **options, **MANY), random.Random(2)
    for epoch in range(2):
        delivered = []
        for batch in loader:
            delivered.append(plain(batch))
            if chance.random() < 0.3:
                kill_one(chance)
        assert delivered == expected[epoch]


class Counter(Dataset):
    """A sample is its index, and how many samples were read before it."""

    def __init__(self, length: int) -> None:
        self.length, self.read = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.read += 1
        return index, self.read

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]
