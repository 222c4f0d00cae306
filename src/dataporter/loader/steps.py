"""The batches of a pass with their numbers, which count on from where the run stands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from dataporter.errors import MissingExtraError


class Counts(Protocol):
    """A loader that counts the batches that it has delivered in an epoch."""

    @property
    def batches_processed(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


def numbered(loader: Counts) -> Iterator[tuple[int, Any]]:
    """Yield each batch of a pass with its number in the epoch, from 0."""
    for batch in loader:
        yield loader.batches_processed - 1, batch


def numbered_with_bar(
    loader: Counts, bars: Any, *, is_shown: Callable[[], bool]
) -> Iterator[tuple[int, Any]]:
    """Yield the same, and show in a bar how far the epoch is."""
    bar = None
    try:
        for step, batch in numbered(loader):
            if bar is None:
                bar = bars(
                    total=_length(loader),
                    initial=step,
                    desc=f"epoch {loader.epoch}",
                    unit="batch",
                    disable=not is_shown(),  # a process group may have come up since
                )
            yield step, batch
            bar.update(step + 1 - bar.n)
    finally:
        if bar is not None:
            bar.close()


def progress_bars() -> Any:
    """Return tqdm, or say how to install it."""
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        msg = (
            "progress=True needs tqdm, which is not installed. Install it: "
            'pip install "torch-dataporter[progress]".'
        )
        raise MissingExtraError(msg) from error
    return tqdm


def _length(loader: Counts) -> int | None:
    with contextlib.suppress(TypeError, NotImplementedError):  # a stream may have none
        return len(loader)
    return None
