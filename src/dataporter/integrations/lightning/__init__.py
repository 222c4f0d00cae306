"""Exact resume in Lightning's `Trainer`: one callback, for `lightning` and `pytorch_lightning`.

from dataporter.integrations.lightning import PauseCallback, ResumeCallback

trainer = Trainer(callbacks=[ResumeCallback()])
trainer.fit(module, train_dataloaders=loader, ckpt_path=path)
"""

from dataporter.integrations.requirement import require

# Before this version, Lightning's loops iterate a loader twice at a resume.
require("lightning", "pytorch-lightning", at_least="2.5.3", extra="lightning")

from dataporter.integrations.lightning.pause import PauseCallback  # noqa: E402  first the check
from dataporter.integrations.lightning.resume import ResumeCallback  # noqa: E402

__all__ = ["PauseCallback", "ResumeCallback"]
