"""`torch.utils.data.get_worker_info()` in our workers: the one private thing of torch's we touch.

Datasets ask torch which worker they run in. torch keeps the answer in a private module and
offers no way to set it.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils import worker as torchs


def announce_worker(worker: int, num_workers: int, seed: int, dataset: Any) -> None:
    """Make `get_worker_info()` answer as in worker number `worker` of `num_workers`."""
    torchs._worker_info = torchs.WorkerInfo(  # noqa: SLF001  see the module's docstring
        id=worker, num_workers=num_workers, seed=seed, dataset=dataset
    )
