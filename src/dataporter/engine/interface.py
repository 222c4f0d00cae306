"""The interface of all engines: the options that they are given, the results that they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dataporter.engine.budget import PREFETCH_BYTES

OLDEST_RAY = "2.51"  # version

# Ray's options of actors that are not the user's to choose.
OWN_RAY_OPTIONS = frozenset(
    (
        *("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "name"),
        *("namespace", "get_if_exists", "lifetime", "allow_out_of_order_execution"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The number of workers (the largest, if `adapts`), and how they are run."""

    num_workers: int
    adapts: bool = False  # the number of workers follows the consumer's speed
    prefetch_factor: int = 2
    prefetch_bytes: int = PREFETCH_BYTES
    timeout: float = 0
    init: Callable[[int], None] | None = None
    context: Any = None
    max_restarts: int = 3
    seed: int = 0
    dataset: Any = None
    pin_memory: bool = False
    copies_ahead: bool = False  # batches go on to a device; the consumer does not see them before
    in_order: bool = True
    has_places: bool = False  # each task is for one worker, not for any
    ray_options: Mapping[str, Any] | None = None  # of the actors, as Ray takes them


class Running(NamedTuple):
    """The batches and workers of an engine at one moment."""

    ready: int = 0  # batches that are fetched and wait to be taken
    workers: int = 0


class Results(NamedTuple):
    """Tasks with their batches. `is_there()` tells whether the next comes without waiting.

    `look()` may be called at any moment, from any thread and in signal handlers; it changes nothing
    and keeps no engine alive.
    """

    each: Iterator[tuple[Any, Any]]
    is_there: Callable[[], bool] = lambda: True
    look: Callable[[], Running] = Running
