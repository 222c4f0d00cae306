"""The loader that is profiled: made by the factory, and described for other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, default_collate

from dataporter.fetch.vectorised import gather_for
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.fingerprint import dataset_length
from dataporter.sources.lanes import has_lanes, is_iterable
from dataporter.system.processes import usable_cores
from dataporter.tools.sandbox.factories import Factory
from dataporter.tools.sandbox.loaders import make_loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Everything about a loader that its times depend on."""

    loader: str
    dataset: str
    samples: int | None
    batch_size: int | None
    num_workers: int
    adapts: bool  # num_workers="auto"
    prefetch_factor: int
    in_threads: bool
    is_ours: bool  # of a plain torch DataLoader, only waits are visible
    has_lanes: bool
    lanes: int | None  # as given
    way: str  # how samples are fetched: "gathered", "__getitems__", "one by one" or "iterated"
    has_collate_fn: bool
    stays: bool  # persistent_workers=True
    device: str | None
    cores: int

    @property
    def makers(self) -> int:
        """The number of processes or threads that make batches."""
        return max(self.num_workers, 1)

    def __str__(self) -> str:
        size = "single samples" if self.batch_size is None else f"batches of {self.batch_size}"
        kind = " thread" if self.in_threads else " worker"
        workers = f"{self.num_workers}{kind}{'' if self.num_workers == 1 else 's'}"
        parts = [
            f"{self.loader} over {self.dataset}",
            "" if self.samples is None else f"{self.samples:,} samples",
            size,
            f"up to {workers}" if self.adapts else workers,
            f"prefetch_factor={self.prefetch_factor}" if self.num_workers else "",
        ]
        return ", ".join(part for part in parts if part)


def make_subject(factory: Factory, changes: Mapping[str, Any]) -> tuple[DataLoader[Any], Subject]:
    """Make the user's loader with some options changed, and describe it."""
    loader, given = make_loader(factory, changes)
    return loader, _subject(loader, {**(given or {}), **changes})


def _subject(loader: DataLoader[Any], options: Mapping[str, Any]) -> Subject:
    is_ours = isinstance(loader, ResumableDataLoader)
    collate_fn = options.get("collate_fn", loader.collate_fn)
    has_collate_fn = collate_fn not in (None, default_collate) and loader.batch_size is not None
    device = options.get("device")
    return Subject(
        loader=type(loader).__name__
        if is_ours
        else f"{type(loader).__module__.split('.')[0]}'s {type(loader).__name__}",
        dataset=type(loader.dataset).__name__,
        samples=dataset_length(loader.dataset),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        adapts=options.get("num_workers") == "auto" and not has_lanes(loader.dataset),
        prefetch_factor=loader.prefetch_factor or 2,
        in_threads=options.get("engine") == "threads" and loader.num_workers > 0,
        is_ours=is_ours,
        has_lanes=has_lanes(loader.dataset),
        lanes=options.get("lanes"),
        way=_way(loader, has_collate_fn=has_collate_fn),
        has_collate_fn=has_collate_fn,
        stays=loader.persistent_workers,
        device=None if device is None else str(device),
        cores=usable_cores(),
    )


def _way(loader: DataLoader[Any], *, has_collate_fn: bool) -> str:
    dataset: Any = loader.dataset
    if is_iterable(dataset):
        return "iterated"
    if loader.batch_size is not None and not has_lanes(dataset):
        if not has_collate_fn and gather_for(dataset) is not None:
            return "gathered"
        if callable(getattr(dataset, "__getitems__", None)):
            return "__getitems__"
    return "one by one"
