"""`make bench`: all tables in one run, and the races among loaders in build/bench.json."""

from __future__ import annotations

from pathlib import Path

import gpu
import loaders
import order
import resume
import starting

OUT = Path("build/bench.json")


def main() -> None:
    """Print every table."""
    run = loaders.main(["--workers", "0,2", "--out", str(OUT)])
    run.rows.extend(starting.main([]).rows)
    run.rows.extend(gpu.main([]))
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
