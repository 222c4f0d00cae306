"""Cost of profiling a loader, and of being able to.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from measure import table

from dataporter import ResumableDataLoader

GENERATIONS = 6  # processes are started anew: each has its memory elsewhere
ROUNDS = 12
BATCH_SIZE = 32
BATCHES = 300


class Rows:
    """Small dicts of tensors, read one by one."""

    def __init__(self, batches: int = BATCHES) -> None:
        self._rows = torch.randn(BATCH_SIZE * batches, 64)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self._rows[index], "label": index % 10}


class Dear(Rows):
    """Rows that cost enough to be timed one by one."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        return {**row, "x": row["x"].repeat(24).sort().values}


def _tokens() -> torch.Tensor:
    return torch.randint(0, 9, (BATCH_SIZE * BATCHES, 256))


def _dear() -> Dear:
    return Dear(BATCHES // 10)


WORKLOADS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "tokens, no workers": (_tokens, {}),
    "tokens, 2 workers": (_tokens, {"num_workers": 2}),
    "small dicts, no workers": (Rows, {}),
    "small dicts, 2 workers": (Rows, {"num_workers": 2}),
    "small dicts, 2 threads": (Rows, {"num_workers": 2, "engine": "threads"}),
    "dear samples, no workers": (_dear, {}),
    "dear samples, 2 workers": (_dear, {"num_workers": 2}),
}


def main() -> None:
    """Print the table, or be one of those who take turns."""
    if sys.argv[1:2] == ["--be"]:
        _serve(notes=sys.argv[2] == "on")
        return
    here = str(Path(__file__).parents[1] / "src")
    sources = {"off": here, "on": here}
    if sys.argv[1:]:
        sources = {"before": sys.argv[1], **sources}
    spent: dict[str, dict[str, list[float]]] = {
        name: {who: [] for who in sources} for name in WORKLOADS
    }
    for _ in range(GENERATIONS):
        with contextlib.ExitStack() as stack:
            players = {who: stack.enter_context(_player(who, sources[who])) for who in sources}
            for name in WORKLOADS:
                _take_turns(name, players, spent[name])
    rows = [_row(name, spent[name]) for name in WORKLOADS]
    header = ("loader", "a batch, off", "off / before", "on / off")
    print(table("What profiling costs (targets: off below 1 %, on below 5 %)", header, rows))


def _take_turns(
    name: str, players: dict[str, subprocess.Popen[str]], spent: dict[str, list[float]]
) -> None:
    for player in players.values():
        _asked(player, name)  # once to warm up, and to have workers
    for turn in range(ROUNDS):
        # Each turn begins with another: what comes first finds colder caches.
        order = list(players)[turn % len(players) :] + list(players)[: turn % len(players)]
        for who in order:
            spent[who].append(_asked(players[who], name))


def _row(name: str, spent: dict[str, list[float]]) -> tuple[str, ...]:
    batches = BATCHES // 10 if name.startswith("dear") else BATCHES
    batch = statistics.median(spent["off"]) / batches
    before = _more(spent["off"], spent["before"]) if "before" in spent else "-"
    return name, f"{batch * 1e6:,.0f} µs", before, _more(spent["on"], spent["off"])


def _more(ones: list[float], others: list[float]) -> str:
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle - 1:+.1%} (half of them {low - 1:+.1%} to {high - 1:+.1%})"


@contextlib.contextmanager
def _player(who: str, source: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--be", who]
    environment = {**os.environ, "PYTHONPATH": source}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        yield process
        process.communicate()


def _asked(process: subprocess.Popen[str], name: str) -> float:
    """Ask a process for one pass; return its seconds."""
    if process.stdin is None or process.stdout is None:
        msg = "the process was started without pipes"
        raise RuntimeError(msg)
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def _serve(*, notes: bool) -> None:
    loaders: dict[str, Any] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in loaders:
            loaders.clear()  # with its workers
            loaders[name] = _loader(name)
        loader, timing = loaders[name], None
        if notes:
            from dataporter.fetch.timing import Timing  # noqa: PLC0415  `before` has none

            timing = Timing()
            loader.note_times(timing)
        began = _cpu_seconds()
        for _ in loader:
            pass
        print(_cpu_seconds() - began, flush=True)


def _loader(name: str) -> Any:
    dataset, options = WORKLOADS[name]
    stays = options.get("num_workers", 0) > 0 and "engine" not in options
    return ResumableDataLoader(
        dataset(), BATCH_SIZE, shuffle=True, seed=1, persistent_workers=stays, **options
    )


def _cpu_seconds() -> float:
    """Processor time of this process and of its workers, who live on."""
    pids = [child.pid or 0 for child in multiprocessing.active_children()]
    # As `clock_getcpuclockid` of libc numbers the clock of another process.
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


if __name__ == "__main__":
    main()
