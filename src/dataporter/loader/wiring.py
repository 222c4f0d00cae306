"""The parts of a loader, as its options ask for: a source, a fetcher and a runner."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from dataporter.engine import Runner, WorkerOptions
from dataporter.errors import OptionError
from dataporter.fetch import Fetcher, conversion_of
from dataporter.law import OrderedDataset, Ranks, Tail, Topology
from dataporter.law.keys import checked_seed, key_as_int
from dataporter.law.lane_states import Lanes
from dataporter.law.shared_order import SharedOrder
from dataporter.loader.options import LoaderOptions, as_device
from dataporter.ranks import agreed, choose_seed, find_ranks
from dataporter.samplers import ResumableDistributedSampler, ResumableSampler, is_own
from dataporter.sources.lanes.fetcher import LaneFetcher
from dataporter.sources.lanes.indexed_source import IndexedLaneSource
from dataporter.sources.lanes.iterable import Iterable
from dataporter.sources.lanes.iterable_source import IterableSource
from dataporter.sources.lanes.sharing import fresh_lanes, own_lanes
from dataporter.sources.planned import PlannedSource, ShownSampler, length_of
from dataporter.sources.readings import Reading
from dataporter.sources.sampled import SampledSource
from dataporter.sources.source import Source
from dataporter.sources.users_sampler import UsersSampler


def make_fetcher(options: LoaderOptions[Any], dataset: Any) -> Fetcher:
    """Make what fetches by index for a loader."""
    return Fetcher(
        dataset,
        collate_fn=options.collate_fn,
        converter=options.converter,
        batched=options.batch_size is not None or options.batch_sampler is not None,
        randomness=_seeds_globals(options),
        skips_errors=options.on_error == "skip",
        max_skipped=options.max_skipped,
    )


def make_sample_fetcher(options: LoaderOptions[Any], dataset: Any) -> Fetcher:
    """Make what fetches lists of samples, as the dataset gives them."""
    return Fetcher(dataset, collate_fn=_as_they_are, randomness=_seeds_globals(options))


def _as_they_are(samples: Any) -> Any:
    return samples


def _seeds_globals(options: LoaderOptions[Any]) -> bool:
    return options.randomness and not (options.in_threads and options.num_workers)


def make_runner(options: LoaderOptions[Any]) -> Runner:
    """Make what runs a loader's passes and brings their batches to its device."""
    return Runner(
        engine=options.engine or "processes",
        device=as_device(options.device),
        prefetch=options.device_prefetch,
        convert=conversion_of(options.device_converter, "device_converter"),
    )


def worker_options(
    loader: DataLoader[Any],
    options: LoaderOptions[Any],
    source: Source,
    reading: Reading,
    runner: Runner,
) -> WorkerOptions:
    """Say how many workers run a pass, and how; what torch lets users change is the loader's."""
    has_lanes = source.has_lanes
    in_one_thread = has_lanes and options.in_threads
    return WorkerOptions(
        num_workers=min(loader.num_workers, 1) if in_one_thread else loader.num_workers,
        adapts=options.adapts,
        prefetch_factor=loader.prefetch_factor or 2,
        prefetch_bytes=options.prefetch_bytes,
        timeout=loader.timeout,
        init=None if has_lanes else loader.worker_init_fn,
        context=loader.multiprocessing_context,
        max_restarts=options.max_restarts,
        seed=key_as_int("worker", source.seed) >> 1,  # as torch: below 2**63
        dataset=loader.dataset,
        pin_memory=loader.pin_memory or runner.copies_ahead,
        copies_ahead=runner.copies_ahead,
        in_order=reading.in_order,
        has_places=has_lanes,
        ray_options=options.ray_options,
    )


def make_source(
    dataset: Any, fetch: Fetcher, options: LoaderOptions[Any], *, pipe_shuffle: bool | None
) -> tuple[Source, Any]:
    """Make the source of a loader; it, and the sampler that the loader is to show.

    `pipe_shuffle` is what was said of a DataPipe's shuffling.
    """
    ranks = find_ranks(options.strategy, options.rank, options.world_size)
    if options.is_iterable:
        return _iterable_source(dataset, fetch, options, ranks, pipe_shuffle), None
    sampler = options.sampler
    source: PlannedSource | SampledSource
    if is_own(sampler):
        _check_agrees(sampler, options, ranks)
        source = _planned_source(dataset, fetch, options, sampler)
    elif sampler is None and (options.batch_sampler is None or options.ordered_batches is not None):
        own = _own_sampler(dataset, options, ranks)
        sampler = own if options.ordered_batches is None else None
        source = _planned_source(dataset, fetch, options, own)
    else:
        source = _sampled_source(dataset, fetch, options, ranks)
    if not options.has_lanes:
        return source, sampler
    lanes = _fresh_lanes(options, source.topology)
    lane_fetch = _lane_fetch(dataset, fetch, options, lanes, source.topology)
    return IndexedLaneSource(source, dataset, lane_fetch, lanes, **_common(options)), sampler


