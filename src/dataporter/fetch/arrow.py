"""Gathering batches of Hugging Face datasets from their Arrow columns.

Numbers and strings go from Arrow to a tensor or a list without becoming rows of Python
objects in between; other columns are read by `datasets` itself and collated as a column.
Datasets with a transform of the user's are not gathered: a transform sees samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.fetch.collate import Empty, collate


def arrow_gather(dataset: Any) -> Callable[[NDArray[np.int64], Empty | None], Any] | None:
    """Return what gathers batches of a Hugging Face `Dataset`, None for anything else."""
    # Whoever holds such a dataset has imported its package: no need to import it here.
    datasets = sys.modules.get("datasets")
    # A user's own module may have that name.
    if datasets is None or type(dataset) is not getattr(datasets, "Dataset", None):
        return None
    layout = dataset.format
    if layout["type"] is not None:
        return None
    if layout["output_all_columns"]:
        return None
    columns: list[str] = layout["columns"]
    plain = {name: dataset.features[name] for name in columns}
    if not columns or not all(isinstance(f, datasets.Value) for f in plain.values()):
        return _column_gather(dataset)
    return _table_gather(dataset.with_format("arrow", columns=columns))


def _column_gather(dataset: Any) -> Callable[[NDArray[np.int64], Empty | None], Any]:
    def gather(indices: NDArray[np.int64], empty: Empty | None) -> dict[str, Any]:
        columns = dataset[indices.tolist()]
        return {name: collate(column, empty) for name, column in columns.items()}

    return gather


def _table_gather(tables: Any) -> Callable[[NDArray[np.int64], Empty | None], Any]:
    def gather(indices: NDArray[np.int64], empty: Empty | None) -> dict[str, Any]:
        table = tables[indices.tolist()]
        return {name: _collated(table.column(name), empty) for name in table.column_names}

    return gather


def _collated(column: Any, empty: Empty | None) -> Any:
    """Collate an Arrow column as its Python values would be."""
    import pyarrow.types as kinds  # noqa: PLC0415  there wherever a Hugging Face dataset is

    if column.null_count == 0:
        # Python's ints and floats, which torch would see, become 64-bit tensors.
        if kinds.is_integer(column.type) and column.type != "uint64":
            return torch.from_numpy(column.to_numpy().astype(np.int64))
        if kinds.is_floating(column.type):
            return torch.from_numpy(column.to_numpy().astype(np.float64))
    return collate(column.to_pylist(), empty)
