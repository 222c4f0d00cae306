"""`make bench`: all tables in one run, and the races among loaders in build/bench.json.

Races (`--rows`, `--seconds`, `--out FILE.json`):
    loaders.py   delivery with and without workers, with the share of the limit
    starting.py  the first batch, and the time between epochs
    shards.py    readers of data in many files; their order, index, resume and memory; with
                 `--server`, readers of data on an object server, not part of this run
Other measurements:
    gpu.py       delivery to a CUDA device; `--out` as above
    order.py     an index of the shuffled order
    views.py     mixtures and packed documents beside what they are made of; not part of this run
    ray_engine.py  workers on a Ray cluster, worker processes and Ray Data; not part of this run
    resume.py    from a state to the first batch
    kit.py       collators, converters, the loader beside a training step
    scale.py     a rank of thousands, by the law alone; not part of this run
    profile_overhead.py  what profiling costs; not part of this run
    stats_overhead.py  what counting for loader.stats() costs; not part of this run
compare.py prints the changes between two stored runs. What the races are made of: measure.py
(turns, results, tables), workloads.py (datasets), contenders.py (loaders), players.py (their
processes), shard_data.py and shard_contenders.py (data in files, its readers), race.py,
machine.py (how busy it is), script.py (the command line). What `--server` is made of:
server_shards.py (the tables), server_contenders.py (readers), object_server.py, latency_proxy.py.
"""

from __future__ import annotations

from pathlib import Path

import gpu
import loaders
import order
import resume
import shards
import starting

OUT = Path("build/bench.json")


def main() -> None:
    """Print every table."""
    run = loaders.main(["--workers", "0,2", "--out", str(OUT)])
    run.rows.extend(starting.main([]).rows)
    run.rows.extend(gpu.main([]))
    run.rows.extend(shards.main(["--seconds", "15"]).rows)
    run.write(OUT)
    order.main()
    resume.main([])
    try:
        import kit  # noqa: PLC0415  needs transformers

        kit.main()
    except ImportError as error:
        print(f"not run: the training kit ({error})")


if __name__ == "__main__":
    main()
