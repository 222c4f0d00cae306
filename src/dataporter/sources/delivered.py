"""The contents of a delivered batch: which samples, from where in the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.errors import OptionError
from dataporter.fetch.containers import changed, is_plain_list, parts_of
from dataporter.layout import paragraphs, table

_SHOWN = 16  # samples in a notebook


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivered:
    """A batch that was delivered: where its samples come from, in their order.

    >>> from dataporter import ResumableDataLoader
    >>> loader = ResumableDataLoader("abcde", batch_size=2, shuffle=True, seed=1)
    >>> batches = iter(loader)
    >>> next(batches), next(batches)
    (['c', 'e'], ['d', 'a'])
    >>> loader.delivered
    Delivered(epoch=0, position=2, positions=[2, 3], indices=[3, 0], padding=[False, False])
    """

    epoch: int
    position: int  # of the step, counted over all ranks: what `batch_at` takes
    positions: NDArray[np.int64]  # in batches by length, the index of a sample stands for it
    indices: Sequence[Any] | NDArray[np.int64]  # of the dataset
    padding: NDArray[np.bool_]  # samples that come twice, to make the ranks' last batches equal

    def __repr__(self) -> str:
        names = ("positions", "indices", "padding")
        listed = {name: np.asarray(getattr(self, name)).tolist() for name in names}
        each = ", ".join(f"{name}={values}" for name, values in listed.items())
        return f"Delivered(epoch={self.epoch}, position={self.position}, {each})"

    def _repr_html_(self) -> str:
        each = zip(self.positions, self.indices, self.padding, strict=True)
        rows = [(at, index, "padding" if repeated else "") for at, index, repeated in each]
        more = len(rows) - _SHOWN
        return "\n".join(
            [
                paragraphs(f"epoch {self.epoch:,}, the step at position {self.position:,}"),
                table(rows[:_SHOWN], columns=["position", "index", ""]),
                paragraphs(f"and {more:,} more" if more > 0 else ""),
            ]
        )

    def real_samples(self, batch: Any) -> Any:
        """Return a batch without its padding: a metric counts every sample once then.

        `batch` may be the delivered batch, or anything with as many rows: predictions, losses,
        metadata. Tensors, arrays, and lists and tuples of samples lose the rows; in dicts,
        dataclasses, and lists and tuples of columns each part does. What is no row of the batch,
        such as a number, stays.
        """
        if not self.padding.any():
            return batch
        return rows_of(batch, ~self.padding)


def rows_of(
    part: Any, real: NDArray[np.bool_], *, keeps_others: bool = False, is_inner: bool = False
) -> Any:
    """Keep some rows of all parts of a batch. Parts with other rows are kept or refused."""
    if isinstance(part, torch.Tensor | np.ndarray):
        if part.ndim and len(part) == len(real):
            chosen = torch.from_numpy(real).to(part.device) if torch.is_tensor(part) else real
            return part[chosen]
        if part.ndim and not keeps_others:
            msg = (
                f"the batch has {len(real)} samples, of which {len(real) - int(real.sum())} are "
                f"padding, but a part of it has {len(part)} rows. Pass a batch, or something made "
                "of it that has one row for every sample."
            )
            raise OptionError(msg)
        return part
    if _holds_samples(part, len(real), is_inner=is_inner):
        return type(part)(sample for sample, is_real in zip(part, real, strict=True) if is_real)
    return changed(
        part, lambda inner: rows_of(inner, real, keeps_others=keeps_others, is_inner=True)
    )


def _holds_samples(part: Any, rows: int, *, is_inner: bool) -> bool:
    """Return True for a list or tuple of samples, False for one of columns, such as (x, y)."""
    if type(part) not in (list, tuple) or len(part) != rows:
        return False
    columns = [_is_column(inner, rows) for inner in part]
    if type(part) is list:
        return not all(columns)
    # As many numbers as samples, by themselves, may be a loss and a score.
    return not any(columns) and (is_inner or not any(map(_is_number, part)))


def _is_number(part: Any) -> bool:
    return part is None or isinstance(part, Number) or getattr(part, "shape", None) == ()


def _is_column(part: Any, rows: int) -> bool:
    """Return True if something has one row for every sample, or is made of such."""
    if isinstance(part, torch.Tensor | np.ndarray):
        return part.ndim > 0 and len(part) == rows
    if is_plain_list(part):
        return len(part) == rows
    inner = parts_of(part)
    return inner is not None and all(_is_column(each, rows) for _, _, each in inner)
