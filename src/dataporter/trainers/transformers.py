"""transformers: a `Trainer` that reads its training data through our loader.

A Trainer resumes by skipping the batches that it has trained on. Here the checkpoint holds the
loader's state, the loader continues from it, and the Trainer skips only batch numbers. The
Trainer still decides on samples, columns, collation and sampling strategy, and it evaluates with
its own loader.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from dataporter.errors import OptionError, StateMismatchError
from dataporter.requirement import known_attribute, require
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.lanes import is_iterable
from dataporter.trainers.loader_states import FILE, States, load_states, read_states, write_states
from dataporter.trainers.logged_stats import LoggedStats, checked_steps
from dataporter.training.ranks import topology

# Before the first version a Trainer miscounts an accumulation that does not divide the epoch, and
# trains nothing from a checkpoint at the end of an iterable. It requires Accelerate 1.3, although
# its own metadata asks for less.
TRIED = ("4.57", "5.22.2")
require("transformers", at_least=TRIED[0], extra="transformers")
require("accelerate", at_least="1.3", extra="transformers")

import transformers  # noqa: E402  likewise
from accelerate.data_loader import (  # noqa: E402  only after `require`
    BatchSamplerShard,
    DataLoaderDispatcher,
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

from dataporter.trainers.accelerate import data_ranks  # noqa: E402  likewise

__all__ = ["LoaderStatsCallback", "ResumableTrainer"]

_REMEDY = "Pass ignore_data_skip=True in the TrainingArguments to restart the epoch."


class ResumableTrainer(Trainer):
    """A `transformers.Trainer` that resumes at exactly the next sample.

    It takes a Trainer's arguments, and `loader_options` with further arguments of
    `ResumableDataLoader`. `train_loader` is the loader, once there is one. To combine it with
    another Trainer, put it first:

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
        # Names that a Trainer does not promise to keep. Without the first, no state would be saved.
        for name in ("_save_checkpoint", "_get_output_dir", "_load_rng_state"):
            _known(Trainer, name)
        super().__init__(*args, **kwargs)
        _known(self, "_train_batch_size")
        self.add_callback(_ResumeChecks(self))

    def train(
        self,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Train from the start or from a checkpoint: a folder, or True for the last one.

        A checkpoint without a loader state, or of other data, is an error. With
        `ignore_data_skip=True` in the TrainingArguments the epoch restarts instead.
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
        """Return the Trainer's view of our loader, which is `train_loader`."""
        options = {**self._options_of(super().get_train_dataloader()), **self._loader_options}
        self.train_loader = loader = ResumableDataLoader(**options)
        if self._resumes_from is not None:
            self._continue(loader, self._resumes_from)
        return _as_numbered_batches(loader)

    def _options_of(self, prepared: Any) -> dict[str, Any]:
        """Return the arguments of a loader with the same batches as the Trainer's own."""
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
        ranks = data_ranks(self.accelerator)
        if self.args.world_size > 1:
            options |= {"rank": ranks.rank, "world_size": ranks.world_size}
        if not is_iterable(self.train_dataset):
            return options | _options_by_index(prepared, self.args.world_size)
        if ranks.world_size > 1 and "lanes" not in self._loader_options:
            msg = (
                f"an iterable on {ranks.world_size} processes requires a number of lanes. A "
                "lane is a copy of the dataset that reads its part by get_worker_info(), as one of "
                'several workers. Pass the total number: loader_options={"lanes": ...}.'
            )
            raise OptionError(msg)
        return options | {
            "dataset": self.train_dataset,
            "batch_size": prepared.batch_size,
            "drop_last": prepared.drop_last,
        }

    def _continue(self, loader: ResumableDataLoader[Any], folder: Path) -> None:
        """Move a loader to the position of the checkpoint."""
        if self._saved is not None:
            try:
                load_states(loader, self._saved, topology())
            except StateMismatchError as error:
                msg = f"{error} {_REMEDY}"
                raise StateMismatchError(msg) from error
        try:
            length = len(loader)
        except TypeError:  # without a length the Trainer counts no epochs either
            return
        accumulated = self.args.gradient_accumulation_steps
        trained = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        epoch, step = divmod(trained.global_step, max(1, -(-length // accumulated)))
        if self._saved is not None:
            self._check_batch_size(trained.train_batch_size)
            _check_counts(self._saved[0], loader, epoch, step * accumulated)
        if step == 0 or self._saved is None:
            loader.seek(epoch)

    def _check_batch_size(self, saved: int | None) -> None:
        """Raise if the batch size differs from the checkpoint's.

        Up to 5.0 a Trainer silently continues with the checkpoint's batch size.
        """
        finds_it = self.args.auto_find_batch_size
        asked = self._train_batch_size if finds_it else self.args.train_batch_size
        if saved not in (None, asked):
            msg = (
                f"per_device_train_batch_size changed: the checkpoint was saved with {saved}, now "
                f"it is {asked}. A Trainer counts steps, so resume with the same batch size. "
                f"{_REMEDY}"
            )
            raise StateMismatchError(msg)

    def _save_checkpoint(self, model: Any, trial: Any, **kwargs: Any) -> None:
        # Written first, so that a checkpoint the Trainer takes for complete has our states too.
        folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        loader: Any = self.train_loader  # not None: see `_ResumeChecks`
        write_states(Path(self._get_output_dir(trial=trial), folder, FILE), [loader])
        super()._save_checkpoint(model, trial, **kwargs)


def _known(owner: Any, name: str) -> None:
    release = f"transformers {transformers.__version__}"
    known_attribute(owner, name, release=release, tried=TRIED)


def _check_counts(
    state: Mapping[str, Any], loader: ResumableDataLoader[Any], epoch: int, batch: int
) -> None:
    """Raise unless the Trainer's counters and the loader's state name the same batch."""
    now, length = loader.state_dict(), len(loader)
    same = all(state[name] == now[name] for name in ("batch_size", "world_size"))
    if same and state["epoch"] * length + state["batches_processed"] == epoch * length + batch:
        return
    msg = (
        f"the Trainer and the loader disagree on the position: the loader's state is at batch "
        f"{state['batches_processed']} of epoch {state['epoch']}, with batches of "
        f"{state['batch_size']} on {state['world_size']} processes; the Trainer's step count means "
        f"batch {batch} of epoch {epoch}, with batches of {now['batch_size']} on "
        f"{now['world_size']} processes. Resume with the same batch size, number of processes and "
        f"accumulation. {_REMEDY}"
    )
    raise StateMismatchError(msg)


def _options_by_index(prepared: Any, processes: int) -> dict[str, Any]:
    """Return loader arguments for the samples and order of a loader prepared by Accelerate."""
    options: dict[str, Any] = {"dataset": prepared.dataset}
    batches = prepared.batch_sampler
    if isinstance(batches, BatchSamplerShard):  # it knows rank and world size
        options |= {"rank": batches.process_index, "world_size": batches.num_processes}
        if batches.split_batches:
            msg = (
                "split_batches=True is not supported: every process reads batches of "
                "per_device_train_batch_size. Remove split_batches."
            )
            raise OptionError(msg)
        if not batches.even_batches and not batches.drop_last:
            options["tail"] = "uneven"
        batches = batches.batch_sampler
    elif processes > 1 and not isinstance(prepared, DataLoaderDispatcher):
        options |= {"rank": 0, "world_size": 1}  # Accelerate gives the same to every process
    sampler = getattr(batches, "sampler", None)
    if type(sampler) not in (RandomSampler, SeedableRandomSampler, SequentialSampler):
        return options | {"batch_sampler": prepared.batch_sampler}
    return options | {
        "batch_size": batches.batch_size,
        "drop_last": batches.drop_last,
        "shuffle": isinstance(sampler, RandomSampler),
    }


class _Batches(Dataset[Any]):
    """A loader's batches in order. The index is ignored."""

    def __init__(self, loader: ResumableDataLoader[Any]) -> None:
        self.loader = loader
        self.rest: Iterator[Any] = iter(())

    def __getitem__(self, _number: int) -> Any:
        return next(self.rest)  # StopIteration ends the Trainer's pass too

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]  # samples: a Trainer shows them


class _BatchNumbers:
    """The numbers of a loader's batches. Iterating over them starts a pass."""

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        self._batches.rest = iter(self._batches.loader)
        for number in itertools.count():
            yield [number]

    def __len__(self) -> int:
        return len(self._batches.loader)


def _as_numbered_batches(loader: ResumableDataLoader[Any]) -> DataLoader[Any]:
    """Return a torch loader whose samples are our batches.

    A Trainer skips trained batches with `accelerate.skip_first_batches`. That builds a new loader
    from the parts of the given one and draws the skipped batches from its batch sampler. Here it
    draws only numbers, which cost nothing.
    """
    batches = _Batches(loader)
    return DataLoader(batches, batch_sampler=_BatchNumbers(batches), collate_fn=_only_item)


def _only_item(batches: list[Any]) -> Any:
    [batch] = batches
    return batch


class _ResumeChecks(TrainerCallback):
    """Checks that our loader is in use, and corrects two things that a Trainer resumes wrongly.

    These are the progress bar, and the random generators of a run that resumes at the end of an
    iterable.
    """

    def __init__(self, trainer: ResumableTrainer) -> None:
        self._trainer = trainer
        self._has_trained = False

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._trainer.train_loader is None:
            msg = (
                f"{type(self._trainer).__name__}.get_train_dataloader() returns its own loader, "
                "which cannot be resumed. Change the dataset, the collator or loader_options "
                "instead, or return super().get_train_dataloader()."
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
        # Up to 5.0 a Trainer restores the generators at the first batch after a resume. At the
        # end of an iterable there is no such batch, since the resumed epoch is empty.
        folder = self._trainer._resumes_from  # noqa: SLF001
        if folder is not None and not self._has_trained:
            self._trainer._load_rng_state(str(folder))  # noqa: SLF001


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
