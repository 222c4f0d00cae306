"""`LoaderStatsCallback`: logs the numbers of a `ResumableTrainer`'s loader, as the Trainer logs."""

from __future__ import annotations

from typing import Any

from dataporter.requirement import require
from dataporter.trainers.logged_stats import LoggedStats, checked_steps

require("transformers", at_least="4.57", extra="transformers")

from transformers import TrainerCallback, TrainerState  # noqa: E402  only after `require`


class LoaderStatsCallback(TrainerCallback):
    """Logs `loader.stats()` every n steps, counted since the last time, by `trainer.log`.

    So the numbers go to all integrations of `report_to`, and to the Trainer's `log_history`:

        trainer.add_callback(LoaderStatsCallback(trainer, every_n_steps=50))

    Without `every_n_steps`, it logs every `logging_steps` of the TrainingArguments.
    """

    def __init__(
        self, trainer: Any, every_n_steps: int | None = None, prefix: str = "loader/"
    ) -> None:
        self._trainer = trainer
        self.every_n_steps = checked_steps(every_n_steps)
        self._stats = LoggedStats(prefix)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        every = self.every_n_steps or int(state.logging_steps)
        if every and state.global_step % every == 0:
            numbers = self._stats.of([self._trainer.train_loader])
            if numbers:
                self._trainer.log(numbers)
