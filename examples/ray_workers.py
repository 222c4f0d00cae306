"""Workers on a Ray cluster, one of which is killed; the run then continues with local workers.

    python examples/ray_workers.py

It starts a small cluster on this machine. On a real one, run the same script on a node of it, or
set RAY_ADDRESS: actors then run on all nodes.
"""

from __future__ import annotations

import os
import signal
import warnings

import ray
import torch
from torch.utils.data import Dataset

from dataporter import ResumableDataLoader, sample_rng
from dataporter.errors import WorkerRestartWarning

SAMPLES = 400


class Decoded(Dataset[tuple[int, int, torch.Tensor]]):
    """Stands for images that take long to decode and are augmented."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int, torch.Tensor]:
        pixels = torch.full((3, 16, 16), float(index))
        pixels += float(sample_rng().normal())
        return index, os.getpid(), pixels


def main() -> None:
    """Deliver half of an epoch from the cluster, and the rest from this machine."""
    if not ray.is_initialized():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    dataset = Decoded()
    warnings.simplefilter("ignore", WorkerRestartWarning)

    loader = ResumableDataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        seed=3,
        engine="ray",
        num_workers=2,
        ray_options={"num_cpus": 1},
        persistent_workers=True,
    )
    expected = ResumableDataLoader(dataset, batch_size=8, shuffle=True, seed=3)

    seen = []
    for ids, processes, pixels in loader:
        seen.append((ids, pixels))
        if len(seen) == 10:
            os.kill(int(processes[0]), signal.SIGKILL)  # on one machine a process can be found
        if len(seen) == 25:
            break
    state = loader.state_dict()
    ray.shutdown()

    local = ResumableDataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        seed=3,
        num_workers=2,
        multiprocessing_context="forkserver",  # threads of Ray's may hold locks at a fork
    )
    local.load_state_dict(state)
    seen += [(ids, pixels) for ids, _, pixels in local]

    for (ids, pixels), (same_ids, _, same_pixels) in zip(seen, expected, strict=True):
        assert torch.equal(ids, same_ids)  # noqa: S101  what the example shows
        assert torch.equal(pixels, same_pixels)  # noqa: S101
    print(f"{len(seen)} batches, 25 of them from the cluster: all as in one process")


if __name__ == "__main__":
    main()
