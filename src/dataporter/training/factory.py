"""Loaders from a configuration with sensible defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from dataporter.arguments import check_flag, check_int, check_names
from dataporter.errors import OptionError, OptionTypeError
from dataporter.law.keys import checked_seed
from dataporter.loader.options import as_device
from dataporter.resumable_dataloader import ResumableDataLoader

# Enough to prepare batches while a device computes. Without a device, workers would take cores
# away from the computation.
_WORKERS_BESIDE_CUDA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderConfig:
    """Options of a loader. `dataclasses.replace` makes a changed copy.

    None means that the factory decides: `num_workers` is 2 with CUDA, else 0; `pin_memory` is
    on with CUDA; `persistent_workers` is on with workers; `seed` is drawn and kept in the
    loader's state. `prefetch_factor` applies only with workers. `device` is the device that
    batches are delivered on, and None leaves them in host memory.

    >>> DataLoaderConfig(batch_size=32, shuffle=True, seed=42).seed
    42
    >>> DataLoaderConfig(batchsize=32)
    Traceback (most recent call last):
    dataporter.errors.OptionTypeError: DataLoaderConfig has no 'batchsize'. Did you mean ...
    """

    batch_size: int | None = 32
    shuffle: bool = False
    num_workers: int | Literal["auto"] | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = 2
    persistent_workers: bool | None = None
    seed: int | None = None
    collate_fn: Callable[[Any], Any] | None = None
    drop_last: bool = False
    device: str | torch.device | None = None

    # Runs before the generated __init__, whose error for an unknown name suggests nothing.
    def __new__(cls, **options: Any) -> DataLoaderConfig:  # noqa: PYI034  Self is Python 3.11's
        check_names("DataLoaderConfig", options, [field.name for field in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        check_int("batch_size", self.batch_size, least=1, optional=True)
        check_int("prefetch_factor", self.prefetch_factor, least=1, optional=True)
        if self.num_workers != "auto":
            check_int("num_workers", self.num_workers, least=0, optional=True)
        for name in ("shuffle", "drop_last"):
            check_flag(name, getattr(self, name))
        for name in ("pin_memory", "persistent_workers"):
            check_flag(name, getattr(self, name), optional=True)
        if self.seed is not None:
            checked_seed(self.seed, optional=True)
        as_device(self.device)
        if self.collate_fn is not None and not callable(self.collate_fn):
            kind = type(self.collate_fn).__name__
            msg = f"collate_fn must be callable or None, found {kind} {self.collate_fn!r}."
            raise OptionTypeError(msg)
        if self.num_workers == 0 and self.persistent_workers:
            msg = "persistent_workers=True conflicts with num_workers=0. Remove one of them."
            raise OptionError(msg)
        if self.drop_last and self.batch_size is None:
            msg = "drop_last=True conflicts with batch_size=None. Remove one of them."
            raise OptionError(msg)


class DataLoaderFactory:
    """Makes loaders from configurations.

    >>> config = DataLoaderConfig(batch_size=4, shuffle=True, seed=42)
    >>> factory = DataLoaderFactory()
    >>> one, other = (factory.create_dataloader(range(10), config) for _ in range(2))
    >>> torch.equal(next(iter(one)), next(iter(other)))
    True
    """

    def create_dataloader(
        self, dataset: Any, config: DataLoaderConfig | None = None
    ) -> ResumableDataLoader[Any]:
        """Make a loader over this dataset. Equal seeds give equal batches."""
        config = DataLoaderConfig() if config is None else config
        if not isinstance(config, DataLoaderConfig):
            msg = f"config must be a DataLoaderConfig, found {type(config).__name__} {config!r}."
            raise OptionTypeError(msg)
        has_cuda = torch.cuda.is_available()
        num_workers = config.num_workers
        if num_workers is None:
            num_workers = _WORKERS_BESIDE_CUDA if has_cuda else 0
        return ResumableDataLoader(
            dataset,
            batch_size=config.batch_size,
            shuffle=config.shuffle or None,  # False would turn off a DataPipe's own shuffling
            num_workers=num_workers,
            collate_fn=config.collate_fn,
            pin_memory=has_cuda if config.pin_memory is None else config.pin_memory,
            drop_last=config.drop_last,
            prefetch_factor=config.prefetch_factor,
            persistent_workers=num_workers != 0 and config.persistent_workers is not False,
            seed=config.seed,
            device=config.device,
        )
