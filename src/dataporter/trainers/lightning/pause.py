"""`PauseCallback`: a signal saves a checkpoint and ends the process. The next start continues.

The signal handler only sets a flag. The pause happens before the next batch is trained on, when
the last one is complete: hooks, schedulers, a due validation. So nothing is skipped and nothing
is done twice. All ranks pause together, even if only one got the signal.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from dataporter.errors import OptionError, OptionTypeError
from dataporter.trainers.lightning.framework import LightningModule, Trainer
from dataporter.trainers.lightning.loops import has_finished
from dataporter.trainers.lightning.resume import OnMismatch, ResumeCallback

_FILE = "pause.ckpt"
# Windows has only the first.
_PAUSE_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)


class PauseCallback(ResumeCallback):
    """A `ResumeCallback` that also pauses training on SIGTERM and SIGUSR1.

    Training is saved to `pause.ckpt` in `checkpoint_dir`, and the process exits with status 0. To
    continue, start it again with `newest()` as the checkpoint:

        pause = PauseCallback("checkpoints")
        trainer = Trainer(callbacks=[pause])
        trainer.fit(module, loader, ckpt_path=pause.newest())

    >>> PauseCallback("checkpoints", signals=[signal.SIGUSR1])
    PauseCallback('checkpoints', signals=[SIGUSR1], on_mismatch='raise')

    `pause.ckpt` is removed when training reaches `max_epochs` or `max_steps`. It stays if
    training stops earlier, by `max_time` or a callback. `enable_pause=False` installs no signal
    handlers. Outside the main thread there are no signals.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path = "checkpoints",
        enable_pause: bool = True,
        *,
        signals: Iterable[signal.Signals] = _PAUSE_SIGNALS,
        on_mismatch: OnMismatch = "raise",
    ) -> None:
        super().__init__(on_mismatch=on_mismatch)
        if not isinstance(checkpoint_dir, str | Path):
            msg = f"checkpoint_dir must be a path, found {type(checkpoint_dir).__name__}."
            raise OptionTypeError(msg)
        self.checkpoint_dir = Path(checkpoint_dir)
        self.enable_pause = enable_pause
        self.signals = [_checked(number) for number in signals]
        self._pause_requested = False

    def __repr__(self) -> str:
        names = ", ".join(number.name for number in self.signals)
        return (
            f"{type(self).__name__}({str(self.checkpoint_dir)!r}, signals=[{names}], "
            f"on_mismatch={self.on_mismatch!r})"
        )

    def newest(self) -> Path | None:
        """Return the checkpoint in `checkpoint_dir` that was written last, or None.

        It may come from a `ModelCheckpoint` that writes there too, so that a killed run continues
        as well as a paused one.
        """
        found = self.checkpoint_dir.glob("*.ckpt")
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._pause_requested = False
        if self.enable_pause and threading.current_thread() is threading.main_thread():
            for number in self.signals:
                # Replaces Lightning's own handler, which would end training without saving.
                # Lightning restores the original handlers when training ends.
                signal.signal(number, self._request_pause)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self.enable_pause and trainer.strategy.reduce_boolean_decision(
            self._pause_requested, all=False
        ):
            trainer.save_checkpoint(self.checkpoint_dir / _FILE)
            raise SystemExit(0)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        if trainer.is_global_zero and has_finished(trainer):
            (self.checkpoint_dir / _FILE).unlink(missing_ok=True)

    def _request_pause(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._pause_requested = True


def _checked(number: Any) -> signal.Signals:
    try:
        found = signal.Signals(number)
    except ValueError as error:
        msg = f"signals must be signals such as signal.SIGUSR1, found {number!r}."
        raise OptionError(msg) from error
    if found.name in ("SIGKILL", "SIGSTOP"):
        msg = f"{found.name} cannot be caught. Use signal.SIGTERM or signal.SIGUSR1."
        raise OptionError(msg)
    return found
