"""`ResumeCallback`: saves and restores exact loader states in Lightning checkpoints.

Lightning saves the state of a loader that has one. It loads the state only if training stopped
within an epoch and nothing has read the number of batches before. This callback always loads it,
and exactly:

- The state counts batches that were trained on, not batches that were only fetched.
- After the last batch of an epoch comes the next epoch, in its own order.
- Gradients of an unfinished accumulation and the global random generators are restored.
- Several loaders continue as they were combined, including repeated ones.
- Ranks that read their own lanes get their own states back.
- With another number of ranks or another batch size, the epoch still ends with its data.
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
from dataporter.law import Topology
from dataporter.ranks import believe
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.trainers.lightning import loops
from dataporter.trainers.lightning.framework import Callback, LightningModule, Trainer
from dataporter.trainers.lightning.placing import (
    RecordedFetches,
    Snapshot,
    batches_done,
    is_seekable,
    place,
    record_fetches,
)
from dataporter.trainers.lightning.record import (
    KEY,
    bare_record,
    generators_in,
    make_record,
    put_gradients,
    snapshot_in,
)
from dataporter.training.loadable import set_rng_state

OnMismatch = Literal["raise", "restart_epoch"]


class ResumeCallback(Callback):
    """Makes every checkpoint of a trainer resume at the exact sample.

    `on_mismatch` applies to a checkpoint without a state of the training loaders, or with a state
    that they refuse: "raise" (default), or "restart_epoch" to warn and restart the epoch.

    >>> ResumeCallback(on_mismatch="restart_epoch")
    ResumeCallback(on_mismatch='restart_epoch')
    """

    def __init__(self, *, on_mismatch: OnMismatch = "raise") -> None:
        if on_mismatch not in get_args(OnMismatch):
            msg = f"on_mismatch must be 'raise' or 'restart_epoch', found {on_mismatch!r}."
            raise OptionError(msg)
        self.on_mismatch = on_mismatch
        self._record: dict[str, Any] | None = None  # of the checkpoint, until it is used
        self._epoch = 0  # the epoch of the batches that the loaders deliver
        self._has_begun = False  # True once a batch is trained on
        self._recorded: RecordedFetches | None = None  # only for several loaders
        self._validation: list[Any] = []  # states of validation loaders, until they are used

    def __repr__(self) -> str:
        return f"{type(self).__name__}(on_mismatch={self.on_mismatch!r})"

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        loaders = loops.stateful_loaders(trainer)
        if not loaders:
            return
        snapshot = self._snapshot(trainer, loaders)
        checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = snapshot.states
        checkpoint[KEY] = make_record(
            trainer,
            pl_module,
            snapshot=snapshot,
            validation=self._validation or _states(loops.validation_loaders(trainer)),
            epoch=self._epoch,
            accumulates=loops.accumulates(trainer),
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        del pl_module
        said = trainer.distributed_sampler_kwargs
        if said is not None:
            believe(Topology(rank=said["rank"], world_size=said["num_replicas"]))
        self._record = None  # left over from an earlier run that had nothing left to do
        if stage == "fit":
            loops.check(trainer)
            self._recorded = None

    def on_load_checkpoint(
        self,
        trainer: Trainer,  # noqa: ARG002  Lightning's signature
        pl_module: LightningModule,  # noqa: ARG002
        checkpoint: dict[str, Any],
    ) -> None:
        fit_loop_state = checkpoint.get("loops", {}).get("fit_loop", {})
        loops.forget_unfinished_batch(fit_loop_state)
        # Removed, since Lightning would load it in some cases and not in others.
        states = fit_loop_state.get("state_dict", {}).pop("combined_loader", [])
        self._record = checkpoint.get(KEY) or bare_record(states, checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        record, self._record = self._record, None
        self._epoch = loops.epoch_of(trainer)
        self._has_begun = False
        loaders = loops.stateful_loaders(trainer)
        present = [self._state_of(trainer, loader) for loader in loaders]
        self._recorded = record_fetches(trainer)
        self._validation = [] if record is None else record["validation"]
        if record is None:
            if self._recorded is None and all(map(is_seekable, loaders)):
                self._place(trainer, loaders, Snapshot(states=present, ended=[]), continues=True)
            return
        continues = record["epoch"] == self._epoch
        try:
            snapshot = snapshot_in(record)
            _check_number(loaders, snapshot.states)
            self._place(trainer, loaders, snapshot, continues=continues)
        except StateError as error:
            if self.on_mismatch == "raise":
                note = (
                    f"Use {type(self).__name__}(on_mismatch='restart_epoch') to restart the epoch."
                )
                add_note(error, note)
                raise
            self._restart(trainer, loaders, present, continues=continues, why=error)
            return
        if not continues:
            loops.begin_epoch(trainer)
        elif (batches := batches_done(trainer, loaders, snapshot.states)) is not None:
            loops.continue_after(trainer, batches)
        put_gradients(pl_module, record["gradients"])
        generators = generators_in(record)
        if generators is not None:
            set_rng_state(generators)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del pl_module
        self._recorded = record_fetches(trainer)  # the loaders may be new

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
        if self._recorded is not None:
            self._recorded.begin_at(batch_idx)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del pl_module
        if trainer.sanity_checking:
            return
        states, self._validation = self._validation, []
        epoch = loops.epoch_of(trainer)
        for loader, state in zip(loops.validation_loaders(trainer), states, strict=False):
            # The validation data may have changed. The state is loaded only for a drawn seed.
            with contextlib.suppress(StateError):
                if is_seekable(loader):
                    loader.load_state_dict(state)
                    loader.seek(epoch)

    def _snapshot(self, trainer: Trainer, loaders: list[Any]) -> Snapshot:
        if self._recorded is not None:
            return self._recorded.unused(loops.batches_trained(trainer))
        return Snapshot(states=[self._state_of(trainer, loader) for loader in loaders], ended=[])

    def _place(
        self, trainer: Trainer, loaders: list[Any], snapshot: Snapshot, *, continues: bool
    ) -> None:
        if self._recorded is not None:
            self._recorded.place(trainer, snapshot, self._epoch, continues=continues)
            return
        for loader, state in zip(loaders, snapshot.states, strict=True):
            place(trainer, loader, state, self._epoch, continues=continues)

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
        continues: bool,
        why: StateError,
    ) -> None:
        msg = f"epoch {self._epoch} restarts, since the checkpoint cannot be resumed: {why}"
        warnings.warn(msg, StateMismatchWarning, stacklevel=2)
        starts = []
        for loader, state in zip(loaders, present, strict=True):
            if is_seekable(loader):
                loader.seek(self._epoch)
            starts.append(loader.state_dict() if is_seekable(loader) else state)
        self._place(trainer, loaders, Snapshot(states=starts, ended=[]), continues=True)
        if continues:
            loops.continue_after(trainer, 0)
        else:
            loops.begin_epoch(trainer)


def _states(loaders: list[Any]) -> list[Any]:
    return [loader.state_dict() for loader in loaders]


def _check_number(loaders: list[Any], states: list[Any]) -> None:
    """Raise unless there are as many states as loaders."""
    if len(states) == len(loaders):
        return
    if not states:
        msg = (
            f"the checkpoint has no state for the {len(loaders)} training loaders: it was saved by "
            "a run whose loaders had no state. Resume with those loaders, or start a new run."
        )
        raise StateMissingError(msg)
    msg = (
        f"the checkpoint has the states of {len(states)} training loaders, this run has "
        f"{len(loaders)}. Resume with the same loaders."
    )
    raise StateMismatchError(msg)
