"""Data in many files: our readers beside others, and the costs of order, index, resume, memory.

    python benchmarks/shards.py [--rows PATTERN] [--seconds 30] [--out FILE.json]
                                [--full] [--folder FOLDER] [--mosaic FOLDER] [--neprr FOLDER]
                                [--server]

The races are on texts of 1 kB and JPEG bytes of 40 kB: 20,000 and 1,000 samples, with `--full`
200,000 and 10,000. Each contender reads the same samples in its own format (shard_data.py) with
two workers (shard_contenders.py), after one epoch that is not measured. So files are in memory,
and our decoded blocks in their cache; first epochs, where nothing is decoded, have a table of
their own. Peers that are not installed are named. neprr-streaming and mosaicml-streaming have the
same module, so each lies in a folder: pip install --no-deps --target FOLDER neprr-streaming.

With `--server` the data lies on an S3 server of this machine instead: server_shards.py.

Two limits stand beside: one process that takes 64 random rows at a time from mmapped Arrow, and
one that reads the Parquet files in sequence. Shares are of two such processes at full speed.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import shard_contenders
from loaders import AtOnce
from machine import tree_memory_mb
from measure import AT_ONCE, BARE, Row, Run, count, in_turns, table
from players import Player, PlayerFailedError, close_all
from race import race
from script import begin, execute, parser, text
from shard_contenders import (
    BATCH_SIZE,
    MOSAIC,
    NEPRR,
    WORKERS,
    Batches,
    again_and_again,
    contenders,
    reading,
    sequential,
    taken,
)
from shard_data import TITLES, Data, make

from dataporter.law.tracks import TracksOrder, tracks_for
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.shards.building import open_index
from dataporter.shards.dataset import ShardedDataset
from dataporter.shards.files import list_files
from dataporter.shards.formats.format import Format, ReadOptions
from dataporter.shards.shard_file import Block, Scanned, ShardFile

SECONDS = 30.0  # of a row
FOLDER = Path("build/bench-shards")
SMALL = {"texts": 20_000, "jpegs": 1_000}
SERVED = {"texts": 100_000, "jpegs": 5_000}
FULL = {"texts": 200_000, "jpegs": 10_000}
IN_SEQUENCE = "Parquet in sequence"
_LIMITS = (BARE, AT_ONCE, IN_SEQUENCE)
_ROUNDS = 3


# Races


def measure(data: Data, seconds: float) -> Row:
    """Let all that read the data take turns."""
    limit = partial(reading, taken, data)
    makers: dict[str, Any] = {
        BARE: limit,
        AT_ONCE: partial(AtOnce, limit, WORKERS),
        IN_SEQUENCE: partial(reading, sequential, data),
        **{who: partial(reading, batches, data) for who, batches in contenders(data).items()},
    }
    return race(
        *(TITLES[data.kind], WORKERS, makers),
        seconds=seconds,
        batch_size=BATCH_SIZE,
        unit="samples/s",
    )


def tables(measured: Sequence[Row]) -> str:
    """One table for each kind of data."""
    return "\n".join(_table(row) for row in measured)


def _table(row: Row) -> str:
    header = ["", "samples/s", "ours to it", "of 2 takes", "of 2 at once", "of 2 in sequence"]
    return table(f"{row.work}, {row.workers} workers", header, [_cells(row, w) for w in row.turns])


def _cells(row: Row, who: str) -> list[str]:
    if failed := row.turns[who].failed:
        return [who, f"failed: {failed}", "-", "-", "-", "-"]
    processes = 1 if who in (BARE, IN_SEQUENCE) else row.workers
    return [
        who,
        text(row.values(who), "{:,.0f}"),
        text(row.ratio("dataporter", who), "{:.2f}x"),
        text(row.ratio(who, BARE, processes), "{:.2f}"),
        text(row.ratio(who, AT_ONCE, processes / row.workers), "{:.2f}"),
        text(row.ratio(who, IN_SEQUENCE, processes), "{:.2f}"),
    ]


# First epochs


class FirstEpoch:
    """A contender that begins anew in each turn, with nothing decoded."""

    def __init__(self, batches: Batches, data: Data) -> None:
        self._batches, self._data = batches, data

    def turn(self, size: int) -> float:
        """Take the batches of one epoch; seconds from before its reader was made."""
        shutil.rmtree(self._data.folder / "cache", ignore_errors=True)
        started = time.perf_counter()
        batches = self._batches(self._data)
        for _ in range(size):
            next(batches)
        seconds = time.perf_counter() - started
        with suppress(AttributeError):
            batches.close()  # type: ignore[attr-defined]  # of generators
        return seconds


def first_epochs(data: Data) -> str:
    """Seconds of an epoch with the start of workers in it, by readers that were imported."""
    size = data.rows // BATCH_SIZE
    players = {
        who: Player(partial(FirstEpoch, each, data)) for who, each in contenders(data).items()
    }
    try:
        calls = {who: partial(player.call, "turn", size) for who, player in players.items()}
        for who in list(calls):
            try:
                calls[who]()
            except PlayerFailedError:
                del calls[who]
        found: dict[str, list[float]] = in_turns(calls, seconds_of=float, rounds=_ROUNDS)
    finally:
        close_all(players.values())
    ours = found.get("dataporter", [float("nan")])
    rows = [
        [
            who,
            f"{statistics.median(found[who]):.2f} s" if who in found else player.failure,
            f"{statistics.median(found[who]) / statistics.median(ours):.2f}x"
            if who in found
            else "-",
        ]
        for who, player in players.items()
    ]
    title = f"First epoch of {data.rows:,} {TITLES[data.kind]}, start of workers included"
    return table(title, ["", "seconds", "ours to it"], rows)


# Order


def order() -> str:
    """Cost of an index of the order by tracks, and of the first one of an epoch."""
    blocks, rows = 200_000, 1_000
    tracks = tracks_for(blocks, step_size=512, world_size=8)
    epochs = TracksOrder(np.full(blocks, rows), tracks, seed=1)
    start = epochs.length // 2
    set_up: list[float] = []
    each: dict[int, list[float]] = {2**16: [], BATCH_SIZE: []}
    for epoch in range(5):
        set_up.append(_cpu_seconds(partial(epochs.indices, epoch, np.arange(1))))
        for size, found in each.items():
            positions = np.arange(start, start + size)
            call = partial(epochs.indices, epoch, positions)
            spent = [_cpu_seconds(call) for _ in range(9)]
            found.append(min(spent) / size * 1e9)
    return table(
        f"Order by {tracks} tracks: {count(blocks * rows)} samples in {blocks:,} blocks",
        ["", "found", "aim"],
        [
            ["first index of an epoch", f"{statistics.median(set_up) * 1e3:.0f} ms", "100 ms"],
            *(
                [f"an index, {size:,} at a time", f"{statistics.median(found):.0f} ns", "200 ns"]
                for size, found in each.items()
            ),
        ],
    )


def _cpu_seconds(call: Callable[[], Any]) -> float:
    """Time of the processor, which other processes change little."""
    started = time.process_time()
    call()
    return time.process_time() - started


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


# Index


class Synthetic(Format):
    """Files whose blocks are made up."""

    name = "synthetic"

    def __init__(self, blocks: int, rows: int) -> None:
        super().__init__(ReadOptions())
        self._blocks, self._rows = blocks, rows

    def scan(self, file: ShardFile) -> Scanned:
        size = 1 << 24
        blocks = [Block(at * size, size, self._rows, size, at) for at in range(self._blocks)]
        return Scanned(tuple(blocks), {"columns": {"text": "string", "id": Path(file.name).suffix}})

    def open(self, data: memoryview, block: Block, schema: Any) -> Any:
        raise NotImplementedError


def index(files: int = 10_000, blocks: int = 20, rows: int = 5_000) -> str:
    """Time and memory to open an index of 10^9 samples, in a new process."""
    with tempfile.TemporaryDirectory() as place:
        for number in range(files):
            path = Path(place) / f"{number // 1000:03}" / f"{number:05}.synthetic"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x")
        made = Synthetic(blocks, rows)
        built = _seconds(lambda: open_index(list_files(place, {".synthetic": "synthetic"}), made))
        found = [_child("opened", place) for _ in range(_ROUNDS)]
    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
    return table(
        f"Index of {count(files * blocks * rows)} samples in {files:,} files",
        ["", "found", "aim"],
        [
            ["build", f"{built:.1f} s", ""],
            ["open", f"{middle['seconds'] * 1e3:.0f} ms", "1,000 ms"],
            ["memory of it", f"{middle['mb']:.0f} MB", "100 MB"],
        ],
    )


def opened(place: str) -> dict[str, float]:
    """Open the index of a folder."""
    before = _own_mb()
    started = time.perf_counter()
    kept = open_index(list_files(place, {".synthetic": "synthetic"}), Synthetic(1, 1))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "mb": _own_mb() - before, "samples": len(kept)}


def _own_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


# Resume


def resumes(data: Data) -> str:
    """Milliseconds from a state to the first batch, in a new process."""
    tokens = _tokens(data.folder / "tokens")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("Parquet, blocks decoded", _asked(data, "parquet")),
        ("Parquet, no block decoded", {**_asked(data, "parquet"), "cold": True}),
        ("JSON lines", _asked(data, "jsonl")),
        ("tokens", {"files": str(tokens), "format": "tokens", "dtype": "uint16", "window": 1024}),
    ]
    rows = []
    for title, asked in cases:
        state = _child("state", asked)
        for workers in (0, WORKERS):
            found = [_child("resumed", asked, state, workers) for _ in range(_ROUNDS)]
            rows.append([title, str(workers), f"{statistics.median(found) * 1e3:.0f}", "200"])
    return table("From a state to the first batch", ["", "workers", "ms", "aim"], rows)


def _asked(data: Data, form: str) -> dict[str, Any]:
    return {
        "files": str(data.folder / form),
        "format": form,
        "index": str(data.folder / "index" / form),
        "cache": str(data.folder / "cache"),
    }


def _tokens(folder: Path, size: int = 20_000_000) -> Path:
    path = folder / "tokens.bin"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.random.default_rng(1).integers(0, 50_000, size, np.uint16).tofile(path)
    return folder


def _loader(asked: dict[str, Any], workers: int = 0) -> ResumableDataLoader[Any]:
    return shard_contenders.loader(_dataset(asked), workers)


def _dataset(asked: dict[str, Any]) -> ShardedDataset:
    options = {name: value for name, value in asked.items() if name not in ("files", "cold")}
    return ShardedDataset(asked["files"], **options)


def state(asked: dict[str, Any]) -> Any:
    """Read a whole epoch, so that all is decoded; the state in its middle."""
    loader = _loader(asked)
    halfway = len(loader) // 2
    states = [loader.state_dict() for number, _ in enumerate(loader) if number == halfway]
    return states[0]


def resumed(asked: dict[str, Any], state: dict[str, Any], workers: int) -> float:
    """Seconds from before the dataset is made to the batch that follows a state."""
    # The porter may still decode ahead when it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
        if asked.get("cold"):
            asked = {**asked, "cache": empty}
        started = time.perf_counter()
        loader = _loader(asked, workers)
        loader.load_state_dict(state)
        batches = iter(loader)
        next(batches)
        seconds = time.perf_counter() - started
        del batches, loader
    return seconds


def _child(name: str, *arguments: Any) -> Any:
    """Call a function of this module in a new process."""
    command = [sys.executable, __file__, "--child", json.dumps([name, *arguments])]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(answer.splitlines()[-1])


# Memory


class Epochs:
    """Our loader over Parquet, by tracks, with a cache of some size."""

    def __init__(self, data: Data, share: float | None) -> None:
        shard_contenders.use_tracks()
        self._place = tempfile.TemporaryDirectory()
        asked = {**_asked(data, "parquet"), "cache": self._place.name}
        if share is not None:
            asked["cache_bytes"] = int(_dataset(asked).index.decoded.sum() * share)
        self._samples = _dataset(asked)
        self._batches = again_and_again(shard_contenders.loader(self._samples))

    def turn(self, size: int) -> float:
        """Take so many batches; the data that was decoded since the start, as a share of all."""
        for _ in range(size):
            next(self._batches)
        porter: Any = self._samples._porter  # noqa: SLF001  nothing else knows it
        decoded: int = porter.stats()["bytes"]
        return decoded / int(self._samples.index.decoded.sum())

    def close(self) -> None:
        """End the loader."""
        self._batches.close()  # type: ignore[attr-defined]  # a generator
        self._place.cleanup()


def memory(data: Data) -> str:
    """Memory of all processes over an epoch, and the bytes that are decoded in it."""
    rows = []
    quarter = data.rows // BATCH_SIZE // 4
    for title, share in (("all blocks fit", None), ("half of them fit", 0.5)):
        with closing(Player(partial(Epochs, data, share), stops=False)) as player:
            before = 0.0
            for epoch in range(2):
                found = []
                for _ in range(4):
                    decoded = player.call("turn", quarter)
                    own, files = tree_memory_mb(player.pid)
                    found.append(f"{own:.0f}+{files:.0f}")
                rows.append([title, str(epoch), *found, f"{decoded - before:.2f}"])
                before = decoded
    header = ["cache", "epoch", *(f"MB at {each}/4" for each in range(1, 5)), "decoded of the data"]
    return table(f"Memory: own and of mapped files, {TITLES[data.kind]}, Parquet", header, rows)


# The command


def _of(data: Callable[[str], Data], kind: str, part: Callable[[Data], str]) -> str:
    return part(data(kind))


def main(arguments: Sequence[str] | None = None) -> Run:
    """Measure, print the tables, and store the run."""
    options = parser("Compare readers of data in many files, in turns.", SECONDS)
    options.add_argument("--full", action="store_true", help="200,000 texts and 10,000 JPEGs")
    options.add_argument("--folder", type=Path, default=FOLDER, help="for the data")
    options.add_argument("--mosaic", type=Path, help="a folder with mosaicml-streaming")
    options.add_argument("--neprr", type=Path, help="a folder with neprr-streaming")
    options.add_argument("--samples", type=int, help="of each kind, instead of the usual numbers")
    options.add_argument("--server", action="store_true", help="read from an S3 server")
    asked = options.parse_args(arguments)
    shard_contenders.use_folder(MOSAIC, asked.mosaic)
    shard_contenders.use_folder(NEPRR, asked.neprr)
    libraries = [each for each in (asked.mosaic, asked.neprr) if each is not None]
    numbers = FULL if asked.full else SERVED if asked.server else SMALL

    @functools.cache
    def data(kind: str) -> Data:
        return make(kind, asked.samples or numbers[kind], asked.folder.absolute(), libraries)

    if asked.server:
        import server_shards  # noqa: PLC0415  needs obstore

        run = begin()
        server_shards.tables(map(data, TITLES), asked.folder.absolute(), asked.rows)
        return run
    kinds = [kind for kind in TITLES if re.search(asked.rows, TITLES[kind])]
    rows = (measure(data(kind), asked.seconds) for kind in kinds)
    run = execute(rows, tables, asked.out)
    run.versions.update(shard_contenders.versions())
    if asked.out is not None:
        run.write(asked.out)
    for kind in kinds:
        absent = "; ".join(shard_contenders.missing(data(kind))) or "nothing"
        print(f"\nNot installed, of those that read {TITLES[kind]}: {absent}.")
    parts: dict[str, Callable[[], str]] = {
        "order": order,
        "index": index,
        "resume": partial(_of, data, "texts", resumes),
    }
    for kind, title in TITLES.items():
        parts[f"first epoch of {title}"] = partial(_of, data, kind, first_epochs)
        parts[f"memory, {title}"] = partial(_of, data, kind, memory)
    for title, part in parts.items():
        if re.search(asked.rows, title):
            print(part(), flush=True)
    return run


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        name, *values = json.loads(sys.argv[2])
        print(json.dumps(globals()[name](*values)))
    else:
        main()
