"""Calling frames: who calls a sampler or a loader, where nothing else says it.

torch's iterator with workers draws ahead from a sampler. Wrappers tell a sampler their own count of
passes.

Lightning counts batches and epochs by itself, and a loader cannot see those counters. When it
resumes at the end of an epoch, Lightning begins a pass before it tells the sampler the next epoch,
and takes an empty rest of the last one for the whole next one. So without `ResumeCallback` the
first batch of such a pass decides which epoch it is. The callback corrects the rest, too. A program
without the callback may import none of our Lightning modules. So the loader itself looks for
Lightning's loops among the calling frames: in its first pass, in passes that begin at a loaded
position, and only if Lightning is imported.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from types import FrameType
from typing import Any

from dataporter.errors import MissingCallbackWarning

_MAX_CALLERS = 12  # frames between a sampler and its loader, other samplers included


def torchs_iterator() -> weakref.ref[Any] | None:
    """Return the torch multi-worker iterator that draws from the calling sampler, or None."""
    frame = sys._getframe(1)  # noqa: SLF001  nothing else says who called __iter__
    for _ in range(_MAX_CALLERS):
        caller = frame.f_locals.get("self")
        if type(caller).__name__ == "_MultiProcessingDataLoaderIter":
            return weakref.ref(caller)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


# Wrappers of loaders that tell a sampler, in their `__iter__`, how often they were iterated: from 0
# on in every process, whatever epoch was resumed.
_COUNTING_WRAPPERS = {
    "lightning.fabric.wrappers",
    "lightning_fabric.wrappers",
    "accelerate.data_loader",
}
_WRAPPER_CALLS = 4  # frames at most from a wrapper's `__iter__` to what it calls


def is_told_by_wrapper() -> bool:
    """Return True if a wrapper that counts its own passes has called the caller."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  nothing else says who called
    for _ in range(_WRAPPER_CALLS):
        if frame is None:
            return False
        module = frame.f_globals.get("__name__")
        if module in _COUNTING_WRAPPERS and frame.f_code.co_name == "__iter__":
            return True
        frame = frame.f_back
    return False


_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_TRAINING = {f"{package}.loops.fit_loop" for package in _PACKAGES}
_FETCHING = {  # between that loop and its loaders
    f"{package}.{module}"
    for package in _PACKAGES
    for module in ("loops.fetchers", "loops.training_epoch_loop", "utilities.combined_loader")
}

_warned: weakref.WeakSet[Any] = weakref.WeakSet()  # trainers


def lightning_resumes_alone(*, loaded: bool) -> bool:
    """Return True, and warn, if a trainer without the callback starts a pass of a resumed training.

    Training is resumed if a state was `loaded` into the loader, or a checkpoint into the trainer.
    """
    if sys.modules.keys().isdisjoint(_PACKAGES):
        return False
    trainer = _training_trainer()
    if trainer is None or not (loaded or trainer.ckpt_path):
        return False
    ours: Any = sys.modules.get("dataporter.trainers.lightning.resume")
    if ours is not None and any(
        isinstance(each, ours.ResumeCallback) for each in trainer.callbacks
    ):
        return False
    if trainer not in _warned:
        _warn_once(trainer)
    return True


def _warn_once(trainer: Any) -> None:
    _warned.add(trainer)
    msg = (
        "Lightning resumes this loader without dataporter's ResumeCallback, and may repeat or lose "
        "data. Add the callback: from dataporter.trainers.lightning import ResumeCallback; "
        "Trainer(callbacks=[ResumeCallback()]); and pass the checkpoint to fit(ckpt_path=...)."
    )
    warnings.warn(msg, MissingCallbackWarning, stacklevel=4)


def is_in_lightnings_training() -> bool:
    """Return True if a trainer starts the calling pass for its training."""
    if sys.modules.keys().isdisjoint(_PACKAGES):
        return False
    return _training_trainer() is not None


def _training_trainer() -> Any:
    """Return the trainer whose training starts this pass, or None for any other pass."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  it is documented, if not public
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in _TRAINING:
            return getattr(frame.f_locals.get("self"), "trainer", None)
        if module.startswith(_PACKAGES) and module not in _FETCHING:
            return None  # validation, or a hook in which a user iterates the loader
        frame = frame.f_back
    return None
