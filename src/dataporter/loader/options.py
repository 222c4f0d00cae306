"""The arguments of a loader: what each may be, and which go together.

Everything is checked before anything is built, so a loader exists whole or not at all.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from multiprocessing.context import BaseContext
from os import PathLike
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from torch.utils.data import IterableDataset

from dataporter.arguments import check_int
from dataporter.engine import (
    OLDEST_RAY,
    OWN_RAY_OPTIONS,
    PREFETCH_BYTES,
)
from dataporter.errors import OptionError, OptionTypeError
from dataporter.law import OrderedDataset, Tail
from dataporter.ranks import Strategy
from dataporter.requirement import require
from dataporter.samplers import ResumableSampler
from dataporter.sources.lanes.datapipes import is_datapipe
from dataporter.sources.lanes.fetcher import has_lanes, is_iterable
from dataporter.system.processes import can_start_workers, usable_cores

Sample_co = TypeVar("Sample_co", covariant=True)

Engine: TypeAlias = Literal["processes", "threads", "ray"]
OnError: TypeAlias = Literal["raise", "skip"]


class _NotGiven(int):
    """The False of an option that nobody has given."""

    def __repr__(self) -> str:
        return "False"


NOT_GIVEN: Any = _NotGiven(0)


def given(shuffle: bool | None) -> bool | None:
    """Return what was said of `shuffle`; None if nothing was, as torch has it.

    >>> given(NOT_GIVEN), given(False)
    (None, False)
    """
    return None if isinstance(shuffle, _NotGiven) else shuffle


class MapStyle(Protocol[Sample_co]):
    """Anything that has samples by index: a torch Dataset, a list, an array, a tensor."""

    def __getitem__(self, index: Any, /) -> Sample_co: ...


AnyDataset: TypeAlias = MapStyle[Sample_co] | IterableDataset[Sample_co]


@dataclass(frozen=True, slots=True, eq=False)
class LoaderOptions(Generic[Sample_co]):
    """The arguments of a loader. `ResumableDataLoader` says what they mean.

    What cannot work is refused when it is made, with the argument, the value and the remedy.
    """

    dataset: AnyDataset[Sample_co]
    batch_size: int | None = 1
    shuffle: bool | None = NOT_GIVEN
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    num_workers: int | Literal["auto"] = 0
    collate_fn: Callable[[Any], Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = 2
    persistent_workers: bool = False
    _: KW_ONLY
    # Grouped as the documentation groups them, the usual ones first.
    seed: int | None = None
    randomness: bool = True
    converter: Any = None
    device: str | torch.device | None = None
    device_converter: Any = None
    device_prefetch: int = 2
    on_error: OnError = "raise"
    max_skipped: int | None = None
    strategy: Strategy | None = None
    rank: int | None = None
    world_size: int | None = None
    tail: Tail | None = None
    engine: Engine | None = None
    ray_options: Mapping[str, Any] | None = None
    max_restarts: int = 3
    prefetch_bytes: int = PREFETCH_BYTES
    lanes: int | None = None
    snapshot_every_n_steps: int = 1
    pin_memory_device: str = ""
    in_order: bool = True

    def __post_init__(self) -> None:
        device = as_device(self.device)
        if self.is_iterable:
            _check_iterable(self)
        else:
            _check_indexed(self.dataset)
        _check_flags(self)
        _check_lanes(self)
        _check_engine(self)
        if self.on_error not in get_args(OnError):
            msg = f"on_error must be 'raise' or 'skip', found {self.on_error!r}."
            raise OptionError(msg)
        check_int("max_skipped", self.max_skipped, least=0, optional=True)
        if self.max_skipped is not None and self.on_error != "skip":
            msg = "max_skipped= bounds what on_error='skip' omits. Pass both, or neither."
            raise OptionError(msg)
        check_int("max_restarts", self.max_restarts, least=0)
        check_int("device_prefetch", self.device_prefetch, least=1)
        _check_device(device, self.pin_memory_device, self.device_converter)
        _check_kinds(self)
        _check_workers(self)
        _check_batches(self)
        _check_tail(self)

    def arguments(self, **changed: Any) -> dict[str, Any]:
        """Return the arguments of a `ResumableDataLoader`, some of them changed."""
        names = [field.name for field in fields(LoaderOptions)]
        return {name: getattr(self, name) for name in names} | changed

    @property
    def is_iterable(self) -> bool:
        """True if the dataset is iterated, not read by index."""
        return is_iterable(self.dataset)

    @property
    def ordered_batches(self) -> OrderedDataset | None:
        """The batch sampler, if it brings an order of batches that dataporter follows."""
        batches = self.batch_sampler
        return batches if isinstance(batches, OrderedDataset) else None

    @property
    def has_lanes(self) -> bool:
        """True if the dataset is read in lanes."""
        return has_lanes(self.dataset)

    @property
    def in_threads(self) -> bool:
        """True if threads of this process fetch, where there are workers."""
        return self.engine == "threads"

    @property
    def workers(self) -> int:
        """The number of workers, at most, if it adapts."""
        return usable_cores() if self.num_workers == "auto" else self.num_workers

    @property
    def works_here(self) -> bool:
        """True if workers run on this machine."""
        return self.engine != "ray"

    @property
    def adapts(self) -> bool:
        """True if the number of workers adapts to the consumer."""
        return self.num_workers == "auto" and not self.has_lanes

    @property
    def reads_inline(self) -> bool:
        """True if the dataset is read in this process."""
        return self.workers == 0 or self.in_threads

    @property
    def keeps_order(self) -> bool:
        """True if samples by index are delivered in order, on one rank too."""
        return self.in_order or self.workers == 0 or self.has_lanes

    @property
    def drops_last(self) -> bool:
        """True if the last, short batch is left out."""
        return self.drop_last or (self.tail == "drop" and not self.is_iterable)


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


def _check_indexed(dataset: Any) -> None:
    """Refuse anything that has no samples by index, or is obviously no dataset."""
    if isinstance(dataset, type) and not hasattr(type(dataset), "__getitem__"):
        name = dataset.__name__
        msg = f"dataset must be an instance, found the class {name}. Make one: {name}(...)."
        raise OptionTypeError(msg)
    if isinstance(dataset, PathLike) or (isinstance(dataset, str) and _is_path(dataset)):
        msg = (
            f"dataset must be a dataset, found the path {str(dataset)!r}. Open it: "
            "ShardedDataset(path) reads data in files, a Dataset of your own reads anything."
        )
        raise OptionTypeError(msg)
    if hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"):
        return
    msg = (
        "a dataset must have __getitem__ or __getitems__, or be an IterableDataset, found "
        f"{_named(dataset)}."
    )
    if hasattr(dataset, "__next__"):
        msg += (
            " It can be read once only, and not in a worker. Make it anew in the __iter__ of an "
            "IterableDataset, or pass list(...) if all samples fit into memory."
        )
    elif hasattr(dataset, "__iter__"):
        msg += " Iterate over it in the __iter__ of an IterableDataset, or pass list(...)."
    raise OptionTypeError(msg)


def _is_path(text: str) -> bool:
    """Return True for a str that is a path, not a text of which each character is a sample."""
    if not text or any(map(str.isspace, text)):
        return False
    return os.sep in text or "/" in text or os.path.exists(text)  # noqa: PTH110  for any text


_FLAGS = ("shuffle", "pin_memory", "drop_last", "persistent_workers", "in_order", "randomness")


def _check_flags(options: LoaderOptions[Any]) -> None:
    for name in _FLAGS:
        value: Any = getattr(options, name)
        # As torch's loader, also 0, 1, NumPy's bools, and None for False.
        if not isinstance(value, int | np.bool_ | None) or value not in (True, False, None):
            msg = f"{name} must be True or False, found {type(value).__name__} {value!r}."
            raise OptionTypeError(msg)


def _check_iterable(options: LoaderOptions[Any]) -> None:
    name = _named(options.dataset)
    given = {
        "shuffle=True": options.shuffle and not is_datapipe(options.dataset),
        "sampler": options.sampler is not None,
        "batch_sampler": options.batch_sampler is not None,
    }
    for argument, is_given in given.items():
        if is_given:
            msg = (
                f"{argument} is for datasets that are read by index; {name} is an IterableDataset "
                f"and decides its order itself. Remove {argument}."
            )
            raise OptionError(msg)
    if options.tail == "pad":
        msg = (
            f"tail='pad' repeats samples by index; {name} is an IterableDataset. Use tail='drop' "
            "to end all ranks with the first that ends, or 'uneven'."
        )
        raise OptionError(msg)


def _check_lanes(options: LoaderOptions[Any]) -> None:
    check_int("snapshot_every_n_steps", options.snapshot_every_n_steps, least=1)
    if options.lanes is not None:
        check_int("lanes", options.lanes, least=1)
        if not options.is_iterable:
            msg = (
                f"lanes={options.lanes} is for an IterableDataset; {_named(options.dataset)} is "
                "read by index, which needs no lanes. Remove the argument."
            )
            raise OptionError(msg)
    if options.on_error == "skip" and options.has_lanes:
        msg = (
            "on_error='skip' is for samples that are read by index, each by itself; "
            f"{_named(options.dataset)} is iterated or has a state. Let it leave samples out "
            "itself."
        )
        raise OptionError(msg)


def _check_engine(options: LoaderOptions[Any]) -> None:
    engine, ray_options = options.engine, options.ray_options
    if engine not in (None, *get_args(Engine)):
        msg = f"engine must be 'processes', 'threads' or 'ray', found {engine!r}."
        raise OptionError(msg)
    if engine == "ray":
        require("ray", at_least=OLDEST_RAY, extra="ray")
    if ray_options is None:
        return
    if not isinstance(ray_options, Mapping):
        msg = (
            "ray_options must be a dict of options of Ray's actors, such as {'num_cpus': 2}, "
            f"found {type(ray_options).__name__} {ray_options!r}."
        )
        raise OptionTypeError(msg)
    if engine != "ray":
        msg = f"ray_options are for engine='ray', found engine={engine!r}. Pass both, or neither."
        raise OptionError(msg)
    ours = sorted(OWN_RAY_OPTIONS & ray_options.keys())
    if ours:
        msg = (
            f"ray_options may not contain {', '.join(ours)}: workers are started, replaced and "
            "ended by the loader. Remove it; max_restarts= is an argument of the loader itself."
        )
        raise OptionError(msg)


def _check_kinds(options: LoaderOptions[Any]) -> None:
    for name in ("sampler", "batch_sampler"):
        value = getattr(options, name)
        if isinstance(value, type) and not hasattr(type(value), "__iter__"):
            raise _of_class(name, value)
        if value is not None and not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
            msg = f"{name} must be iterable, found {type(value).__name__} {value!r}."
            raise OptionTypeError(msg)
    for name in ("collate_fn", "worker_init_fn", "converter", "device_converter"):
        value = getattr(options, name)
        if isinstance(value, type) and _makes_callables(value):
            raise _of_class(name, value)
    for name in ("collate_fn", "worker_init_fn"):
        value = getattr(options, name)
        if value is not None and not callable(value):
            msg = f"{name} must be callable, found {type(value).__name__} {value!r}."
            raise OptionTypeError(msg)
    generator: Any = options.generator
    if generator is not None and not isinstance(generator, torch.Generator):
        msg = (
            f"generator must be a torch.Generator, found {type(generator).__name__}. Pass "
            "torch.Generator().manual_seed(...), or seed=, which needs no generator."
        )
        raise OptionTypeError(msg)


def _of_class(name: str, found: type) -> OptionTypeError:
    made = found.__name__
    return OptionTypeError(
        f"{name} must be an instance, found the class {made}. Make one: {made}(...)."
    )


def _makes_callables(found: type) -> bool:
    """Return True for a class whose instances are called; `list` is called itself."""
    names = {name for base in found.__mro__ for name in vars(base)}
    return not names.isdisjoint(("__call__", "convert_batch"))


def _check_workers(options: LoaderOptions[Any]) -> None:
    num_workers, timeout = options.num_workers, options.timeout
    if num_workers != "auto":
        check_int("num_workers", num_workers, least=0)
    if num_workers != 0 and not options.in_threads and not can_start_workers():
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
    if options.prefetch_factor is not None:
        check_int("prefetch_factor", options.prefetch_factor, least=1)
    check_int("prefetch_bytes", options.prefetch_bytes, least=0)
    if num_workers == 0 and options.persistent_workers:
        msg = "persistent_workers=True needs workers, found num_workers=0. Set one or the other."
        raise OptionError(msg)
    _check_context(options.multiprocessing_context, has_workers=num_workers != 0)


def _check_context(context: Any, *, has_workers: bool) -> None:
    if context is not None and not has_workers:
        msg = (
            f"multiprocessing_context={context!r} needs workers, found num_workers=0. Set one or "
            "the other."
        )
        raise OptionError(msg)
    if isinstance(context, str) and context not in multiprocessing.get_all_start_methods():
        methods = ", ".join(map(repr, multiprocessing.get_all_start_methods()))
        msg = f"multiprocessing_context must be one of {methods}, found {context!r}."
        raise OptionError(msg)
    if not isinstance(context, str | BaseContext | None):
        msg = (
            "multiprocessing_context must be the name of a start method or a context of "
            f"multiprocessing, found {type(context).__name__}."
        )
        raise OptionTypeError(msg)


def _check_batches(options: LoaderOptions[Any]) -> None:
    if options.batch_sampler is not None:
        # batch_size=1 is the default, and so means "not given", as in torch.
        others = {
            f"batch_size={options.batch_size}": options.batch_size != 1,
            "shuffle=True": options.shuffle,
            "sampler": options.sampler is not None,
            "drop_last=True": options.drop_last,
        }
        given = [name for name, is_given in others.items() if is_given]
        if given:
            msg = (
                f"batch_sampler decides batches and order itself, found also {', '.join(given)}. "
                "Remove those, or the batch_sampler."
            )
            raise OptionError(msg)
    elif options.batch_size is not None:
        check_int("batch_size", options.batch_size, least=1)
    elif options.drops_last:
        msg = "drop_last=True needs batches, found batch_size=None, which delivers single samples."
        raise OptionError(msg)
    if options.sampler is not None and options.shuffle:
        msg = (
            "sampler conflicts with shuffle=True: a sampler decides the order itself. Remove one "
            "of them."
        )
        raise OptionError(msg)


def _check_tail(options: LoaderOptions[Any]) -> None:
    tail = options.tail
    if tail is None:
        return
    if tail not in get_args(Tail):
        msg = f"tail must be 'pad', 'drop' or 'uneven', found {tail!r}."
        raise OptionError(msg)
    if options.drop_last and tail != "drop" and not options.is_iterable:
        msg = f"drop_last=True conflicts with tail={tail!r}. Remove one of them."
        raise OptionError(msg)
    is_users = options.batch_sampler is not None and options.ordered_batches is None
    if is_users or not isinstance(options.sampler, ResumableSampler | None):
        msg = f"tail={tail!r} is for dataporter's own order; a sampler of your own has its own end."
        raise OptionError(msg)
