"""`ResumableDataLoader`: torch's interface over a source, an engine and a cursor.

A source (`sources/`) says what a pass consists of, an engine (`engine/`) fetches it, the cursor
(`law/epochs`) says where the next pass begins, and a `Pass` hands the batches over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from torch.utils.data import DataLoader

from dataporter.arguments import arguments_of, check_int, same_arguments_as
from dataporter.callers import (
    is_in_lightnings_training,
    is_told_by_wrapper,
    lightning_resumes_alone,
)
from dataporter.errors import OptionError, OptionTypeError, PositionDroppedWarning
from dataporter.fetch import Skipped
from dataporter.fetch.timing import Timing
from dataporter.law import Plan
from dataporter.law.epochs import MOST_UNUSED, Cursor
from dataporter.law.explanation import Explanation, summary
from dataporter.law.keys import checked_epoch
from dataporter.law.state import Progress, build_state, dropped
from dataporter.loader.lookback import batch_at, contents_at, samples_at
from dataporter.loader.options import (
    NOT_GIVEN,
    AnyDataset,
    LoaderOptions,
    given,
)
from dataporter.loader.stats import LoaderStats, loader_stats
from dataporter.loader.steps import numbered, numbered_with_bar, progress_bars
from dataporter.loader.wiring import (
    make_fetcher,
    make_runner,
    make_sample_fetcher,
    make_source,
    worker_options,
)
from dataporter.ranks import group_topology
from dataporter.sources.delivered import Delivered
from dataporter.sources.lanes.datapipes import is_datapipe, with_shuffling
from dataporter.sources.loading import resumption
from dataporter.sources.passes import Pass
from dataporter.sources.readings import Result
from dataporter.sources.source import Resumption
from dataporter.sources.tally import Tallies
from dataporter.user_warnings import warn_user

Sample_co = TypeVar("Sample_co", covariant=True)

# Arguments that torch's loader does not keep. What `tail` is for goes with the sampler.
_OURS = {field.name for field in fields(LoaderOptions) if field.kw_only} - {
    *("pin_memory_device", "in_order", "tail")
}


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

    Beyond DataLoader's arguments it takes these, by keyword.

    Order and randomness:

    - `seed`: of the order and of the samples' randomness. Without one it is drawn from
      torch's global generator (or `generator`), the same on all ranks, and kept in the state.
    - `randomness`: False leaves the global random generators alone. By default Python's, NumPy's
      and torch's are seeded for each sample, so augmentation does not depend on who fetches it.

    Batches and devices:

    - `converter`: called with each batch (or its `convert_batch` is) before it is delivered.
    - `device`: the device that batches are delivered on, by name or as a torch.device. They are
      copied ahead, from page-locked memory, in a stream of their own. 'cuda' is the current
      device (or that of LOCAL_RANK, if none was made current).
    - `device_converter`: called with each batch on its device (or its `convert_batch` is): a
      `converter` makes a batch narrow for the way there, this one wide again.
    - `device_prefetch`: how many batches are copied ahead.

    Errors:

    - `on_error`: "raise" an error of the dataset, or "skip" the sample: it is left out of its
      batch, listed in `skipped` and logged; positions count as if it were there.
    - `max_skipped`: the most samples that "skip" leaves out of an epoch; one more is an error.

    Ranks:

    - `strategy`: None, 'auto' or 'unified' shares the data among the ranks of a process group
      that is up; 'simple' never does; 'distributed' insists on it.
    - `rank`, `world_size`: this rank's place, instead of the process group's.
    - `tail`: the fate of samples that do not fill a step on every rank. 'pad' (default) repeats
      an epoch's first samples so that all ranks make the same steps, 'drop' (the same as
      drop_last=True) leaves them out, 'uneven' lets some ranks end earlier (which needs
      DistributedDataParallel's `join()`).

    Workers:

    - `num_workers="auto"`: as many as keep up with the consumer, at most one a core (of the
      cluster, if they run on one).
    - `in_order=False`: one rank's batches are delivered as they come; the state stays exact.
    - `engine`: 'processes' (default), 'threads' or 'ray' fetch if `num_workers` is not 0. Threads
      are for datasets that release the GIL and draw from `sample_rng()` only. With 'ray', workers
      are actors on any node of the Ray cluster that this process is connected to, or finds, or
      else starts on this machine.
    - `ray_options`: options of those actors, as Ray takes them: num_cpus (1 by default),
      resources, scheduling_strategy, runtime_env and so on.
    - `max_restarts`: how many workers are replaced that die of the same batch, or one after
      another with no batch delivered in between.
    - `prefetch_bytes`: the memory for batches ahead beyond `num_workers * prefetch_factor`,
      which worker processes fetch while the consumer waits. 0 never fetches more than those.

    Iterables:

    - `lanes`: the number of lanes over all ranks, of which each rank reads its share. Without it
      a dataset has to look for its rank itself.
    - `snapshot_every_n_steps`: how often lanes' states are taken; a resume reads what follows
      the last one again.

    An IterableDataset is read in lanes, by default one a worker: each is a copy of it that sees
    `get_worker_info()` as worker l of L. The state holds each lane's `state_dict()`, so a resume
    may use any number of workers; a dataset without one is read again up to there. A dataset
    with a state that is read by index is treated likewise. DataPipes get their shares, seeds and
    `shuffle` as from torch's loader.

    A `sampler` or `batch_sampler` of your own is resumed by its state if it has `state_dict` and
    `load_state_dict`, else by drawing its consumed indices again and dropping them; on the same
    number of ranks only.
    """

    @arguments_of(LoaderOptions[Sample_co])
    def __init__(self, options: LoaderOptions[Sample_co]) -> None:
        pipe_shuffle = given(options.shuffle) if is_datapipe(options.dataset) else None
        dataset: Any = with_shuffling(options.dataset, pipe_shuffle)
        self._options = options
        self._runner = make_runner(options)
        self._tallies = Tallies()
        self._fetch = make_fetcher(options, dataset)
        self._source, sampler = make_source(
            dataset, self._fetch, options, pipe_shuffle=pipe_shuffle
        )
        num_workers = options.workers
        super().__init__(
            dataset,
            batch_size=options.batch_size,
            sampler=sampler,
            batch_sampler=options.batch_sampler,
            num_workers=num_workers,
            collate_fn=options.collate_fn,
            pin_memory=options.pin_memory,
            # torch refuses it beside a batch sampler, whose last steps a plan may drop.
            drop_last=options.drops_last and options.batch_sampler is None,
            timeout=options.timeout,
            worker_init_fn=options.worker_init_fn,
            multiprocessing_context=options.multiprocessing_context,
            generator=options.generator,
            prefetch_factor=options.prefetch_factor if num_workers else None,
            persistent_workers=options.persistent_workers,
            pin_memory_device=options.pin_memory_device,
            in_order=options.in_order,
        )
        # As torch keeps its own arguments: Lightning, which builds a loader again with another
        # sampler, looks for them here.
        vars(self).update({name: getattr(options, name) for name in _OURS})
        vars(self)["seed"] = self.seed if self._source.seed_is_given else None
        self._cursor = Cursor(self._source)
        self._begin_where_put()

    def _begin_where_put(self) -> None:
        """Begin where the sampler or dataset was put before this loader was built."""
        holder = self._source.epoch_holder
        holder.note_told()
        epoch, position = holder.start()
        if position is not None:
            self._cursor.seek(epoch, position)
        elif epoch:
            self._cursor.set_epoch(epoch)
        holder.attach(self._cursor.place)

    @property
    def _is_accelerate_prepared(self) -> NoReturn:
        """Read by Accelerate alone, to learn whether a loader may be used as it is."""
        msg = (
            "Accelerate would put a loader of its own in place of this one: it does not resume, "
            "and several processes would share the data twice and miss some of it. Use "
            "dataporter.trainers.accelerate.Accelerator, which prepares this loader as it is."
        )
        raise OptionTypeError(msg)

    def check_worker_number_rationality(self) -> None:
        """Warn, as torch does, of more workers than this machine has cores, if they run here."""
        if self._options.works_here:
            super().check_worker_number_rationality()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names a private class
        self._source.prepare()
        is_loaded = self._cursor.has_loaded_start
        is_alone = (is_loaded or self._cursor.newest_pass == 0) and lightning_resumes_alone(
            loaded=is_loaded
        )
        epoch = self._source.epoch_holder.told_by_others()
        if is_told_by_wrapper():
            self._source.epoch_holder.note_told()
        elif epoch is not None:  # on the sampler, as torch's users and trainers do
            epoch = checked_epoch(epoch)
            if not is_in_lightnings_training():  # whose callback places loaders, or is missed
                self._warn_if_dropped(epoch)
            self._go_to(epoch)
        before = self._cursor.newest_pass
        try:
            return Pass(
                self._cursor, self._run, self._source, self._tallies, resumed_by_trainer=is_alone
            )
        except BaseException:  # an interrupt, once it had begun
            self._cursor.take_back(before)
            raise

    def steps(self, *, progress: bool = False) -> Iterator[tuple[int, Any]]:
        """Iterate over one pass: each batch with its number in the epoch, from 0.

        After a resume the numbers count on. With `progress`, rank 0 shows a bar (by tqdm, of the
        extra `progress`), which counts on too.

        >>> loader = ResumableDataLoader(range(10), batch_size=3)
        >>> loader.seek(0, 3)
        >>> [(step, batch.tolist()) for step, batch in loader.steps()]
        [(1, [3, 4, 5]), (2, [6, 7, 8]), (3, [9])]
        """
        if not progress:
            return numbered(self)
        return numbered_with_bar(
            self,
            progress_bars(),
            is_shown=lambda: (group_topology() or self._source.topology).rank == 0,
        )

    def __len__(self) -> int:
        """Batches that this rank delivers in a full epoch, wherever the run stands."""
        return self._source.num_batches()

    def _run(self, progress: Progress) -> Iterator[Result]:
        """Fetch the rest of an epoch; yield each batch with the progress after its delivery."""
        self._source.epoch_holder.tell(progress.epoch)
        self._fetch.collate_with(self.collate_fn)  # may have been set since, as in torch
        self._fetch.begin_pass()
        reading = self._source.begin(progress, same_workers=self._runner.goes_on)
        if self._cursor.progress is progress:  # not of an older pass that goes on
            self._cursor.place.progress = reading.progress
        results = self._runner.run(
            reading.tasks,
            reading.fetch,
            worker_options(self, self._options, self._source, reading, self._runner),
            receive=reading.received,
            randomness=self._options.randomness,
            stays=self.persistent_workers,
            renew=reading.renew,
        )
        return reading.together(results)

    @property
    def seed(self) -> int:
        """Decides the order and the samples' randomness, with the epoch and the position."""
        return self._source.seed

    @property
    def plan(self) -> Plan | None:
        """The plan by which ranks share an epoch; None if the order is not dataporter's."""
        return self._source.plan

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
        """Make the next pass that of `epoch`; a position loaded for that epoch is kept.

        For another epoch it is dropped, with a warning.
        """
        epoch = checked_epoch(epoch)
        self._warn_if_dropped(epoch)
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        self._cursor.set_epoch(epoch)
        self._source.epoch_holder.tell(epoch)

    def _warn_if_dropped(self, epoch: int) -> None:
        progress = self._cursor.dropped_by(epoch)
        if progress is None:
            return
        if progress.samples_processed == self._source.length and progress.epoch + 1 == epoch:
            return  # nothing was left of it
        instead = f"To start epoch {epoch} on purpose, call loader.seek({epoch})."
        message = dropped(progress, epoch, counts="loader.epoch", instead=instead)
        warn_user(message, PositionDroppedWarning)

    def seek(self, epoch: int, position: int = 0) -> None:
        """Make the next pass begin at `position` of `epoch`, counted over all ranks.

        Nothing is read to get there. A stream, or a sampler with a state, has no positions to
        seek: for them `position` must be 0, the start of the epoch.

        >>> loader = ResumableDataLoader(range(10), batch_size=3, shuffle=True, seed=7)
        >>> second = [batch.tolist() for batch in loader][1:]
        >>> loader.seek(0, 3)
        >>> [batch.tolist() for batch in loader] == second
        True
        """
        check_int("position", position, least=0)
        epoch = checked_epoch(epoch)
        self._cursor.seek(epoch, position)
        self._source.epoch_holder.tell(epoch)

    def batch_at(self, epoch: int, position: int = 0) -> Any:
        """Fetch the batch that this rank has in the step that begins at `position`.

        Of the past or the future, augmentation included. Excluded positions are left out, as in
        the run, unless `position` is one of them. It is fetched in this process; the run goes on
        as if nothing had been asked.

        >>> loader = ResumableDataLoader(range(10), batch_size=3, shuffle=True, seed=7)
        >>> batches = [batch.tolist() for batch in loader]
        >>> loader.batch_at(0, 6).tolist() == batches[2]
        True
        """
        fetch = make_fetcher(self._options, self.dataset)
        fetch.collate_with(self.collate_fn)
        return batch_at(self._source, fetch, self._runner, checked_epoch(epoch), position)

    def contents_at(self, epoch: int, position: int = 0) -> Delivered:
        """Say which samples `batch_at` fetches, as `delivered` does of the batch in hand."""
        return contents_at(self._source, checked_epoch(epoch), position)

    def samples_at(self, epoch: int, positions: int | Iterable[int]) -> list[Any]:
        """Fetch samples by their positions, as the dataset gives them, with their augmentation.

        They are the same under any number of ranks, and neither collated nor converted.
        """
        fetch = make_sample_fetcher(self._options, self.dataset)
        return samples_at(self._source, fetch, checked_epoch(epoch), positions)

    @property
    def delivered(self) -> Delivered | None:
        """The contents of the batch delivered last, without the samples that were left out.

        None before the first batch of a pass, and for a stream, which has no positions.
        """
        contents = self._cursor.in_hand
        if contents is None:
            return None
        delivered: Delivered = contents[0](contents[1])
        return delivered

    def exclude(self, epoch: int, start: int, stop: int) -> None:
        """Leave out the positions from `start` to before `stop` of `epoch` from now on.

        They are kept in the state, and hold on any number of ranks. Call it on all ranks at the
        same step. A pass under way goes on around them. A loaded state brings its own.

        >>> loader = ResumableDataLoader(range(10), batch_size=3)
        >>> loader.exclude(0, 2, 5)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 5], [6, 7, 8], [9]]
        """
        check_int("start", start, least=0)
        check_int("stop", stop, least=1)
        self._source.exclude(checked_epoch(epoch), start, stop)
        self._cursor.note_change()

    @property
    def excluded(self) -> list[tuple[int, int, int]]:
        """The spans of positions that are left out, each (epoch, start, stop)."""
        return list(self._source.identity().excluded)

    def state_dict(self, *, unused: int = 0) -> dict[str, Any]:
        """Say where the run stands: the batch last delivered counts as consumed.

        The dict holds builtins only, is the same on every rank, and never changes later. It may be
        taken at any moment, in a signal handler too. A trainer that looks ahead passes as `unused`
        how many of the batches delivered last, up to 2, were not trained on and are to come again.
        """
        check_int("unused", unused, least=0)
        if unused > MOST_UNUSED:
            msg = f"unused must be at most {MOST_UNUSED}, found {unused}."
            raise OptionError(msg)
        return build_state(self._source.identity(), self._cursor.before(unused))

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True
    ) -> None:
        """Make the next pass continue where `state_dict` was taken.

        A state of other data, another order or another seed is refused, and the loader is left as
        it was. With `strict=False` that is a warning, and the pass continues at the same position
        of this loader's order. A position past the end of its epoch is counted on into later ones.

        A dict of `epoch`, `samples_processed`, `batches_processed` and `rng_state` alone is loaded
        with a warning, since nothing can be checked; the seed is this loader's own.

        With `lanes`, each rank has a state of its own. To continue on another number of ranks,
        pass a list of all.
        """
        self._go_on(resumption(self._source, state_dict, strict=strict))

    def _go_on(self, at: Resumption) -> None:
        self._source.resume(at)
        self._cursor.load(at.progress)
        self._source.epoch_holder.tell(at.progress.epoch)

    def explain(self) -> Explanation:
        """Say in words where the run stands, what comes next and what a resume needs."""
        return self._source.explained(self._cursor.progress)

    def stats(self) -> LoaderStats:
        """Say what the loader does, in numbers: rates, the share of time waited, workers.

        It may be called at any moment, from any thread and in signal handlers, and changes nothing.

        >>> loader = ResumableDataLoader(range(10), batch_size=4)
        >>> for batch in loader:
        ...     pass
        >>> loader.stats().samples
        10
        """
        return loader_stats(
            self._tallies,
            self._runner,
            epoch=self.epoch,
            skipped=len(self.skipped),
            dataset=self.dataset,
        )

    def note_times(self, timing: Timing) -> None:
        """Note the times of passes from now on, and of workers that are started from now on.

        For `dataporter profile`, which says what it means.
        """
        self._fetch.timing = timing

    def __repr__(self) -> str:
        if "_cursor" not in self.__dict__:  # its arguments were refused
            return super().__repr__()
        return summary(self, self.explain(), self._source.topology)


@same_arguments_as(ResumableDataLoader)
def create_resumable_dataloader(
    dataset: AnyDataset[Sample_co],
    batch_size: int | None = 1,
    shuffle: bool | None = NOT_GIVEN,
    **options: Any,
) -> ResumableDataLoader[Sample_co]:
    """Make a `ResumableDataLoader`; `options` are any of its arguments.

    >>> len(create_resumable_dataloader(range(10), batch_size=4))
    3
    """
    return ResumableDataLoader(dataset, batch_size, shuffle, **options)
