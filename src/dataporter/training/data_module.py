"""`UniversalDataModule`: loaders for training and validation from almost any data.

The split is a function of seed, share and length, so it is equal in every run and on every rank.
The registry chooses the collator for the task.
"""

from __future__ import annotations

import inspect
import warnings
from array import array
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset

from dataporter.arguments import check_int, check_names, check_number
from dataporter.datasets.huggingface import check_dataset
from dataporter.errors import (
    OptionError,
    OptionTypeError,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
)
from dataporter.law import ShuffledOrder
from dataporter.law.keys import checked_seed, key_as_int
from dataporter.ranks import choose_seed, find_ranks
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.fingerprint import dataset_length
from dataporter.sources.lanes import has_lanes, is_iterable
from dataporter.training.factory import DataLoaderConfig, DataLoaderFactory
from dataporter.training.registry import CollatorRegistry, DefaultCollator, TaskSpec
from dataporter.training.tensor_collator import TensorCollator, is_list_of_numbers, is_tensor


@runtime_checkable
class DataModuleProtocol(Protocol):
    """An object with loaders for training and validation.

    >>> class Mine:
    ...     def train_dataloader(self):
    ...         return DataLoader(range(8), batch_size=2)
    ...     def val_dataloader(self):
    ...         return None
    >>> isinstance(Mine(), DataModuleProtocol)
    True
    """

    def train_dataloader(self) -> DataLoader[Any]: ...

    def val_dataloader(self) -> DataLoader[Any] | None: ...


