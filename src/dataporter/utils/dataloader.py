"""Numbers of steps of a loader, and the time spent waiting for its batches.

Any iterable works as a loader: torch's, dataporter's or your own.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import torch
import torch.distributed as dist

from dataporter.arguments import check_int
from dataporter.errors import OptionError, OptionTypeError

Batch: TypeAlias = dict[str, Any]


# Steps


class TrainSteps(NamedTuple):
    """An epoch of training: `num_train_steps` batches from each rank's loader.

    The optimizer steps once every `gradient_accumulation_steps` batches, after
    `train_batch_size` samples over all ranks.
    """

    train_batch_size: int
    num_train_steps: int
    gradient_accumulation_steps: int


class ValSteps(NamedTuple):
    """A validation: batches from each rank's loader, and batches of the sanity check."""

    num_val_steps: int
    num_sanity_val_steps: int


def get_epoch_length(loader: Iterable[Any], length: int | None = None) -> int:
    """Return the batches of an epoch: `length` if given, else the loader's length.

    >>> get_epoch_length([1, 2, 3])
    3
    >>> get_epoch_length(iter([1, 2, 3]), length=1000)
    1000
    """
    return _epoch_length(loader, length, "length")


def _epoch_length(loader: Any, given: Any, name: str) -> int:
    """Return the given number of batches, called `name` in errors, or the loader's length."""
    if given is not None:
        return _count(name, given)
    try:
        return len(loader)
    except (TypeError, NotImplementedError) as error:
        msg = (
            f"{type(loader).__name__} has no length, perhaps because its dataset has no __len__. "
            f"Pass {name}=, the number of steps in an epoch."
        )
        raise OptionError(msg) from error


@overload
def get_train_dataloader_steps(loader: object, steps: Iterable[Any], /) -> int: ...
@overload
def get_train_dataloader_steps(
    loader: Iterable[Any],
    steps: int | None = None,
    train_batch_size: int | None = None,
    dp_size: int = 1,
) -> TrainSteps: ...
def get_train_dataloader_steps(
    loader: Any, steps: Any = None, train_batch_size: int | None = None, dp_size: int = 1
) -> int | TrainSteps:
    """Return the number of batches that training takes from a loader in an epoch.

        (params, loader)                                          an int
        (loader, steps=None, train_batch_size=None, dp_size=1)    a `TrainSteps`, which is a tuple

    `params` is an object or a dict. Its `train_steps_per_epoch`, `train_batch_size` and
    `dp_size` are used if present. Steps are optimizer steps: with gradient accumulation each
    takes several batches. Without a number of steps, the loader's length is used.

    >>> loader = torch.utils.data.DataLoader(range(64), batch_size=4)
    >>> get_train_dataloader_steps({"train_steps_per_epoch": None}, loader)
    16
    >>> get_train_dataloader_steps(loader, 3, 16, 2)
    TrainSteps(train_batch_size=16, num_train_steps=6, gradient_accumulation_steps=2)
    """
    if _is_params(loader):
        params, loader = loader, _loader("get_train_dataloader_steps", steps)
        steps, train_batch_size = (
            _param(params, name) for name in ("train_steps_per_epoch", "train_batch_size")
        )
        batches = _epoch_length(loader, steps, "train_steps_per_epoch")
        if train_batch_size is None:
            return batches
        return get_train_dataloader_steps(
            loader, batches if steps else None, train_batch_size, _dp_size(params)
        ).num_train_steps
    _check_order("get_train_dataloader_steps", loader, steps)
    batches = _epoch_length(loader, steps, "steps")
    together = _batch_size(loader) * _count("dp_size", dp_size)
    if train_batch_size is None:
        train_batch_size = together
    accumulated, rest = divmod(_count("train_batch_size", train_batch_size), together)
    if rest or not accumulated:
        msg = (
            f"train_batch_size must be a multiple of {together}, found {train_batch_size}: "
            f"{dp_size} ranks take {together // dp_size} samples each in a step. Change "
            "train_batch_size or the loader's batch_size."
        )
        raise OptionError(msg)
    if steps is not None:
        batches *= accumulated
    return TrainSteps(train_batch_size, batches, accumulated)


