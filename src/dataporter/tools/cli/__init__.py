"""The `dataporter` command. Its parts are imported only when it is run."""

from __future__ import annotations

import sys

_EXTRA = ("jinja2", "matplotlib", "rich", "typer")


def start() -> None:
    """Run the command, or say how to install the packages that it needs."""
    try:
        from dataporter.tools.cli.main import run  # its packages are an extra

        run()  # a command imports what it needs when it runs
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        remedy = 'pip install "torch-dataporter[cli]"'
        sys.stderr.write(f"dataporter: {error.name} is not installed. Install it: {remedy}.\n")
        sys.exit(2)