class UniversalDataModule:
    """Loaders for training and validation, from one dataset that is split or from two.

    `train_data` is a Hugging Face dataset, a torch dataset, a list, a tensor or an array.
    Without `val_data`, the share `val_split` of the training data, chosen by the seed, is kept
    for validation; `val_split=0` means no validation. `seed=None` draws a seed, and ranks of a
    process group agree on it.

    >>> rows = [torch.randint(0, 1000, (128,)) for _ in range(500)]
    >>> module = UniversalDataModule(rows, batch_size=32, val_split=0.2, seed=42)
    >>> module
    UniversalDataModule(400 for training, 100 for validation, seed=42)
    >>> next(iter(module.train_dataloader())).shape
    torch.Size([32, 128])

    Batches are made by the first of these: `collate_fn`; the `CollatorRegistry`'s collator for
    `task_spec`; the text collator, if there is a `tokenizer`; the dataset's own `collate_fn`;
    default collation. A list of tensors gives batches of one tensor: rows of unequal shapes, also
    lists of numbers, are padded with 0 at their ends. A `task_spec` such as `TaskSpec.lm_tiny()`
    makes dicts with attention masks and labels of token ids instead. `pad_token_id` pads ids, in
    place of the tokenizer's padding token or 0.

    Each loader is made at its first use, so a process group must be initialized by then. Later
    calls return the same loader: its passes are the epochs of one run, and the module has one
    state. Training data is shuffled, validation data comes in the dataset's order.

    >>> batches = iter(module.train_dataloader())
    >>> first = next(batches)
    >>> state = module.state_dict()
    >>> resumed = UniversalDataModule(rows, batch_size=32, val_split=0.2, seed=42)
    >>> resumed.load_state_dict(state)
    >>> torch.equal(next(iter(resumed.train_dataloader())), next(batches))
    True

    An IterableDataset or a dataset with its own state cannot be split: pass `val_data` or
    `val_split=0`. The other arguments are those of `DataLoaderConfig`. `drop_last` applies to
    training only.
    """

    def __init__(
        self,
        train_data: Any,
        val_data: Any = None,
        task_spec: TaskSpec | None = None,
        tokenizer: Any = None,
        batch_size: int = 32,
        val_split: float = 0.2,
        num_workers: int | Literal["auto"] | None = None,
        seed: int | None = 42,
        *,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        pin_memory: bool | None = None,
        prefetch_factor: int | None = 2,
        persistent_workers: bool | None = None,
        device: str | torch.device | None = None,
        pad_token_id: int | None = None,
        **unknown: NoReturn,
    ) -> None:
        check_names("UniversalDataModule", unknown, _parameters())
        check_number("val_split", val_split, below=1)
        _check_data("train_data", train_data)
        if val_data is not None:
            _check_data("val_data", val_data)
        self.seed = choose_seed(find_ranks()) if seed is None else checked_seed(seed, optional=True)
        self.task_spec = task_spec
        self.tokenizer = tokenizer
        self.val_split = val_split if val_data is None else 0.0
        self.train_data = train_data
        self.val_data = val_data
        if self.val_split:
            self.train_data, self.val_data = _split(train_data, val_split, self.seed)
        check_int("pad_token_id", pad_token_id, least=0, optional=True)
        if collate_fn is None:
            collate_fn = _collator(train_data, val_data, task_spec, tokenizer, pad_token_id)
        elif pad_token_id is not None:
            raise _unused(pad_token_id, "collate_fn= makes the batches")
        self._train_config, self._val_config = (
            DataLoaderConfig(
                batch_size=batch_size,
                shuffle=is_training and not is_iterable(train_data),
                num_workers=num_workers,
                pin_memory=pin_memory,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                # Another key, so that training and validation never share random numbers.
                seed=self.seed if is_training else key_as_int("validation", self.seed),
                collate_fn=collate_fn,
                drop_last=is_training and drop_last,
                device=device,
            )
            for is_training in (True, False)
        )
        self._train_loader: ResumableDataLoader[Any] | None = None
        self._val_loader: ResumableDataLoader[Any] | None = None

    def train_dataloader(self) -> ResumableDataLoader[Any]:
        """Return the loader of the training data, always the same one."""
        if self._train_loader is None:
            factory = DataLoaderFactory()
            self._train_loader = factory.create_dataloader(self.train_data, self._train_config)
        return self._train_loader

    def val_dataloader(self) -> ResumableDataLoader[Any] | None:
        """Return the loader of the validation data, always the same one, or None.

        Lightning rejects None and takes an empty list for "no validation", so its `Trainer` gets
        a list, also through a hook of yours that returns this.
        """
        loader = self._validation()
        if loader is None and _lightning_asks():
            return []  # type: ignore[return-value]  # only for Lightning
        return loader

    def _validation(self) -> ResumableDataLoader[Any] | None:
        if self._val_loader is None and self.val_data is not None:
            factory = DataLoaderFactory()
            self._val_loader = factory.create_dataloader(self.val_data, self._val_config)
        return self._val_loader

    def on_exception(self, exception: BaseException) -> NoReturn:
        """Raise an error that says what to pass to Lightning, which calls this hook.

        It calls the hook only of a module that was passed as `datamodule=`, which has failed.
        """
        msg = (
            f"datamodule= must be a LightningDataModule, found {type(self).__name__}. Pass its "
            "loaders: trainer.fit(model, module.train_dataloader(), module.val_dataloader()), or "
            "return them from the hooks of your own LightningModule or LightningDataModule."
        )
        raise OptionTypeError(msg) from exception

    def state_dict(self) -> dict[str, Any]:
        """Return the split and the states of both loaders, in builtins only."""
        val_loader = self._validation()
        return {
            "seed": self.seed,
            "val_split": self.val_split,
            "train": self.train_dataloader().state_dict(),
            "val": None if val_loader is None else val_loader.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Make both loaders continue where `state_dict` was taken.

        Another split is an error, since training would then see validation samples. So is
        every mismatch of a loader's state. With `strict=False` these are warnings.
        """
        _check_state(state_dict)
        messages = list(self._mismatches(state_dict))
        if messages and strict:
            raise StateMismatchError("\n".join(messages))
        for message in messages:
            warnings.warn(message, StateMismatchWarning, stacklevel=2)
        train_loader, val_loader = self.train_dataloader(), self._validation()
        before = train_loader.state_dict()
        train_loader.load_state_dict(state_dict["train"], strict)
        if val_loader is None or state_dict["val"] is None:
            return
        try:
            val_loader.load_state_dict(state_dict["val"], strict)
        except Exception:
            train_loader.load_state_dict(before)  # both or none
            raise

    def _mismatches(self, state: Mapping[str, Any]) -> list[str]:
        had_val_data = state["val"] is not None and not state["val_split"]
        has_val_data = self.val_data is not None and not self.val_split
        messages = []
        if state["seed"] != self.seed:
            messages.append(
                f"seed changed: the state was saved with {state['seed']}, this module has "
                f"{self.seed}. Pass seed={state['seed']} to continue that run."
            )
        if had_val_data != has_val_data:
            saved, now = ("with", "has none") if had_val_data else ("without", "has some")
            remedy = "that run's val_data" if had_val_data else f"val_split={state['val_split']}"
            messages.append(
                f"val_data changed: the state was saved {saved} val_data, this module {now}. "
                f"Pass {remedy}{'' if had_val_data else ' and no val_data'} to continue that run."
            )
        elif state["val_split"] != self.val_split:
            messages.append(
                f"val_split changed: the state was saved with {state['val_split']}, this module "
                f"has {self.val_split}. Pass val_split={state['val_split']} to continue that run."
            )
        return messages

    def __repr__(self) -> str:
        counts = [f"{_count(self.train_data)} for training"]
        if self.val_data is not None:
            counts.append(f"{_count(self.val_data)} for validation")
        return f"{type(self).__name__}({', '.join(counts)}, seed={self.seed})"


def _parameters() -> list[str]:
    names = inspect.signature(UniversalDataModule).parameters
    return [name for name in names if name != "unknown"]


def _check_data(name: str, data: Any) -> None:
    if is_iterable(data):
        return
    if isinstance(data, str | bytes):
        msg = (
            f"{name} must be a dataset or a list of rows, found {type(data).__name__}. Load the "
            "data first."
        )
        raise OptionTypeError(msg)
    check_dataset(data)
    if not dataset_length(data):
        msg = f"{name} is empty or has no length, expected at least one sample."
        raise OptionError(msg)


def _split(data: Any, share: float, seed: int) -> tuple[Subset[Any], Subset[Any]]:
    """Keep a share of the data for validation, chosen by the seed."""
    if has_lanes(data):
        msg = (
            f"{type(data).__name__} cannot be split by val_split={share}, since it is iterable or "
            "has its own state. Pass val_data=, or val_split=0 for no validation."
        )
        raise OptionError(msg)
    length = len(data)
    held_out = round(length * share)
    if held_out in (0, length):
        side = "validation" if held_out == 0 else "training"
        msg = (
            f"val_split={share} of {length} samples leaves none for {side}. Choose another share, "
            "pass val_data=, or pass val_split=0 for no validation."
        )
        raise OptionError(msg)
    order = ShuffledOrder(length, seed=key_as_int("split", seed))
    drawn = order.indices(0, np.arange(length))
    val, train = np.sort(drawn[:held_out]), np.sort(drawn[held_out:])
    return _subset(data, train), _subset(data, val)


def _subset(data: Any, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Subset[Any]:
    # As compact as a NumPy array, and its items are Python ints, which every dataset accepts.
    return Subset(data, array("q", indices.tobytes()))


def _collator(
    train_data: Any,
    val_data: Any,
    task_spec: TaskSpec | None,
    tokenizer: Any,
    pad_token_id: int | None,
) -> Callable[[Any], Any] | None:
    """Choose a collator. None is default collation, which the loader does itself and faster."""
    registry = CollatorRegistry.get_instance()
    options: dict[str, Any] = {} if pad_token_id is None else {"pad_token_id": pad_token_id}
    if task_spec is not None:
        collator = registry.get_collator(task_spec=task_spec, tokenizer=tokenizer, **options)
        return None if type(collator) is DefaultCollator else collator
    if tokenizer is not None:
        return registry.get_collator(collator_name="text", tokenizer=tokenizer, **options)
    own = getattr(train_data, "collate_fn", None)
    if callable(own):
        if pad_token_id is not None:
            raise _unused(pad_token_id, "the dataset's own collate_fn makes the batches")
        return own  # type: ignore[no-any-return]
    lists = [data for data in (train_data, val_data) if _are_rows(data)]
    if pad_token_id is not None and not lists:
        raise _unused(pad_token_id, "there is neither a tokenizer= nor a task_spec=")
    # With default collation, too, a batch of tensors is one tensor.
    rows = chain.from_iterable(lists)
    is_ragged = len({row.shape if is_tensor(row) else len(row) for row in rows}) > 1
    return TensorCollator(pad_token_id or 0) if is_ragged else None


def _are_rows(data: Any) -> bool:
    """Return True for rows that can be padded: tensors and arrays, or lists of numbers."""
    if not isinstance(data, list | tuple):
        return False
    return all(map(is_tensor, data)) or all(map(is_list_of_numbers, data))


def _unused(pad_token_id: int, why: str) -> OptionError:
    msg = (
        f"pad_token_id={pad_token_id} has no effect: {why}. Remove pad_token_id, or pass "
        "task_spec=TaskSpec.lm_tiny() instead, which pads token ids."
    )
    return OptionError(msg)


def _lightning_asks() -> bool:
    """Return True while a Lightning Trainer asks for a loader."""
    # Lightning replaces DataLoader's constructor meanwhile, and keeps the real one here.
    return "__old__init__" in vars(DataLoader)


def _check_state(state: Any) -> None:
    expected = ("seed", "val_split", "train", "val")
    lacking = (
        [name for name in expected if name not in state] if isinstance(state, Mapping) else expected
    )
    if lacking:
        msg = (
            "this is not a state of a data module: expected a dict with 'seed', 'val_split', "
            f"'train' and 'val', found {type(state).__name__} without {', '.join(lacking)}. Pass "
            "the return value of its state_dict()."
        )
        raise StateFormatError(msg)


def _count(data: Any) -> str:
    return "a stream" if is_iterable(data) else f"{len(data):,}"
