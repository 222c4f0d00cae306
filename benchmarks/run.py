"""`make bench`: all tables, in one run."""

from __future__ import annotations

import gpu
import kit
import order
import resume
import streams
import throughput
import workers


def main() -> None:
    """Print every table."""
    order.main()
    resume.main()
    throughput.main()
    workers.main()
    gpu.main()
    streams.main()
    kit.main()


if __name__ == "__main__":
    main()
