"""Exact resume in Lightning's `Trainer`: one callback, for `lightning` and `pytorch_lightning`.

from dataporter.trainers.lightning import PauseCallback, ResumeCallback

trainer = Trainer(callbacks=[ResumeCallback()])
trainer.fit(module, train_dataloaders=loader, ckpt_path=path)
"""

from dataporter.trainers.lightning.pause import PauseCallback
from dataporter.trainers.lightning.resume import ResumeCallback
from dataporter.trainers.lightning.stats import LoaderStatsCallback

__all__ = ["LoaderStatsCallback", "PauseCallback", "ResumeCallback"]
