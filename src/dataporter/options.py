"""Which arguments of a loader go together, and what each may be.

Everything is checked before anything is built, so a loader exists whole or not at all.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import BaseContext
from typing import Any, get_args

import torch
from torch.utils.data import IterableDataset

from dataporter.arguments import check_int
from dataporter.engine import can_start_workers
from dataporter.errors import OptionError, OptionTypeError
from dataporter.law import Tail
from dataporter.samplers import ResumableSampler
from dataporter.sources.lanes import has_lanes, is_datapipe


class _Unsaid(int):
    """The False of an option that nobody has given."""

    def __repr__(self) -> str:
        return "False"


UNSAID: Any = _Unsaid(0)


def as_said(shuffle: bool | None) -> bool | None:
    """Return what was said of `shuffle`; None if nothing was, as torch has it.

    >>> as_said(UNSAID), as_said(False)
    (None, False)
    """
    return None if isinstance(shuffle, _Unsaid) else shuffle


def check_options(
    *,
    dataset: Any,
    batch_size: int | None,
    shuffle: bool,
    sampler: Any,
    batch_sampler: Any,
    num_workers: int | str,
    drop_last: bool,
    timeout: float,
    multiprocessing_context: Any,
    prefetch_factor: int | None,
    persistent_workers: bool,
    tail: Tail | None,
    callables: dict[str, Any],
    generator: Any,
    engine: str | None,
    on_error: str,
    max_restarts: int,
    lanes: int | None,
    snapshot_every_n_steps: int,
    device: torch.device | None,
    pin_memory_device: str,
    device_prefetch: int,
    device_converter: Any,
    unknown: dict[str, Any],
) -> None:
    """Raise for what cannot work, naming the argument, the value and the remedy."""
    if unknown:
        names = ", ".join(sorted(unknown))
        msg = f"unknown arguments: {names}. help(ResumableDataLoader) lists those it takes."
        raise OptionTypeError(msg)
    if isinstance(dataset, IterableDataset):
        _check_iterable(dataset, shuffle, sampler, batch_sampler, tail)
    elif not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__getitems__"):
        msg = (
            "a dataset must have __getitem__ or __getitems__, or be an IterableDataset, "
            f"found {_named(dataset)}."
        )
        raise OptionTypeError(msg)
    _check_lanes(dataset, lanes, snapshot_every_n_steps, on_error)
    if engine not in (None, "processes", "threads"):
        msg = f"engine must be 'processes' or 'threads', found {engine!r}."
        raise OptionError(msg)
    if on_error not in ("raise", "skip"):
        msg = f"on_error must be 'raise' or 'skip', found {on_error!r}."
        raise OptionError(msg)
    check_int("max_restarts", max_restarts, least=0)
    check_int("device_prefetch", device_prefetch, least=1)
    _check_device(device, pin_memory_device, device_converter)
    _check_kinds(sampler, batch_sampler, generator, callables)
    _check_workers(
        num_workers,
        timeout,
        multiprocessing_context,
        prefetch_factor,
        persistent=persistent_workers,
        in_threads=engine == "threads",
    )
    if batch_sampler is not None:
        _check_batch_sampler_alone(batch_size, shuffle, sampler, drop_last)
    elif batch_size is not None:
        check_int("batch_size", batch_size, least=1)
    elif drop_last or (tail == "drop" and not isinstance(dataset, IterableDataset)):
        msg = "drop_last=True needs batches, found batch_size=None, which delivers single samples."
        raise OptionError(msg)
    if sampler is not None and shuffle:
        msg = (
            "sampler and shuffle=True exclude each other: a sampler decides the order itself. "
            "Drop shuffle=True, or drop the sampler."
        )
        raise OptionError(msg)
    _check_tail(
        tail,
        sampler,
        batch_sampler,
        drop_last=drop_last,
        iterable=isinstance(dataset, IterableDataset),
    )


def as_device(device: Any) -> torch.device | None:
    """Return the device that is meant, None for none.

    >>> as_device("cpu")
    device(type='cpu')
    """
    if device is None or isinstance(device, torch.device):
        return device
    if not isinstance(device, str):
        msg = (
            "device must be a name such as 'cuda' or 'cuda:1', or a torch.device, found "
            f"{type(device).__name__} {device!r}."
        )
        raise OptionTypeError(msg)
    try:
        return torch.device(device)
    except RuntimeError as error:
        msg = f"device must be one that torch has, such as 'cuda' or 'cuda:1', found {device!r}."
        raise OptionError(msg) from error


def _check_device(
    device: torch.device | None, pin_memory_device: str, device_converter: Any
) -> None:
    pinned_for = as_device(pin_memory_device or None)
    if device is None:
        if device_converter is not None:
            msg = (
                "device_converter is for batches on their device, found device=None. Give a "
                "device, or use converter."
            )
            raise OptionError(msg)
        return
    if device.type == "cuda":
        _check_cuda(device)
    elif device.type != "cpu":
        _check_other(device)
    if pinned_for is not None and not _agree(pinned_for, device):
        msg = (
            f"pin_memory_device={pin_memory_device!r} contradicts device={str(device)!r}. Drop "
            "pin_memory_device: memory is page-locked for the device that is used."
        )
        raise OptionError(msg)


def _check_cuda(device: torch.device) -> None:
    if not torch.cuda.is_available():
        why = "was built without it" if torch.version.cuda is None else "finds no device"
        msg = (
            f"device={str(device)!r} needs CUDA, and torch {torch.__version__} {why}. Use "
            "device=None, or a torch and a machine that have it."
        )
        raise OptionError(msg)
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        found = "is only 'cuda:0'" if count == 1 else f"are 'cuda:0' to 'cuda:{count - 1}'"
        msg = f"device={str(device)!r} does not exist: there {found}. Use one of those."
        raise OptionError(msg)


def _check_other(device: torch.device) -> None:
    if device.type == "meta":
        msg = "device='meta' has no data, and batches would have none. Use a real device."
        raise OptionError(msg)
    try:
        torch.empty(0, device=device)
    except Exception as error:
        msg = (
            f"device={str(device)!r} cannot be used with torch {torch.__version__} on this "
            f"machine: {error!r:.200}. Use device=None, or a torch and a machine that have it."
        )
        raise OptionError(msg) from error


def _agree(one: torch.device, other: torch.device) -> bool:
    same_index = one.index == other.index or None in (one.index, other.index)
    return one.type == other.type and same_index


def _named(dataset: Any) -> str:
    return type(dataset).__name__


def _check_iterable(
    dataset: Any, shuffle: bool, sampler: Any, batch_sampler: Any, tail: Tail | None
) -> None:
    given = {
        "shuffle=True": shuffle and not is_datapipe(dataset),
        "sampler": sampler is not None,
        "batch_sampler": batch_sampler is not None,
    }
    for name, is_given in given.items():
        if is_given:
            msg = (
                f"{name} is for datasets that are read by index; {_named(dataset)} is an "
                f"IterableDataset and decides its order itself. Drop {name}."
            )
            raise OptionError(msg)
    if tail == "pad":
        msg = (
            f"tail='pad' repeats samples by index; {_named(dataset)} is an IterableDataset. Use "
            "tail='drop' to end all ranks with the first that ends, or 'uneven'."
        )
        raise OptionError(msg)


def _check_lanes(
    dataset: Any, lanes: int | None, snapshot_every_n_steps: int, on_error: str
) -> None:
    check_int("snapshot_every_n_steps", snapshot_every_n_steps, least=1)
    if lanes is not None:
        check_int("lanes", lanes, least=1)
        if not isinstance(dataset, IterableDataset):
            msg = (
                f"lanes={lanes} is for an IterableDataset; {_named(dataset)} is read by index, "
                "which needs no lanes. Drop the argument."
            )
            raise OptionError(msg)
    if on_error == "skip" and has_lanes(dataset):
        msg = (
            "on_error='skip' is for samples that are read by index, each by itself; "
            f"{_named(dataset)} is iterated or has a state. Let it leave samples out itself."
        )
        raise OptionError(msg)


def _check_kinds(
    sampler: Any, batch_sampler: Any, generator: Any, callables: dict[str, Any]
) -> None:
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
            msg = f"{name} must be iterable, found {type(value).__name__} {value!r}."
            raise OptionTypeError(msg)
    for name, value in callables.items():
        if value is not None and not callable(value):
            msg = f"{name} must be callable, found {type(value).__name__} {value!r}."
            raise OptionTypeError(msg)
    if generator is not None and not isinstance(generator, torch.Generator):
        msg = f"generator must be a torch.Generator, found {type(generator).__name__}."
        raise OptionTypeError(msg)


def _check_workers(
    num_workers: int | str,
    timeout: float,
    multiprocessing_context: Any,
    prefetch_factor: int | None,
    *,
    persistent: bool,
    in_threads: bool,
) -> None:
    if num_workers != "auto":
        check_int("num_workers", num_workers, least=0)
    if num_workers != 0 and not in_threads and not can_start_workers():
        msg = (
            f"num_workers={num_workers!r} needs worker processes, which this system "
            f"({sys.platform}) cannot run. Use engine='threads', or num_workers=0."
        )
        raise OptionError(msg)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        msg = f"timeout must be a number of seconds, found {timeout!r}."
        raise OptionTypeError(msg)
    if not timeout >= 0:
        msg = f"timeout must be at least 0 seconds, found {timeout}."
        raise OptionError(msg)
    if prefetch_factor is not None:
        check_int("prefetch_factor", prefetch_factor, least=1)
    if num_workers == 0 and persistent:
        msg = "persistent_workers=True needs workers, found num_workers=0. Set one or the other."
        raise OptionError(msg)
    if num_workers == 0 and multiprocessing_context is not None:
        msg = (
            f"multiprocessing_context={multiprocessing_context!r} needs workers, "
            "found num_workers=0. Set one or the other."
        )
        raise OptionError(msg)
    if isinstance(multiprocessing_context, str) and (
        multiprocessing_context not in multiprocessing.get_all_start_methods()
    ):
        methods = ", ".join(map(repr, multiprocessing.get_all_start_methods()))
        msg = (
            f"multiprocessing_context must be one of {methods}, found {multiprocessing_context!r}."
        )
        raise OptionError(msg)
    if not isinstance(multiprocessing_context, str | BaseContext | None):
        msg = (
            "multiprocessing_context must be the name of a start method or a context of "
            f"multiprocessing, found {type(multiprocessing_context).__name__}."
        )
        raise OptionTypeError(msg)


def _check_batch_sampler_alone(
    batch_size: int | None, shuffle: bool, sampler: Any, drop_last: bool
) -> None:
    # batch_size=1 is the default, and so means "not given", as in torch.
    others = {
        f"batch_size={batch_size}": batch_size != 1,
        "shuffle=True": shuffle,
        "sampler": sampler is not None,
        "drop_last=True": drop_last,
    }
    given = [name for name, is_given in others.items() if is_given]
    if given:
        msg = (
            f"batch_sampler decides batches and order itself, found also {', '.join(given)}. "
            "Drop those, or drop the batch_sampler."
        )
        raise OptionError(msg)


def _check_tail(
    tail: Tail | None, sampler: Any, batch_sampler: Any, *, drop_last: bool, iterable: bool
) -> None:
    if tail is None:
        return
    if tail not in get_args(Tail):
        msg = f"tail must be 'pad', 'drop' or 'uneven', found {tail!r}."
        raise OptionError(msg)
    if drop_last and tail != "drop" and not iterable:
        msg = (
            f"drop_last=True leaves out what fills no step on every rank, tail={tail!r} does not. "
            "Drop one of them."
        )
        raise OptionError(msg)
    if batch_sampler is not None or not isinstance(sampler, ResumableSampler | None):
        msg = f"tail={tail!r} is for dataporter's own order; a sampler of your own has its own end."
        raise OptionError(msg)
