"""Lightning's checkpoints with our record stay loadable, and the same batches follow."""

import json
from pathlib import Path

import make
import pytest
from golden_lightning import KINDS

import dataporter

SAVED = sorted(Path(__file__).parent.glob("*/*.ckpt"))


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.parent.name)
def test_a_saved_checkpoint_is_followed_by_the_same_batches(path):
    batches = json.loads((path.parent / "batches.json").read_text())
    assert KINDS[path.stem].following(path.parent, path.stem) == batches[path.stem]


def test_there_is_one():
    assert SAVED


def test_states_that_are_there_are_not_written_again_by_accident(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make, "HERE", tmp_path)
    kept = tmp_path / dataporter.__version__ / "batches.json"
    kept.parent.mkdir()
    kept.touch()
    assert make.main([]) == 1
    assert "--again" in capsys.readouterr().err
    assert kept.exists()
