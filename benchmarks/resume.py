"""From a state to the first batch: time and memory at four sizes, each in a new process.

A process builds a loader over a dataset that holds nothing, loads a state from the middle
of an epoch and takes a batch. Measured are the seconds from `load_state_dict` to the batch
in hand, and by how much the process's peak memory rose from before the loader was built.
torchdata's StatefulDataLoader does the same, where it can: it shuffles by a list of all
indices.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measure import count, table

LENGTHS = [10**5, 10**7, 10**9, 10**12]
BATCH_SIZE = 64
ROUNDS = 5
# torchdata keeps the epoch's order as a list of ints, 36 bytes each.
LARGEST_TORCHDATA = 10**7


class Nothing:
    """A dataset of any length that costs nothing."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    """Print the table."""
    rows = []
    for length in LENGTHS:
        cells = [count(length)]
        for name in ("dataporter", "torchdata"):
            if name == "torchdata" and length > LARGEST_TORCHDATA:
                cells += ["not run", f"its list needs {36 * length / 1e9:,.0f} GB"]
                continue
            runs = [_in_new_process(name, length) for _ in range(ROUNDS)]
            seconds, megabytes = (statistics.median(values) for values in zip(*runs, strict=True))
            cells += [f"{seconds * 1e3:.1f} ms", f"{megabytes:.1f} MB"]
        rows.append(cells)
    header = ("samples", "dataporter", "memory", "torchdata", "memory")
    title = "From state to first batch, in mid-epoch (target: at most 10 ms and 16 MB, flat)"
    print(table(title, header, rows))


def _in_new_process(name: str, length: int) -> tuple[float, float]:
    command = [sys.executable, __file__, "--child", name, str(length)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, megabytes = json.loads(answer.stdout)
    return seconds, megabytes


def _child(name: str, length: int) -> None:
    loader_class, make_state = _CONTENDERS[name]()
    _first_batch(loader_class, 1000, make_state)  # imports and first-use costs are paid here
    before = _peak_megabytes()
    seconds = _first_batch(loader_class, length, make_state)
    print(json.dumps([seconds, _peak_megabytes() - before]))


def _peak_megabytes() -> float:
    # Not getrusage: its peak includes that of the process which started this one.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def _first_batch(loader_class: Any, length: int, make_state: Any) -> float:
    loader = loader_class(Nothing(length), batch_size=BATCH_SIZE, shuffle=True)
    state = make_state(loader, length // 2 // BATCH_SIZE)
    start = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - start


def _dataporter() -> tuple[Any, Any]:
    from dataporter import ResumableDataLoader  # noqa: PLC0415  each child imports its own

    def state(loader: Any, batches: int) -> dict[str, Any]:
        progress = {"batches_processed": batches, "samples_processed": batches * BATCH_SIZE}
        return {**loader.state_dict(), **progress}

    return ResumableDataLoader, state


def _torchdata() -> tuple[Any, Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  likewise

    def state(loader: Any, batches: int) -> dict[str, Any]:
        # The first batch's state, moved to the middle: what a run of that many gives.
        iterator = iter(loader)
        next(iterator)
        saved: dict[str, Any] = loader.state_dict()
        saved["_num_yielded"] = saved["_sampler_iter_yielded"] = batches
        sampler = saved["_sampler_iter_state"]
        sampler["samples_yielded"] = batches * BATCH_SIZE
        sampler["sampler_iter_state"]["yielded"] = batches * BATCH_SIZE
        return saved

    return StatefulDataLoader, state


_CONTENDERS = {"dataporter": _dataporter, "torchdata": _torchdata}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.child[0], int(arguments.child[1]))
    else:
        main()
