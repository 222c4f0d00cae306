"""`python -m dataporter` is the `dataporter` command."""

from dataporter.cli import main

if __name__ == "__main__":
    main()
