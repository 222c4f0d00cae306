"""Without Accelerate or transformers, or with old ones, importing says what to install."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from bounds import least

import dataporter

IMPORT = """
import importlib, json, sys
from dataporter import MissingExtraError

def error_of(module):
    try:
        importlib.import_module(f"dataporter.trainers.{module}")
    except MissingExtraError as error:
        return str(error)

found = {"none": [error_of("accelerate"), error_of("transformers")]}
sys.path.insert(0, sys.argv[1])
found["old"] = [error_of("accelerate"), error_of("transformers")]
print(json.dumps(found))
"""
HIDDEN = ("accelerate", "transformers")


def test_a_framework_that_is_missing_or_too_old_is_named_with_its_extra(tmp_path):
    installed, old = tmp_path / "installed", tmp_path / "old"
    installed.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(HIDDEN):
            (installed / entry.name).symlink_to(entry)
    for name, version in (("accelerate", "1.0.1"), ("transformers", "4.56.2")):
        folder = old / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    source = Path(dataporter.__file__).parents[1]
    # Without `site`, nothing is installed but what stands in that folder.
    answer = subprocess.run(
        [sys.executable, "-S", "-c", IMPORT, str(old)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(installed)])},
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    for name, bound, old_one in (
        ("accelerate", least("accelerate", "accelerate"), "1.0.1"),
        ("transformers", least("transformers", "transformers"), "4.56.2"),
    ):
        remedy = f'Install it: pip install "torch-dataporter[{name}]".'
        needed = f"{name} {bound} or newer is needed, found"
        assert f"{needed} none. {remedy}" in found["none"]
        assert f"{needed} {name} {old_one}. {remedy}" in found["old"]
