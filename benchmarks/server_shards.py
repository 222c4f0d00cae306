"""Data on an S3 server: first epochs beside peers and limits, the cache, requests, latency, nodes.

`shards.py --server` runs it. SeaweedFS serves on the loopback, in a process of its own that takes
a part of the cores. So ratios count, and the limits that stand beside: obstore's bare ranged GETs
of the same ranges, and a first epoch of the same files on this machine.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from measure import in_turns, table
from object_server import seaweed
from players import Player, PlayerFailedError
from server_contenders import Reader, Served, readers
from shard_contenders import BATCH_SIZE
from shard_data import TITLES, Data

_ROUNDS = 3


def tables(datasets: Iterable[Data], folder: Path, pattern: str) -> None:
    """Serve the data, and print all tables whose titles match."""
    parts = {"first epoch": first_epochs}
    with tempfile.TemporaryDirectory(dir=folder) as place, seaweed(Path(place)) as server:
        for data in datasets:
            served = Served(data=data, server=server)
            served.upload()
            for title, part in parts.items():
                if re.search(pattern, f"{title}, {TITLES[data.kind]}"):
                    print(part(served), flush=True)


# First epochs


class Turn(NamedTuple):
    """Seconds of a first epoch to its first and to its last batch, or the reason why not."""

    first: float = 0.0
    last: float = 0.0
    failure: str = ""


class FirstEpoch:
    """A reader that has nothing on this machine but its index."""

    def __init__(self, reader: Reader, batches: int) -> None:
        self._reader, self._batches = reader, batches
        with tempfile.TemporaryDirectory() as folder:
            reader.prepare(Path(folder))

    def turn(self) -> Turn:
        """Take the batches of an epoch."""
        # A process that brings data may still write when the folder is removed.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            started = time.perf_counter()
            batches = self._reader.batches(Path(folder))
            next(batches)
            first = time.perf_counter() - started
            for _ in range(self._batches - 1):
                next(batches)
            last = time.perf_counter() - started
            with suppress(AttributeError):
                batches.close()  # type: ignore[attr-defined]  # of generators
            del batches
        return Turn(first, last)


def _new_player(reader: Reader, batches: int) -> Turn:
    """Take a turn in a new process, since some peers leave something behind."""
    with closing(Player(partial(FirstEpoch, reader, batches))) as player:
        try:
            turn: Turn = player.call("turn")
        except PlayerFailedError as error:
            return Turn(failure=str(error).strip().splitlines()[-1])
    return turn


def first_epochs(served: Served) -> str:
    """Speed of an epoch, from before its reader is made."""
    contenders = readers(served)
    batches = served.data.rows // BATCH_SIZE
    calls = {who: partial(_new_player, each, batches) for who, each in contenders.items()}
    warm = {who: call() for who, call in calls.items()}  # files are in memory, indexes built
    calls = {who: call for who, call in calls.items() if not warm[who].failure}
    found = in_turns(calls, seconds_of=lambda turn: turn.last, rounds=_ROUNDS)
    ours = found[next(iter(contenders))]
    rows = [
        _first_epoch_cells(who, found.get(who, [warm[who]]), ours, served.data.rows)
        for who in contenders
    ]
    title = f"First epoch of {served.data.rows:,} {TITLES[served.data.kind]} from the server"
    header = ["", "samples/s", "first batch, s", "samples/s after it", "ours to it"]
    return table(title, header, rows)


def _first_epoch_cells(who: str, turns: list[Turn], ours: list[Turn], samples: int) -> list[str]:
    whole = [turn for turn in turns if not turn.failure]
    if not whole:
        return [who, f"failed: {turns[0].failure}", "-", "-", "-"]
    pairs = [pair for pair in zip(turns, ours, strict=True) if not any(t.failure for t in pair)]
    ratio = statistics.median(theirs.last / own.last for theirs, own in pairs)
    has_batches = not who.startswith("limit: bare")
    first = f"{statistics.median(turn.first for turn in whole):.2f}"
    later = f"{samples / statistics.median(turn.last - turn.first for turn in whole):,.0f}"
    return [
        who,
        f"{samples / statistics.median(turn.last for turn in whole):,.0f}",
        first if has_batches else "-",
        later if has_batches else "-",
        f"{ratio:.2f}x",
    ]
