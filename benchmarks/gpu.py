"""Delivery to a CUDA device against torch's loader, with the link's own limit, in one run.

Needs torch, NumPy and the package: `PYTHONPATH=src python benchmarks/gpu.py [--out FILE.json]`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import machine
import torch
from contenders import installed
from measure import Row, Run, Turns, interleaved, table, timed_turns
from torch.utils.data import DataLoader
from workloads import Images, TokenWindows

from dataporter import ResumableDataLoader
from dataporter.converters import DtypeConverter

ROUNDS = 3
GIB = 2**30
STEP_MS = 5.0
STEPS = 600


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Print the tables, and store their rows."""
    parser = argparse.ArgumentParser(description="Compare deliveries to a CUDA device.")
    parser.add_argument("--out", type=Path, help="a file for the run, as JSON")
    out = parser.parse_args(arguments).out
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return []
    warnings.filterwarnings("ignore")  # torch counts cores
    print(
        f"\n{torch.cuda.get_device_name()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, torch {torch.__version__}, "
        f"{datetime.now(timezone.utc):%Y-%m-%d}"
    )
    limit = link()
    print(f"the link, page-locked to device: {limit:.1f} GiB/s")
    run = Run(versions=installed(), machine=machine.describe())
    for measure in (partial(images, limit), first_epochs, tokens, steps):
        text, rows = measure()
        print(text, flush=True)
        run.rows.extend(rows)
        if out is not None:
            run.write(out)
    return run.rows


def link(size: int = 64 * 3 * 224 * 224 * 4) -> float:
    """Speed of copies of one batch's size, in GiB/s."""
    source = torch.ones(size, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device="cuda")
    seconds = interleaved({"copies": partial(_copy, source, target, 100)}, 5)["copies"]
    return 100 * size / seconds / GIB


def _copy(source: torch.Tensor, target: torch.Tensor, times: int) -> None:
    for _ in range(times):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()


Table = tuple[str, list[Row]]  # as text, and as rows of a stored run


def images(limit: float) -> Table:
    """Ready images of 0.6 MB: moving them is all there is to do."""
    dataset = Images(64 * 400)
    size = len(dataset) * dataset[0].nbytes / GIB
    rows, lines = [], []
    for workers in (8, 12):
        loaders = _loaders(dataset, workers)
        narrow = {"converter": DtypeConverter("float16")}
        wide = {"device_converter": DtypeConverter("float32")}
        loaders["narrow"] = _ours(dataset, workers, **narrow, **wide)
        work = {who: partial(_drain, it) for who, it in loaders.items()}
        row = _row("images to the device", workers, timed_turns(work, ROUNDS, size), "GiB/s")
        rows.append(row)
        speeds = _speeds(row)
        lines.append(
            (
                f"{workers}",
                *(f"{speeds[who]:.1f}" for who in ("torch", "pinned", "dataporter", "narrow")),
                f"{speeds['dataporter'] / speeds['torch']:.1f}x",
                f"{speeds['dataporter'] / limit:.0%}",
            )
        )
    header = (
        *("workers", "torch", "dataporter, pin_memory", "dataporter, device"),
        *("as float16, widened there", "to torch", "of the link"),
    )
    title = "Images of 3x224x224 floats, batches of 64, GiB/s on the device"
    return table(title, header, lines), rows


def first_epochs() -> Table:
    """Epochs of 100 batches: the first of a new loader, and two later ones."""
    dataset = Images(64 * 100)
    size = len(dataset) * dataset[0].nbytes / GIB
    rows, lines = [], []
    for workers in (8, 12):
        first: dict[str, list[float]] = {}
        later: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for who, loader in _loaders(dataset, workers).items():
                for seconds in (first, later, later):
                    start = time.perf_counter()
                    _drain(loader)
                    seconds.setdefault(who, []).append(time.perf_counter() - start)
        speeds = []
        for name, seconds in (("first epoch", first), ("later epochs", later)):
            turns = {who: Turns(amount=size, seconds=tuple(each)) for who, each in seconds.items()}
            rows.append(_row(f"{name} of 100 batches of images", workers, turns, "GiB/s"))
            speeds.append(_speeds(rows[-1]))
        for who in first:
            one, other = (each[who] for each in speeds)
            cells = (f"{one:.1f}", f"{other:.1f}", f"{one / other:.0%}")
            lines.append((f"{who}, {workers} workers", *cells))
    header = ("GiB/s on the device", "first epoch", "later epochs", "first to later")
    return table("First epoch of a loader, 100 batches of such images", header, lines), rows


