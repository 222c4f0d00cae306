"""`bench`: a user's own data under torch's loader, torchdata's and this one.

Every contender is built with the arguments of the factory's loader. Contenders take turns, so that
a slow second hits all of them. Each turn is divided by torch's of the same round; the median
counts, and there is a verdict only if the median cannot be chance. The limit is workers x the speed
of a bare loop, `collate([dataset[i] for i in batch])`, in one process.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from math import comb
from statistics import mean, median
from time import monotonic, perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader

from dataporter import __version__
from dataporter.arguments import check_int, check_number
from dataporter.errors import FactoryError
from dataporter.layout import counted
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.lanes import is_iterable
from dataporter.tools.report import Headline, Part, Table, Words
from dataporter.tools.sandbox import Sandbox
from dataporter.tools.sandbox.factories import Factory, arguments_of
from dataporter.tools.sandbox.factories import make_loader as made_by

_EQUAL = 0.05  # a difference within which two speeds are called equal
_CHANCE = 0.1  # that a true median lies outside of a spread, at most
_FEWEST_TURNS = 5  # which a spread takes: 2 * 0.5**5 is less than that
_SHARE_OF_TIME = 0.8  # until the last turn; the rest is for workers that start and end


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Speeds of all loaders on one dataset, by the loader's name."""

    dataset: str
    batch_size: float  # the mean, since a batch sampler's batches may differ
    num_workers: int
    versions: dict[str, str]
    limit: float  # samples per second, like all speeds
    turns: dict[str, tuple[float, ...]]  # the speed in each round
    failed: dict[str, str]  # the reason for each loader that failed
    absent: tuple[str, ...] = ()  # loaders that are not installed

    @property
    def speeds(self) -> dict[str, float]:
        """The median speeds."""
        return {loader: median(speeds) for loader, speeds in self.turns.items()}

    def to_torch(self, loader: str) -> float | None:
        """The speed divided by torch's: the median of all rounds."""
        ratios = self._ratios(loader)
        return median(ratios) if ratios else None

    def spread(self, loader: str) -> tuple[float, float] | None:
        """The range in which the true `to_torch` lies, most likely.

        The lowest and highest of few rounds; with many, some at both ends are left out. None if
        there are too few for chances of nine in ten.

        >>> fast, slow = (3.0, 2.0, 2.4, 2.2, 2.6), (1.0,) * 5
        >>> found = Comparison(dataset="Rows", batch_size=8, num_workers=2, versions={},
        ...     limit=9, turns={"torch": slow, "dataporter": fast}, failed={})
        >>> found.spread("dataporter")
        (2.0, 3.0)
        """
        ratios = sorted(self._ratios(loader))
        rounds = len(ratios)
        if rounds < _FEWEST_TURNS:
            return None
        cut = 0
        while 2 * sum(comb(rounds, n) for n in range(cut + 2)) <= _CHANCE * 2**rounds:
            cut += 1
        return ratios[cut], ratios[-1 - cut]

    def _ratios(self, loader: str) -> list[float]:
        pairs = zip(self.turns[loader], self.turns.get("torch", ()), strict=False)
        return [speed / torchs for speed, torchs in pairs]

    def of_limit(self, loader: str) -> float:
        """The share of the limit."""
        return self.speeds[loader] / self.limit

    @property
    def verdict(self) -> str:
        """One sentence or two that compare dataporter with torch."""
        if "dataporter" in self.failed:
            return f"dataporter cannot run this loader: {self.failed['dataporter']}"
        reached = f"dataporter reaches {100 * self.of_limit('dataporter'):.0f} % of the limit"
        ratio = self.to_torch("dataporter")
        if ratio is None:
            return f"torch's DataLoader failed on this data; {reached}."
        spread = self.spread("dataporter")
        if spread is None:
            few = len(self.turns["torch"])
            return (
                f"No verdict: {counted(few, 'turn')} of each loader may differ by chance. "
                f"Use --rounds {_FEWEST_TURNS} or more; {reached}."
            )
        low, high = spread
        times = f"{ratio:.2f}x, between {low:.2f}x and {high:.2f}x"
        if 1 - _EQUAL <= low <= high <= 1 + _EQUAL:
            return f"dataporter and torch's DataLoader are equally fast ({times}); {reached}."
        if low <= 1 <= high:
            return (
                f"No verdict: dataporter and torch's DataLoader differ by less than their turns "
                f"do ({times}). Use an idle machine, more --rounds or more --batches; {reached}."
            )
        way = "faster" if low > 1 else "slower"
        return f"dataporter is {way} than torch's DataLoader ({times}); {reached}."

    def parts(self) -> list[Part]:
        """Return what the command shows."""
        about = (
            f"{self.dataset}, batches of {self.batch_size:.4g}, "
            f"{counted(self.num_workers, 'worker')}"
        )
        rows = [(f"{name} {self.versions[name]}", *self._cells(name)) for name in self.versions]
        rows += [(name, "not installed", "", "", "") for name in self.absent]
        rows.append(("limit", f"{self.limit:,.0f}", "", "", "100 %"))
        failed = [
            f"{name} failed: {why}"
            for name, why in self.failed.items()
            if name != "dataporter"  # whose failure is the verdict
        ]
        columns = ("loader", "samples/s", "to torch", "spread", "of limit")
        return [Words([about]), Table(columns, rows), Words(failed), Headline(self.verdict)]

    def _cells(self, loader: str) -> tuple[str, str, str, str]:
        if loader in self.failed:
            return "failed", "", "", ""
        ratio, spread = self.to_torch(loader), self.spread(loader)
        return (
            f"{self.speeds[loader]:,.0f}",
            "" if ratio is None else f"{ratio:.2f}x",
            "" if spread is None or loader == "torch" else f"{spread[0]:.2f}x to {spread[1]:.2f}x",
            f"{100 * self.of_limit(loader):.0f} %",
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it as builtins, for JSON."""
        return {
            **asdict(self),
            "speeds": self.speeds,
            "to_torch": {name: self.to_torch(name) for name in self.turns},
            "spread": {name: self.spread(name) for name in self.turns},
            "of_limit": {name: self.of_limit(name) for name in self.turns},
            "verdict": self.verdict,
        }


def bench(
    make_loader: Factory | str,
    *,
    batches: int = 200,
    rounds: int = 5,
    seconds: float = 120,
    shows_output: bool = False,
) -> Comparison:
    """Compare loaders on the dataset and with the arguments of the factory's loader.

    `make_loader` is a function, "package.module:function" or "path/to/file.py:function". It is
    called in another process. A turn delivers `batches` batches, or fewer when its share of
    `seconds` is over. If one loader fails, the others are compared; if all fail, so does this.

    >>> from torch.utils.data import DataLoader
    >>> found = bench(lambda: DataLoader(range(64), batch_size=4), batches=8, rounds=1)
    >>> found.to_torch("torch")
    1.0
    """
    check_int("batches", batches, least=1)
    check_int("rounds", rounds, least=1)
    check_number("seconds", seconds, above=0)
    sandbox = Sandbox(make_loader, _Job, seconds=seconds, shows_output=shows_output)
    with closing(sandbox):
        deadline = monotonic() + sandbox.seconds_left * _SHARE_OF_TIME
        job = _Job(batches=batches, rounds=rounds, deadline=deadline)
        time_up = (
            f"the loaders were still busy after {seconds:g} seconds. Allow more time with "
            "--seconds, or measure less with --batches and --rounds."
        )
        return sandbox.result(job, "the loader failed", time_up)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A job for the sandbox: compare loaders until a deadline on the monotonic clock."""

    batches: int
    rounds: int
    deadline: float

    def make(self, factory: Factory) -> tuple[DataLoader[Any], None]:
        """Make the user's loader."""
        return made_by(factory, {})[0], None

    def use(self, loader: DataLoader[Any], _facts: None) -> Comparison:
        """Compare the loaders."""
        return _compared(loader, self.batches, self.rounds, self.deadline)


def _compared(loader: DataLoader[Any], batches: int, rounds: int, deadline: float) -> Comparison:
    """Measure the bare loop and all contenders in turns."""
    torch.set_num_threads(1)  # as in a worker
    versions, failed = {"torch": str(torch.__version__)}, dict[str, str]()
    with suppress(metadata.PackageNotFoundError):
        versions["torchdata"] = metadata.version("torchdata")
    versions["dataporter"] = __version__
    loaders: dict[str, DataLoader[Any]] = {}
    share = (deadline - monotonic()) / (rounds * (len(versions) + 1))
    warm_up = max(1, loader.num_workers * (loader.prefetch_factor or 1))
    sizes: list[int] = []
    bare_pass = functools.partial(_bare_pass, loader, sizes)
    loops: list[float] = []
    rates: dict[str, list[float]] = {name: [] for name in versions}
    for _ in range(rounds):
        loops.append(_rate(_passes(bare_pass), 1, batches, share))
        for name in [name for name in versions if name not in failed]:
            try:
                if name not in loaders:
                    loaders[name] = _contender(name, loader)
                rates[name].append(_rate(_passes(loaders[name].__iter__), warm_up, batches, share))
            except Exception as error:  # noqa: BLE001  the other loaders can still run
                failed[name] = _reason(error)
    if len(failed) == len(versions):
        raise FactoryError(_all_failed(failed))
    size = mean(sizes)
    return Comparison(
        dataset=type(loader.dataset).__name__,
        batch_size=size,
        num_workers=loader.num_workers,
        versions=versions,
        limit=median(loops) * size * max(1, loader.num_workers),
        turns={
            name: tuple(rate * size for rate in rates[name])
            for name in versions
            if name not in failed
        },
        failed=failed,
        absent=tuple(name for name in ("torch", "torchdata", "dataporter") if name not in versions),
    )


def _reason(error: Exception) -> str:
    """Return an error in a line; torch's of a worker are tracebacks, which end with it."""
    last = str(error).strip().rpartition("\n")[2]
    kind = type(error).__name__
    return last if last.startswith(f"{kind}: ") else f"{kind}: {last}"


def _all_failed(failed: dict[str, str]) -> str:
    reasons = set(failed.values())
    why = reasons.pop() if len(reasons) == 1 else "; ".join(map(": ".join, failed.items()))
    return (
        "the bare loop over the dataset ran, but no loader did, torch's neither. Make the dataset "
        f"work with them first. {why}"
    )


def _contender(name: str, loader: DataLoader[Any]) -> DataLoader[Any]:
    """Build a loader of the named library with this loader's arguments."""
    if name == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  optional

        return StatefulDataLoader(loader.dataset, **arguments_of(loader))  # type: ignore[no-any-return]
    if name == "torch":
        return DataLoader(loader.dataset, **arguments_of(loader))
    if isinstance(loader, ResumableDataLoader):
        return loader
    return ResumableDataLoader(loader.dataset, **arguments_of(loader))


def _passes(new_pass: Callable[[], Iterator[Any]]) -> Generator[Any, None, None]:
    """Yield the batches of pass after pass."""
    while True:
        is_empty = True
        for batch in new_pass():
            is_empty = False
            yield batch
        if is_empty:
            msg = "the loader delivered no batch. Return a loader that has data."
            raise FactoryError(msg)


def _bare_pass(loader: DataLoader[Any], sizes: list[int]) -> Iterator[Any]:
    """Fetch and collate batches in this process, and note how many samples each has."""
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    for samples in _samples(loader, dataset):
        sizes.append(len(samples))
        yield collate(samples[0] if loader.batch_sampler is None else samples)


def _samples(loader: DataLoader[Any], dataset: Any) -> Iterator[list[Any]]:
    if is_iterable(dataset):
        stream = iter(dataset)
        while samples := list(itertools.islice(stream, loader.batch_size or 1)):
            yield samples
        return
    # A torch loader's own: drawing from a sampler of ours would move it.
    like_it = DataLoader(dataset, **arguments_of(loader))
    # Not by `or`: a sampler may have no length, and then it has no truth either.
    if like_it.batch_sampler is None:
        batches: Any = ([index] for index in like_it.sampler)
    else:
        batches = like_it.batch_sampler
    for indices in batches:
        yield [dataset[index] for index in indices]


def _rate(stream: Generator[Any, None, None], warm_up: int, batches: int, seconds: float) -> float:
    """Batches per second, after a warm-up that takes at most half of the time."""
    with closing(stream):
        deadline = perf_counter() + seconds / 2
        for _ in itertools.islice(stream, warm_up):
            if perf_counter() > deadline:
                break
        start, delivered = perf_counter(), 0
        for _ in itertools.islice(stream, batches):
            delivered += 1
            if perf_counter() > start + seconds / 2:
                break
        return delivered / (perf_counter() - start)
