"""Data on an S3 server: first epochs beside peers and limits, the cache, requests, latency.

`shards.py --server` runs it. SeaweedFS serves on the loopback, in a process of its own that takes
a part of the cores. So ratios count, and the limits that stand beside: obstore's bare ranged GETs
of the same ranges, and a first epoch of the same files on this machine.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from latency_proxy import delayed
from loaders import Delivery
from measure import in_turns, table
from object_server import seaweed
from players import Player, PlayerFailedError
from race import race
from script import text
from server_contenders import BareGets, Ours, Reader, Served, readers
from shard_contenders import BATCH_SIZE, WORKERS, again_and_again, loader, reading, use_tracks
from shard_data import TITLES, Data, make

from dataporter.shards.dataset import ShardedDataset

_ROUNDS = 3
_SECONDS = 15.0  # of a race
_LATER = 4  # epochs after the first
_LATENCIES = (0.0, 0.02, 0.2)  # seconds for each request
_STARTS = 5
_EXTRA = ("requests", "fetched", "retries", "hedges")  # counters that may not be there yet


def tables(datasets: Iterable[Data], folder: Path, pattern: str) -> None:
    """Serve the data, and print all tables whose titles match."""
    parts = {
        "first epoch": first_epochs,
        "limits": limits,
        "later epochs": later_epochs,
        "traffic": traffic,
        "first batch": first_batches,
    }
    folder.mkdir(parents=True, exist_ok=True)
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


def _first_epoch(reader: Reader, batches: int) -> Turn:
    """Take a turn in a new process, since some peers leave something behind."""
    with closing(Player(partial(FirstEpoch, reader, batches))) as player:
        try:
            turn: Turn = player.call("turn")
        except PlayerFailedError as error:
            return Turn(failure=str(error).strip().splitlines()[-1])
    return turn


Turns = dict[str, list[Turn]]


def _in_turns(calls: Mapping[str, Callable[[], Turn]]) -> Turns:
    """Take turns. Whoever fails in the first one, which is not measured, takes no more."""
    warm = {who: call() for who, call in calls.items()}  # files are in memory, indexes built
    whole = {who: call for who, call in calls.items() if not warm[who].failure}
    found = in_turns(whole, seconds_of=lambda turn: turn.last, rounds=_ROUNDS)
    return {who: found.get(who, [warm[who]] * _ROUNDS) for who in calls}


def first_epochs(served: Served) -> str:
    """Speed of an epoch, from before its reader is made."""
    batches = served.data.rows // BATCH_SIZE
    calls = {who: partial(_first_epoch, each, batches) for who, each in readers(served).items()}
    found = _in_turns(calls)
    ours = found[f"dataporter, {served.forms[0]}"]
    rows = [_first_epoch_cells(who, found[who], ours, served.data.rows) for who in found]
    header = ["", "samples/s", "first batch, s", "samples/s after it", "ours to it"]
    return table(f"First epoch of {served.title} from the server", header, rows)


def _first_epoch_cells(who: str, turns: list[Turn], ours: list[Turn], samples: int) -> list[str]:
    pairs = [pair for pair in zip(turns, ours, strict=True) if not any(t.failure for t in pair)]
    if not pairs:
        return [who, f"failed: {turns[0].failure}", "-", "-", "-"]
    whole = [turn for turn, _ in pairs]
    return [
        who,
        f"{samples / statistics.median(turn.last for turn in whole):,.0f}",
        f"{statistics.median(turn.first for turn in whole):.2f}",
        f"{samples / statistics.median(turn.last - turn.first for turn in whole):,.0f}",
        f"{statistics.median(turn.last / own.last for turn, own in pairs):.2f}x",
    ]


# Limits


def limits(served: Served) -> str:
    """Seconds of a first epoch beyond its start, and of the parts that it consists of."""
    folder = served.data.folder.parent
    start = replace(served, data=make(served.data.kind, BATCH_SIZE, folder))
    start.upload()
    batches = served.data.rows // BATCH_SIZE
    rows = []
    for form in (form for form in served.forms if start.data.has(form)):
        found = _in_turns(
            {
                "epoch": partial(_first_epoch, Ours(served, form), batches),
                "start": partial(_first_epoch, Ours(start, form), 1),
                "bare GETs": partial(_first_epoch, BareGets(served, form), batches),
                "local epoch": partial(_first_epoch, Ours(served, form, local=True), batches),
                "local start": partial(_first_epoch, Ours(start, form, local=True), 1),
            }
        )
        seconds = {who: statistics.median(turn.last for turn in found[who]) for who in found}
        limit = max(seconds["bare GETs"], seconds["local epoch"] - seconds["local start"])
        share = limit / (seconds["epoch"] - seconds["start"])
        rows.append([form, *(f"{each:.2f}" for each in seconds.values()), f"{share:.2f}"])
    header = ["", "epoch", "its start", "bare GETs", "local epoch", "its start", "of the limit"]
    return table(f"Limits of a first epoch of {served.title}, s", header, rows)


# Later epochs


def later_epochs(served: Served) -> str:
    """Speed of epochs from the cache, beside the same files on this machine."""
    rows = []
    for form in served.forms:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            places = {
                "the cache": partial(served.dataset, form, Path(folder) / "served"),
                "local files": partial(served.local, form, Path(folder) / "local"),
            }
            makers = {who: partial(_epochs, open_, served.data) for who, open_ in places.items()}
            row = race(
                *(form, WORKERS, makers),
                seconds=_SECONDS,
                batch_size=BATCH_SIZE,
                unit="samples/s",
            )
        speeds = [text(row.values(who), "{:,.0f}") for who in places]
        rows.append([form, *speeds, text(row.ratio("the cache", "local files"), "{:.2f}")])
    title = f"Later epochs of {served.title}, samples/s"
    return table(title, ["", "from the cache", "from local files", "ratio"], rows)


def _epochs(open_dataset: Callable[[], ShardedDataset], data: Data) -> Delivery:
    return reading(lambda _: again_and_again(loader(open_dataset())), data)


# Traffic


class Traffic:
    """Our loader by tracks, with a cache for a share of the data."""

    def __init__(self, served: Served, form: str, share: float | None) -> None:
        use_tracks()
        self._place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cache = Path(self._place.name)
        decoded = int(served.dataset(form, cache).index.decoded.sum())
        limit = {} if share is None else {"cache_bytes": int(decoded * share)}
        self._samples = served.dataset(form, cache, **limit)
        self._loader = loader(self._samples)

    def epoch(self) -> dict[str, float]:
        """Take an epoch; what was counted since the start."""
        for _ in self._loader:
            pass
        index = self._samples.index
        files = {"blocks": len(index.rows), "bytes of files": int(index.sizes.sum())}
        return {**dict.fromkeys(_EXTRA, 0), **self._samples.stats(), **files}

    def close(self) -> None:
        """End the loader."""
        del self._loader, self._samples
        self._place.cleanup()


def traffic(served: Served) -> str:
    """Requests and bytes of epochs, beside those of the files, and reads from the cache."""
    rows = []
    for form in served.forms:
        for title, share in (("all blocks", None), ("half of them", 0.5)):
            with closing(Player(partial(Traffic, served, form, share), stops=False)) as player:
                first = player.call("epoch")
                for _ in range(_LATER):
                    later = player.call("epoch")
            rows.append([form, title, "the first", *_traffic_cells(first, {}, 1)])
            rows.append([form, title, "a later one", *_traffic_cells(later, first, _LATER)])
    header = ["", "cache holds", "epoch", "requests", "blocks", "MB", "MB to that of the files"]
    header += ["blocks from the cache", "retries, second requests"]
    return table(f"Requests of epochs, {served.title}", header, rows)


def _traffic_cells(counted: dict[str, int], before: dict[str, int], epochs: int) -> list[str]:
    """The mean of some epochs: blocks for the next one are brought before one ends."""
    new = {name: (count - before.get(name, 0)) / epochs for name, count in counted.items()}
    blocks = counted["blocks"]
    return [
        f"{new['requests']:.0f}",
        f"{new['decoded']:.0f} of {blocks}",
        f"{new['fetched'] / 1e6:.1f}",
        f"{new['fetched'] / counted['bytes of files']:.2f}",
        f"{1 - new['decoded'] / blocks:.2f}",
        f"{new['retries']:.0f}, {new['hedges']:.0f}",
    ]


# First batches


class FirstBatch:
    """The start of our loader, with or without an index."""

    def __init__(self, served: Served, form: str, *, is_indexed: bool) -> None:
        self._served, self._form, self._is_indexed = served, form, is_indexed

    def seconds(self) -> float:
        """Open the dataset and take a batch."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            index = {} if self._is_indexed else {"index": Path(folder) / "index"}
            started = time.perf_counter()
            samples = self._served.dataset(self._form, Path(folder) / "cache", **index)
            batches = iter(loader(samples))
            next(batches)
            return time.perf_counter() - started


