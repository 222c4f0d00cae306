"""`LoaderStatsCallback`: logs the numbers of the training loaders with the trainer's loggers."""

from __future__ import annotations

from typing import Any

from dataporter.trainers.lightning import loops
from dataporter.trainers.lightning.framework import Callback, LightningModule, Trainer
from dataporter.trainers.logged_stats import LoggedStats, checked_steps


class LoaderStatsCallback(Callback):
    """Logs `loader.stats()` of the training loaders every n steps, counted since the last time.

    Without `every_n_steps`, it logs as often as the trainer does (`log_every_n_steps`). Of several
    loaders each has its number after the prefix.

    >>> LoaderStatsCallback(every_n_steps=50)
    LoaderStatsCallback(every_n_steps=50, prefix='loader/')
    """

    def __init__(self, every_n_steps: int | None = None, prefix: str = "loader/") -> None:
        self.every_n_steps = checked_steps(every_n_steps)
        self.prefix = prefix
        self._stats = LoggedStats(prefix)
        self._logged_at = 0  # a step, which may be made of several batches

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(every_n_steps={self.every_n_steps}, prefix={self.prefix!r})"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        del pl_module
        if stage == "fit":
            loops.check(trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002  Lightning's signature
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        step, every = trainer.global_step, self.every_n_steps or _usual(trainer)
        if not trainer.loggers or not every or step % every or step == self._logged_at:
            return
        self._logged_at = step
        numbers = self._stats.of(loops.stateful_loaders(trainer))
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=step)


def _usual(trainer: Trainer) -> int:
    """Return every how many steps a trainer logs; 0 for never."""
    return int(getattr(trainer, "log_every_n_steps", 0))  # set in a way that no type checker sees
