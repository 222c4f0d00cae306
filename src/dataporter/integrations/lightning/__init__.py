"""Exact resume in Lightning's `Trainer`: one callback, for `lightning` and `pytorch_lightning`.

from dataporter.integrations.lightning import PauseCallback, ResumeCallback

trainer = Trainer(callbacks=[ResumeCallback()])
trainer.fit(module, train_dataloaders=loader, ckpt_path=path)
"""

from dataporter.integrations.lightning.pause import PauseCallback
from dataporter.integrations.lightning.resume import ResumeCallback

__all__ = ["PauseCallback", "ResumeCallback"]