@overload
def get_val_dataloader_steps(loader: object, steps: Iterable[Any], /) -> int: ...
@overload
def get_val_dataloader_steps(
    loader: Iterable[Any],
    steps: int | None = None,
    num_sanity_val_steps: int = 0,
    dp_size: int = 1,
) -> ValSteps: ...
def get_val_dataloader_steps(
    loader: Any, steps: Any = None, num_sanity_val_steps: int = 0, dp_size: int = 1
) -> int | ValSteps:
    """Return the number of batches that each rank takes from its loader to validate.

        (params, loader)                                          an int
        (loader, steps=None, num_sanity_val_steps=0, dp_size=1)   a `ValSteps`, which is a tuple

    `params` is an object or a dict. Its `val_steps_per_epoch` and `dp_size` are used if
    present. Given numbers count over all ranks and are divided among them, rounded up. A
    loader's length already counts one rank.

    >>> loader = torch.utils.data.DataLoader(range(64), batch_size=4)
    >>> get_val_dataloader_steps({"val_steps_per_epoch": 10}, loader)
    10
    >>> get_val_dataloader_steps(loader, 10, 2, 4)
    ValSteps(num_val_steps=3, num_sanity_val_steps=1)
    """
    if _is_params(loader):
        params, loader = loader, _loader("get_val_dataloader_steps", steps)
        given = _param(params, "val_steps_per_epoch")
        _epoch_length(loader, given, "val_steps_per_epoch")
        return get_val_dataloader_steps(loader, given, 0, _dp_size(params)).num_val_steps
    _check_order("get_val_dataloader_steps", loader, steps)
    ranks = _count("dp_size", dp_size)
    batches = _epoch_length(loader, steps, "steps")
    sanity = _count("num_sanity_val_steps", num_sanity_val_steps, least=0)
    if steps is not None:
        batches = math.ceil(batches / ranks)
    return ValSteps(batches, math.ceil(sanity / ranks))


_PARAMS = ("train_steps_per_epoch", "val_steps_per_epoch", "train_batch_size")


def _is_params(value: Any) -> bool:
    """Return True for training parameters, and False for a loader."""
    # Some classes of settings are iterable too, so their fields are checked first.
    named = isinstance(value, Mapping) or any(hasattr(value, name) for name in _PARAMS)
    return named or not hasattr(value, "__iter__")


def _loader(function: str, value: Any) -> Any:
    if not hasattr(value, "__iter__"):
        msg = (
            "the second argument must be a loader if the first holds training parameters, found "
            f"{type(value).__name__} {value!r}. Call {function}(params, loader)."
        )
        raise OptionTypeError(msg)
    return value


def _check_order(function: str, loader: Any, steps: Any) -> None:
    """Raise if parameters follow the loader. A number of steps may follow it."""
    if steps is not None and not isinstance(steps, Number | str) and _is_params(steps):
        msg = (
            f"the training parameters must come before the loader, found {type(loader).__name__} "
            f"first and {type(steps).__name__} second. Call {function}(params, loader)."
        )
        raise OptionTypeError(msg)


def _param(params: Any, name: str) -> Any:
    return params.get(name) if isinstance(params, Mapping) else getattr(params, name, None)


def _dp_size(params: Any) -> int:
    """Return the number of data-parallel ranks: given, or the process group's, or 1."""
    given = _param(params, "dp_size")
    if given is not None:
        return _count("dp_size", given)
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _batch_size(loader: Any) -> int:
    """Return the batch size of the loader, its batch sampler or its dataset."""
    for part in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)):
        size = getattr(part, "batch_size", None)
        if size is not None:
            return _count("batch_size", size)
    msg = (
        f"the batch size of {type(loader).__name__} is unknown: neither the loader nor its batch "
        "sampler nor its dataset has a batch_size attribute. Set it on one of them."
    )
    raise OptionError(msg)


def _count(name: str, value: Any, *, least: int = 1) -> int:
    check_int(name, value, least=least)
    return int(value)


