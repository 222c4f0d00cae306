"""The loader that is verified: made by the factory, and described for other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataporter.law.datasets import chooses_batches, leaves_samples_out
from dataporter.layout import counted
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import ResumableSampler
from dataporter.sources.fingerprint import dataset_length
from dataporter.sources.lanes import has_lanes, is_iterable, is_stateful
from dataporter.tools.sandbox.factories import Factory
from dataporter.tools.sandbox.loaders import described, make_loader, rebuilt_as_ours


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """Everything that decides how a loader can be interrupted."""

    loader: str
    dataset: str
    samples: int | None
    batches: int | None
    batch_size: int | None
    num_workers: int
    world_size: int
    shuffle: bool
    follows_own_order: bool
    has_sampler: bool
    is_iterable: bool
    has_lanes: bool
    has_state: bool
    shares_nothing: bool
    in_threads: bool
    skips_errors: bool
    leaves_samples_out: bool
    chooses_batches: bool
    has_collate_fn: bool
    has_worker_init_fn: bool
    has_randomness: bool
    is_rebuilt: bool  # from a loader that is not ours

    def __str__(self) -> str:
        size = "single samples" if self.batch_size is None else f"batches of {self.batch_size}"
        if self.has_sampler:
            size = "a sampler of its own"
        batches = f"{size}, shuffled" if self.shuffle else size
        workers = counted(self.num_workers, "worker")
        return described(self.loader, self.dataset, self.samples, batches, workers)

    @property
    def knows_indices(self) -> bool:
        """True if the samples of a batch are known before it is fetched."""
        return self.follows_own_order and not self.has_lanes

    @property
    def why_batches_are_fixed(self) -> str:
        """The reason why batches cannot have other sizes or be shared out; empty if they can."""
        if self.is_iterable:
            return "an IterableDataset makes its batches lane by lane"
        if self.has_lanes:
            return "a dataset with a state of its own is read lane by lane"
        if self.has_sampler:
            return "the loader has a sampler of its own, which decides that"
        if self.skips_errors:
            return "on_error='skip' leaves samples out, and batches do not say which"
        if self.leaves_samples_out:
            return f"{self.dataset} leaves samples out, and batches do not say which"
        if self.chooses_batches:
            return f"{self.dataset} chooses samples for batches of this size"
        if self.batch_size is None:
            return "batch_size=None delivers single samples"
        return ""


def make_verifiable(
    factory: Factory, changes: Mapping[str, Any]
) -> tuple[ResumableDataLoader[Any], LoaderFacts]:
    """Make the user's loader with some options changed; one that is not ours is rebuilt as ours."""
    loader, given = make_loader(factory, changes)
    if not isinstance(loader, ResumableDataLoader) or given is None:
        rebuilt, given = rebuilt_as_ours(loader, changes)
        return rebuilt, _facts(rebuilt, given, is_rebuilt=True)
    return loader, _facts(loader, given)


def _facts(
    loader: ResumableDataLoader[Any], given: Mapping[str, Any], *, is_rebuilt: bool = False
) -> LoaderFacts:
    iterable = is_iterable(loader.dataset)
    sampler = loader.sampler
    has_our_sampler = isinstance(sampler, ResumableSampler)
    return LoaderFacts(
        loader=type(loader).__name__,
        dataset=type(loader.dataset).__name__,
        samples=dataset_length(loader.dataset),
        batches=None if iterable else _length(loader),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        world_size=loader.state_dict()["world_size"],
        shuffle=isinstance(sampler, ResumableSampler) and sampler.shuffle,
        follows_own_order=has_our_sampler and not iterable and given["batch_sampler"] is None,
        has_sampler=given["sampler"] is not None or given["batch_sampler"] is not None,
        is_iterable=iterable,
        has_lanes=has_lanes(loader.dataset),
        has_state=is_stateful(loader.dataset),
        shares_nothing=given["strategy"] == "simple",
        in_threads=given["engine"] == "threads",
        skips_errors=given["on_error"] == "skip",
        leaves_samples_out=leaves_samples_out(loader.dataset),
        chooses_batches=chooses_batches(loader.dataset),
        has_collate_fn=given["collate_fn"] is not None or given["converter"] is not None,
        has_worker_init_fn=given["worker_init_fn"] is not None,
        has_randomness=given["randomness"],
        is_rebuilt=is_rebuilt,
    )


def _length(loader: ResumableDataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a sampler without a length
        return None