def _own_sampler(
    dataset: Any, options: LoaderOptions[Any], ranks: Ranks
) -> ResumableDistributedSampler:
    """Return the sampler that shows dataporter's own order."""
    batches = options.ordered_batches
    length = length_of(dataset)
    if options.shuffle and not length:
        msg = (
            f"shuffle=True has nothing to shuffle: {type(dataset).__name__} is empty. Look at what "
            "it was made of, a path or a filter; if it may be empty, leave out shuffle=True."
        )
        raise OptionError(msg)
    brings = dataset if batches is None else batches
    shared = SharedOrder(
        brings if isinstance(brings, OrderedDataset) else length,
        ranks,
        shuffle=bool(options.shuffle if batches is None else getattr(batches, "shuffle", True)),
        seed=_chosen_seed(options, ranks),
        seed_is_given=options.seed is not None,
    )
    shared.ask_again(options.batch_size or 1)
    return ResumableDistributedSampler.of(shared, _tail_of(options, "pad"))


def _check_agrees(sampler: ResumableSampler, options: LoaderOptions[Any], ranks: Ranks) -> None:
    """Raise if the loader's other arguments contradict a sampler; let ranks agree on its seed."""
    seed = options.seed
    if seed is not None and seed != sampler.seed:
        msg = f"seed={seed} contradicts the sampler's seed={sampler.seed}. Give it to one of them."
        raise OptionError(msg)
    if options.rank is not None and ranks.topology != sampler.topology:
        msg = f"{ranks.topology} contradicts the sampler's {sampler.topology}. Remove one of them."
        raise OptionError(msg)
    if not (sampler.seed_is_given or sampler.is_positioned):
        sampler.seed = agreed(sampler.seed)


def _planned_source(
    dataset: Any, fetch: Fetcher, options: LoaderOptions[Any], sampler: ResumableSampler
) -> PlannedSource:
    has_batches = options.ordered_batches is not None
    brings_order = isinstance(dataset, OrderedDataset) or has_batches
    return PlannedSource(
        dataset,
        fetch,
        sampler.shared,
        epochs=ShownSampler(sampler),
        batch_size=None if has_batches else options.batch_size,
        tail=_tail_of(options, sampler.tail),
        grows=options.sampler is None and not brings_order,
        in_order=options.keeps_order,
    )


def _tail_of(options: LoaderOptions[Any], default: Tail) -> Tail:
    return options.tail or ("drop" if options.drops_last else default)


def _sampled_source(
    dataset: Any, fetch: Fetcher, options: LoaderOptions[Any], ranks: Ranks
) -> SampledSource:
    yields_batches = options.batch_sampler is not None
    sampler = options.batch_sampler if yields_batches else options.sampler
    return SampledSource(
        dataset,
        fetch,
        UsersSampler(sampler, yields_batches=yields_batches),
        batch_size=None if yields_batches else options.batch_size,
        drop_last=options.drops_last,
        ranks=ranks,
        seed=_chosen_seed(options, ranks),
        seed_is_given=options.seed is not None,
        in_order=options.keeps_order,
    )


def _iterable_source(
    dataset: Any,
    fetch: Fetcher,
    options: LoaderOptions[Any],
    ranks: Ranks,
    pipe_shuffle: bool | None,
) -> IterableSource:
    seed, topology = _chosen_seed(options, ranks), ranks.topology
    lanes = _fresh_lanes(options, topology)
    iterable = Iterable(
        dataset,
        batch_size=options.batch_size or 1,
        drop_last=options.drops_last,
        has_workers=options.workers > 0,
        shuffle=pipe_shuffle,
    )
    return IterableSource(
        iterable,
        dataset,
        _lane_fetch(dataset, fetch, options, lanes, topology),
        lanes,
        ranks=ranks,
        seed=seed,
        splits=options.lanes is not None,
        ends_together=options.tail == "drop",
        in_order=options.in_order,
        batch_size=options.batch_size,
        seed_is_given=options.seed is not None,
        **_common(options),
    )


def _common(options: LoaderOptions[Any]) -> dict[str, Any]:
    """Options of all sources that read lanes."""
    return {
        "carries": options.reads_inline or options.persistent_workers,
        "reads_inline": options.reads_inline,
        "snapshot_every": options.snapshot_every_n_steps,
    }


def _fresh_lanes(options: LoaderOptions[Any], topology: Topology) -> Lanes:
    count = options.lanes or _most_readers(options)
    own = own_lanes(count, topology, split=options.lanes is not None)
    return fresh_lanes(count, own, iterable=options.is_iterable)


def _most_readers(options: LoaderOptions[Any]) -> int:
    """Count the lanes that can be read at the same time."""
    return 1 if options.reads_inline else options.workers


def _lane_fetch(
    dataset: Any, fetch: Fetcher, options: LoaderOptions[Any], lanes: Lanes, topology: Topology
) -> LaneFetcher:
    return LaneFetcher(
        dataset,
        fetch,
        lanes=lanes,
        batch_size=options.batch_size or 1,
        drop_last=options.drops_last,
        randomness=_seeds_globals(options),
        watches=options.randomness and not _seeds_globals(options),
        init=options.worker_init_fn,
        # A cluster may have room for one worker only, which then reads all lanes.
        readers=_most_readers(options) if options.works_here else 1,
        inline=options.reads_inline,
        ranks=topology if options.lanes is None else Topology(),
    )


def _chosen_seed(options: LoaderOptions[Any], ranks: Ranks) -> int:
    if options.seed is None:
        return choose_seed(ranks, options.generator)
    return checked_seed(options.seed, optional=True)
