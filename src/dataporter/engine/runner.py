"""`Runner`: runs the passes of a loader by one of the engines, and brings batches to its device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dataporter.engine.device import sent_ahead, ways_to
from dataporter.engine.engine import Engine, Transport
from dataporter.engine.interface import Results, Running, WorkerOptions
from dataporter.engine.local import run_in_threads, run_inline
from dataporter.engine.processes import Processes
from dataporter.engine.recovery import Replacements
from dataporter.fetch import Fetches, Late
from dataporter.fetch.tasks import Renew, Task


def _actors(fetch: Fetches, options: WorkerOptions, replacements: Replacements) -> Transport:
    from dataporter.engine.ray.transport import Actors  # noqa: PLC0415  when it is asked for

    return Actors(fetch, options, replacements)


_TRANSPORTS: dict[str, Callable[[Fetches, WorkerOptions, Replacements], Transport]] = {
    "processes": Processes,
    "ray": _actors,
}


class Runner:
    """Runs one pass after another: without workers, in threads, in processes, or on Ray.

    Batches go to `device`, `prefetch` of them ahead, and through `convert` there.
    """

    def __init__(
        self,
        *,
        engine: str,
        device: torch.device | None,
        prefetch: int,
        convert: Callable[[Any], Any] | None,
    ) -> None:
        self._engine = engine
        self._device = device
        self._prefetch = prefetch
        self._convert = convert
        self._kept: Engine | None = None  # its workers stay from pass to pass
        self._kept_ran_last = False
        self.replacements = Replacements()
        self.look: Callable[[], Running] = Running  # at what the engine of the newest pass has

    def __getstate__(self) -> dict[str, Any]:
        # Workers stay with the process that has started them.
        fresh = {"replacements": Replacements(), "look": Running}
        return {**self.__dict__, "_kept": None, "_kept_ran_last": False, **fresh}

    @property
    def copies_ahead(self) -> bool:
        """True if batches are copied to a device before they are asked for."""
        return self._device is not None and self._device.type == "cuda"

    @property
    def goes_on(self) -> bool:
        """True if the workers that ran the last pass can run the next one."""
        return self._kept is not None and self._kept_ran_last and self._kept.is_free

    def run(
        self,
        tasks: Iterator[Task],
        fetch: Fetches,
        options: WorkerOptions,
        *,
        receive: Callable[[Task, Any], tuple[Any, Any]],
        randomness: bool,
        stays: bool,
        renew: Renew | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Run one pass. Workers other than threads stay for the next if `stays`.

        Every task and batch goes through `receive`, before it is copied to the device: from there
        on a batch has with it what its delivery leads to, however far ahead it is.
        """
        results = self._results(tasks, fetch, options, randomness, stays, renew)
        self.look = results.look

        def received(result: tuple[Task, Any]) -> tuple[Any, Any]:
            return result if type(result[1]) is Late else receive(*result)

        return self._on_device(results._replace(each=map(received, results.each)))

    def _results(
        self,
        tasks: Iterator[Task],
        fetch: Fetches,
        options: WorkerOptions,
        randomness: bool,
        stays: bool,
        renew: Renew | None,
    ) -> Results:
        if options.num_workers == 0:
            return run_inline(tasks, fetch, pin_memory=options.pin_memory)
        if self._engine == "threads":
            return run_in_threads(tasks, fetch, options, randomness=randomness)
        if self._kept is not None and not self._kept.fetches_by(fetch):
            self.close()
        engine = self._kept
        if engine is None or not engine.is_free:
            transport = _TRANSPORTS[self._engine](fetch, options, self.replacements)
            engine = Engine(fetch, options, transport)
        if stays and self._kept is None:
            self._kept = engine
        self._kept_ran_last = engine is self._kept
        return engine.run(tasks, then_close=engine is not self._kept, renew=renew)

    def deliver(self, batch: Any) -> Any:
        """Return a batch that was fetched here as a run delivers it."""
        return next(self._on_device(Results(iter([(None, batch)]))))[1]

    def _on_device(self, results: Results) -> Iterator[tuple[Any, Any]]:
        if self._device is None:
            return results.each
        send, move = ways_to(self._device, self._convert)
        return sent_ahead(results, send, self._prefetch, move)

    def close(self) -> None:
        """End the workers that have stayed."""
        if self._kept is not None and self._kept.is_ours:
            self._kept.close()
        self._kept = None
