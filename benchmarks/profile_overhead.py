"""What it costs to be able to profile a loader, and to do it.

    python benchmarks/profile_overhead.py [SRC]

`off` is a loader as it is, `on` one whose times are noted. With SRC, the `src` folder of a version
that could not be profiled yet (`git worktree add`), `before` is that one. Each is a process
of its own; they take turns pass by pass, on loaders that do little beside being loaders: what
noting costs beside real work is less. What counts is the time of processors, workers' included,
since that of the clock says more of what else the machine does; and of it the median over the
turns of what a pass took, by what that of the other took in the same turn.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measure import table

from dataporter import ResumableDataLoader

ROUNDS = 40
BATCH_SIZE = 32
SAMPLES = 32 * 400
TARGETS = {"off": 0.01, "on": 0.05}


class Rows:
    """Small dicts of tensors, read one by one."""

    def __init__(self) -> None:
        self._rows = torch.randn(SAMPLES, 64)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self._rows[index], "label": index % 10}


class Decoded(Rows):
    """Rows that cost a little to make: just enough for samples to be timed one by one."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        return {**row, "x": row["x"].sort().values.cumsum(0)}


WORKLOADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tokens, no workers": (lambda: torch.randint(0, 9, (SAMPLES, 256)), {}),
    "tokens, 2 workers": (lambda: torch.randint(0, 9, (SAMPLES, 256)), {"num_workers": 2}),
    "small dicts, no workers": (Rows, {}),
    "small dicts, 2 workers": (Rows, {"num_workers": 2}),
    "small dicts, 2 threads": (Rows, {"num_workers": 2, "engine": "threads"}),
    "decoded, no workers": (Decoded, {}),
    "decoded, 2 workers": (Decoded, {"num_workers": 2}),
}


def main() -> None:
    """Print the table, or be one of those who take turns."""
    if sys.argv[1:2] == ["--be"]:
        _serve(sys.argv[2], sys.argv[3])
        return
    here = str(Path(__file__).parents[1] / "src")
    sources = {"off": here, "on": here}
    if sys.argv[1:]:
        sources = {"before": sys.argv[1], **sources}
    rows = [_row(name, sources) for name in WORKLOADS]
    header = ("loader", "a batch, off", "off / before", "on / off")
    print(table("What profiling costs (targets: off below 1 %, on below 5 %)", header, rows))


def _row(name: str, sources: dict[str, str]) -> tuple[str, ...]:
    spent: dict[str, list[float]] = {who: [] for who in sources}
    with contextlib.ExitStack() as stack:
        players = {who: stack.enter_context(_player(who, sources[who], name)) for who in sources}
        for turn in range(ROUNDS):
            # In turns that begin with another each: what comes first finds colder caches.
            order = list(players)[turn % len(players) :] + list(players)[: turn % len(players)]
            for who in order:
                spent[who].append(_asked(players[who]))
    batch = statistics.median(spent["off"]) / (SAMPLES / BATCH_SIZE)
    before = _more(spent["off"], spent["before"]) if "before" in spent else "-"
    return name, f"{batch * 1e6:,.0f} µs", before, _more(spent["on"], spent["off"])


def _more(ones: list[float], others: list[float]) -> str:
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle - 1:+.1%} (half of them {low - 1:+.1%} to {high - 1:+.1%})"


@contextlib.contextmanager
def _player(who: str, source: str, name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--be", who, name]
    environment = {**os.environ, "PYTHONPATH": source}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        yield process
        process.communicate()


def _asked(process: subprocess.Popen[str]) -> float:
    """Have a process make one pass; the seconds it took."""
    if process.stdin is None or process.stdout is None:
        msg = "the process was started without pipes"
        raise RuntimeError(msg)
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def _serve(who: str, name: str) -> None:
    dataset, options = WORKLOADS[name]
    stays = options.get("engine") != "threads" and options.get("num_workers", 0) > 0
    loader: Any = ResumableDataLoader(
        dataset(), BATCH_SIZE, shuffle=True, seed=1, persistent_workers=stays, **options
    )
    timing: Any = None
    if who == "on":
        from dataporter.timing import Timing  # noqa: PLC0415  `before` has none

        timing = Timing()
        loader.note_times(timing)
    for _ in loader:  # once to warm up, and have workers
        pass
    for _ in sys.stdin:
        began = _cpu_seconds()
        for _ in loader:
            pass
        spent = _cpu_seconds() - began
        if timing is not None:
            timing.clear()
        print(spent, flush=True)


def _cpu_seconds() -> float:
    """Processor time of this process and of its workers, who live on."""
    pids = [child.pid or 0 for child in multiprocessing.active_children()]
    # As `clock_getcpuclockid` of libc numbers the clock of another process.
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


if __name__ == "__main__":
    main()
