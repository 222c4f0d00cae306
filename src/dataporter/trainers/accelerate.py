"""Accelerate: an `Accelerator` that uses our loaders as they are and saves their states.

Accelerate's own `prepare` builds a new torch loader from the parts of the given one, with a
batch sampler that shares the data among processes. Our loaders already share their data. So
this `Accelerator` returns them as they are, and adds only three features of Accelerate: it moves
batches to their device, it reports the last batch of a pass, and `gather_for_metrics` leaves out
what was repeated in that one.
"""

from __future__ import annotations

import math
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
from dataporter.law import Topology
from dataporter.loader.steps import numbered, numbered_with_bar, progress_bars
from dataporter.ranks import believe
from dataporter.requirement import require
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.sources.delivered import rows_of
from dataporter.trainers.loader_states import (
    FILE,
    States,
    load_states,
    read_states,
    write_states,
)
from dataporter.training.ranks import topology

if TYPE_CHECKING:
    from dataporter.sources.passes import Pass

require("accelerate", at_least="1.1", extra="accelerate")

import accelerate  # noqa: E402  only after `require`
from accelerate.data_loader import DataLoaderStateMixin  # noqa: E402
from accelerate.state import GradientState  # noqa: E402
from accelerate.utils import send_to_device  # noqa: E402

_REMEDY = "Pass restart_epoch=True to load_state to restart the loader's epoch."


