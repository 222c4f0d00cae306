"""From a state to the first correct batch: time and memory at several sizes and positions.

Each loader is measured in a new process. It loads a state from the middle of an epoch, over a
dataset that holds nothing, and takes a batch without workers. The seconds from the state in hand
(torch has none: from the number of batches to skip) to the batch in hand are measured, and the
rise of the process's peak memory since before the loader was built. Then the batch is checked.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import count, interleaved, table
from workloads import Nothing, TokenWindows

BATCH_SIZE = 64
ROUNDS = 5
LIMIT = 60.0  # seconds for the rounds of one size
SIZES = [10**5, 10**7, 10**9, 10**12]
SWEPT = 10**6  # the size in which several positions are tried
_LARGEST_LIST = 10**7  # torch and torchdata keep an epoch's order as a list of ints: 36 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A position in a dataset of some size."""

    samples: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Cost of a resume, or the reason why it was not tried."""

    who: str
    samples: int
    position: int
    seconds: tuple[float, ...] = ()
    megabytes: float | None = None  # by which the memory rose at most
    why: str = ""


class WrongBatchError(Exception):
    """A resume delivered a wrong batch."""


# A resume makes the first batch; beside it, what that batch has to be.
Prepared = tuple[Callable[[], Any], Callable[[], Any]]


def _dataporter(samples: int, batches: int) -> Prepared:
    from dataporter.law import ShuffledOrder  # noqa: PLC0415  each process imports its own
    from dataporter.resumable_dataloader import ResumableDataLoader  # noqa: PLC0415  likewise

    loader = ResumableDataLoader(Nothing(samples), BATCH_SIZE, shuffle=True, seed=1)
    begun = batches * BATCH_SIZE
    state = {**loader.state_dict(), "batches_processed": batches, "samples_processed": begun}

    def resume() -> Any:
        loader.load_state_dict(state)
        return next(iter(loader))

    def expected() -> Any:
        return ShuffledOrder(samples, seed=1).indices(0, np.arange(begun, begun + BATCH_SIZE))

    return resume, expected


def _torchdata(samples: int, batches: int) -> Prepared:
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  likewise

    loader = StatefulDataLoader(Nothing(samples), BATCH_SIZE, shuffle=True)
    next(iter(loader))
    # The first batch's state, moved on: what a run of that many gives.
    state = loader.state_dict()
    state["_num_yielded"] = state["_sampler_iter_yielded"] = batches
    sampler = state["_sampler_iter_state"]
    sampler["samples_yielded"] = sampler["sampler_iter_state"]["yielded"] = batches * BATCH_SIZE
    generator = torch.Generator().set_state(sampler["sampler_iter_state"]["generator"].clone())
    fresh = StatefulDataLoader(Nothing(samples), BATCH_SIZE, shuffle=True)

    def resume() -> Any:
        fresh.load_state_dict(state)
        return next(iter(fresh))

    return resume, lambda: _permuted(samples, batches, generator)


def _torch(samples: int, batches: int) -> Prepared:
    from torch.utils.data import DataLoader, RandomSampler  # noqa: PLC0415  likewise

    dataset: Any = Nothing(samples)
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(dataset, BATCH_SIZE, sampler=order)

    def resume() -> Any:
        return next(itertools.islice(loader, batches, None))

    return resume, lambda: _permuted(samples, batches, torch.Generator().manual_seed(1))


def _grain(samples: int, batches: int) -> Prepared:
    from grain import python as grain  # noqa: PLC0415  likewise

    order = grain.MapDataset.source(Nothing(samples)).shuffle(seed=1)
    loader = order.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(BATCH_SIZE)
    begun = batches * BATCH_SIZE
    state = {**iter(loader).get_state(), "next_index": begun}

    def resume() -> Any:
        iterator = iter(loader)
        iterator.set_state(state)
        return next(iterator)

    return resume, lambda: [order[position] for position in range(begun, begun + BATCH_SIZE)]


def _permuted(samples: int, batches: int, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(samples, generator=generator)
    return order[batches * BATCH_SIZE :][:BATCH_SIZE]


RESUMES: dict[str, Callable[[int, int], Prepared]] = {
    "torch": _torch,
    "torchdata": _torchdata,
    "grain": _grain,
    "dataporter": _dataporter,
}


def measured(who: str, points: list[Point], rounds: int, limit: float) -> Iterator[Resumed]:
    """Measure one contender, but nowhere beyond a point where it took longer than `limit`."""
    _resumed(who, Point(samples=1000, position=BATCH_SIZE))  # first uses cost more
    slow: list[tuple[float, Point]] = []
    for point in points:
        at = Resumed(who=who, samples=point.samples, position=point.position)
        if who in ("torch", "torchdata") and point.samples > _LARGEST_LIST:
            why = f"its list needs {36 * point.samples / 1e9:,.0f} GB"
            yield replace(at, why=why)
            continue
        beyond = [(spent, each) for spent, each in slow if _is_less(each, point)]
        if beyond:
            spent, less = beyond[0]
            yield replace(at, why=f"{spent:.1f} s at {less.position:,} of {less.samples:,}")
            continue
        found = [_resumed(who, point)]  # seconds and megabytes
        while len(found) < rounds and sum(seconds for seconds, _ in found) < limit:
            found.append(_resumed(who, point))
        times = tuple(seconds for seconds, _ in found)
        if max(times) > limit:
            slow.append((max(times), point))
        rises = [rise for _, rise in found if rise is not None]
        yield replace(at, seconds=times, megabytes=max(rises, default=None))


def _is_less(one: Point, other: Point) -> bool:
    return one.samples <= other.samples and one.position <= other.position


def _resumed(who: str, point: Point) -> tuple[float, float | None]:
    """Seconds of one resume, and the megabytes that it needed; its batch is checked."""
    before = _peak_megabytes(anew=True)
    resume, expected = RESUMES[who](point.samples, point.position // BATCH_SIZE)
    start = time.perf_counter()
    batch = resume()
    spent = time.perf_counter() - start
    after = _peak_megabytes()
    if not np.array_equal(np.asarray(batch), np.asarray(expected())):
        msg = f"{who} resumed at {point}, with the wrong batch."
        raise WrongBatchError(msg)
    return spent, None if before is None or after is None else after - before


def _peak_megabytes(*, anew: bool = False) -> float | None:
    """The most memory that this process has had, of late if it is to be seen anew."""
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux, or not allowed
        return None
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def measured_elsewhere(
    who: str, points: Sequence[Point], rounds: int, limit: float
) -> list[Resumed]:
    """Measure one contender in a new process."""
    listed = json.dumps([asdict(point) for point in points])
    command = [sys.executable, __file__, "--one", who, str(rounds), str(limit), listed]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = (json.loads(line) for line in done.stdout.splitlines())
    return [Resumed(**{**line, "seconds": tuple(line["seconds"])}) for line in found]


def print_measured(who: str, rounds: str, limit: str, points: str) -> None:
    """Measure one contender here, and print a line of JSON for each point."""
    warnings.filterwarnings("ignore")  # torchdata calls functions that torch has deprecated
    listed = [Point(**each) for each in json.loads(points)]
    for found in measured(who, listed, int(rounds), float(limit)):
        print(json.dumps(asdict(found)), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    from contenders import installed  # noqa: PLC0415  likewise

    parser = argparse.ArgumentParser(description="Measure resumes, and what a state costs.")
    parser.add_argument("--all", action="store_true", help="all installed loaders and positions")
    everything = parser.parse_args(arguments).all
    contenders = [who for who in RESUMES if who in installed()]
    usual = [who for who in ("dataporter", "torchdata") if who in contenders]
    print(resumes(contenders if everything else usual, points() if everything else middles()))
    print(state_keeping())


def middles() -> list[Point]:
    """The middle of an epoch, in several sizes."""
    return [Point(samples=size, position=size // 2) for size in SIZES]


def points() -> list[Point]:
    """Several positions of one size, then the middle of several sizes."""
    along = {Point(samples=SWEPT, position=SWEPT // 100 * share) for share in (0, 10, 50, 90)}
    return sorted(along | set(middles()), key=lambda point: (point.samples, point.position))


def resumes(
    contenders: Sequence[str], at: Sequence[Point], rounds: int = ROUNDS, limit: float = LIMIT
) -> str:
    """Every contender, resumed at all points."""
    columns = [measured_elsewhere(who, at, rounds, limit) for who in contenders]
    rows = [
        (
            *(count(point.samples), f"{point.position:,}"),
            *(cell for column in columns for cell in _cells(column[number])),
        )
        for number, point in enumerate(at)
    ]
    header = ("samples", "position", *(cell for who in contenders for cell in (who, "memory")))
    return table("From state to first batch (target: at most 10 ms and 16 MB, flat)", header, rows)


def state_keeping() -> str:
    """Epochs with a state taken at every step, and without."""
    from dataporter.resumable_dataloader import ResumableDataLoader  # noqa: PLC0415  likewise

    loader = ResumableDataLoader(TokenWindows(8192), BATCH_SIZE, shuffle=True, seed=1)

    def without() -> None:
        for _ in loader:
            pass

    def with_states() -> None:
        for _ in loader:
            loader.state_dict()

    seconds = interleaved({"never": without, "every step": with_states}, 9)
    rows = [(name, f"{spent / len(loader) * 1e6:.1f} µs") for name, spent in seconds.items()]
    return table("Cost of the state", ("state_dict() called", "time a step"), rows)


def _cells(found: Resumed) -> tuple[str, str]:
    if found.why:
        return "not run", found.why
    memory = "unknown" if found.megabytes is None else f"{found.megabytes:.1f} MB"
    return f"{statistics.median(found.seconds) * 1e3:.1f} ms", memory


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print_measured(*sys.argv[2:])
    else:
        main()
