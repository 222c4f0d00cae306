"""The counters of a trainer's loops: reading them and changing them.

This module holds everything that the package knows about Lightning's internals:

- `epoch_progress.current.processed` is the current epoch, or the next one.
- `batch_progress.current` counts the batches of that epoch. A batch that is `ready` and not
  `processed` is being trained on, and comes again after a resume.
- The fetcher counts the batches it has `fetched` in the epoch. For loaders without a length it
  fetches one batch ahead, to recognise the last one.
- `setup_data()` makes the loaders and starts their first pass, before any callback can move
  them, and sometimes before the checkpoint is read.
- If loaders are repeated, an epoch ends when each of them has ended. Their iterator keeps which
  of them have `_consumed` their data.
"""

from __future__ import annotations

from typing import Any

from dataporter.errors import MissingExtraError
from dataporter.law.epochs import MOST_UNUSED
from dataporter.requirement import untried
from dataporter.sources.users_sampler import has_state
from dataporter.trainers.lightning.framework import TRIED, Trainer, private

_FETCHES_BY_ITSELF = {"_PrefetchDataFetcher": True, "_DataLoaderIterDataFetcher": False}
_USED = (
    *("_combined_loader", "_data_fetcher", "_should_reload_train_dl"),
    *("epoch_progress.current.processed", "epoch_progress.current.completed"),
    *("restarted_on_epoch_start", "reset_restart_stage"),
    *(f"epoch_loop.batch_progress.current.{name}" for name in ("ready", "started", "processed")),
    *("epoch_loop.batch_progress.current.completed", "epoch_loop.batch_progress.is_last_batch"),
    *("epoch_loop.restarted_on_train_batch_end", "epoch_loop.val_loop._combined_loader"),
)


def check(trainer: Trainer) -> None:
    """Raise before training if this Lightning lacks a name that is used here."""
    for path in _USED:
        private(trainer.fit_loop, path)


def stateful_loaders(trainer: Trainer) -> list[Any]:
    """Return the training loaders that have a state, in the order in which Lightning saves them."""
    combined = _combined(trainer)
    return [] if combined is None else [each for each in combined.flattened if has_state(each)]


def validation_loaders(trainer: Trainer) -> list[Any]:
    """Return the existing validation loaders that have a state."""
    combined = trainer.fit_loop.epoch_loop.val_loop._combined_loader  # noqa: SLF001
    return [] if combined is None else [each for each in combined.flattened if has_state(each)]


def epoch_of(trainer: Trainer) -> int:
    """Return the current epoch, or the next one between epochs."""
    current: Any = trainer.fit_loop.epoch_progress.current
    return int(current.processed)


def has_finished(trainer: Trainer) -> bool:
    """Return True if training has reached `max_epochs` or `max_steps`."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    has_epochs = epochs is not None and 0 <= epochs <= epoch_of(trainer)
    return has_epochs or 0 <= steps <= trainer.global_step


def unused_batches(trainer: Trainer, *, begun: bool) -> int:
    """Return the number of batches that were fetched and not trained on."""
    fetcher = fetcher_of(trainer)
    if fetcher is None or not fetches_by_itself(fetcher):
        return 0
    trained = batches_trained(trainer) if begun else 0
    unused: int = max(fetcher.fetched - trained, 0)
    return min(unused, MOST_UNUSED)


def batches_trained(trainer: Trainer) -> int:
    """Return the number of batches of the epoch that have been trained on."""
    return int(_batches(trainer).processed)


def has_several(trainer: Trainer) -> bool:
    """Return True if there are several loaders, and any of them has a state."""
    combined = _combined(trainer)
    if combined is None or fetcher_of(trainer) is None:
        return False
    return len(combined.flattened) > 1 and bool(stateful_loaders(trainer))


def asks_for_loaders(trainer: Trainer) -> bool:
    """Return True if Lightning will request new loaders for the next epoch."""
    return bool(trainer.fit_loop._should_reload_train_dl)  # noqa: SLF001


def fetches_by_itself(fetcher: Any) -> bool:
    """Return False if `training_step` itself takes batches from an iterator."""
    for kind in type(fetcher).__mro__:
        if kind.__name__ in _FETCHES_BY_ITSELF:
            return _FETCHES_BY_ITSELF[kind.__name__]
    msg = f"Lightning fetches batches by a {type(fetcher).__name__}. {untried(TRIED)}"
    raise MissingExtraError(msg)


def ended(combined: Any) -> list[bool]:
    """Return a list of True for each loader that has ended in this epoch.

    Changing the list changes Lightning's. It is empty if no loader is repeated.
    """
    iterator = private(combined, "_iterator")
    if iterator is None or private(combined, "_mode") != "max_size_cycle":
        return []
    consumed: list[bool] = private(iterator, "_consumed")
    return consumed


def epoch_samplers(loader: Any) -> list[Any]:
    """Return the samplers of a loader on which Lightning calls `set_epoch` in every epoch."""
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    each = (getattr(loader, "sampler", None), inner)
    return [sampler for sampler in each if callable(getattr(sampler, "set_epoch", None))]


def ends_with_the_shortest(trainer: Trainer) -> bool:
    """Return True if an epoch over several loaders ends with the first loader that ends."""
    combined = _combined(trainer)
    return combined is not None and private(combined, "_mode") == "min_size"


def begin_passes(trainer: Trainer) -> None:
    """Start new passes in place of those that `setup_data` started."""
    fetcher = fetcher_of(trainer)
    if fetcher is not None:
        iter(fetcher)


def fetcher_of(trainer: Trainer) -> Any:
    """Return the object that draws a trainer's training batches; None before there is one."""
    return trainer.fit_loop._data_fetcher  # noqa: SLF001


