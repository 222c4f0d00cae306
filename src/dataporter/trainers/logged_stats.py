"""The numbers of a trainer's loaders, as its loggers take them. It needs no framework."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from dataporter.arguments import check_int
from dataporter.errors import OptionTypeError
from dataporter.loader.stats import LoaderStats
from dataporter.resumable_dataloader import ResumableDataLoader


class LoggedStats:
    """The numbers of loaders since they were last asked for. Every name begins with `prefix`.

    >>> loader = ResumableDataLoader(range(10), batch_size=2)
    >>> stats = LoggedStats("loader/")
    >>> batches = iter(loader)
    >>> _, first = next(batches), stats.of([loader])
    >>> _ = next(batches), next(batches)
    >>> first["loader/samples"], stats.of([loader])["loader/samples"]
    (2, 4)
    """

    def __init__(self, prefix: str) -> None:
        if not isinstance(prefix, str):
            msg = f"prefix must be a string, found {type(prefix).__name__} {prefix!r}."
            raise OptionTypeError(msg)
        self._prefix = prefix
        self._before: weakref.WeakKeyDictionary[Any, LoaderStats] = weakref.WeakKeyDictionary()

    def of(self, loaders: Iterable[Any]) -> dict[str, float]:
        """Return the numbers of the loaders that are ours. Several are numbered."""
        ours = [each for each in loaders if isinstance(each, ResumableDataLoader)]
        numbers: dict[str, float] = {}
        for place, loader in enumerate(ours):
            now, before = loader.stats(), self._before.get(loader)
            self._before[loader] = now
            prefix = self._prefix if len(ours) == 1 else f"{self._prefix}{place}/"
            numbers |= (now if before is None else now.since(before)).as_dict(prefix)
        return numbers


def checked_steps(every_n_steps: int | None) -> int | None:
    """Return how often to log; None if the trainer decides."""
    check_int("every_n_steps", every_n_steps, least=1, optional=True)
    return every_n_steps
