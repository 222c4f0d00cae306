"""Where a trainer's loops stand, and how to put them elsewhere.

Everything that this package knows of Lightning's insides is here, as little as will do:

- `epoch_progress.current.processed` is the epoch that runs or comes next.
- `batch_progress.current` counts the batches of that epoch; one that is `ready` and not
  `processed` is being trained on, and comes again after a resume.
- The fetcher has `fetched` so many batches of the epoch. Where a length is not known it is one
  ahead, to know the last batch when it comes.
- `setup_data()` makes the loaders and begins their first pass, before any callback can say
  where; sometimes before the checkpoint was read.
- Where loaders are repeated, an epoch ends once each of them has come to its end, and what
  iterates them knows which have `_consumed` their data.
"""

from __future__ import annotations

from typing import Any

from dataporter.law.epochs import MOST_UNUSED
from dataporter.sources.users_sampler import has_state
from dataporter.trainers.lightning.framework import Trainer


def stateful_loaders(trainer: Trainer) -> list[Any]:
    """The loaders of training that have a state, in the order that Lightning saves them in."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001  the loaders as they are iterated
    return [] if combined is None else [each for each in combined.flattened if has_state(each)]


def validation_loaders(trainer: Trainer) -> list[Any]:
    """The loaders of validation that have a state, as far as they have been made."""
    combined = trainer.fit_loop.epoch_loop.val_loop._combined_loader  # noqa: SLF001
    return [] if combined is None else [each for each in combined.flattened if has_state(each)]


def epoch_of(trainer: Trainer) -> int:
    """The epoch that runs, or that comes next where none does."""
    current: Any = trainer.fit_loop.epoch_progress.current
    return int(current.processed)


def has_come_to_its_end(trainer: Trainer) -> bool:
    """Whether training is over, not only stopped: it has made the epochs or steps it was to."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    has_epochs = epochs is not None and 0 <= epochs <= epoch_of(trainer)
    return has_epochs or 0 <= steps <= trainer.global_step


def unused_batches(trainer: Trainer, *, begun: bool) -> int:
    """Batches of one loader that were fetched and not trained on, since training has `begun`."""
    fetcher = trainer.fit_loop._data_fetcher  # noqa: SLF001  only it knows what it holds
    if fetcher is None or not fetches_by_itself(fetcher):
        return 0
    trained = batches_trained(trainer) if begun else 0
    return min(max(fetcher.fetched - trained, 0), MOST_UNUSED)


def batches_trained(trainer: Trainer) -> int:
    """Batches of the epoch that have been trained on."""
    return int(_batches(trainer).processed)


def has_several(trainer: Trainer) -> bool:
    """Whether there are several loaders, and any has a state."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001
    has_fetcher = trainer.fit_loop._data_fetcher is not None  # noqa: SLF001
    if combined is None or not has_fetcher:
        return False
    return len(combined.flattened) > 1 and bool(stateful_loaders(trainer))


def asks_for_loaders(trainer: Trainer) -> bool:
    """Whether the next epoch begins with loaders that are asked for anew."""
    return bool(trainer.fit_loop._should_reload_train_dl)  # noqa: SLF001


def fetches_by_itself(fetcher: Any) -> bool:
    """Whether that is not left to `training_step`, which takes as many batches as it likes."""
    return not hasattr(fetcher, "iterator_wrapper")


def ended(combined: Any) -> list[bool]:
    """Whether each of the loaders has come to its end in this epoch, to be read and changed.

    Empty where no loader is repeated.
    """
    return getattr(combined._iterator, "_consumed", [])  # noqa: SLF001


def told_samplers(loader: Any) -> list[Any]:
    """The samplers of a loader that Lightning tells each epoch, once it has begun."""
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    each = (getattr(loader, "sampler", None), inner)
    return [sampler for sampler in each if callable(getattr(sampler, "set_epoch", None))]


def ends_with_the_shortest(trainer: Trainer) -> bool:
    """Whether an epoch over several loaders ends with the first of them."""
    return _mode(trainer) == "min_size"


def begin_passes(trainer: Trainer) -> None:
    """Begin new passes, in place of those that `setup_data` began."""
    fetcher = trainer.fit_loop._data_fetcher  # noqa: SLF001
    if fetcher is not None:
        iter(fetcher)


def accumulates(trainer: Trainer) -> bool:
    """Whether gradients of the last batches wait for those of the next."""
    current = _batches(trainer)
    has_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    has_ended = has_last and current.processed == current.ready
    return current.processed % trainer.accumulate_grad_batches != 0 and not has_ended


def continue_after(trainer: Trainer, batches: int) -> None:
    """Have the epoch that is resumed count from so many batches."""
    current = _batches(trainer)
    current.ready = current.started = current.processed = min(batches, trainer.num_training_batches)
    # A checkpoint of `on_train_batch_end` lacks one that Lightning is about to add.
    is_short = trainer.fit_loop.epoch_loop.restarted_on_train_batch_end
    current.completed = current.ready - int(is_short)


def forget_unfinished_batch(fit_loop_state: dict[str, Any]) -> None:
    """Have a checkpoint of the middle of a step be one of the end of the step before.

    Lightning itself would go on with counters that contradict each other from then on.
    """
    batches = fit_loop_state.get("epoch_loop.batch_progress")
    if batches is None or batches["current"]["ready"] == batches["current"]["processed"]:
        return
    for counters in (batches["current"], batches["total"]):
        counters["ready"] = counters["started"] = counters["processed"]
    batches["is_last_batch"] = False


def begin_epoch(trainer: Trainer) -> None:
    """Have an epoch begin at its first batch, with all that belongs to a beginning.

    A checkpoint of the end of an epoch leaves traces of it in some of the counters.
    """
    fit_loop = trainer.fit_loop
    epochs: Any = fit_loop.epoch_progress.current
    epochs.completed = epochs.processed
    if not fit_loop.restarted_on_epoch_start:
        fit_loop.reset_restart_stage()
    fit_loop.epoch_loop.batch_progress.is_last_batch = False
    is_short = fit_loop.epoch_loop.restarted_on_train_batch_end
    if not (is_short and _batches(trainer).completed + 1 >= trainer.num_training_batches):
        continue_after(trainer, 0)  # else Lightning does so


def show_progress(trainer: Trainer, batches: int) -> None:
    """Have Lightning's progress bar, of either kind, begin where an epoch goes on.

    Lightning tells it an epoch's length and number only where the epoch begins.
    """
    shown: Any = trainer.progress_bar_callback
    kinds = [kind.__name__ for kind in type(shown).__mro__]
    if "TQDMProgressBar" in kinds:
        bar, length = shown.train_progress_bar, trainer.num_training_batches
        bar.total = None if length == float("inf") else length
        bar.initial = bar.n = batches
        bar.set_description(f"Epoch {trainer.current_epoch}")
    elif "RichProgressBar" in kinds and shown.is_enabled:
        # It has no bar of the epoch yet, and asserts one where its property is read.
        shown.on_train_epoch_start(trainer, trainer.lightning_module)
        shown.progress.reset(shown.train_progress_bar_id, completed=batches)
        shown.refresh()


def _mode(trainer: Trainer) -> str | None:
    """How several loaders are combined."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001
    return None if combined is None else combined._mode  # noqa: SLF001


def _batches(trainer: Trainer) -> Any:
    """The counters of the epoch's batches."""
    return trainer.fit_loop.epoch_loop.batch_progress.current