# Attributes of a prepared loader itself; what else is set on it belongs to the loader.
_OWN = {
    *("loader", "device", "non_blocking"),
    *("gradient_state", "end_of_dataloader", "remainder"),  # Accelerate's
}


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
    """One of our loaders as `Accelerator.prepare` returns it.

    Whatever delivers batches is prepared: iteration, `steps`, `batch_at`. Everything else is the
    loader's own, read and set: `len()`, `epoch`, `set_epoch`, `seek`, `batches_processed`,
    `state_dict`, `collate_fn`. The look-ahead for the last batch delivers nothing, so a state taken
    in a training step includes exactly the batches up to this one.
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
        self.begin()
        self.remainder = 0  # repeated samples need not be the last ones: the loader tells them
        try:
            for batch in batches:
                self.end_of_dataloader = batches.is_last()
                yield self._placed(batch)
        finally:
            self.end()

    def __len__(self) -> int:
        return len(self.loader)

    def steps(self, *, progress: bool = False) -> Iterator[tuple[int, Any]]:
        """Iterate over one pass: each prepared batch with its number in the epoch, from 0."""
        if not progress:
            return numbered(self)
        return numbered_with_bar(self, progress_bars(), is_shown=lambda: topology().rank == 0)

    def batch_at(self, epoch: int, position: int = 0) -> Any:
        """Fetch the batch that this rank has in the step that begins at `position`, prepared."""
        return self._placed(self.loader.batch_at(epoch, position))

    def _placed(self, batch: Any) -> Any:
        if self.device is None:
            return batch
        return send_to_device(batch, self.device, non_blocking=self.non_blocking)

    @property
    def multiprocessing_context(self) -> NoReturn:
        """Raise for `accelerate.skip_first_batches`, which reads this attribute."""
        msg = (
            "skip_first_batches would skip unseen batches: after load_state the loader already "
            "continues at the next batch. Remove the call."
        )
        raise OptionError(msg)

    def __getattr__(self, name: str) -> Any:
        # Private names lead past the preparation, and `loader` is not set while unpickling.
        if name == "loader" or name.startswith("_"):
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in _OWN or name.startswith("_") or not hasattr(self.loader, name)
        if is_own:
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)


def data_ranks(accelerator: accelerate.Accelerator) -> Topology:
    """Return a process's rank among those that share the data, by Accelerate's mesh."""
    mesh: Any = getattr(accelerator, "torch_device_mesh", None)
    sizes = {} if mesh is None else dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    # As in `accelerate.data_loader.prepare_data_loader`: these are the mesh's inner dimensions.
    peers = math.prod(sizes.get(name, 1) for name in ("tp", "cp"))
    return Topology(
        rank=accelerator.process_index // peers, world_size=accelerator.num_processes // peers
    )


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # likewise
    """`accelerate.Accelerator` with support for our loaders.

    `prepare` uses them as they are, and `save_state` and `load_state` include their states.
    Make the `Accelerator` first and then the loader, which shares the data among the processes
    that exist when it is made. With a mesh, those of one tensor- or context-parallel group get the
    same batches.

    >>> from dataporter import ResumableDataLoader
    >>> accelerator = Accelerator(cpu=True)
    >>> loader = ResumableDataLoader(range(6), batch_size=2, shuffle=True, seed=1)
    >>> loader = accelerator.prepare(loader)
    >>> [accelerator.gradient_state.end_of_dataloader for batch in loader]
    [False, False, True]

    Accelerate itself prepares all other loaders, as usual.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._resumable: list[PreparedLoader] = []
        self._restarts_epoch = False
        self._data_ranks = data_ranks(self)
        believe(self._data_ranks)
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
                f"{name}=True is not supported for dataporter's loaders: every process reads its "
                f"own share, in batches of the loader's batch_size. Remove {name}."
            )
            raise OptionError(msg)
        config = getattr(self, "parallelism_config", None)
        if config is not None and getattr(config, "sp_size", 1) > 1:
            msg = (
                f"sp_size={config.sp_size} is not supported for dataporter's loaders: Accelerate "
                "splits sequences in a loader of its own. Use cp_size, or torch's DataLoader."
            )
            raise OptionError(msg)
        ranks, found = self._data_ranks.world_size, loader.state_dict()["world_size"]
        if found == 1 < ranks:
            msg = (
                f"the loader does not share its data, but this run has {ranks} processes that do. "
                "Make the loader after the Accelerator, and without strategy='simple'."
            )
            raise TopologyError(msg)
        if found != ranks < self.num_processes:
            msg = (
                f"the loader shares its data among {found} ranks, but of this run's "
                f"{self.num_processes} processes {ranks} share it: the others are their tensor- or "
                "context-parallel peers. Make the loader after the Accelerator, and without rank= "
                f"and world_size=, or with rank={self._data_ranks.rank} and world_size={ranks}."
            )
            raise TopologyError(msg)
        if (
            ranks > 1
            and not self.even_batches
            and loader.plan is not None
            and loader.plan.tail == "pad"
        ):
            msg = (
                'even_batches=False conflicts with the loader\'s tail="pad". Make the loader with '
                'tail="uneven" or tail="drop".'
            )
            raise OptionError(msg)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather from all processes each sample once: not those repeated to fill a last batch.

        So a metric is the same on any number of processes.
        """
        gathered = super().gather_for_metrics(input_data, use_gather_object)
        loader = self.gradient_state.active_dataloader
        is_ours = isinstance(loader, PreparedLoader) and loader.delivered is not None
        peers = self.num_processes // self._data_ranks.world_size
        if not is_ours or self.num_processes == 1 or not (loader.end_of_dataloader or peers > 1):
            return gathered
        mine = ~loader.delivered.padding
        if self.process_index % peers:  # another process has the same samples
            mine[:] = False
        real = self.gather(torch.from_numpy(mine).to(self.device))
        return rows_of(gathered, real.cpu().numpy(), keeps_others=True)

    def free_memory(self, *objects: Any) -> Any:
        """Release everything that was prepared."""
        self._resumable.clear()
        return super().free_memory(*objects)

    def load_state(
        self, input_dir: str | None = None, *args: Any, restart_epoch: bool = False, **kwargs: Any
    ) -> None:
        """Load a checkpoint of `save_state`, loaders first.

        A missing loader state, or the state of another loader, is an error, and nothing is
        loaded. With `restart_epoch=True` such a loader restarts its epoch instead.
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
                loader.seek(loader.epoch)
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
                f"{folder} has the states of {len(saved)} loaders, but {len(self._resumable)} are "
                f"prepared. Prepare the same loaders. {_REMEDY}"
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
            loader.seek(states[0]["epoch"] + states[0]["finished"])
