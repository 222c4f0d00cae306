"""The user's own loader with other options: changed on their way into its constructor.

Nothing is asked of the factory: while it runs, every `ResumableDataLoader` that it makes,
or a subclass of one, takes what is changed here in place of what it was given. Only done in
processes of verification's own, where nobody else makes loaders.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from dataporter.errors import FactoryError
from dataporter.resumable_dataloader import ResumableDataLoader
from dataporter.samplers import ResumableSampler
from dataporter.sources.fingerprint import dataset_length
from dataporter.sources.lanes import has_lanes, is_iterable, is_stateful

# What stands in the way of a changed option, and gives way to it.
_WITHOUT_WORKERS = {"persistent_workers": False, "multiprocessing_context": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What verification has to know of a loader."""

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
    in_order: bool
    skips_errors: bool
    has_collate_fn: bool
    has_worker_init_fn: bool
    has_randomness: bool
    max_restarts: int


@contextmanager
def remaking(changes: Mapping[str, Any]) -> Iterator[dict[int, dict[str, Any]]]:
    """Change what loaders are made with; what each was given, by its id."""
    made: dict[int, dict[str, Any]] = {}
    original = ResumableDataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        given |= given.pop("unknown")
        del given["self"]
        made[id(self)] = given
        original(self, **_fitting(given, changes))

    ResumableDataLoader.__init__ = init  # type: ignore[method-assign]  # put back below
    try:
        yield made
    finally:
        ResumableDataLoader.__init__ = original  # type: ignore[method-assign]


def _fitting(given: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put changes in the place of what was given, with what has to change beside them."""
    options = {**given, **changes}
    if options["num_workers"] == 0:
        options |= _WITHOUT_WORKERS
    if options["strategy"] == "distributed" and options["rank"] is None:
        options |= {"rank": 0, "world_size": 1}  # verification has no process group
    return options


def made_by(
    factory: Callable[[], Any], changes: Mapping[str, Any]
) -> tuple[ResumableDataLoader[Any], Facts]:
    """Call a factory, and check what it returns."""
    with remaking(changes) as made:
        loader = factory()
    if not isinstance(loader, ResumableDataLoader):
        raise FactoryError(_what_else(loader))
    if id(loader) not in made:
        msg = (
            "the factory returned a loader that it had not made: verification needs a new one at "
            "every call. Make the loader inside of the function."
        )
        raise FactoryError(msg)
    return loader, _facts(loader, made[id(loader)])


def _what_else(found: Any) -> str:
    """Say what a factory returned in place of a loader of ours."""
    kind = f"{type(found).__module__}.{type(found).__qualname__}"
    if isinstance(found, DataLoader):
        remedy = (
            "Make it a dataporter.stateful_dataloader.StatefulDataLoader, which takes the same "
            "arguments."
            if hasattr(found, "load_state_dict")
            else "It has no state to resume from. Make it a dataporter.ResumableDataLoader, "
            "which takes the same arguments."
        )
        return f"the factory returned a {kind}, which is not a loader of dataporter. {remedy}"
    kind = "None" if found is None else f"a {kind}"
    return (
        f"the factory returned {kind}, not a loader. Return the dataporter.ResumableDataLoader "
        "that is to be verified."
    )


def _facts(loader: ResumableDataLoader[Any], given: Mapping[str, Any]) -> Facts:
    iterable = is_iterable(loader.dataset)
    sampler = loader.sampler
    return Facts(
        loader=type(loader).__name__,
        dataset=type(loader.dataset).__name__,
        samples=dataset_length(loader.dataset),
        batches=None if iterable else _length(loader),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        world_size=loader.state_dict()["world_size"],
        shuffle=isinstance(sampler, ResumableSampler) and sampler.shuffle,
        follows_own_order=isinstance(sampler, ResumableSampler)
        and not iterable
        and given["batch_sampler"] is None,
        has_sampler=given["sampler"] is not None or given["batch_sampler"] is not None,
        is_iterable=iterable,
        has_lanes=has_lanes(loader.dataset),
        has_state=is_stateful(loader.dataset),
        shares_nothing=given["strategy"] == "simple",
        in_threads=given["engine"] == "threads",
        in_order=given["in_order"],
        skips_errors=given["on_error"] == "skip",
        has_collate_fn=given["collate_fn"] is not None or given["converter"] is not None,
        has_worker_init_fn=given["worker_init_fn"] is not None,
        has_randomness=given["randomness"],
        max_restarts=given["max_restarts"],
    )


def _length(loader: ResumableDataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a sampler without a length
        return None