def tokens() -> Table:
    """Small batches: what each costs is all that counts."""
    dataset = TokenWindows(2**18, tokens=2**26)
    rows, lines = [], []
    for workers in (8,):
        loaders = _loaders(dataset, workers)
        work = {who: partial(_drain, it) for who, it in loaders.items()}
        turns = timed_turns(work, ROUNDS, len(dataset))
        row = _row("token windows to the device", workers, turns, "samples/s")
        rows.append(row)
        speeds = _speeds(row)
        lines.append(
            (
                f"{workers}",
                *(f"{speeds[who]:,.0f}" for who in ("torch", "pinned", "dataporter")),
                f"{speeds['dataporter'] / speeds['torch']:.1f}x",
            )
        )
    header = ("workers", "torch", "dataporter, pin_memory", "dataporter, device", "to torch")
    return table("Windows of 256 int32 tokens, batches of 64, a second", header, lines), rows


def steps() -> Table:
    """Training steps on images, with 12 workers: how long the device has nothing to compute."""
    dataset = Images(64 * STEPS)
    step = _step()
    kept = torch.randn(64, 3, 224, 224, device="cuda")
    rows, lines = [], []
    for name, reads_back in (("freely", False), ("with loss.item() at every step", True)):
        contenders: dict[str, Callable[[], Iterator[Any]]] = {
            "no data": lambda: (kept for _ in range(STEPS)),
            **{who: partial(_batches, it) for who, it in _loaders(dataset, 12).items()},
        }
        gaps: dict[str, Turns] = {}
        for who, batches in contenders.items():
            _train(step, itertools.islice(batches(), STEPS // 3), reads_back)
            seconds, idle = _train(step, batches(), reads_back)
            taken = f"{seconds / STEPS * 1e3:.2f} ms"
            lines.append((f"{name}, {who}", taken, f"{idle / seconds:.1%}"))
            gaps[who] = Turns(seconds=(idle / STEPS,))
        rows.append(_row(f"between training steps, {name}", 12, gaps, "ms"))
    header = ("steps run", "a step", "share of time between steps")
    title = f"Training steps on such images, 12 workers, {STEPS} steps"
    return table(title, header, lines), rows


def _row(work: str, workers: int, turns: dict[str, Turns], unit: str) -> Row:
    return Row(work=work, workers=workers, unit=unit, turns=turns)


def _speeds(row: Row) -> dict[str, float]:
    return {who: statistics.median(turns.speeds) for who, turns in row.turns.items()}


def _step() -> Callable[[torch.Tensor], torch.Tensor]:
    """About `STEP_MS` of matrix products."""
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64

    def run(batch: torch.Tensor, times: int) -> torch.Tensor:
        hidden = batch.view(-1)[: 4096 * 2048].view(2048, 4096).to(torch.bfloat16)
        for _ in range(times):
            hidden = hidden @ weights
        return hidden.float().mean() + batch.mean()

    batch = torch.randn(64, 3, 224, 224, device="cuda")
    for _ in range(3):
        run(batch, 100)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        run(batch, 100)
    torch.cuda.synchronize()
    one = (time.perf_counter() - start) / 1000
    return partial(run, times=round(STEP_MS / 1e3 / one))


def _train(
    step: Callable[[torch.Tensor], torch.Tensor], batches: Iterator[Any], reads_back: bool
) -> tuple[float, float]:
    """Seconds for all steps, and of these the device's seconds between the steps."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    events = [_event()]
    for batch in batches:
        events.append(_event())
        loss = step(batch)
        if reads_back:
            loss.item()
        events.append(_event())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    gaps = zip(events[::2], events[1::2], strict=False)  # from a step's end to the next's start
    return seconds, sum(end.elapsed_time(begin) for end, begin in gaps) / 1e3


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _loaders(dataset: Any, workers: int) -> dict[str, Any]:
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True}
    pinned = {"pin_memory": True, **options}
    return {
        "torch": DataLoader(dataset, 64, shuffle=True, **pinned),
        "pinned": ResumableDataLoader(dataset, 64, shuffle=True, seed=1, **pinned),
        "dataporter": _ours(dataset, workers),
    }


def _ours(dataset: Any, workers: int, **options: Any) -> ResumableDataLoader[Any]:
    return ResumableDataLoader(
        dataset,
        64,
        shuffle=True,
        seed=1,
        num_workers=workers,
        persistent_workers=True,
        device="cuda",
        **options,
    )


def _batches(loader: Any) -> Iterator[Any]:
    """On the device, as one copies them there by hand where the loader does not."""
    for batch in loader:
        yield batch if batch.is_cuda else batch.to("cuda", non_blocking=True)


def _drain(loader: Any) -> None:
    for batch in _batches(loader):
        del batch
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
