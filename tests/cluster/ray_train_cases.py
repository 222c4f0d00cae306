"""Loaders of two Ray Train workers share a small cluster. `test_ray_workers.py` runs this."""

import json
from pathlib import Path

import pytest
from clusters import cluster_of
from support import Ids, flat

from dataporter import ResumableDataLoader


def train(config):
    import torch
    from ray import train as ray_train

    from dataporter.engine.ray import pool as ray_pool

    ray_pool._LEND_AFTER = 1.0
    rank = ray_train.get_context().get_world_rank()
    loader = ResumableDataLoader(
        Ids(200), 5, shuffle=True, seed=3, engine="ray", num_workers=2, persistent_workers=True
    )
    ids = []
    for _ in range(2):
        for batch in loader:
            torch.distributed.barrier()  # nobody goes on alone
            ids.append(batch.tolist())
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(flat(ids)))


@pytest.mark.long(300, reason="Ray Train starts workers, and they start actors")
@pytest.mark.filterwarnings("default::DeprecationWarning")  # of Ray's own
def test_loaders_of_two_train_workers_share_the_one_cpu_that_is_left(tmp_path):
    with cluster_of(3):
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        trainer = TorchTrainer(
            train,
            train_loop_config={"folder": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path)),
        )
        trainer.fit()
    ids = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert sorted(flat(ids)) == sorted([*range(200)] * 2)
