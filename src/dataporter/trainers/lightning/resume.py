"""`ResumeCallback`: what Lightning saves of loaders, put right, and put back where they belong.

Lightning saves the state of a loader that has one, and loads it if training stopped in the
middle of an epoch and nothing has asked for the number of batches before. This callback does so
always, and exactly:

- The state is that of the batches that were trained on, not of those that were fetched.
- After the last batch of an epoch comes the next epoch, in its own order.
- Gradients of an accumulation that is not finished, and the global random generators, go on.
- Several loaders go on as they were combined, those that were repeated too.
- Ranks that read lanes of their own get their own states back.
- On another number of ranks, or with another batch size, the epoch ends where its data does.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Literal, get_args

from dataporter.errors import (
    OptionError,
    StateError,
    StateMismatchError,
    StateMismatchWarning,
    StateMissingError,
    add_note,
)
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.trainers.lightning import loops
from dataporter.trainers.lightning.framework import Callback, LightningModule, Trainer
from dataporter.trainers.lightning.placing import at_start, batches_done, has_order, place
from dataporter.trainers.lightning.record import (
    KEY,
    bare_record,
    generators_in,
    make_record,
    moment_in,
    put_gradients,
)
from dataporter.trainers.lightning.several import Moment, NotedFetches, noted_fetches
from dataporter.training.rng_state import set_rng_state

OnMismatch = Literal["raise", "restart_epoch"]


class ResumeCallback(Callback):
    """Makes every checkpoint of a trainer resume at the exact sample.

    `on_mismatch` says what to do with a checkpoint that has no state of the training loaders, or
    one that they refuse: "raise" (default), or "restart_epoch" to warn and begin the epoch anew.

    >>> ResumeCallback(on_mismatch="restart_epoch")
    ResumeCallback(on_mismatch='restart_epoch')
    """

    def __init__(self, *, on_mismatch: OnMismatch = "raise") -> None:
        if on_mismatch not in get_args(OnMismatch):
            msg = f"on_mismatch must be 'raise' or 'restart_epoch', found {on_mismatch!r}."
            raise OptionError(msg)
        self.on_mismatch = on_mismatch
        self._record: dict[str, Any] | None = None  # of the checkpoint, until it is used
        self._epoch = 0  # whose data the loaders are delivering
        self._has_begun = False  # a batch has been fetched to be trained on
        self._noted: NotedFetches | None = None  # of several loaders
        self._validation: list[Any] = []  # states of validation loaders, until they are used

    def __repr__(self) -> str:
        return f"{type(self).__name__}(on_mismatch={self.on_mismatch!r})"

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        loaders = loops.stateful_loaders(trainer)
        if not loaders:
            return
        moment = self._moment(trainer, loaders)
        checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = moment.states
        checkpoint[KEY] = make_record(
            trainer,
            pl_module,
            moment=moment,
            validation=self._validation or _states(loops.validation_loaders(trainer)),
            epoch=self._epoch,
            accumulates=loops.accumulates(trainer),
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        del trainer, pl_module
        self._record = None  # of an earlier run, which had nothing left to do
        if stage == "fit":
            self._noted = None

    def on_load_checkpoint(
        self,
        trainer: Trainer,  # noqa: ARG002  Lightning's signature
        pl_module: LightningModule,  # noqa: ARG002
        checkpoint: dict[str, Any],
    ) -> None:
        fit_loop_state = checkpoint.get("loops", {}).get("fit_loop", {})
        loops.forget_unfinished_batch(fit_loop_state)
        # Taken away, since Lightning would load it in some cases and in others not.
        states = fit_loop_state.get("state_dict", {}).pop("combined_loader", [])
        self._record = checkpoint.get(KEY) or bare_record(states, checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        record, self._record = self._record, None
        self._epoch = loops.epoch_of(trainer)
        self._has_begun = False
        loaders = loops.stateful_loaders(trainer)
        present = [self._state_of(trainer, loader) for loader in loaders]
        self._noted = noted_fetches(trainer)
        self._validation = [] if record is None else record["validation"]
        if record is None:
            if self._noted is None and all(map(has_order, loaders)):
                self._place(trainer, loaders, Moment(states=present, ended=[]), goes_on=True)
            return
        goes_on = record["epoch"] == self._epoch
        try:
            moment = moment_in(record)
            _check_number(loaders, moment.states)
            self._place(trainer, loaders, moment, goes_on=goes_on)
        except StateError as error:
            if self.on_mismatch == "raise":
                note = f"{type(self).__name__}(on_mismatch='restart_epoch') begins the epoch anew."
                add_note(error, note)
                raise
            self._restart(trainer, loaders, present, goes_on=goes_on, why=error)
            return
        if not goes_on:
            loops.begin_epoch(trainer)
        elif (batches := batches_done(trainer, loaders, moment.states)) is not None:
            loops.continue_after(trainer, batches)
        put_gradients(pl_module, record["gradients"])
        generators = generators_in(record)
        if generators is not None:
            set_rng_state(generators)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del pl_module
        self._noted = noted_fetches(trainer)  # of loaders that may have been made anew

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        self._epoch = loops.epoch_of(trainer)
        if batch_idx and not self._has_begun:
            loops.show_progress(trainer, batch_idx)
        self._has_begun = True
        if self._noted is not None:
            self._noted.begin_at(batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del pl_module
        if trainer.sanity_checking:
            return
        states, self._validation = self._validation, []
        epoch = loops.epoch_of(trainer)
        for loader, state in zip(loops.validation_loaders(trainer), states, strict=False):
            # What is validated on may have changed; only a seed that nobody chose is at stake.
            with contextlib.suppress(StateError):
                if has_order(loader):
                    loader.load_state_dict(at_start(state, epoch))

    def _moment(self, trainer: Trainer, loaders: list[Any]) -> Moment:
        if self._noted is not None:
            return self._noted.unused(loops.batches_trained(trainer))
        return Moment(states=[self._state_of(trainer, loader) for loader in loaders], ended=[])

    def _place(
        self, trainer: Trainer, loaders: list[Any], moment: Moment, *, goes_on: bool
    ) -> None:
        if self._noted is not None:
            self._noted.place(trainer, moment, self._epoch, goes_on=goes_on)
            return
        for loader, state in zip(loaders, moment.states, strict=True):
            place(trainer, loader, state, self._epoch, goes_on=goes_on)

    def _state_of(self, trainer: Trainer, loader: Any) -> Any:
        if not isinstance(loader, ResumableDataLoader):
            return loader.state_dict()
        unused = loops.unused_batches(trainer, begun=self._has_begun)
        return loader.state_dict(unused=unused)

    def _restart(
        self,
        trainer: Trainer,
        loaders: list[Any],
        present: list[Any],
        *,
        goes_on: bool,
        why: StateError,
    ) -> None:
        msg = f"epoch {self._epoch} begins anew, since the checkpoint cannot be resumed: {why}"
        warnings.warn(msg, StateMismatchWarning, stacklevel=2)
        starts = [
            at_start(state, self._epoch) if has_order(loader) else state
            for loader, state in zip(loaders, present, strict=True)
        ]
        self._place(trainer, loaders, Moment(states=starts, ended=[]), goes_on=True)
        if goes_on:
            loops.continue_after(trainer, 0)
        else:
            loops.begin_epoch(trainer)


def _states(loaders: list[Any]) -> list[Any]:
    return [loader.state_dict() for loader in loaders]


def _check_number(loaders: list[Any], states: list[Any]) -> None:
    """Refuse states that are not as many as the loaders."""
    if len(states) == len(loaders):
        return
    if not states:
        msg = (
            f"the checkpoint has no state of the {len(loaders)} training loaders: it was saved by "
            "a run whose loaders had none. Resume with those, or start anew."
        )
        raise StateMissingError(msg)
    msg = (
        f"the checkpoint has the states of {len(states)} training loaders, this run has "
        f"{len(loaders)}. Resume with the same loaders."
    )
    raise StateMismatchError(msg)
