"""How many steps a loader makes, and how long one waits for its batches.

Any loader will do: torch's, dataporter's, or something that is merely iterable.
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
    """An epoch of training: `num_train_steps` batches from the loader of each rank.

    The optimizer steps once every `gradient_accumulation_steps` of them, and has then seen
    `train_batch_size` samples over all ranks.
    """

    train_batch_size: int
    num_train_steps: int
    gradient_accumulation_steps: int


class ValSteps(NamedTuple):
    """A validation: batches from each rank's loader, and those of the check before training."""

    num_val_steps: int
    num_sanity_val_steps: int


def get_epoch_length(loader: Iterable[Any], length: int | None = None) -> int:
    """Batches of an epoch: `length` if it is given, else what the loader says.

    >>> get_epoch_length([1, 2, 3])
    3
    >>> get_epoch_length(iter([1, 2, 3]), length=1000)
    1000
    """
    return _epoch_length(loader, length, "length")


def _epoch_length(loader: Any, given: Any, name: str) -> int:
    """Batches of an epoch, as given under this name or as the loader says."""
    if given is not None:
        return _count(name, given)
    try:
        return len(loader)
    except (TypeError, NotImplementedError) as error:
        msg = (
            f"{type(loader).__name__} has no length, as where its dataset has no __len__. Give "
            f"{name}=, the number of steps in an epoch."
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
    """Batches that training takes from a loader in an epoch.

        (params, loader)                                          their number
        (loader, steps=None, train_batch_size=None, dp_size=1)    a `TrainSteps`, which is a tuple

    `params` is an object or a dict with `train_steps_per_epoch`, `train_batch_size` and
    `dp_size`, as far as it has them. Steps are the optimizer's: with gradient accumulation each
    takes several batches. Where none are given, the loader's length is taken as it is.

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
            f"train_batch_size must be a multiple of what all ranks take in a step, found "
            f"{train_batch_size}: {dp_size} ranks take {together // dp_size} samples each, "
            f"{together} together. Change it or the loader's batch_size."
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
    """Batches that each rank takes from its loader to validate.

        (params, loader)                                          their number
        (loader, steps=None, num_sanity_val_steps=0, dp_size=1)   a `ValSteps`, which is a tuple

    `params` is an object or a dict with `val_steps_per_epoch` and `dp_size`, as far as it has
    them. Numbers that are given are meant over all ranks and shared among them, rounded up; a
    loader's length is its own rank's already.

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
    """Whether this is what a training is told, not what it draws batches from."""
    # Some classes of settings can be iterated over too, so their fields are looked for first.
    named = isinstance(value, Mapping) or any(hasattr(value, name) for name in _PARAMS)
    return named or not hasattr(value, "__iter__")


def _loader(function: str, value: Any) -> Any:
    if not hasattr(value, "__iter__"):
        msg = (
            "a loader must come second where the first argument holds the training parameters, "
            f"found {type(value).__name__} {value!r}. Call {function}(params, loader)."
        )
        raise OptionTypeError(msg)
    return value


def _check_order(function: str, loader: Any, steps: Any) -> None:
    """Raise for parameters behind a loader; a number of steps may stand there."""
    if steps is not None and not isinstance(steps, Number | str) and _is_params(steps):
        msg = (
            f"the training parameters must come before the loader, found {type(loader).__name__} "
            f"first and {type(steps).__name__} second. Call {function}(params, loader)."
        )
        raise OptionTypeError(msg)


def _param(params: Any, name: str) -> Any:
    return params.get(name) if isinstance(params, Mapping) else getattr(params, name, None)


def _dp_size(params: Any) -> int:
    """The number of data-parallel ranks: told, or the process group's, or 1."""
    told = _param(params, "dp_size")
    if told is not None:
        return _count("dp_size", told)
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _batch_size(loader: Any) -> int:
    """Samples in a batch, by the loader, its batch sampler or its dataset."""
    for part in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)):
        size = getattr(part, "batch_size", None)
        if size is not None:
            return _count("batch_size", size)
    msg = (
        f"the batch size of {type(loader).__name__} is not known: neither it nor its batch sampler "
        "nor its dataset has a batch_size. Set this attribute on the one that makes the batches."
    )
    raise OptionError(msg)


def _count(name: str, value: Any, *, least: int = 1) -> int:
    check_int(name, value, least=least)
    return int(value)


class DataLoaderSetupMixin:
    """For a trainer that makes its own loaders: `configure_dataloaders`, called once.

    >>> class Trainer(DataLoaderSetupMixin):
    ...     def configure_dataloaders(self):
    ...         return [1, 2, 3], [4]
    >>> trainer = Trainer()
    >>> trainer.train_dataloader, trainer.val_dataloader
    ([1, 2, 3], [4])
    """

    def configure_dataloaders(self) -> tuple[Any, Any]:
        """Make the loaders of training and validation; the second may be None."""
        msg = f"{type(self).__name__} must define configure_dataloaders() -> (train, val)."
        raise NotImplementedError(msg)

    @functools.cached_property
    def _dataloaders(self) -> tuple[Any, Any]:
        found: Any = self.configure_dataloaders()
        if not isinstance(found, tuple | list) or len(found) != 2:  # noqa: PLR2004  train, val
            msg = (
                f"{type(self).__name__}.configure_dataloaders() must return two loaders "
                f"(train, val), found {type(found).__name__}. Return None for one that is not."
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
    """How long one waited for batches. Times are in seconds, NaN where there was no batch."""

    batches: int  # that were really delivered
    total: float  # the pauses included, as in batches_per_second
    first: float  # workers start up in it
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float
    batches_per_second: float
    waiting_share: float | None  # of the total; None without a step time


def profile_dataloader(
    loader: Iterable[Any], num_batches: int = 100, step_time: float | None = None
) -> LoaderProfile:
    """Draw up to `num_batches` batches, and say how long each was waited for.

    With `step_time`, every batch is followed by a pause of so many seconds, in which workers
    may work ahead as they would during a training step: `waiting_share` is what a training
    with such steps would lose.

    It is a pass like any other: datasets and samplers draw from the global generators as they
    do. A loader with `state_dict` and `load_state_dict` is put back to its state afterwards, so
    that its next pass is what it would be after loading that state; others stand where a pass
    that was broken off leaves them.

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
    """Draw batches and pause after each, as a training does: when asked, when got, what was seen.

    Stamps are nanoseconds of the monotonic clock. What `look` returns of a batch is what is seen
    of it; looking is part of the pause.
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
        del batch  # as a training lets go of it before the next
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
