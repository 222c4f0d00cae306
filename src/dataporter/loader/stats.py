"""`LoaderStats`: what a loader does at the moment, in numbers. `loader.stats()` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dataporter.engine import Runner
from dataporter.errors import OptionTypeError
from dataporter.layout import counted
from dataporter.sources.tally import Flow, Tallies, counters_of

_RATES = ("waiting", "batches_per_second", "samples_per_second", "bytes_per_second")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """The numbers of one loader, on this rank, as of one moment.

    >>> from dataporter import ResumableDataLoader
    >>> loader = ResumableDataLoader(range(10), batch_size=4)
    >>> batches = iter(loader)
    >>> _ = next(batches), next(batches)
    >>> loader.stats().batches, loader.stats().samples
    (2, 8)

    `batches` to `waited_seconds` are of the pass under way, or of the last one; those with `total_`
    are of all passes since the loader was made. A loaded state changes neither: batches that an
    earlier process delivered are not counted. `now.since(earlier)` has those between two moments.
    """

    epoch: int
    batches: int  # delivered
    samples: int  # in those
    bytes: int  # of their tensors and arrays
    seconds: float  # waited for batches and worked with them, from iter() to the last batch
    waited_seconds: float  # of those: in next() and iter(). Without workers, that is fetching
    total_batches: int
    total_samples: int
    total_bytes: int
    total_seconds: float
    total_waited_seconds: float
    ready: int  # batches that workers have fetched and nobody has asked for
    workers: int  # alive now
    replaced: int  # workers that died and were replaced, in all passes
    skipped: int  # samples that were left out since they failed, in all passes
    dataset: Mapping[str, Any] = field(default_factory=dict)  # the counters of dataset.stats()

    @property
    def waiting(self) -> float:
        """The share of `seconds` that was waited, from 0 to 1."""
        return min(self.waited_seconds / self.seconds, 1.0) if self.seconds else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches a second of `seconds`."""
        return self.batches / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples a second of `seconds`."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes a second of `seconds`."""
        return self.bytes / self.seconds if self.seconds else 0.0

    def since(self, earlier: LoaderStats) -> LoaderStats:
        """Return the same moment with `batches` to `waited_seconds` counted since an earlier one.

        >>> from dataporter import ResumableDataLoader
        >>> loader = ResumableDataLoader(range(10), batch_size=4)
        >>> batches = iter(loader)
        >>> _, before = next(batches), loader.stats()
        >>> _ = next(batches), next(batches)
        >>> loader.stats().since(before).samples
        6
        """
        if not isinstance(earlier, LoaderStats):
            msg = f"earlier must be LoaderStats, found {type(earlier).__name__} {earlier!r}."
            raise OptionTypeError(msg)
        names = [name.removeprefix("total_") for name in _TOTALS]
        passed = {name: _total(self, name) - _total(earlier, name) for name in names}
        # Times are estimates where batches are fast, so one may be a little behind.
        return replace(self, **{name: max(amount, 0) for name, amount in passed.items()})

    def as_dict(self, prefix: str = "") -> dict[str, float]:
        """Return all numbers, rates included, in one flat dict, as loggers take it.

        Counters of the dataset begin with `dataset_`.

        >>> from dataporter import ResumableDataLoader
        >>> ResumableDataLoader(range(10)).stats().as_dict("loader/")["loader/batches"]
        0
        """
        numbers = {name: getattr(self, name) for name in (*_RATES, *_NUMBERS)}
        numbers |= {f"dataset_{name}": number for name, number in self.dataset.items()}
        return {f"{prefix}{name}": number for name, number in numbers.items()}

    def __str__(self) -> str:
        made = f"{counted(self.batches, 'batch')}, {counted(self.samples, 'sample')}"
        rates = (
            f"{self.batches_per_second:,.1f} batches, {self.samples_per_second:,.1f} samples and "
            f"{self.bytes_per_second / 1e6:,.1f} MB a second"
        )
        workers = f"{counted(self.workers, 'worker')}, {self.replaced:,} replaced"
        told = "".join(f", {name} {number:,}" for name, number in self.dataset.items())
        return (
            f"epoch {self.epoch}: {made} in {self.seconds:,.1f} s, {self.waiting:.1%} waiting; "
            f"{rates}; {self.ready:,} ready; {workers}; {self.skipped:,} skipped"
            f"{f'; dataset{told[1:]}' if told else ''}"
        )


_NUMBERS = tuple(each.name for each in fields(LoaderStats) if each.name != "dataset")
_TOTALS = tuple(name for name in _NUMBERS if name.startswith("total_"))


def _total(stats: LoaderStats, name: str) -> Any:
    return getattr(stats, f"total_{name}")


def loader_stats(
    tallies: Tallies, runner: Runner, *, epoch: int, skipped: int, dataset: Any
) -> LoaderStats:
    """Read the numbers of a loader as of now."""
    total, newest = tallies.read()
    running = runner.look()
    return LoaderStats(
        epoch=epoch,
        **_named(newest, ""),
        **_named(total, "total_"),
        ready=running.ready,
        workers=running.workers,
        replaced=runner.replacements.count,
        skipped=skipped,
        dataset=counters_of(dataset),
    )


def _named(flow: Flow, prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}batches": flow.batches,
        f"{prefix}samples": flow.samples,
        f"{prefix}bytes": flow.bytes,
        f"{prefix}seconds": flow.spent / 1e9,
        f"{prefix}waited_seconds": flow.waited / 1e9,
    }
