"""Checkpoints as the frameworks themselves write them, made in one process of its own.

    python framework_checkpoints.py FOLDER

Each is saved in the middle of an epoch of the same loader, after STEPS batches.
"""

import pickle
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import TensorDataset

from dataporter import ResumableDataLoader
from dataporter.training import CheckpointManager

SAMPLES, BATCH_SIZE, SEED, STEPS = 40, 4, 7, 3


def make_data() -> TensorDataset:
    return TensorDataset(torch.randn(SAMPLES, 3), torch.randn(SAMPLES, 1))


def make_loader() -> ResumableDataLoader:
    return ResumableDataLoader(make_data(), batch_size=BATCH_SIZE, shuffle=True, seed=SEED)


def advanced_loader() -> ResumableDataLoader:
    loader = make_loader()
    batches = iter(loader)
    for _ in range(STEPS):
        next(batches)
    return loader


def save_with_lightning(folder: Path) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 1)

        def training_step(self, batch, _):
            return (self.layer(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), make_loader())
    trainer.save_checkpoint(folder / "lightning.ckpt")


def save_with_accelerate(folder: Path) -> None:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(3, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    accelerator.register_for_checkpointing(advanced_loader())
    accelerator.save_state(str(folder / "accelerate"))


def save_with_transformers(folder: Path) -> None:
    import transformers
    from transformers.trainer_callback import ExportableState

    loader = advanced_loader()

    class LoaderCallback(transformers.TrainerCallback, ExportableState):
        def state(self):
            return {"args": {}, "attributes": {"loader": loader.state_dict()}}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x, y):
            return {"loss": (self.layer(x) - y).square().mean()}

    data = [{"x": x, "y": y} for x, y in make_data()]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "transformers"),
        max_steps=2,
        save_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    transformers.Trainer(
        Model(), arguments, train_dataset=data, callbacks=[LoaderCallback()]
    ).train()


def save_with_dcp(folder: Path) -> None:
    model, loader = torch.nn.Linear(3, 1), advanced_loader()
    contents = {"model": model.state_dict(), "progress": [{"loader": loader.state_dict()}]}
    dcp.save(contents, checkpoint_id=folder / "dcp", no_dist=True)
    # As is done for ranks that each have a state of their own, in one entry.
    states = pickle.dumps([pickle.dumps(loader.state_dict())])
    contents = {"model": model.state_dict(), "loader": {"state": states}}
    dcp.save(contents, checkpoint_id=folder / "dcp_pickled", no_dist=True)


def save_with_checkpoint_manager(folder: Path) -> None:
    model = torch.nn.Linear(3, 1)
    manager = CheckpointManager(folder / "manager")
    manager.save(model=model, epoch=0, dataloader=advanced_loader())


def save_with_torchdata(folder: Path) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    for workers in (0, 2):
        loader = StatefulDataLoader(range(SAMPLES), batch_size=BATCH_SIZE, num_workers=workers)
        batches = iter(loader)
        for _ in range(STEPS):
            next(batches)
        torch.save({"loader": loader.state_dict()}, folder / f"torchdata_{workers}.pt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the frameworks' own, of which nothing is tested here
    target = Path(sys.argv[1])
    save_with_torchdata(target)
    save_with_dcp(target)
    save_with_checkpoint_manager(target)
    save_with_lightning(target)
    save_with_accelerate(target)
    save_with_transformers(target)
