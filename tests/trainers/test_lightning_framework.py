"""Ours are callbacks of the package whose trainer they are given to, of either name."""

import pytest

from dataporter.trainers.lightning.framework import packages

NAMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
CASES = [
    # versions of both, what the program has imported, whose callbacks ours are
    ("2.6.0", "2.6.0", [], ["lightning"]),
    ("2.6.0", "2.6.0", ["pytorch_lightning"], ["pytorch_lightning"]),
    ("2.5.6", "2.5.6", [], ["lightning", "pytorch_lightning"]),
    ("2.5.6", "2.5.6", ["lightning"], ["lightning", "pytorch_lightning"]),
    ("2.5.6", "2.5.6", ["pytorch_lightning"], ["pytorch_lightning", "lightning"]),
    ("2.6.0", "2.5.6", [], ["lightning", "pytorch_lightning"]),
    ("2.5.6", "2.6.0", [], ["lightning"]),
    ("2.5.2", "2.6.0", [], ["pytorch_lightning"]),
    ("2.6.0", "1.9.5", [], ["lightning"]),
]


@pytest.mark.parametrize(("first", "second", "imported", "expected"), CASES)
def test_old_trainers_of_either_package_take_our_callbacks(
    first, second, imported, expected, tmp_path, monkeypatch
):
    """Before 2.6.0 a trainer raises for a callback that is not of its own package."""
    for name, version in zip(NAMES, (first, second), strict=True):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    found = packages({NAMES[name] for name in imported})
    assert found == [NAMES[name] for name in expected]
