"""Jobs of two ranks over data in a storage, whose processes are killed at random moments.

A rank is a process with a worker and a porter, and both ranks share a cache. Ranks go step by step,
as those of a training do, and a state is saved every few steps. A job that lost a rank ends, and
the next one goes on from the last state.
"""

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from porters import porter_pids, until_no_porter_is_left
from support import plain
from watching import worker_pids

from dataporter import ResumableDataLoader, WorkerRestartWarning
from dataporter.shards import ShardedDataset

RANKS = 2
BATCH = 4
SAVED_EVERY = 4  # steps

Open = Callable[[], ShardedDataset]
Steps = list[list[list[int]]]  # the samples of each step and rank


def loader_of(corpus: ShardedDataset, seed: int, rank: int, **options: Any) -> ResumableDataLoader:
    shared = {"shuffle": True, "seed": seed, "rank": rank, "world_size": RANKS}
    return ResumableDataLoader(corpus, BATCH, **shared, **options)


def quiet_steps(corpus: ShardedDataset, seed: int) -> Steps:
    """What an epoch delivers if nothing happens."""
    loaders = [loader_of(corpus, seed, rank) for rank in range(RANKS)]
    return [[plain(batch["id"]) for batch in step] for step in zip(*loaders, strict=True)]


def steps_through_kills(
    open_one: Open, seed: int, chance: random.Random, kills: Iterator[str]
) -> Steps:
    """What an epoch delivers while "porter", "worker", "rank", "job" or "opening" are killed."""
    steps: Steps = []
    saved, state = 0, None
    kill = next(kills, None)
    while True:
        del steps[saved:]
        with contextlib.closing(_Job(open_one, seed, state)) as job, contextlib.suppress(EOFError):
            if kill == "opening":
                time.sleep(chance.uniform(0, 0.8))  # the moment is what is drawn
                job.kill("job", chance)
                kill = next(kills, None)
            due = chance.randrange(2, 12)
            while step := job.step():
                ids, states = zip(*step, strict=True)
                steps.append(list(ids))
                if len(steps) % SAVED_EVERY == 0:
                    assert states[0] == states[1]
                    saved, state = len(steps), states[0]
                due -= 1
                if due <= 0 and kill not in (None, "opening"):
                    job.kill(kill, chance)
                    kill, due = next(kills, None), chance.randrange(2, 12)
            return steps


class _Job:
    """A rank each in a process, from its start or a state to its end."""

    def __init__(self, open_one: Open, seed: int, state: Any) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes, self._ranks = [], []
        self._workers: list[list[int]] = [[] for _ in range(RANKS)]
        for rank in range(RANKS):
            here, there = context.Pipe()
            arguments = (open_one, seed, rank, state, there)
            self._ranks.append(context.Process(target=_run_rank, args=arguments))
            self._pipes.append(here)
            self._ranks[-1].start()
            there.close()

    def step(self) -> list[tuple[list[int], Any]] | None:
        """What each rank delivers, and its state; None at the end, `EOFError` if one has died."""
        step = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if (message := pipe.recv()) is None:
                    return None
                ids, state, self._workers[rank] = message
                step.append((ids, state))
                pipe.send("go on")
            except OSError as error:
                raise EOFError from error
        return step

    def kill(self, whom: str, chance: random.Random) -> None:
        time.sleep(chance.uniform(0, 0.02))  # the moment is what is drawn
        rank = chance.randrange(RANKS)
        if whom == "porter":
            victims = porter_pids()[:1]
        elif whom == "worker":
            victims = self._workers[rank]
        elif whom == "rank":
            victims = [self._ranks[rank].pid]
        else:
            victims = [*_with_children(process.pid for process in self._ranks), *porter_pids()]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    def close(self) -> None:
        for process in self._ranks:
            process.kill()
        for process, pipe in zip(self._ranks, self._pipes, strict=True):
            process.join()
            pipe.close()


def _run_rank(open_one: Open, seed: int, rank: int, state: Any, out: Any) -> None:
    warnings.simplefilter("ignore", WorkerRestartWarning)
    loader = loader_of(open_one(), seed, rank, num_workers=1, max_restarts=100)
    if state is not None:
        loader.load_state_dict(state)
    for batch in loader:
        out.send((plain(batch["id"]), loader.state_dict(), worker_pids()))
        out.recv()
    out.send(None)
    out.recv()  # until the other has ended too


def _with_children(processes: Iterator[int]) -> list[int]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(process).children(recursive=True)
            found += [process, *(child.pid for child in children)]
    return found


def assert_tidy(cache: Path, budget: int) -> None:
    """A cache that nobody uses any more holds whole blocks, counted and within the budget."""
    gc.collect()  # a loader is part of a cycle
    until_no_porter_is_left()
    (table,) = cache.rglob("sizes")
    recorded = np.fromfile(table, np.int64)
    recorded = recorded[: (len(recorded) - 1) // 3]  # of sizes
    found = {int(path.stem): path.stat().st_size for path in table.parent.glob("*.block")}
    known = {int(entry): int(recorded[entry]) for entry in recorded.nonzero()[0]}
    assert known == found, f"the table has {known}, the folder {found}"
    assert sum(found.values()) <= budget
    names = {path.name for path in cache.rglob("*") if path.is_file()}
    assert names == {"sizes", *(f"{entry:08}.block" for entry in found)}