def accumulates(trainer: Trainer) -> bool:
    """Return True in the middle of a gradient accumulation."""
    current = _batches(trainer)
    has_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    has_ended = has_last and current.processed == current.ready
    return current.processed % trainer.accumulate_grad_batches != 0 and not has_ended


def continue_after(trainer: Trainer, batches: int) -> None:
    """Make the resumed epoch count from `batches`."""
    current = _batches(trainer)
    current.ready = current.started = current.processed = min(batches, trainer.num_training_batches)
    # A checkpoint of `on_train_batch_end` is one short. Lightning adds it later.
    is_one_short = trainer.fit_loop.epoch_loop.restarted_on_train_batch_end
    current.completed = current.ready - int(is_one_short)


def forget_unfinished_batch(fit_loop_state: dict[str, Any]) -> None:
    """Turn a checkpoint taken within a step into one taken at the end of the step before.

    Lightning itself would continue with contradictory counters.
    """
    batches = fit_loop_state.get("epoch_loop.batch_progress")
    if batches is None or batches["current"]["ready"] == batches["current"]["processed"]:
        return
    for counters in (batches["current"], batches["total"]):
        counters["ready"] = counters["started"] = counters["processed"]
    batches["is_last_batch"] = False


def begin_epoch(trainer: Trainer) -> None:
    """Make an epoch start at its first batch, with all hooks of a start.

    A checkpoint taken at the end of an epoch leaves traces of the end in some counters.
    """
    fit_loop = trainer.fit_loop
    epochs: Any = fit_loop.epoch_progress.current
    epochs.completed = epochs.processed
    if not fit_loop.restarted_on_epoch_start:
        fit_loop.reset_restart_stage()
    fit_loop.epoch_loop.batch_progress.is_last_batch = False
    is_one_short = fit_loop.epoch_loop.restarted_on_train_batch_end
    if not (is_one_short and _batches(trainer).completed + 1 >= trainer.num_training_batches):
        continue_after(trainer, 0)  # otherwise Lightning does it


def show_progress(trainer: Trainer, batches: int) -> None:
    """Make Lightning's progress bar start at the resumed batch.

    Lightning sets the bar's length and epoch only at the start of an epoch.
    """
    shown: Any = trainer.progress_bar_callback
    kinds = [kind.__name__ for kind in type(shown).__mro__]
    if "TQDMProgressBar" in kinds:
        bar, length = shown.train_progress_bar, trainer.num_training_batches
        bar.total = None if length == float("inf") else length
        bar.initial = bar.n = batches
        bar.set_description(f"Epoch {trainer.current_epoch}")
    elif "RichProgressBar" in kinds and shown.is_enabled:
        # There is no bar for the epoch yet, and reading its property would fail.
        shown.on_train_epoch_start(trainer, trainer.lightning_module)
        shown.progress.reset(shown.train_progress_bar_id, completed=batches)
        shown.refresh()


def _combined(trainer: Trainer) -> Any:
    """Return the training loaders as they are iterated; None before there are any."""
    return trainer.fit_loop._combined_loader  # noqa: SLF001


def _batches(trainer: Trainer) -> Any:
    """Return the counters of the epoch's batches."""
    return trainer.fit_loop.epoch_loop.batch_progress.current
