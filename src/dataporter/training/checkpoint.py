"""`CheckpointManager`: saves and loads a run's checkpoints, and removes old ones.

A checkpoint holds the states of model, optimizer, scheduler and loader, epoch, step, metrics,
the generators of every rank, and the user's own state. All of it loads with
`weights_only=True`. `checkpoint_file` writes files safely, and `ranks` makes ranks agree.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dataporter.arguments import check_int, did_you_mean
from dataporter.errors import (
    CheckpointDamagedError,
    CheckpointDamagedWarning,
    CheckpointError,
    CheckpointNotFoundError,
    DataPorterError,
    OptionError,
    OptionTypeError,
    StateMismatchError,
)
from dataporter.law.keys import checked_epoch
from dataporter.training.checkpoint_file import (
    Label,
    checkpoints_in,
    read,
    read_label,
    remove_leftovers,
    verify,
    write,
)
from dataporter.training.loadable import explain, get_rng_state, set_rng_state
from dataporter.training.ranks import on_every_rank, on_first_rank, topology, without_repetition


class CheckpointManager:
    """A folder of checkpoints that survives killed processes, full disks and damaged files.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> model = torch.nn.Linear(2, 1)
    >>> manager = CheckpointManager(folder.name, keep_best=1, keep_last=2, metric="val_loss")
    >>> path = manager.save(model=model, epoch=5, metrics={"val_loss": 0.38})
    >>> path.name
    'checkpoint-000001-epoch5.pt'
    >>> manager.load(model=model)["metrics"]
    {'val_loss': 0.38}
    >>> folder.cleanup()

    Checkpoints are removed only if `keep_last` or `keep_best` is given. Then the newest
    `keep_last` checkpoints (1 if only `keep_best` is given) and the `keep_best` ones with the
    lowest `metric` are kept (highest with mode="max"; the newer of equals; NaN last).

    In a process group every rank must call `save` and `load`. Rank 0 writes while the others
    wait, and all ranks return the same path or raise the same error.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        *,
        keep_best: int | None = None,
        keep_last: int | None = None,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        self.checkpoint_dir = _path("checkpoint_dir", checkpoint_dir)
        if self.checkpoint_dir.exists() and not self.checkpoint_dir.is_dir():
            msg = f"checkpoint_dir must be a folder, found the file {self.checkpoint_dir}."
            raise OptionError(msg)
        for name, count in (("keep_best", keep_best), ("keep_last", keep_last)):
            check_int(name, count, least=1, optional=True)
        if keep_best is not None and metric is None:
            msg = f"keep_best={keep_best} requires metric=, the name of the metric to compare."
            raise OptionError(msg)
        if mode not in ("min", "max"):
            msg = f"mode must be 'min' or 'max', found {mode!r}."
            raise OptionError(msg)
        self._keep_best = keep_best
        self._keep_last = keep_last
        self._metric = metric
        self._sign = 1 if mode == "min" else -1
        self._known_unreadable: set[Path] = set()
        remove_leftovers(self.checkpoint_dir)

    def save(
        self,
        *,
        epoch: int,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        metrics: Mapping[str, Any] | None = None,
        custom_state: Mapping[str, Any] | None = None,
        dataloader: Any = None,
        step: int | None = None,
    ) -> Path:
        """Write a new checkpoint, then remove the ones that are not to be kept.

        Pass objects with a `state_dict()` method, or state dicts. A checkpoint without `metrics`,
        as in the middle of an epoch, is never among the best.
        """
        contents: dict[str, Any] = {}

        def collect() -> tuple[Any, Any]:
            contents["epoch"] = checked_epoch(epoch)
            check_int("step", step, least=0, optional=True)
            contents["step"] = step
            contents["metrics"] = self._checked_metrics(metrics)
            contents["custom_state"] = _checked_custom_state(custom_state)
            contents["model"] = _state_of("model", model)
            contents["optimizer"] = _state_of("optimizer", optimizer)
            contents["scheduler"] = _state_of("scheduler", scheduler)
            return _state_of("dataloader", dataloader), get_rng_state()

        # Every rank takes its states, since `state_dict()` may be a collective call.
        loader_states, rng_states = zip(*on_every_rank(collect), strict=True)
        contents["dataloaders"] = without_repetition(loader_states)
        contents["rng_states"] = list(rng_states)
        return on_first_rank(lambda: self._write(contents))

    def load(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        dataloader: Any = None,
        restore_rng: bool = False,
        map_location: Any = "cpu",
        strict: bool = True,
    ) -> dict[str, Any]:
        """Load a checkpoint's states into the given objects, and return its contents.

        Without a path, the newest intact checkpoint is loaded, with a warning that names damaged
        ones. The returned dict has the names of `save`, with states in place of objects, and
        `rng_state` and `path`. `restore_rng` restores the global generators of this rank.
        `strict=False` is passed to the loader, which then accepts a state of other data.
        """
        named = None if path is None else _path("path", path)
        options = {"dataloader": {} if strict else {"strict": False}}
        objects = {
            "dataloader": dataloader,  # first: it checks a state before it changes anything
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
        }
        while True:
            there = on_first_rank(self.checkpoints)
            try:
                return self._load(named, objects, options, restore_rng, map_location)
            except CheckpointNotFoundError:
                # Another process may have saved a newer one and removed this one meanwhile.
                if named is not None or on_first_rank(self.checkpoints) == there:
                    raise

    def _load(
        self,
        named: Path | None,
        objects: dict[str, Any],
        options: dict[str, dict[str, Any]],
        restore_rng: bool,
        map_location: Any,
    ) -> dict[str, Any]:
        chosen = on_first_rank(lambda: self._newest_intact() if named is None else _verified(named))
        contents: dict[str, Any] = {}

        def restore() -> None:
            contents.update(read(chosen, map_location), path=chosen)
            loader_states, rng_states = contents.pop("dataloaders"), contents.pop("rng_states")
            if objects["dataloader"] is not None:
                _check_ranks("the loader's state", loader_states, chosen)
            if restore_rng:
                _check_ranks("the random generators' state", rng_states, chosen)
            contents["dataloader"] = _of_this_rank(loader_states)
            contents["rng_state"] = _of_this_rank(rng_states)
            _put_back(objects, contents, options)
            if restore_rng:
                set_rng_state(contents["rng_state"])

        on_every_rank(restore)
        return contents

    def checkpoints(self) -> list[Path]:
        """Return the existing checkpoints, oldest first."""
        return checkpoints_in(self.checkpoint_dir)

    def best(self) -> Path | None:
        """Return the checkpoint with the best `metric`, or None if none has it."""
        if self._metric is None:
            msg = "best() requires a metric to compare. Pass metric= to CheckpointManager."
            raise OptionError(msg)
        ranked = self._ranked(self._labels())
        return ranked[0] if ranked else None

    def _write(self, contents: dict[str, Any]) -> Path:
        label = Label(epoch=contents["epoch"], step=contents["step"], metrics=contents["metrics"])
        remove_leftovers(self.checkpoint_dir)
        try:
            path = write(self.checkpoint_dir, label, lambda file: torch.save(contents, file))
        except DataPorterError:
            raise
        except Exception as error:
            explain(error, contents)
            raise
        self._remove_others(path)
        return path

    def _remove_others(self, saved: Path) -> None:
        """Remove checkpoints that are not to be kept, but never the one just saved.

        The one just saved need not be the newest, if another process saves here too. Unreadable
        files are not removed, since their metrics are unknown.
        """
        if self._keep_best is None and self._keep_last is None:
            return
        labels = self._labels()
        newest = list(labels)[-(self._keep_last or 1) :]
        best = self._ranked(labels)[: self._keep_best or 0]
        for path in labels.keys() - {*newest, *best, saved}:
            path.unlink(missing_ok=True)

    def _labels(self) -> dict[Path, Label]:
        """Return the labels of all readable checkpoints, oldest first."""
        labels = {}
        for path in self.checkpoints():
            try:
                labels[path] = read_label(path)
            except DataPorterError as error:
                self._warn_once_if_unreadable(path, error)
        return labels

    def _warn_once_if_unreadable(self, path: Path, error: DataPorterError) -> None:
        is_unreadable = isinstance(error, CheckpointDamagedError) and isinstance(
            error.__cause__, OSError
        )
        if is_unreadable and path not in self._known_unreadable:
            self._known_unreadable.add(path)
            msg = f"a checkpoint was left out: {error}"
            warnings.warn(msg, CheckpointDamagedWarning, stacklevel=2)

    def _ranked(self, labels: dict[Path, Label]) -> list[Path]:
        """Return the checkpoints that have the metric, best first."""
        values = {
            path: self._sign * label.metrics[self._metric]
            for path, label in reversed(labels.items())
            if self._metric is not None and self._metric in label.metrics
        }
        return sorted(values, key=lambda path: (math.isnan(values[path]), values[path]))

    def _newest_intact(self) -> Path:
        damaged: list[CheckpointError] = []
        there = self.checkpoints()
        for path in reversed(there):
            try:
                verify(path)
            except CheckpointDamagedError as error:
                damaged.append(error)
            except CheckpointNotFoundError as error:
                if self.checkpoints() != there:  # removed by another process: try again
                    return self._newest_intact()
                damaged.append(error)  # a broken link
            else:
                if damaged:
                    found = "\n".join(map(str, damaged))
                    msg = f"damaged checkpoints were skipped, and {path} was loaded:\n{found}"
                    # Six calls up is the caller of load().
                    warnings.warn(msg, CheckpointDamagedWarning, stacklevel=6)
                return path
        if damaged:
            found = "\n".join(map(str, damaged))
            msg = (
                f"all checkpoints in {self.checkpoint_dir} are damaged:\n{found}\n"
                "Restore a copy of one, or start again in another folder."
            )
            raise CheckpointDamagedError(msg)
        msg = (
            f"there is no checkpoint in {self.checkpoint_dir}. If a run may be new, call "
            "checkpoints() before load()."
        )
        raise CheckpointNotFoundError(msg)

    def _checked_metrics(self, metrics: Mapping[str, Any] | None) -> dict[str, float]:
        if metrics is None:
            return {}
        if not isinstance(metrics, Mapping):
            msg = f"metrics must be a dict of numbers, found {type(metrics).__name__} {metrics!r}."
            raise OptionTypeError(msg)
        checked = {name: _number(name, value) for name, value in metrics.items()}
        if self._keep_best is not None and self._metric not in checked:
            hint = did_you_mean(str(self._metric), checked)
            msg = (
                f"keep_best requires the metric {self._metric!r}, found {sorted(checked)}.{hint} "
                "Pass it, or pass no metrics: then the checkpoint is not among the best."
            )
            raise OptionError(msg)
        return checked