class DataLoaderSetupMixin:
    """A mixin for trainers that make their own loaders in `configure_dataloaders`.

    >>> class Trainer(DataLoaderSetupMixin):
    ...     def configure_dataloaders(self):
    ...         return [1, 2, 3], [4]
    >>> trainer = Trainer()
    >>> trainer.train_dataloader, trainer.val_dataloader
    ([1, 2, 3], [4])
    """

    def configure_dataloaders(self) -> tuple[Any, Any]:
        """Make the loaders of training and validation. The second may be None."""
        msg = f"{type(self).__name__} must define configure_dataloaders() -> (train, val)."
        raise NotImplementedError(msg)

    @functools.cached_property
    def _dataloaders(self) -> tuple[Any, Any]:
        try:
            found: Any = self.configure_dataloaders()
        except AttributeError as error:
            if not hasattr(type(self), "__getattr__"):
                raise
            # A class such as torch.nn.Module would say that it has no `train_dataloader`.
            msg = (
                f"{type(self).__name__}.configure_dataloaders() raised AttributeError: {error}. "
                "Set what it needs before the loaders are used."
            )
            raise OptionError(msg) from error
        if not isinstance(found, tuple | list) or len(found) != 2:  # noqa: PLR2004  train, val
            msg = (
                f"{type(self).__name__}.configure_dataloaders() must return two loaders "
                f"(train, val), found {type(found).__name__}. Return None for a missing loader."
            )
            raise OptionTypeError(msg)
        train, val = found
        return train, val

    @property
    def train_dataloader(self) -> Any:
        return self._dataloaders[0]

    @property
    def val_dataloader(self) -> Any:
        return self._dataloaders[1]


# Profiling


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderProfile:
    """Waiting times for batches, in seconds. They are NaN if there was no batch.

    `print` shows the mean and the throughput.
    """

    batches: int  # delivered
    total: float  # pauses included, as in batches_per_second
    first: float  # includes the start of the workers
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float
    batches_per_second: float
    waiting_share: float | None  # share of the total time; None without a step time

    def __str__(self) -> str:
        lines = [
            f"Average batch time: {self.mean:.6f}s",
            f"Throughput: {self.batches_per_second:.1f} batches/s",
        ]
        if self.waiting_share is not None:
            lines.append(f"Waiting: {self.waiting_share:.1%} of the time")
        return "\n".join(lines)


def profile_dataloader(
    loader: Iterable[Any], num_batches: int = 100, step_time: float | None = None
) -> LoaderProfile:
    """Draw up to `num_batches` batches and measure the waiting time for each.

    With `step_time`, every batch is followed by a pause of that many seconds, in which workers
    can prepare batches as they would during a training step. `waiting_share` is then the share
    of time that such a training would lose. Nothing is printed: print the returned profile.

    This is an ordinary pass: datasets and samplers draw from the global generators as usual. A
    loader with `state_dict` and `load_state_dict` gets its old state back afterwards. Any other
    loader stays where an interrupted pass leaves it.

    >>> profile = profile_dataloader(torch.utils.data.DataLoader(range(10), batch_size=4))
    >>> profile.batches
    3
    """
    _count("num_batches", num_batches)
    if step_time is not None and not (isinstance(step_time, int | float) and step_time >= 0):
        msg = f"step_time must be a number of seconds of at least 0, found {step_time!r}."
        raise OptionError(msg)
    has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    state = loader.state_dict() if has_state else None  # type: ignore[attr-defined]
    started = time.perf_counter()
    try:
        steps = timed_steps(loader, num_batches, step_time or 0.0)
        waits = [(got - asked) / 1e9 for asked, got, _ in steps]
    finally:
        total = time.perf_counter() - started
        if has_state:
            loader.load_state_dict(state)  # type: ignore[attr-defined]
    return _summary(waits, total, step_time)


def timed_steps(
    loader: Iterable[Any],
    num_batches: int,
    step_time: float,
    look: Callable[[Any], Any] = lambda _: None,
) -> Iterator[tuple[int, int, Any]]:
    """Draw batches with a pause after each, and yield (requested, received, look(batch)).

    The two times are nanoseconds of the monotonic clock. The time that `look` takes is part of
    the pause.
    """
    asked = time.monotonic_ns()
    batches = iter(loader)
    for _ in range(num_batches):
        try:
            batch = next(batches)
        except StopIteration:
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # a batch on its way to a device is not there yet
        got = time.monotonic_ns()
        seen = look(batch)
        del batch  # as a training does before the next batch
        yield asked, got, seen
        left = step_time - (time.monotonic_ns() - got) / 1e9
        if left > 0:
            time.sleep(left)
        asked = time.monotonic_ns()


def _summary(waits: list[float], total: float, step_time: float | None) -> LoaderProfile:
    times = np.array(waits or [math.nan])
    p50, p90, p99 = np.percentile(times, [50, 90, 99]).tolist()
    share = None
    if step_time is not None and waits:
        share = sum(waits) / (sum(waits) + step_time * len(waits))
    return LoaderProfile(
        batches=len(waits),
        total=total,
        first=times[0].item(),
        mean=times.mean().item(),
        p50=p50,
        p90=p90,
        p99=p99,
        longest=times.max().item(),
        batches_per_second=len(waits) / total,
        waiting_share=share,
    )
