"""Ten minutes of kills, saves, resumes and topology changes; every sample is accounted for.

`make soak` runs it. DATAPORTER_SOAK_SECONDS sets another length, DATAPORTER_SOAK_SEED another run.
"""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest
from support import Augmented, plain

from dataporter import ResumableDataLoader, WorkerRestartWarning

SECONDS = float(os.environ.get("DATAPORTER_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("DATAPORTER_SOAK_SEED", "1"))


def kill_a_worker(chance: random.Random) -> None:
    children = [c for c in multiprocessing.active_children() if "dataporter" in c.name]
    if children:
        os.kill(chance.choice(children).pid, signal.SIGKILL)


def leg(chance: random.Random, length: int, state: dict | None) -> tuple[list[Any], dict]:
    """A run of some steps on some topology, with some kills; what all ranks saw, and the state."""
    world_size, batch_size = chance.randint(1, 4), chance.randint(1, 16)
    options = {
        "num_workers": chance.choice([0, 0, 1, 2, 3, "auto"]),
        "prefetch_factor": chance.randint(1, 4),
        "max_restarts": 10**6,
        "tail": "uneven",
        "seed": 7,
        "shuffle": True,
    }
    loaders = [
        ResumableDataLoader(
            Augmented(length), batch_size, rank=rank, world_size=world_size, **options
        )
        for rank in range(world_size)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    position = 0 if state is None or state["finished"] else state["samples_processed"]
    whole = (length - position) // (world_size * batch_size)
    steps = chance.choice([None, chance.randint(0, 30)])
    seen, iterators = [], [iter(loader) for loader in loaders]
    for _ in range(whole if steps is None else min(steps, whole)):
        for batches in iterators:
            seen.append(plain(next(batches)))
            if chance.random() < 0.02:
                kill_a_worker(chance)
    if steps is None:  # to the end, where ranks may differ by a batch
        seen += [plain(batch) for batches in iterators for batch in batches]
    states = [loader.state_dict() for loader in loaders]
    assert all(found == states[0] for found in states)
    return seen, states[0]


@pytest.mark.soak
@pytest.mark.long(SECONDS + 300, reason="it runs for as long as it was asked to")
@pytest.mark.filterwarnings("ignore::dataporter.WorkerRestartWarning")
def test_every_sample_of_every_epoch_comes_exactly_once_with_its_own_numbers():
    assert issubclass(WorkerRestartWarning, Warning)
    chance, length = random.Random(SEED), 997
    deadline, epochs = time.monotonic() + SECONDS, 0
    state: dict | None = None
    while time.monotonic() < deadline:
        alone = ResumableDataLoader(Augmented(length), length, shuffle=True, seed=7)
        alone.set_epoch(epochs)
        ((ids, columns),) = (plain(batch) for batch in alone)
        expected = {ids[i]: [column[i] for column in columns] for i in range(length)}
        times: Counter[int] = Counter()
        while state is None or state["epoch"] < epochs or not state["finished"]:
            seen, state = leg(chance, length, state)
            for ids, columns in seen:
                for place, sample in enumerate(ids):
                    times[sample] += 1
                    assert [column[place] for column in columns] == expected[sample]
        assert sorted(times) == list(range(length))
        assert set(times.values()) == {1}
        epochs += 1
    assert epochs > 0
