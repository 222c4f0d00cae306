"""Trainers with tensor-parallel ranks, real groups: our loaders follow the ranks that they name.

Which ranks get equal batches is compared with torch's own loader under the same trainer.
"""

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from forked_scripts import LIGHTNING, TRANSFORMERS
from groups import on_ranks
from support import flat
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dataporter import OptionError, ResumableDataLoader, TopologyError

SAMPLES = 26
Batches = list[list[int]]


class Lanes(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return iter(range(worker.id, SAMPLES, worker.num_workers))


class Model(nn.Module):
    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ids.sum()}


def launched(rank: int, world_size: int, **more: str) -> None:
    """Tell trainers of the group that is up, as torchrun would."""
    warnings.simplefilter("ignore")
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "one",
        **more,
    }


def alike(ranks: list[Any]) -> list[int]:
    """For each rank, the first rank with the same answer."""
    return [ranks.index(answer) for answer in ranks]


def lists(batches: Any) -> Batches:
    return [batch.tolist() for batch in batches]


SIZES = {"data_parallel_size": 2, "tensor_parallel_size": 2}
DATA = list(range(SAMPLES))


def under_lightning(rank: int, folder: str) -> dict[str, Any]:
    """Read under Fabric and under Trainer, with two data-parallel ranks of two each."""
    launched(rank, 4)
    return under_fabric() | under_trainer(Path(folder) / "middle.ckpt")


def under_fabric() -> dict[str, Any]:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import ModelParallelStrategy

    early = ResumableDataLoader(DATA, 3, shuffle=True, seed=5)  # before there is a mesh
    strategy = ModelParallelStrategy(lambda module, _: module, **SIZES)
    fabric = Fabric(accelerator="cpu", strategy=strategy, devices=4)
    fabric.launch()
    loader = ResumableDataLoader(DATA, 3, shuffle=True)  # with a seed that the world agrees on
    simple = ResumableDataLoader(DATA, 3, strategy="simple")
    found: dict[str, Any] = {
        "torch": lists(fabric.setup_dataloaders(DataLoader(DATA, 3, shuffle=True))),
        "fabric": lists(fabric.setup_dataloaders(loader)),
        "early": lists(fabric.setup_dataloaders(early)),
        "simple": lists(fabric.setup_dataloaders(simple)),
    }
    running = iter(loader)
    found["begun"] = lists([next(running), next(running)])
    found["state"] = loader.state_dict()
    found["rest"] = lists(running)
    resumed = ResumableDataLoader(DATA, 3, shuffle=True)
    resumed.load_state_dict(found["state"])
    found["resumed"] = lists(fabric.setup_dataloaders(resumed))
    return found


