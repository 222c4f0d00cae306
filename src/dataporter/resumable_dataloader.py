"""`ResumableDataLoader`: wires order, plan, fetch and engine into a torch DataLoader.

What happens to the data is decided in the rooms above: which sample comes when in
`order/`, where a pass begins in `cursor`, what a batch is in `fetch/`, who fetches it in
`engine/`. Here they meet, behind torch's interface and that of the state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from dataporter.arguments import check_int
from dataporter.engine import Fetches, Renew, Results, Runner, WorkerOptions, usable_cores
from dataporter.errors import (
    OptionError,
    OptionTypeError,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    TopologyError,
    UncheckedStateWarning,
)
from dataporter.fetch import Fetcher, Skipped, conversion_of
from dataporter.fetch.timing import Timing
from dataporter.law import Plan, Tail, Topology
from dataporter.law.epochs import MOST_UNUSED, Cursor
from dataporter.law.explanation import Explanation, summary
from dataporter.law.keys import key_as_int
from dataporter.law.lane_states import Lanes
from dataporter.law.state import (
    Identity,
    Mismatch,
    Progress,
    build_state,
    is_place,
    merged,
    mismatches,
    parse_place,
    parse_state,
    past_the_end,
    unchecked,
    within,
)
from dataporter.lightning_without_callback import warn_if_lightning_resumes_alone
from dataporter.options import UNSAID, as_device, as_said, check_options
from dataporter.samplers import (
    JoiningSampler,
    ResumableSampler,
    checked_epoch,
    checked_seed,
    group_topology,
    is_own,
)
from dataporter.sources.arrivals import Arrivals
from dataporter.sources.fingerprint import Fingerprint, dataset_length
from dataporter.sources.lanes import (
    LaneFetcher,
    LaneTasks,
    Together,
    Turns,
    check_reading_again,
    fresh_lanes,
    has_lanes,
    is_datapipe,
    is_iterable,
    is_shared_out,
    is_stateful,
    own_lanes,
    share_of,
    unwrapped,
    with_shuffling,
)
from dataporter.sources.passes import Pass
from dataporter.sources.tasks import PlannedTasks, SampledTasks, Task, Tasks
from dataporter.sources.users_sampler import UsersSampler, epoch_of
from dataporter.strategies import ResumptionStrategy, agreed, resolve_strategy

Sample_co = TypeVar("Sample_co", covariant=True)


class MapStyle(Protocol[Sample_co]):
    """Anything that has samples by index: a torch Dataset, a list, an array, a tensor."""

    def __getitem__(self, index: Any, /) -> Sample_co: ...


Samples: TypeAlias = MapStyle[Sample_co] | IterableDataset[Sample_co]

_LANES_UNREAD = Mismatch(
    "the state has lanes, of an iterable or a dataset with a state; this dataset is read by index "
    "and has none.",
    "Resume with the dataset that it was saved with.",
    may_pass=False,
)


class ResumableDataLoader(DataLoader[Sample_co]):
    """A `torch.utils.data.DataLoader` that resumes at the exact sample, by a seek.

    It takes DataLoader's arguments. `state_dict()` says where the run stands, at any
    moment; `load_state_dict()` continues there, on any number of ranks and workers and with
    any batch size. Every pass is the next epoch, in another order if `shuffle` is set.

    >>> loader = ResumableDataLoader(range(10), batch_size=3, shuffle=True, seed=7)
    >>> batches = iter(loader)
    >>> seen = next(batches).tolist() + next(batches).tolist()
    >>> state = loader.state_dict()
    >>> state["epoch"], state["samples_processed"]
    (0, 6)

    >>> resumed = ResumableDataLoader(range(10), batch_size=2, shuffle=True, seed=7)
    >>> resumed.load_state_dict(state)
    >>> sorted(seen + [index for batch in resumed for index in batch.tolist()])
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

    With `in_order=False`, workers' batches are delivered as they come (on one rank; several
    ranks share a state, and deliver in order). The state stays exact.

    `num_workers="auto"` uses as many workers as keep up with the consumer, and no more than
    there are cores. The number of workers never reaches the data.

    Beyond DataLoader's arguments, by keyword:

    - `seed`: of the order and of the samples' randomness. Without one it is drawn from
      torch's global generator (or `generator`), the same on all ranks, and kept in the state.
    - `strategy`: None, 'auto' or 'unified' shares the data among the ranks of a process group
      that is up; 'simple' never does; 'distributed' insists on it.
    - `rank`, `world_size`: this rank's place, instead of the process group's.
    - `tail`: what becomes of the samples that do not fill a step on every rank. 'pad'
      (default) repeats an epoch's first samples so that all ranks make the same steps, 'drop'
      (the same as drop_last=True) leaves them out, 'uneven' lets some ranks end earlier
      (under DistributedDataParallel that needs its `join()`).
    - `randomness`: whether Python's, NumPy's and torch's generators are seeded for each
      sample, so that augmentation does not depend on who fetches it.
    - `converter`: called with each batch (or its `convert_batch` is) before it is delivered.
    - `engine`: who fetches if `num_workers` is not 0: 'processes' (default) or 'threads', for
      datasets that release the GIL and draw from `sample_rng()` only.
    - `on_error`: "raise" an error of the dataset, or "skip" the sample: it is left out of its
      batch, listed in `skipped` and logged; positions count as if it were there.
    - `max_restarts`: how many workers are replaced that die of the same batch, or one after
      another with no batch delivered in between.
    - `device`: where batches are delivered, in any container: a name or a torch.device. 'cuda' is
      the process's current device (a rank that has set none uses that of LOCAL_RANK). Batches
      are copied there ahead, in a stream of their own, from page-locked memory; yours waits
      for them, not your program.
    - `device_prefetch`: how many batches are copied ahead. The device has at most two more than
      that, beside those that you keep.
    - `device_converter`: called with each batch on its device (or its `convert_batch` is): a
      `converter` makes it narrow for the way there, this one wide again.

    An IterableDataset is read in lanes, by default as many as there are workers: each is a
    copy of it that sees `get_worker_info()` as worker l of L. The state has each lane's
    `state_dict()`, so a resume may use any number of workers; a dataset without one is read
    again up to there. A dataset that is read by index and has a state is kept likewise. The
    shares and seeds of torch's DataPipes are set for them, and `shuffle` is theirs.

    - `lanes`: how many lanes, over all ranks together: each rank reads its share of them.
      Without it a dataset has to look for its rank itself.
    - `snapshot_every_n_steps`: how often a lane's states are taken; what follows the last is
      read again at a resume.

    A `sampler` or `batch_sampler` of your own is taken as it is: by its state if it has
    `state_dict` and `load_state_dict`, else by drawing and dropping its consumed indices. Such
    a run resumes on the same number of ranks only.
    """

    def __init__(
        self,
        dataset: Samples[Sample_co],
        batch_size: int | None = 1,
        shuffle: bool | None = UNSAID,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = 2,
        persistent_workers: bool = False,
        *,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        strategy: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        randomness: bool = True,
        converter: Any = None,
        engine: str | None = None,
        on_error: str = "raise",
        max_restarts: int = 3,
        lanes: int | None = None,
        snapshot_every_n_steps: int = 1,
        device: str | torch.device | None = None,
        device_prefetch: int = 2,
        device_converter: Any = None,
        **unknown: NoReturn,
    ) -> None:
        to_device = as_device(device)
        check_options(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=bool(shuffle),
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            drop_last=drop_last,
            timeout=timeout,
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            tail=tail,
            callables={"collate_fn": collate_fn, "worker_init_fn": worker_init_fn},
            generator=generator,
            engine=engine,
            on_error=on_error,
            max_restarts=max_restarts,
            lanes=lanes,
            snapshot_every_n_steps=snapshot_every_n_steps,
            device=to_device,
            pin_memory_device=pin_memory_device,
            device_prefetch=device_prefetch,
            device_converter=device_converter,
            unknown=unknown,
        )
        self._pipe_shuffles = as_said(shuffle) if is_datapipe(dataset) else None
        dataset = with_shuffling(dataset, self._pipe_shuffles)
        self._runner = Runner(
            in_threads=engine == "threads",
            device=to_device,
            prefetch=device_prefetch,
            convert=conversion_of(device_converter, "device_converter"),
        )
        iterable = is_iterable(dataset)
        self._adapts = num_workers == "auto" and not has_lanes(dataset)
        num_workers = usable_cores() if num_workers == "auto" else num_workers
        self._fetch = Fetcher(
            dataset,
            collate_fn=collate_fn,
            converter=converter,
            batched=batch_size is not None or batch_sampler is not None,
            randomness=randomness and not (engine == "threads" and num_workers),
            skips_errors=on_error == "skip",
        )
        chosen = resolve_strategy(strategy, rank, world_size)
        drop_last = drop_last or (tail == "drop" and not iterable)
        self._seed_is_given = seed is not None
        self._own: ResumableSampler | None = None
        self._follows_length = sampler is None and batch_sampler is None and not iterable
        if is_own(sampler):
            self._own = _agreeing(sampler, seed, chosen if rank is not None else None)
            self._seed_is_given = sampler.seed_is_given
        elif self._follows_length:
            self._own = sampler = chosen.create_sampler(
                _length_of(dataset),
                shuffle=bool(shuffle),
                seed=seed,
                tail=tail or ("drop" if drop_last else "pad"),
                generator=generator,
                joins=True,
            )
        else:
            self._seed = (
                chosen.choose_seed(generator) if seed is None else checked_seed(seed, optional=True)
            )
        super().__init__(
            dataset,  # type: ignore[arg-type]  # torch says Dataset and takes anything
            batch_size=batch_size,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        # As torch keeps its own arguments: Lightning, which builds a loader again with another
        # sampler, looks for them here. What `tail` was for goes with the sampler.
        vars(self).update(
            seed=self.seed if self._seed_is_given else None,
            strategy=strategy,
            rank=rank,
            world_size=world_size,
            randomness=randomness,
            converter=converter,
            engine=engine,
            on_error=on_error,
            max_restarts=max_restarts,
            lanes=lanes,
            snapshot_every_n_steps=snapshot_every_n_steps,
            device=device,
            device_prefetch=device_prefetch,
            device_converter=device_converter,
        )
        self._users: UsersSampler | None = None
        if self._own is None and not iterable:
            self._users = UsersSampler(
                self.sampler if batch_sampler is None else batch_sampler,
                yields_batches=batch_sampler is not None,
            )
        self._found_topology = self._find_topology(chosen)
        self._awaits_group = chosen.awaits_group and isinstance(sampler, JoiningSampler | None)
        self._num_samples = dataset_length(dataset)
        self._fingerprint = Fingerprint(dataset)
        self._max_restarts = max_restarts
        self._in_threads = engine == "threads"
        self._randomness = randomness
        self._together = Together() if iterable and tail == "drop" else None
        self._splits_lanes = lanes is not None
        self._tasks = self._make_tasks(tail)
        self._lanes: LaneTasks | None = None
        if has_lanes(dataset):
            count = lanes or self._most_readers
            own = own_lanes(count, self._topology, split=self._splits_lanes)
            self._tasks = self._lanes = LaneTasks(
                self._tasks,
                lanes=fresh_lanes(count, own),
                iterable=iterable,
                stateful=is_stateful(dataset),
                carries=self._reads_inline or persistent_workers,
                in_order=in_order or not iterable,
                snapshot_every=snapshot_every_n_steps,
            )
            self._lane_fetch = self._make_lane_fetch(self._lanes.lanes)
        self._cursor = Cursor(self._tasks)
        self._told = self._telling()
        if self._own is not None and self._own.is_positioned:
            start = self._own.state_dict()
            at = Progress(epoch=start["epoch"], samples_processed=start["samples_processed"])
            self._cursor.load(at)
        elif epoch := epoch_of(self._epoch_target()):
            self._cursor.set_epoch(epoch)

    @property
    def _is_accelerate_prepared(self) -> NoReturn:
        """Read by Accelerate alone, to learn whether a loader may be used as it is."""
        msg = (
            "Accelerate would put a loader of its own in place of this one: it does not resume, "
            "and several processes would share the data twice and miss some of it. Use "
            "dataporter.trainers.accelerate.Accelerator, which prepares this loader as it is."
        )
        raise OptionTypeError(msg)

    def _find_topology(self, chosen: ResumptionStrategy) -> Topology:
        if self._own is not None:
            return self._own.topology
        told = None if self._users is None else self._users.topology()
        return told or chosen.topology()

    @property
    def _topology(self) -> Topology:
        return self._found_topology if self._own is None else self._own.topology

    def _meet_group(self) -> None:
        """Agree with the ranks of a process group that came up after this loader was built."""
        group = group_topology()
        if not self._awaits_group or group is None or group.world_size == 1:
            return
        if self._splits_lanes or self._together is not None or is_shared_out(self.dataset):
            msg = (
                f"{type(self.dataset).__name__} is read by one rank, since no process group was up "
                f"when this loader was built; now there are {group.world_size} ranks. Build it "
                "after torch.distributed.init_process_group(); in a trainer, in the function that "
                "is asked for the loader."
            )
            raise TopologyError(msg)
        if self._own is not None and not self._seed_is_given:
            self._own.seed = agreed(self._own.seed)
        self._awaits_group = False

    @property
    def _reads_inline(self) -> bool:
        """Whether the dataset is read in this process."""
        return self.num_workers == 0 or self._in_threads

    @property
    def _most_readers(self) -> int:
        """How many lanes can be read at the same time."""
        return 1 if self._reads_inline else self.num_workers

    def _make_lane_fetch(self, lanes: Lanes) -> LaneFetcher:
        return LaneFetcher(
            self.dataset,
            self._fetch,
            lanes=lanes,
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            randomness=self._randomness and not self._in_threads,
            init=self.worker_init_fn,
            readers=self._most_readers,
            inline=self._reads_inline,
            ranks=Topology() if self._splits_lanes else self._topology,
        )

    def _make_tasks(self, tail: Tail | None) -> Tasks:
        if is_iterable(self.dataset):
            return Turns(
                self.dataset,
                batch_size=self.batch_size or 1,
                drop_last=self.drop_last,
                has_workers=self.num_workers > 0,
            )
        if self._users is not None:
            return SampledTasks(
                self._users,
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                topology=self._topology,
            )
        own: Any = self._own
        plan = Plan(
            length=own.order.length,
            batch_size=self.batch_size or 1,
            topology=self._topology,
            tail=tail or ("drop" if self.drop_last else own.tail),
        )
        # Of the dataset alone: a loader that its own parts refer to would outlive its last use.
        length: Any = partial(len, self.dataset)  # type: ignore[arg-type]  # seen to have one
        return PlannedTasks(own, plan, length if self._follows_length else None)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class
        self._meet_group()
        is_loaded = self._cursor.has_loaded_start
        if is_loaded or self._cursor.newest_pass == 0:
            warn_if_lightning_resumes_alone(loaded=is_loaded)
        self._follow_sampler()
        self._fingerprint.look_again()
        return Pass(self._cursor, self._run, self._rerun, self._tasks.end, self.__len__)

    def __len__(self) -> int:
        """Batches that this rank delivers in a full epoch, wherever the run stands."""
        return self._tasks.num_batches()

    def _run(self, progress: Progress) -> Iterator[tuple[Task, Any]]:
        self._lead_sampler(progress.epoch)
        self._fetch.collate_with(self.collate_fn)  # may have been set since, as in torch
        self._fetch.begin_pass()
        if self._lanes is not None:
            results = self._read_lanes(self._lanes, progress)
        else:
            results = self._fetched(self._fetch, self._tasks.run(progress, self.seed), None)
        if self._lanes is None and not self._comes_in_order:
            results = results.noted(Arrivals(progress).note)
        # From here on, every task says what its delivery leads to, however far it is ahead.
        each = self._runner.deliver(results)
        if self._together is not None and self._topology.world_size > 1:
            each = self._together.ended(each)
        return each

    def _read_lanes(self, lanes: LaneTasks, progress: Progress) -> Results:
        fetch, opens = self._lane_fetch, None
        if self._reads_inline:
            fetch = fetch.for_one_pass()
            opens = fetch.open
        elif not self._runner.goes_on:
            lanes.bring_along()  # to workers that have not read what came before
        reading = lanes.run(progress, self.seed, opens)
        if self._cursor.progress is progress:  # not of an older pass that goes on
            self._cursor.progress = reading.progress
        return self._fetched(fetch, reading, reading.renewed).noted(reading.received)

    @property
    def _comes_in_order(self) -> bool:
        if is_iterable(self.dataset):
            return self.in_order
        # One rank's state must hold for all, and cannot say what the others delivered ahead.
        one_rank = self._topology.world_size == 1
        return self.in_order or self.num_workers == 0 or not one_rank or self._lanes is not None

    def _fetched(self, fetch: Fetches, tasks: Iterator[Task], renew: Renew | None) -> Results:
        return self._runner.run(
            tasks,
            fetch,
            self._worker_options(),
            randomness=self._randomness,
            stays=self.persistent_workers,
            renew=renew,
        )

    def _rerun(self, progress: Progress) -> Iterator[tuple[Task, Any]]:
        self._tasks.restore(progress)
        return self._run(progress)

    def _worker_options(self) -> WorkerOptions:
        has_lanes = self._lanes is not None
        in_one_thread = has_lanes and self._in_threads
        return WorkerOptions(
            num_workers=min(self.num_workers, 1) if in_one_thread else self.num_workers,
            adapts=self._adapts,
            prefetch_factor=self.prefetch_factor or 2,
            timeout=self.timeout,
            init=None if has_lanes else self.worker_init_fn,
            context=self.multiprocessing_context,
            max_restarts=self._max_restarts,
            seed=key_as_int("worker", self.seed) >> 1,  # as torch: below 2**63
            dataset=self.dataset,
            pin_memory=self.pin_memory or self._runner.copies_ahead,
            copies_ahead=self._runner.copies_ahead,
            in_order=self._comes_in_order,
            has_places=has_lanes,
        )

    @property
    def seed(self) -> int:
        """Decides the order and the samples' randomness, with the epoch and the position."""
        return self._seed if self._own is None else self._own.seed

    @property
    def skipped(self) -> list[Skipped]:
        """The samples left out with on_error="skip", in the order of their batches."""
        return self._fetch.skipped

    @property
    def epoch(self) -> int:
        """The epoch that the state speaks of: delivered last, or loaded, or set."""
        return self._cursor.progress.epoch

    @property
    def batches_processed(self) -> int:
        """Batches of this epoch that this rank has delivered."""
        return self._cursor.progress.batches_processed

    @property
    def samples_processed(self) -> int:
        """Samples of this epoch that all ranks together have delivered."""
        return self._cursor.progress.samples_processed

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`; a position loaded for that epoch is kept."""
        self._cursor.set_epoch(checked_epoch(epoch))
        self._lead_sampler(epoch)

    def state_dict(self, *, unused: int = 0) -> dict[str, Any]:
        """Say where the run stands: the batch last delivered counts as consumed.

        The dict holds builtins only, is the same on every rank, and never changes later.
        It may be taken at any moment, in a signal handler too.

        `unused` is for a trainer that looks ahead: so many of the batches that this pass has
        delivered last, up to 2, have not been trained on and are to come again.
        """
        check_int("unused", unused, least=0)
        if unused > MOST_UNUSED:
            msg = f"unused must be at most {MOST_UNUSED}, found {unused}."
            raise OptionError(msg)
        return build_state(self._identity(), self._cursor.before(unused))

    def explain(self) -> Explanation:
        """Say in words where the run stands, what comes next and what a resume needs."""
        return Explanation(
            identity=self._identity(),
            progress=self._cursor.progress,
            drop_last=self.drop_last or getattr(self.sampler, "tail", None) == "drop",
        )

    def note_times(self, timing: Timing) -> None:
        """Have passes note what their time goes into, and workers that are started from now on.

        For `dataporter profile`, which says what it means.
        """
        self._fetch.timing = timing

    def __repr__(self) -> str:
        if "_told" not in self.__dict__:  # its arguments were refused
            return super().__repr__()
        return summary(self, self.explain(), self._topology)

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True
    ) -> None:
        """Make the next pass continue where `state_dict` was taken.

        A state of other data, another order or another seed is refused, and the loader is
        left as it was; with `strict=False` that is a warning, and the pass continues at
        the state's position of what this loader has. A position past the end of its epoch is
        counted on into later ones, with a warning.

        A dict of `epoch`, `samples_processed`, `batches_processed` and `rng_state` alone says where
        to continue, and nothing that could be checked: it is loaded with a warning. The seed is
        this loader's own.

        With `lanes`, each rank has a state of its own; to continue on another number of ranks,
        give a list of all.
        """
        if is_place(state_dict):
            self._load_place(parse_place(state_dict))  # type: ignore[arg-type]  # a mapping
            return
        saved, progress = self._parsed(state_dict)
        present = self._identity()
        seed = present.seed if self._seed_is_given else saved.seed
        found = list(
            mismatches(
                saved,
                replace(present, seed=seed),
                world_may_change=self._own is not None or self._splits_lanes,
            )
        )
        if progress.lanes is not None and self._lanes is None:
            found.append(_LANES_UNREAD)
            progress = replace(progress, lanes=None)
        if found and strict:
            raise StateMismatchError("\n".join(each.as_error(progress) for each in found))
        for each in found:
            warnings.warn(each.as_warning(progress), StateMismatchWarning, stacklevel=2)
        # An epoch has the length that it began with, however the dataset has grown since.
        length = saved.length if saved.num_samples == present.num_samples else None
        moved = self._within_epoch(progress, length, same_data=not found, strict=strict)
        if moved.epoch != progress.epoch:
            length = None  # a later epoch has its own
        self._continue_at(self._fitted(moved, saved.batch_size), seed, length)

    def _load_place(self, progress: Progress) -> None:
        """Continue at a place in this loader's own order, which nothing can be compared with."""
        if self._lanes is not None or (self._users is not None and self._users.is_stateful):
            what = "the dataset's lanes" if self._lanes is not None else "its sampler"
            msg = (
                f"the state holds only a position, and this loader needs the state of {what} too. "
                "Pass the whole dict that state_dict() returned, or begin the epoch anew."
            )
            raise StateFormatError(msg)
        drawn = self._own is not None and self._own.shuffle and not self._seed_is_given
        progress = self._within_epoch(progress, None, same_data=True, strict=True)
        message = unchecked(progress, seed=self.seed if drawn else None)
        warnings.warn(message, UncheckedStateWarning, stacklevel=3)
        self._continue_at(progress, self.seed)

    def _within_epoch(
        self, progress: Progress, saved: int | None, *, same_data: bool, strict: bool
    ) -> Progress:
        """A progress whose position is one of its epoch, where that is of our own order.

        `saved` is how long the state says that its epoch was, if it says so.
        """
        if self._own is None:
            return progress
        length = self._epoch_length(saved)
        step = self._topology.world_size * (self.batch_size or 1)
        moved = within(progress, length, step=step, same_data=same_data, strict=strict)
        if moved.epoch != progress.epoch:
            message = past_the_end(progress, length, moved)
            warnings.warn(message, StateMismatchWarning, stacklevel=3)
        return moved

    def _epoch_length(self, saved: int | None) -> int:
        """Positions of an epoch of our own order: as saved, or as the dataset has samples now."""
        if not self._follows_length:
            return self._own.order.length if self._own is not None else 0
        return _length_of(self.dataset) if saved is None else saved

    def _continue_at(self, progress: Progress, seed: int, length: int | None = None) -> None:
        """Make the next pass begin at a progress that fits this loader."""
        self._tasks.restore(progress)
        if self._follows_length and self._own is not None:
            self._own.resize(self._epoch_length(length))
        self._follow_lanes()
        if self._own is None:
            self._seed = seed
        else:
            self._own.seed = seed
            self._awaits_group = False  # whoever loads this state has this seed
        self._cursor.load(progress)
        self._lead_sampler(progress.epoch)

    def _parsed(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> tuple[Identity, Progress]:
        """Read a state, or those of all ranks."""
        if not (self._splits_lanes and isinstance(state, list) and state):
            return parse_state(state)
        return merged([parse_state(one) for one in state])

    def _fitted(self, progress: Progress, batch_size: int | None) -> Progress:
        """A progress whose lanes are those that this rank reads; saved with `batch_size`."""
        if self._lanes is None:
            return progress
        if progress.lanes is None:
            return replace(progress, lanes=self._lanes.lanes)
        lanes = share_of(progress.lanes, self._topology, split=self._splits_lanes)
        progress = replace(progress, lanes=lanes)
        if is_iterable(self.dataset) and not progress.finished:
            check_reading_again(
                progress,
                batch_size,
                self.batch_size,
                dataset=unwrapped(self.dataset),
                snapshot_every=vars(self)["snapshot_every_n_steps"],
            )
        return progress

    def _follow_lanes(self) -> None:
        """Read as many lanes as a loaded state has."""
        if self._lanes is not None and not self._lane_fetch.reads(self._lanes.lanes):
            self._lane_fetch = self._lane_fetch.for_lanes(self._lanes.lanes)
            self._runner.close()

    def _identity(self) -> Identity:
        num_samples = length = self._num_samples
        if self._follows_length and self._own is not None:
            num_samples, length = _length_of(self.dataset), self._own.order.length
        return Identity(
            seed=self.seed,
            shuffle=self._own is not None and self._own.shuffle,
            order=self._order_id(),
            num_samples=num_samples,
            fingerprint=self._fingerprint(),
            batch_size=self.batch_size,
            world_size=self._topology.world_size,
            length=None if length == num_samples else length,
        )

    def _order_id(self) -> str:
        if is_iterable(self.dataset):
            order = f"lanes of {type(self.dataset).__qualname__}"
            shuffles = self._pipe_shuffles
            return order if shuffles is None else f"{order}, shuffle={shuffles}"
        if self._users is not None:
            return self._users.order_id()
        return self._own.order.id if self._own is not None else ""

    def _lead_sampler(self, epoch: int) -> None:
        """Tell the sampler the epoch, as torch's DistributedSampler has to be told."""
        target = self._epoch_target()
        if target is not None:
            target.set_epoch(epoch)
        self._told = self._telling()

    def _follow_sampler(self) -> None:
        """Take over an epoch that was set on the sampler, as torch's users and trainers do."""
        epoch = epoch_of(self._epoch_target())
        if epoch is not None and self._told != self._telling():
            self.set_epoch(epoch)

    def _telling(self) -> int | None:
        """What changes when somebody sets the sampler's epoch."""
        return epoch_of(self._epoch_target()) if self._own is None else self._own.times_set

    def _epoch_target(self) -> Any:
        if is_iterable(self.dataset):
            tellable = callable(getattr(self.dataset, "set_epoch", None))
            return self.dataset if tellable and epoch_of(self.dataset) is not None else None
        return self._own if self._users is None else self._users.epoch_target()


def _length_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        msg = (
            f"{type(dataset).__name__} has no length, so it has no order to resume in "
            f"({type(error).__name__}: {error}). Give it __len__, or pass a sampler."
        )
        raise OptionTypeError(msg) from error


def _agreeing(
    sampler: ResumableSampler, seed: int | None, told: ResumptionStrategy | None
) -> ResumableSampler:
    """Return a sampler that the loader's other arguments do not contradict."""
    if seed is not None and seed != sampler.seed:
        msg = f"seed={seed} contradicts the sampler's seed={sampler.seed}. Give it to one of them."
        raise OptionError(msg)
    if told is not None and told.topology() != sampler.topology:
        msg = f"{told.topology()} contradicts the sampler's {sampler.topology}. Drop one of them."
        raise OptionError(msg)
    return sampler


def create_resumable_dataloader(
    dataset: Samples[Sample_co],
    batch_size: int | None = 1,
    shuffle: bool | None = UNSAID,
    **options: Any,
) -> ResumableDataLoader[Sample_co]:
    """Make a `ResumableDataLoader`; `options` are any of its arguments.

    >>> len(create_resumable_dataloader(range(10), batch_size=4))
    3
    """
    return ResumableDataLoader(dataset, batch_size, shuffle, **options)
