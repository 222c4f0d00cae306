"""A Ray Train run, one worker of which is killed; run by a test.

lost_worker_on_ray.py FOLDER lanes     over an iterable in lanes
lost_worker_on_ray.py FOLDER files     over Parquet files, in tracks
"""

import json
import os
import signal
import sys
import tempfile
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from tracked import Tracked

from dataporter import ResumableDataLoader

SAMPLES = 200


class Lane(IterableDataset):
    """Lane l of L reads every L-th sample, and knows where it is."""

    next = 0

    def __iter__(self):
        info = get_worker_info()
        own = range(info.id, SAMPLES, info.num_workers)
        while self.next < len(own):
            self.next += 1
            yield own[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


def make_loader(kind: str, folder: str) -> ResumableDataLoader:
    options = {"num_workers": 1, "seed": 1, "tail": "uneven"}
    if kind == "lanes":
        return ResumableDataLoader(Lane(), 4, lanes=5, **options)
    corpus = Tracked(f"{folder}/rows.parquet", cache=f"{folder}/cache", transform=itemgetter("id"))
    return ResumableDataLoader(corpus, 4, shuffle=True, **options)


def work(config: dict[str, Any]) -> None:
    from ray import train

    from dataporter.trainers.ray import load_loader, save_loader

    loader = make_loader(config["kind"], config["folder"])
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            load_loader(loader, folder)
    rank = train.get_context().get_world_rank()
    with Path(config["folder"], f"rank{rank}.jsonl").open("a") as lines:
        for ids in loader:
            step = loader.batches_processed
            lines.write(json.dumps({"step": step, "ids": ids.tolist()}) + "\n")
            lines.flush()
            if step in {5, 10}:
                with tempfile.TemporaryDirectory() as folder:
                    save_loader(loader, folder)
                    train.report({}, checkpoint=train.Checkpoint.from_directory(folder))
            if step == 13 and rank == 1 and not checkpoint:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":  # imported here, so that collecting tests does not import Ray
    import ray
    from ray import train
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False)
    storage = train.RunConfig(
        storage_path=sys.argv[1],
        name="checkpoints",
        failure_config=train.FailureConfig(max_failures=1),
    )
    TorchTrainer(
        work,
        train_loop_config={"folder": sys.argv[1], "kind": sys.argv[2]},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=storage,
    ).fit()
