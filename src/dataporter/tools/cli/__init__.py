"""The `dataporter` command. What it is made of is imported only when it is run."""

from __future__ import annotations

import sys


def start() -> None:
    """Run the command; without the packages that it needs, say how to get them."""
    try:
        from dataporter.tools.cli.main import run  # noqa: PLC0415  typer and rich are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("psutil", "rich", "typer"):
            raise
        words = 'pip install "torch-dataporter[cli]"'
        sys.stderr.write(f"dataporter: {error.name} is not installed. Install it: {words}.\n")
        sys.exit(2)
    run()
