"""A run under Lightning's `Trainer` as it is, with its own progress bar, logger and checkpoints.

lightning_default.py FOLDER NAME ...   for each name of the package; what was found is printed
"""

import importlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from support import Ids

from dataporter import ResumableDataLoader
from dataporter.trainers.lightning import PauseCallback

NAMES = ("lightning.pytorch", "pytorch_lightning")
PAUSED_AT = 2  # the step, of eight in an epoch, in which the signal comes


def paused_and_resumed(name: str, folder: Path) -> dict[str, Any]:
    """Train under a default Trainer, whole and paused and resumed, and see what it shows."""
    pl = importlib.import_module(name)

    class Model(pl.LightningModule):
        def __init__(self, signalled_at: int | None = None) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.signalled_at = signalled_at
            self.ids: list[list[int]] = []

        def training_step(self, ids):
            if len(self.ids) == self.signalled_at:
                os.kill(os.getpid(), signal.SIGUSR1)
            self.ids.append(ids.tolist())
            return self.layer(ids.float()[:, None]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-5)

    class Looks(pl.Callback):
        """Notes how the bar stands before each batch."""

        def __init__(self) -> None:
            self.shown: list[tuple[int, int]] = []

        def on_train_batch_start(self, trainer, *_):
            bar = trainer.progress_bar_callback.train_progress_bar
            done = bar.n if hasattr(bar, "n") else bar.completed
            self.shown.append((int(done), int(bar.total)))

    pause, looks = PauseCallback(folder / "pause"), Looks()
    found: dict[str, Any] = {"name": name}

    def fit(model: Model, *callbacks: Any) -> list[list[int]]:
        trainer = pl.Trainer(max_epochs=2, default_root_dir=folder, callbacks=list(callbacks))
        loader = ResumableDataLoader(Ids(22), 3, shuffle=True, seed=1)
        trainer.fit(model, loader, ckpt_path=pause.newest())
        found["bar"] = type(trainer.progress_bar_callback).__name__
        return model.ids

    found["whole"] = fit(Model())
    first = Model(PAUSED_AT)
    try:
        fit(first, pause)
    except SystemExit:
        found["first"] = first.ids
    found["second"] = fit(Model(), pause, looks)
    found["shown"] = looks.shown
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in sys.argv[2:]:
        answer = paused_and_resumed(each, Path(sys.argv[1], each))
        print(f"\nfound {json.dumps(answer)}")  # noqa: T201
