"""Accelerate: an `Accelerator` that prepares our loaders as they are, and keeps their states.

Accelerate's own `prepare` makes a new loader of torch's out of the parts of the given one,
with a batch sampler that shares the data among processes. Ours share by themselves and can
be sought, so `Accelerator` here hands them out as they are, with what Accelerate adds to
any loader: batches on their device, and the knowledge of a pass's last batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import DataLoader

from dataporter.errors import (
    OptionError,
    StateFormatError,
    StateMismatchError,
    StateMissingError,
    TopologyError,
)
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.trainers.loader_states import (
    FILE,
    States,
    read_states,
    write_states,
)
from dataporter.trainers.rank_states import load_states
from dataporter.trainers.requirement import require
from dataporter.training.ranks import topology

if TYPE_CHECKING:
    from dataporter.sources.passes import Pass

require("accelerate", at_least="1.1", extra="accelerate")

import accelerate  # noqa: E402  only once it is known to be there
from accelerate.data_loader import DataLoaderStateMixin  # noqa: E402
from accelerate.state import GradientState  # noqa: E402
from accelerate.utils import send_to_device  # noqa: E402

_REMEDY = "Pass restart_epoch=True to load_state to begin the loader's epoch anew."


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
    """One of our loaders as `Accelerator.prepare` hands it out.

    Everything but the passes is the loader's own: `len()`, `epoch`, `set_epoch`,
    `batches_processed`, `state_dict`. Looking ahead for the last batch delivers nothing, so
    the state in the step of a batch is that after this batch.
    """

    def __init__(
        self, loader: ResumableDataLoader[Any], device: torch.device | None, non_blocking: bool
    ) -> None:
        self.loader = loader
        self.device = device
        self.non_blocking = non_blocking
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator[Any]:
        batches: Pass = iter(self.loader)  # type: ignore[assignment]
        self.begin()  # `remainder` stays -1: where samples were repeated they are not the last
        try:
            for batch in batches:
                self.end_of_dataloader = batches.is_last()
                if self.device is None:
                    yield batch
                else:
                    yield send_to_device(batch, self.device, non_blocking=self.non_blocking)
        finally:
            self.end()

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def multiprocessing_context(self) -> NoReturn:
        """Read by `accelerate.skip_first_batches`, which makes a loader of this one's parts."""
        msg = (
            "skip_first_batches would skip what was not seen yet: after load_state the loader goes "
            "on where it had come to. Leave the call out."
        )
        raise OptionError(msg)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet, as while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # likewise
    """`accelerate.Accelerator`, at home with our loaders.

    `prepare` takes them as they are, `save_state` and `load_state` keep where they stand.
    Make the `Accelerator` first, then the loader: it shares the data among the processes
    that it finds when it is made.

    >>> from dataporter import ResumableDataLoader
    >>> accelerator = Accelerator(cpu=True)
    >>> loader = ResumableDataLoader(range(6), batch_size=2, shuffle=True, seed=1)
    >>> loader = accelerator.prepare(loader)
    >>> [accelerator.gradient_state.end_of_dataloader for batch in loader]
    [False, False, True]

    Loaders of other kinds are Accelerate's to prepare, as always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resumable: list[PreparedLoader] = []
        self._restarts_epoch = False
        self.register_save_state_pre_hook(self._save_loaders)
        self.register_load_state_pre_hook(self._load_loaders)

    def prepare_data_loader(
        self,
        data_loader: DataLoader[Any] | PreparedLoader,
        device_placement: bool | None = None,
        **options: Any,
    ) -> Any:
        """Prepare a loader: one of ours as it is, any other as Accelerate does."""
        if isinstance(data_loader, ResumableDataLoader):
            self._check(data_loader)
            places = self.device_placement if device_placement is None else device_placement
            device = self.device if places else None
            data_loader = PreparedLoader(data_loader, device, self.non_blocking)
        elif not isinstance(data_loader, PreparedLoader):
            return super().prepare_data_loader(data_loader, device_placement, **options)
        if data_loader not in self._resumable:
            self._resumable.append(data_loader)
        return data_loader

    def _check(self, loader: ResumableDataLoader[Any]) -> None:
        if self.split_batches or self.dispatch_batches:
            name = "split_batches" if self.split_batches else "dispatch_batches"
            msg = (
                f"{name}=True is for loaders that Accelerate shares out. Here every process reads "
                "its own share, in batches of the loader's batch_size: leave it out."
            )
            raise OptionError(msg)
        several = self.num_processes > 1 and getattr(self, "parallelism_config", None) is None
        if several and loader.state_dict()["world_size"] == 1:
            msg = (
                f"the loader is for one process, this run has {self.num_processes}, and each would "
                "read all of the data. Make the loader after the Accelerator, and without "
                "strategy='simple'."
            )
            raise TopologyError(msg)
        if several and not self.even_batches and getattr(loader.sampler, "tail", None) == "pad":
            msg = (
                "even_batches=False asks for no padding, but the loader pads its last batches: "
                'tail="pad". Make it with tail="uneven" or tail="drop".'
            )
            raise OptionError(msg)

    def free_memory(self, *objects: Any) -> Any:
        """Let go of everything that was prepared."""
        self._resumable.clear()
        return super().free_memory(*objects)

    def load_state(
        self, input_dir: str | None = None, *args: Any, restart_epoch: bool = False, **kwargs: Any
    ) -> None:
        """Load a state that `save_state` has saved, loaders first.

        Where it has no state of a loader, or one of another loader, that is an error and
        nothing has been loaded; with `restart_epoch=True` such a loader begins its epoch anew.
        """
        self._restarts_epoch = restart_epoch
        super().load_state(input_dir, *args, **kwargs)

    def _save_loaders(self, _models: object, _weights: object, output_dir: str) -> None:
        write_states(Path(output_dir) / FILE, self._resumable)

    def _load_loaders(self, _models: object, input_dir: str) -> None:
        if not self._resumable:
            return
        try:
            saved = self._read(Path(input_dir))
        except (StateFormatError, StateMissingError, StateMismatchError):
            if not self._restarts_epoch:
                raise
            for loader in self._resumable:
                loader.set_epoch(loader.epoch)
            return
        before = [loader.state_dict() for loader in self._resumable]
        try:
            for loader, states in zip(self._resumable, saved, strict=True):
                self._continue(loader, states)
        except BaseException:
            for loader, state in zip(self._resumable, before, strict=True):
                loader.load_state_dict(state)
            raise

    def _read(self, folder: Path) -> list[States]:
        saved = read_states(folder / FILE, remedy=_REMEDY)
        if len(saved) != len(self._resumable):
            msg = (
                f"{folder} has the states of {len(saved)} loaders, {len(self._resumable)} are "
                f"prepared. Prepare the same. {_REMEDY}"
            )
            raise StateMismatchError(msg)
        return saved

    def _continue(self, loader: PreparedLoader, states: States) -> None:
        try:
            load_states(loader.loader, states, topology())
        except StateMismatchError as error:
            if not self._restarts_epoch:
                msg = f"{error} {_REMEDY}"
                raise StateMismatchError(msg) from error
            loader.set_epoch(states[0]["epoch"] + states[0]["finished"])
