"""`torch.utils.data.get_worker_info()` in our workers: the one private thing of torch's we touch.

Datasets ask torch which worker they run in. torch keeps the answer in a private module and
offers no way to set it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.utils.data._utils import worker as torchs

WorkerInfo = torchs.WorkerInfo


def announce_worker(worker: int, num_workers: int, seed: int, dataset: Any) -> None:
    """Make `get_worker_info()` answer as in worker number `worker` of `num_workers`."""
    info = WorkerInfo(id=worker, num_workers=num_workers, seed=seed, dataset=dataset)
    torchs._worker_info = info  # noqa: SLF001  see the module's docstring


@contextmanager
def announced(info: Any) -> Iterator[None]:
    """Make `get_worker_info()` answer `info` for a while, None as outside of any worker."""
    before, torchs._worker_info = torchs._worker_info, info  # noqa: SLF001  likewise
    try:
        yield
    finally:
        torchs._worker_info = before  # noqa: SLF001  likewise


def worker_unannounced() -> AbstractContextManager[None]:
    """Make `get_worker_info()` answer as outside of any worker.

    For torch's `default_collate`, which in a worker stacks into shared memory of its own,
    one file in /dev/shm a tensor, and into the first sample's dtype.
    """
    return announced(None)
