"""Make the pictures of the home page again: `make pictures`.

Recordings show real commands of this checkout, charts the figures of `measured.json`. With names,
only those are made: `python docs/pictures/make.py verify resume`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from charts import CHARTS, chart
from recording import drawn, record

HERE = Path(__file__).parent
RECORDINGS = {
    "demo": ["demo", "--seed", "7"],
    "verify": ["verify", "train:make_loader", "--fail-fast"],
    "profile": ["profile", "train:make_loader", "--step-ms", "20"],
}
MOVING = {"demo"}


def recording(name: str) -> str:
    """Run a command and draw what it shows."""
    arguments = RECORDINGS[name]
    with tempfile.TemporaryDirectory() as scratch:
        # The demo leaves files where it runs; the others need the project.
        frames = record(arguments, Path(scratch) if name == "demo" else HERE / "project")
    return drawn(" ".join(["dataporter", *arguments]), frames if name in MOVING else frames[-1:])


def main(names: list[str]) -> None:
    """Make the named pictures, or all."""
    for name in names or [*RECORDINGS, *CHARTS]:
        text = recording(name) if name in RECORDINGS else chart(name)
        (HERE / f"{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
