"""`python -m dataporter` is the `dataporter` command."""

from dataporter.tools.cli import start

if __name__ == "__main__":
    start()
