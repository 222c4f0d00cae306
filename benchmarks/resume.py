"""From a state to the first batch: time and memory at four sizes, each in a new process.

A process builds a loader over a dataset that holds nothing, loads a state from the middle
of an epoch and takes a batch. Measured are the seconds from `load_state_dict` to the batch
in hand, and by how much the process's peak memory rose from before the loader was built.
torchdata's StatefulDataLoader does the same, where it can: it shuffles by a list of all
indices.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from dataporter.tools.comparison.measure import count, table
from dataporter.tools.comparison.resuming import SIZES, Point
from dataporter.tools.comparison.running import resumed

ROUNDS = 5
LIMIT = 60.0  # seconds for the rounds of one size


def main() -> None:
    """Print the table."""
    rows = []
    for size in SIZES:
        cells = [count(size)]
        for who in ("dataporter", "torchdata"):
            with tempfile.TemporaryDirectory() as folder:
                point = Point(samples=size, position=size // 2)
                (found,) = resumed(Path(folder), who, [point], ROUNDS, LIMIT)
            if found.why:
                cells += ["not run", found.why]
            else:
                milliseconds = statistics.median(found.seconds) * 1e3
                cells += [f"{milliseconds:.1f} ms", f"{found.megabytes:.1f} MB"]
        rows.append(cells)
    header = ("samples", "dataporter", "memory", "torchdata", "memory")
    title = "From state to first batch, in mid-epoch (target: at most 10 ms and 16 MB, flat)"
    print(table(title, header, rows))


if __name__ == "__main__":
    main()
