"""`torch.utils.data.get_worker_info()` in our workers, by a private module of torch's.

Datasets ask torch which worker they run in. torch keeps the answer in a private module and
offers no way to set it. No other file imports such a module. Four read a private name, since torch
has no public one: `_world` with the process groups (`ranks.py`), `_cdata` of a generator
(`generator_memory.py`), `_datapipe` of a wrapped pipe,
and its class `_IterDataPipeSerializationWrapper` (`sources/lanes/datapipes.py`), and the class
`_MultiProcessingDataLoaderIter` (`callers.py`). Both classes are recognised by their names alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import worker as torchs

WorkerInfo = torchs.WorkerInfo


def announce_worker(worker: int, num_workers: int, seed: int, dataset: Any) -> None:
    """Make `get_worker_info()` answer as in worker number `worker` of `num_workers`."""
    info = WorkerInfo(id=worker, num_workers=num_workers, seed=seed, dataset=dataset)
    torchs._worker_info = info  # noqa: SLF001  see the module's docstring


def call_announced(info: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call something while `get_worker_info()` answers `info`, in 0.1 µs (`announced`: 0.3)."""
    before = torchs._worker_info  # noqa: SLF001  likewise
    try:
        torchs._worker_info = info  # noqa: SLF001  likewise
        return call(*arguments)
    finally:
        torchs._worker_info = before  # noqa: SLF001  likewise


class announced:  # noqa: N801  a context, entered several times a batch: not by a generator
    """Make `get_worker_info()` answer `info` for a while, None as outside of any worker."""

    __slots__ = ("_before", "_info")

    def __init__(self, info: Any) -> None:
        self._info = info

    def __enter__(self) -> None:
        self._before, torchs._worker_info = torchs._worker_info, self._info  # noqa: SLF001  likewise

    def __exit__(self, *_: object) -> None:
        torchs._worker_info = self._before  # noqa: SLF001  likewise


def worker_unannounced() -> announced:
    """Make `get_worker_info()` answer as outside of any worker.

    For torch's `default_collate`, which in a worker stacks into shared memory of its own,
    one file in /dev/shm a tensor, and into the first sample's dtype.
    """
    return announced(None)
