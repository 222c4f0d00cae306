"""The states of every released version stay loadable, and the same batches follow.

`0.0.dev` has states of lanes that do not say `seeded_from`: all their batches are seeded. None of
these states has `excluded`. In its mixtures parts of equal weight take turns as they were listed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_kinds import KINDS, contents

import dataporter

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/batches.json"))
PRESENT = HERE / dataporter.__version__
SAVED = [
    (folder, path.stem)
    for folder in FOLDERS
    for path in sorted(folder.glob("*.*"))
    if path.name != "batches.json" and path.suffix != ".ckpt"
]


def batches_after(folder: Path, name: str) -> Any:
    return json.loads((folder / "batches.json").read_text())[name]


def test_there_is_a_state_of_every_kind():
    assert FOLDERS
    if PRESENT in FOLDERS:
        assert {name for folder, name in SAVED if folder == PRESENT} == KINDS.keys()


@pytest.mark.parametrize(
    ("folder", "name"), SAVED, ids=[f"{folder.name}-{name}" for folder, name in SAVED]
)
def test_a_saved_state_is_followed_by_the_same_batches(folder, name):
    assert KINDS[name].following(folder, name) == batches_after(folder, name)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.done is not None])
def test_these_are_the_batches_of_a_run_that_was_never_interrupted(name):
    newest = FOLDERS[-1]
    assert KINDS[name].uninterrupted() == batches_after(newest, name)


@pytest.mark.skipif(PRESENT not in FOLDERS, reason="this version has no golden states yet")
@pytest.mark.parametrize("name", KINDS)
def test_a_state_is_written_now_as_this_version_wrote_it(name, tmp_path):
    kind = KINDS[name]
    kind.save(tmp_path, name)
    file = name + kind.suffix
    assert same(contents(tmp_path / file), contents(PRESENT / file))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and one.keys() == other.keys():
        # The generators of the process that saved a checkpoint are no part of a state.
        return all(same(one[key], other[key]) for key in one if key != "rng_states")
    if isinstance(one, list | tuple) and len(one) == len(other):
        return all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
