"""transformers: a `Trainer` whose training data is read by our loader.

A Trainer that resumes counts the batches it has trained on and skips as many. Here the
loader's state is kept in the checkpoint, the loader goes on where that was taken, and what
the Trainer skips are numbers. Which samples there are, their columns, collation and sampling
strategy stay the Trainer's to say; so does evaluation, which has nothing to resume.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from dataporter.errors import OptionError, StateMismatchError
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.lanes import is_iterable
from dataporter.trainers.loader_states import (
    FILE,
    States,
    read_states,
    write_states,
)
from dataporter.trainers.rank_states import load_states
from dataporter.trainers.requirement import require
from dataporter.training.ranks import topology

# Before 4.57 a Trainer miscounts an accumulation that does not divide the epoch, and trains nothing
# from a checkpoint of a stream's end. It needs Accelerate 1.3, whatever it says itself.
require("transformers", at_least="4.57", extra="transformers")
require("accelerate", at_least="1.3", extra="transformers")

from accelerate.data_loader import (  # noqa: E402  once it is known to be there
    BatchSamplerShard,
    SeedableRandomSampler,
)
from transformers import (  # noqa: E402  likewise
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
)
from transformers.trainer import TRAINER_STATE_NAME  # noqa: E402
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint  # noqa: E402

_REMEDY = "Pass ignore_data_skip=True in the TrainingArguments to begin the epoch anew."


class ResumableTrainer(Trainer):
    """`transformers.Trainer` that resumes at the exact sample, by a seek.

    It takes a Trainer's arguments, and `loader_options`: arguments of `ResumableDataLoader`
    beyond those that follow from the TrainingArguments. `train_loader` is the loader, once
    there is one. With another Trainer it is put before that:

    >>> from transformers import Seq2SeqTrainer
    >>> class ResumableSeq2SeqTrainer(ResumableTrainer, Seq2SeqTrainer):
    ...     pass
    """

    def __init__(
        self, *args: Any, loader_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._loader_options = dict(loader_options or {})
        self._resumes_from: Path | None = None
        self._saved: States | None = None
        self.train_loader: ResumableDataLoader[Any] | None = None
        super().__init__(*args, **kwargs)
        self.add_callback(_Watch(self))

    def train(
        self,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Train, from the start or from a checkpoint: a folder, or True for the last one.

        A checkpoint without a loader's state is an error, and so is one of other data; with
        `ignore_data_skip=True` in the TrainingArguments the epoch begins anew.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        elif isinstance(resume_from_checkpoint, os.PathLike):
            resume_from_checkpoint = os.fspath(resume_from_checkpoint)
        self._resumes_from = self._saved = self.train_loader = None
        if isinstance(resume_from_checkpoint, str):
            self._resumes_from = Path(resume_from_checkpoint)
            if not self.args.ignore_data_skip:
                [self._saved] = read_states(self._resumes_from / FILE, remedy=_REMEDY)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The Trainer's view of our loader, which is `train_loader`."""
        options = {**self._options_of(super().get_train_dataloader()), **self._loader_options}
        self.train_loader = loader = ResumableDataLoader(**options)
        if self._resumes_from is not None:
            self._continue(loader, self._resumes_from)
        return _as_numbered_batches(loader)

    def _options_of(self, prepared: Any) -> dict[str, Any]:
        """The arguments of a loader that delivers what the Trainer's own would."""
        options = {
            "collate_fn": prepared.collate_fn,
            "num_workers": prepared.num_workers,
            "pin_memory": prepared.pin_memory,
            "persistent_workers": prepared.persistent_workers,
            "multiprocessing_context": prepared.multiprocessing_context,
            "prefetch_factor": prepared.prefetch_factor,
            "in_order": prepared.in_order,
            "seed": self.args.seed if self.args.data_seed is None else self.args.data_seed,
        }
        if not is_iterable(self.train_dataset):
            return options | _options_by_index(prepared)
        if self.args.world_size > 1 and "lanes" not in self._loader_options:
            msg = (
                f"an iterable on {self.args.world_size} processes is read in lanes: copies that "
                "each see get_worker_info() as one of several workers and read their part. Say "
                'how many there are in all: loader_options={"lanes": ...}.'
            )
            raise OptionError(msg)
        return options | {
            "dataset": self.train_dataset,
            "batch_size": prepared.batch_size,
            "drop_last": prepared.drop_last,
        }

    def _continue(self, loader: ResumableDataLoader[Any], folder: Path) -> None:
        """Put a loader where the checkpoint was saved."""
        if self._saved is not None:
            try:
                load_states(loader, self._saved, topology())
            except StateMismatchError as error:
                msg = f"{error} {_REMEDY}"
                raise StateMismatchError(msg) from error
        try:
            length = len(loader)
        except TypeError:  # then the Trainer counts no epochs either
            return
        accumulated = self.args.gradient_accumulation_steps
        trained = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        epoch, step = divmod(trained.global_step, max(1, -(-length // accumulated)))
        if self._saved is not None:
            self._check_batch_size(trained.train_batch_size)
            _check_counts(self._saved[0], loader, epoch, step * accumulated)
        if step == 0 or self._saved is None:
            loader.set_epoch(epoch)

    def _check_batch_size(self, saved: int | None) -> None:
        """Check that batches are as large as those of the checkpoint.

        Up to 5.0 a Trainer goes on with the checkpoint's, whatever it is asked for.
        """
        finds_it = self.args.auto_find_batch_size
        asked = self._train_batch_size if finds_it else self.args.train_batch_size
        if saved not in (None, asked):
            msg = (
                f"per_device_train_batch_size changed: the checkpoint was saved with batches of "
                f"{saved} in each process, now they have {asked} samples. A Trainer counts its "
                f"steps, so resume with the same batches. {_REMEDY}"
            )
            raise StateMismatchError(msg)

    def _save_checkpoint(self, model: Any, trial: Any, **kwargs: Any) -> None:
        # First of all, so that a checkpoint that is whole for a Trainer is whole for us.
        folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        loader: Any = self.train_loader  # there is one: see `_Watch`
        write_states(Path(self._get_output_dir(trial=trial), folder, FILE), [loader])
        super()._save_checkpoint(model, trial, **kwargs)


def _check_counts(
    state: Mapping[str, Any], loader: ResumableDataLoader[Any], epoch: int, batch: int
) -> None:
    """Check that the Trainer takes the run to be where the loader's state says it is."""
    now, length = loader.state_dict(), len(loader)
    same = all(state[name] == now[name] for name in ("batch_size", "world_size"))
    if same and state["epoch"] * length + state["batches_processed"] == epoch * length + batch:
        return
    msg = (
        f"the loader's state is at batch {state['batches_processed']} of epoch {state['epoch']}, "
        f"with batches of {state['batch_size']} on {state['world_size']} processes. The Trainer, "
        f"which counts its steps, takes it to be at batch {batch} of epoch {epoch}, with batches "
        f"of {now['batch_size']} on {now['world_size']} processes. Resume with the same batches, "
        f"processes and accumulation. {_REMEDY}"
    )
    raise StateMismatchError(msg)


def _options_by_index(prepared: Any) -> dict[str, Any]:
    """What a loader that Accelerate has prepared says of its samples and their order."""
    options: dict[str, Any] = {"dataset": prepared.dataset}
    batches = prepared.batch_sampler
    if isinstance(batches, BatchSamplerShard):  # which knows whose share this is
        options |= {"rank": batches.process_index, "world_size": batches.num_processes}
        if batches.split_batches:
            msg = (
                "split_batches=True is for loaders that Accelerate shares out. Here a process "
                "reads batches of per_device_train_batch_size: leave it out."
            )
            raise OptionError(msg)
        if not batches.even_batches and not batches.drop_last:
            options["tail"] = "uneven"
        batches = batches.batch_sampler
    sampler = getattr(batches, "sampler", None)
    if type(sampler) not in (RandomSampler, SeedableRandomSampler, SequentialSampler):
        return options | {"batch_sampler": prepared.batch_sampler}
    return options | {
        "batch_size": batches.batch_size,
        "drop_last": batches.drop_last,
        "shuffle": isinstance(sampler, RandomSampler),
    }


class _Batches(Dataset[Any]):
    """A loader's batches in their turn, whatever number they are asked for by."""

    def __init__(self, loader: ResumableDataLoader[Any]) -> None:
        self.loader = loader
        self.rest: Iterator[Any] = iter(())

    def __getitem__(self, _number: int) -> Any:
        return next(self.rest)  # which ends the pass of whoever asks, too

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]  # samples: a Trainer shows them


class _Numbers:
    """The numbers of a loader's batches; drawing them begins a pass."""

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        self._batches.rest = iter(self._batches.loader)
        for number in itertools.count():
            yield [number]

    def __len__(self) -> int:
        return len(self._batches.loader)


def _as_numbered_batches(loader: ResumableDataLoader[Any]) -> DataLoader[Any]:
    """A loader of torch's whose samples are our batches.

    A Trainer skips what it has trained on by `accelerate.skip_first_batches`, which makes a
    new loader of the parts of the given one and draws from its batch sampler as many batches
    as are to be skipped. Drawn here are numbers, which cost nothing.
    """
    batches = _Batches(loader)
    return DataLoader(batches, batch_sampler=_Numbers(batches), collate_fn=_the_only)


def _the_only(batches: list[Any]) -> Any:
    [batch] = batches
    return batch


class _Watch(TrainerCallback):
    """Checks that our loader is in use, and puts right what a Trainer resumes otherwise.

    That is the progress bar, and the random generators of a run that resumes at the end of a
    stream.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self._trainer = trainer
        self._has_trained = False

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._trainer.train_loader is None:
            msg = (
                f"{type(self._trainer).__name__} overrides get_train_dataloader() and trains on a "
                "loader of its own, which cannot be resumed. Change the dataset, the collator or "
                "loader_options instead, or return what super().get_train_dataloader() returns."
            )
            raise OptionError(msg)
        self._has_trained = False
        for callback in self._trainer.callback_handler.callbacks:
            bar = getattr(callback, "training_bar", None)
            if isinstance(callback, ProgressCallback) and bar is not None:
                bar.initial = bar.n = bar.last_print_n = state.global_step
                bar.refresh()
                callback.current_step = state.global_step

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._has_trained = True

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        # Up to 5.0 a Trainer restores the generators with the first batch that it resumes with,
        # and at the end of a stream there is none: the epoch that is resumed is empty.
        folder = self._trainer._resumes_from  # noqa: SLF001
        if folder is not None and not self._has_trained:
            self._trainer._load_rng_state(str(folder))  # noqa: SLF001
