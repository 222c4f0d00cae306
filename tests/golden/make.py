"""Write one state of every kind, and the batches that must follow each.

    python tests/golden/make.py            before a release: the folder of this version
    python tests/golden/make.py --again    over the folder of a version that is not released yet

What a released version has written is never written again: users have such states.
"""

import json
import sys
from pathlib import Path

import golden_lightning
from golden_kinds import KINDS

import dataporter

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    folder = HERE / dataporter.__version__
    if folder.exists() and arguments != ["--again"]:
        sys.stderr.write(f"{folder} exists. If this version is not released yet, pass --again.\n")
        return 1
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    batches = {}
    for name, kind in {**KINDS, **golden_lightning.KINDS}.items():
        kind.save(folder, name)
        batches[name] = kind.following(folder, name)
    lines = (f" {json.dumps(name)}: {json.dumps(each)}" for name, each in batches.items())
    (folder / "batches.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.stdout.write(f"{len(batches)} states are in {folder}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
