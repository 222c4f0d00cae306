"""`PauseCallback`: a signal saves a checkpoint and ends the process; the next start goes on.

A signal is only taken note of. What it asks for is done before the next batch is trained on,
when all that belongs to the last one is done: hooks, schedulers, a validation that was due. So
nothing is left out and nothing is done twice. Ranks pause together, whoever got the signal.
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
from dataporter.trainers.lightning.loops import has_come_to_its_end
from dataporter.trainers.lightning.resume import OnMismatch, ResumeCallback

_FILE = "pause.ckpt"
# Windows has only the first.
_ASKING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class PauseCallback(ResumeCallback):
    """A `ResumeCallback` that also pauses training on SIGTERM and SIGUSR1.

    Training is saved to `pause.ckpt` in `checkpoint_dir`, and the process exits with status 0. To
    go on, start it again, with `newest()` as the checkpoint:

        pause = PauseCallback("checkpoints")
        trainer = Trainer(callbacks=[pause])
        trainer.fit(module, loader, ckpt_path=pause.newest())

    >>> PauseCallback("checkpoints", signals=[signal.SIGUSR1])
    PauseCallback('checkpoints', signals=[SIGUSR1], on_mismatch='raise')

    Once training has come to its end, to `max_epochs` or `max_steps`, `pause.ckpt` is removed.
    One that was stopped before, by `max_time` or a callback, leaves it. `enable_pause=False`
    leaves signals alone. In a thread that is not the main one there are no signals.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path = "checkpoints",
        enable_pause: bool = True,
        *,
        signals: Iterable[signal.Signals] = _ASKING,
        on_mismatch: OnMismatch = "raise",
    ) -> None:
        super().__init__(on_mismatch=on_mismatch)
        if not isinstance(checkpoint_dir, str | Path):
            msg = f"checkpoint_dir must be a path, found {type(checkpoint_dir).__name__}."
            raise OptionTypeError(msg)
        self.checkpoint_dir = Path(checkpoint_dir)
        self.enable_pause = enable_pause
        self.signals = [_checked(number) for number in signals]
        self._is_asked = False

    def __repr__(self) -> str:
        names = ", ".join(number.name for number in self.signals)
        return (
            f"{type(self).__name__}({str(self.checkpoint_dir)!r}, signals=[{names}], "
            f"on_mismatch={self.on_mismatch!r})"
        )

    def newest(self) -> Path | None:
        """The checkpoint in `checkpoint_dir` that was written last, None where there is none.

        That may be one of a `ModelCheckpoint` that writes there too: so a run that was killed
        goes on as well as one that was paused.
        """
        found = self.checkpoint_dir.glob("*.ckpt")
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._is_asked = False
        if self.enable_pause and threading.current_thread() is threading.main_thread():
            for number in self.signals:
                # In place of Lightning's own, which would end training without saving it. It
                # puts back what was there before, when training ends.
                signal.signal(number, self._take_note)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self.enable_pause and trainer.strategy.reduce_boolean_decision(
            self._is_asked, all=False
        ):
            trainer.save_checkpoint(self.checkpoint_dir / _FILE)
            raise SystemExit(0)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        if trainer.is_global_zero and has_come_to_its_end(trainer):
            (self.checkpoint_dir / _FILE).unlink(missing_ok=True)

    def _take_note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._is_asked = True


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