def first_batches(served: Served) -> str:
    """Seconds to the first batch at several latencies, and the round trips that follow from them.

    The longest latency counts the requests that wait for each other, whatever else happens.
    """
    rows = []
    with ExitStack() as stack:
        endpoints = {
            _named(latency): stack.enter_context(delayed(served.server.endpoint, latency))
            for latency in _LATENCIES
        }
        for form in served.forms:
            for title, is_indexed in (("built", False), ("kept", True)):
                calls = {
                    latency: partial(_first_batch, served.through(endpoint), form, is_indexed)
                    for latency, endpoint in endpoints.items()
                }
                found = in_turns(calls, seconds_of=float, rounds=_STARTS)
                none, usual, long = (statistics.median(found[each]) for each in endpoints)
                rows.append([form, title, *(f"{each:.2f}" for each in (none, usual, long))])
                rows[-1] += [f"{(long - none) / _LATENCIES[-1]:.1f}"]
                rows[-1] += [f"{usual / _LATENCIES[1]:.0f}"]
    header = ["", "index", *(f"s at {each}" for each in endpoints), "round trips in sequence"]
    header += [f"all at {_named(_LATENCIES[1])} in round trips"]
    return table(f"First batch of {served.title}, from the start", header, rows)


def _named(latency: float) -> str:
    return f"{1000 * latency:.0f} ms"


def _first_batch(served: Served, form: str, is_indexed: bool) -> float:
    with closing(Player(partial(FirstBatch, served, form, is_indexed=is_indexed))) as player:
        seconds: float = player.call("seconds")
    return seconds
