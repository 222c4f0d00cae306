"""Lightning's `Trainer` as it is, with the progress bar that it chooses: `rich` or not."""

import json
import os
import site
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from lightning_default import NAMES, PAUSED_AT, paused_and_resumed

import dataporter

SCRIPT = Path(__file__).with_name("lightning_default.py")


def check(found: dict[str, Any], bar: str) -> None:
    assert found["bar"] == bar
    assert len(found["whole"]) == 16
    assert len(found["first"]) == PAUSED_AT + 1
    assert found["first"] + found["second"] == found["whole"]
    # The bar goes on where the run stopped, and begins anew with the next epoch.
    done = [*range(PAUSED_AT + 1, 8), *range(8)]
    assert [tuple(each) for each in found["shown"]] == [(each, 8) for each in done]


@pytest.mark.parametrize("name", NAMES)
def test_a_default_trainer_is_paused_and_resumed_with_the_bar_of_rich(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on loggers, devices and workers
        check(paused_and_resumed(name, tmp_path), "RichProgressBar")


def test_a_default_trainer_is_paused_and_resumed_without_rich_under_both_names(tmp_path):
    """In an interpreter that has every installed package but rich."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for part in (part for place in site.getsitepackages() for part in Path(place).iterdir()):
        if not part.name.startswith("rich"):
            (packages / part.name).symlink_to(part)
    path = [Path(dataporter.__file__).parents[1], packages, SCRIPT.parents[1]]
    done = subprocess.run(
        [sys.executable, "-S", str(SCRIPT), str(tmp_path), *NAMES],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    answers = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    found = [json.loads(answer.removeprefix("found ")) for answer in answers]
    assert [each["name"] for each in found] == list(NAMES)
    for each in found:
        check(each, "TQDMProgressBar")