def _path(name: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        msg = f"{name} must be a string or a Path, found {type(value).__name__} {value!r}."
        raise OptionTypeError(msg)
    return Path(value)


def _number(name: object, value: Any) -> float:
    if not isinstance(name, str):
        msg = f"names of metrics must be strings, found {type(name).__name__} {name!r}."
        raise OptionTypeError(msg)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"metrics[{name!r}] must be a number, found {type(value).__name__} {value!r}."
        raise OptionTypeError(msg)
    return value


def _checked_custom_state(custom_state: Any) -> dict[str, Any]:
    if custom_state is None:
        return {}
    if not isinstance(custom_state, Mapping):
        kind = type(custom_state).__name__
        msg = f"custom_state must be a dict, found {kind} {custom_state!r}."
        raise OptionTypeError(msg)
    return dict(custom_state)


def _state_of(name: str, thing: Any) -> Any:
    """Return an object's state, or the object itself if it is a state already."""
    if thing is None or isinstance(thing, Mapping):
        return thing
    if not callable(getattr(thing, "state_dict", None)):
        msg = (
            f"{name} must have state_dict(), found {type(thing).__name__}. Pass an object with "
            "state_dict(), a state as a dict, or None."
        )
        raise OptionTypeError(msg)
    return thing.state_dict()


def _of_this_rank(states: list[Any]) -> Any:
    """Return this rank's state, or None if the number of ranks differs."""
    if len(states) == 1:
        return states[0]
    return states[topology().rank] if len(states) == topology().world_size else None


def _check_ranks(what: str, states: list[Any], path: Path) -> None:
    if len(states) not in (1, topology().world_size):
        msg = (
            f"{what} in {path} was saved for {len(states)} ranks, this run has "
            f"{topology().world_size}. Resume on {len(states)} ranks, or load without it."
        )
        raise StateMismatchError(msg)


def _verified(path: Path) -> Path:
    try:
        verify(path)
    except CheckpointDamagedError as error:
        msg = f"{error} Load another one. load() without a path takes the newest intact one."
        raise CheckpointDamagedError(msg) from error
    return path


def _put_back(
    objects: Mapping[str, Any],
    contents: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Load states into objects, after a check that every state exists."""
    given = {name: thing for name, thing in objects.items() if thing is not None}
    for name, thing in given.items():
        if not callable(getattr(thing, "load_state_dict", None)):
            msg = f"{name} must have load_state_dict(), found {type(thing).__name__}."
            raise OptionTypeError(msg)
        if contents[name] is None:
            msg = (
                f"{contents['path']} has no state for {name}=: it was saved without one. "
                f"Load it without {name}=."
            )
            raise CheckpointError(msg)
    for name, thing in given.items():
        thing.load_state_dict(contents[name], **options.get(name, {}))