def under_trainer(checkpoint: Path) -> dict[str, Any]:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    from dataporter.trainers.lightning import ResumeCallback

    class Noting(LightningModule):
        def __init__(self, *, saves: bool) -> None:
            super().__init__()
            self.saves = saves
            self.trained: Batches = []
            self.validated: Batches = []

        def configure_model(self) -> None:
            peers = self.device_mesh["tensor_parallel"]
            self.layer = parallelize_module(nn.Linear(1, 2), peers, ColwiseParallel())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            self.trained.append(batch.tolist())
            return self.layer(batch.float()[:, None]).mean()

        def on_train_batch_end(self, _outputs: Any, _batch: Any, number: int) -> None:
            if self.saves and self.current_epoch == number == 1:
                self.trainer.save_checkpoint(checkpoint)

        def validation_step(self, batch: torch.Tensor) -> None:
            self.validated.append(batch.tolist())

    class Says(ModelParallelStrategy):
        """What a trainer says counts, whatever its mesh looks like."""

        @property
        def distributed_sampler_kwargs(self) -> dict[str, int]:
            return {"num_replicas": 1, "rank": 0}

    def fit(
        kind: Any,
        *callbacks: Any,
        strategy: Any = ModelParallelStrategy,
        path: Path | None = None,
        epochs: int = 1,
    ) -> list[Batches]:
        module = Noting(saves=epochs == 2 and path is None)
        trainer = Trainer(
            accelerator="cpu",
            devices=4,
            strategy=strategy(**SIZES, save_distributed_checkpoint=False),
            max_epochs=epochs,
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(module, kind(DATA, 3, shuffle=True), kind(DATA[:8], 2), ckpt_path=path)
        return [module.trained, module.validated]

    return {
        "trainer torch": fit(DataLoader),
        "trainer": fit(ResumableDataLoader),
        "callback": fit(ResumableDataLoader, ResumeCallback(), epochs=2),
        "again": fit(ResumableDataLoader, ResumeCallback(), path=checkpoint, epochs=2),
        "said": fit(ResumableDataLoader, ResumeCallback(), strategy=Says),
    }


def test_tensor_parallel_ranks_of_lightning_get_the_batches_that_torchs_loader_gives_them(tmp_path):
    ranks = on_ranks(4, under_lightning, str(tmp_path), imports=LIGHTNING)

    def of(name: str) -> list[Any]:
        return [rank[name] for rank in ranks]

    peers = [0, 0, 2, 2]
    for name in ("torch", "fabric", "early", "begun", "resumed", "trainer torch"):
        assert alike(of(name)) == peers, name
    for name in ("trainer", "callback", "again"):
        assert alike(of(name)) == peers, name
    assert alike(of("state")) == alike(of("simple")) == alike(of("said")) == [0, 0, 0, 0]
    assert of("resumed") == of("rest")
    for number in (0, 2):
        whole, again = ranks[number]["callback"], ranks[number]["again"]
        assert again == [whole[0][7:], whole[1][2:]]
        assert flat(ranks[number]["simple"]) == [*range(SAMPLES)]
        assert sorted(flat(ranks[number]["said"][0])) == [*range(SAMPLES)]
    one, other = ranks[0], ranks[2]
    for name in ("fabric", "early"):
        assert sorted(flat(one[name] + other[name])) == [*range(SAMPLES)]
    assert sorted(flat(one["trainer"][0] + other["trainer"][0])) == [*range(SAMPLES)]
    assert one["trainer"][1] == one["trainer torch"][1]
    # On one rank, the state of the mesh is gone on with.
    rest = ResumableDataLoader(DATA, 3, shuffle=True)
    rest.load_state_dict(one["state"])
    seen = flat(one["begun"] + other["begun"])
    assert sorted(seen + flat(lists(rest))) == [*range(SAMPLES)]


def under_accelerate(rank: int) -> dict[str, Any]:
    """Read under Accelerate and transformers, with two tensor-parallel ranks."""
    launched(rank, 2, ACCELERATE_USE_CPU="true")
    import accelerate
    from accelerate import ParallelismConfig, PartialState
    from accelerate.utils import DistributedType
    from transformers import Trainer, TrainingArguments

    from dataporter.trainers.accelerate import Accelerator
    from dataporter.trainers.transformers import ResumableTrainer

    def pass_for_gpus() -> None:  # Accelerate refuses meshes of CPUs, and only says so
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU

    def refusal(**options: Any) -> str:
        try:
            accelerator.prepare(ResumableDataLoader(DATA, 2, **options))
        except TopologyError as error:
            return str(error)
        return ""

    mesh = ParallelismConfig(tp_size=2)
    pass_for_gpus()
    torchs = accelerate.Accelerator(cpu=True, parallelism_config=mesh)
    accelerator = Accelerator(cpu=True, parallelism_config=mesh)
    loader = ResumableDataLoader(DATA, 2, shuffle=True)
    prepared = accelerator.prepare(loader)
    lanes = accelerator.prepare(ResumableDataLoader(Lanes(), 2, lanes=2))
    found: dict[str, Any] = {
        "torch": lists(torchs.prepare(DataLoader(DATA, 2))),
        "accelerate": lists(prepared),
        "metrics": [accelerator.gather_for_metrics(batch).tolist() for batch in prepared],
        "lanes": lists(lanes),
        "refused": refusal(rank=rank, world_size=2),
    }
    accelerator.parallelism_config.sp_size = 2
    try:
        accelerator.prepare(ResumableDataLoader(DATA, 2))
    except OptionError as error:
        found["sequences"] = str(error)
    for name, kind in (("transformers torch", Trainer), ("transformers", ResumableTrainer)):
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=2,
                use_cpu=True,
                parallelism_config=ParallelismConfig(tp_size=2),
                remove_unused_columns=False,
                report_to=[],
            )
            assert arguments.world_size == 2
            pass_for_gpus()
            trainer = kind(Model(), arguments, torch.tensor, DATA)
            found[name] = lists(trainer.get_train_dataloader())
    return found


def test_tensor_parallel_ranks_of_accelerate_and_transformers_get_equal_batches():
    ranks = on_ranks(2, under_accelerate, imports=TRANSFORMERS)
    for name in ("torch", "accelerate", "metrics", "lanes", "transformers torch", "transformers"):
        assert ranks[0][name] == ranks[1][name], name
        # All data on each of them; of both, a metric counts a sample once.
        assert sorted(flat(ranks[0][name])) == [*range(SAMPLES)], name
    for number, found in enumerate(ranks):
        assert "without rank= and world_size=, or with rank=0 and world_size=1" in found["refused"]
        assert "shares its data among 2 ranks" in found["refused"], number
        assert "sp_size=2 is not supported" in found["sequences"]
