"""The kind of state that Lightning's checkpoints hold: our record, made and read by a trainer."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from golden_data import Ids
from golden_kinds import OF_NEXT_EPOCH

from dataporter import ResumableDataLoader
from dataporter.trainers.lightning import ResumeCallback

_EPOCH = 1  # in which the checkpoint is saved
_BATCH = 1  # after which


class _Model(pl.LightningModule):
    """Learns nothing, and notes the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: dict[int, list[list[int]]] = {}

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.setdefault(self.current_epoch, []).append(batch.tolist())
        return self.layer(batch[:, None].float()).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class _Saving(pl.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, *arguments: Any) -> None:
        if (trainer.current_epoch, arguments[-1]) == (_EPOCH, _BATCH):
            trainer.save_checkpoint(self.path)


class LightningKind:
    """A checkpoint in the second epoch of a run with `ResumeCallback`."""

    def save(self, folder: Path, name: str) -> None:
        _fit([_Saving(folder / f"{name}.ckpt")], None)

    def following(self, folder: Path, name: str) -> list[list[Any]]:
        seen = _fit([], folder / f"{name}.ckpt")
        return [seen[_EPOCH], seen[_EPOCH + 1][:OF_NEXT_EPOCH]]


def _fit(callbacks: list[Any], checkpoint: Path | None) -> dict[int, list[list[int]]]:
    torch.manual_seed(0)
    loader = ResumableDataLoader(Ids(23), 4, shuffle=True, seed=11)
    model = _Model()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # advice on speed and habits
        trainer = pl.Trainer(
            max_epochs=_EPOCH + 2,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[ResumeCallback(), *callbacks],
        )
        trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.seen


KINDS = {"lightning": LightningKind()}
