"""Small data in files that is ordered by tracks, as large data is, in every process."""

import json
from pathlib import Path
from typing import Any

import pytest

from dataporter.law import Order, tracks
from dataporter.shards import ShardedDataset, dataset


class Tracked(ShardedDataset):
    """A `ShardedDataset` in tracks however small it is; a step may decide their number."""

    def epoch_order(self, **asked: Any) -> Order:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dataset, "SMALL", -1)
            patch.setattr(tracks, "_LEAST_TRACKS", 1)
            return super().epoch_order(**asked)


def numbered_lines(folder: Path, samples: int) -> Path:
    """Write a file of JSON lines for each sample, which is {"id": its index}."""
    folder.mkdir(exist_ok=True)
    for number in range(samples):
        (folder / f"{number:04}.jsonl").write_text(json.dumps({"id": number}) + "\n")
    return folder


def numbered_rows(path: Path, samples: int, *, rows: int) -> Path:
    """Write a Parquet file with a row group for every few samples; sample i is {"id": i}."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": range(samples)}), path, row_group_size=rows)
    return path
