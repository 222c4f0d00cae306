"""`dataporter inspect` on checkpoints of real frameworks: what it says, and of several at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from inspections import refused, run, saved_state
from support import Ids

from dataporter import ResumableDataLoader
from dataporter.tools.inspect import find_states


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that Lightning, Accelerate, transformers, torch and torchdata have written."""
    folder = tmp_path_factory.mktemp("made")
    script = Path(__file__).with_name("framework_checkpoints.py")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.run(
        [sys.executable, str(script), str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert child.returncode == 0, child.stderr
    return folder


@pytest.fixture
def state() -> dict:
    return saved_state()


IN_FRAMEWORKS = {
    "lightning.ckpt": "['loops']['fit_loop']['state_dict']['combined_loader'][0]",
    "accelerate": "custom_checkpoint_0.pkl",
    "transformers/checkpoint-2": (
        "trainer_state.json['stateful_callbacks']['LoaderCallback']['attributes']['loader']"
    ),
    "dcp": "['progress'][0]['loader']",
    "dcp_pickled": "['loader']['state'][0]",
    "manager": "checkpoint-000001-epoch0.pt['dataloaders'][0]",
    "manager/checkpoint-000001-epoch0.pt": "['dataloaders'][0]",
}


@pytest.mark.parametrize("name", IN_FRAMEWORKS)
def test_the_state_is_found_in_a_real_checkpoint(made, state, name):
    (found,) = find_states(made / name).states
    assert found.places == (IN_FRAMEWORKS[name],)
    fingerprint = found.state["fingerprint"]  # of tensors, where `state` is of a dataset without
    assert fingerprint.startswith("contents-")
    assert found.state == state | {"fingerprint": fingerprint}
    result = run(made / name)
    assert result.exit_code == 0
    assert "12 of 40 samples (30.0 %), after 3 batches" in result.stdout


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_torchdata_is_recognised(made, workers):
    result = run(made / f"torchdata_{workers}.pt", "--json")
    (found,) = json.loads(result.stdout)["states"]
    assert (found["kind"], found["batches"], found["finished"]) == ("torchdata", 3, False)


def test_what_a_folder_holds_beside_states_is_named_if_it_was_not_read(made):
    found = find_states(made / "transformers")
    assert [left.place for left in found.unread] == [
        "checkpoint-1/training_args.bin",
        "checkpoint-2/training_args.bin",
    ]
    assert len(found.states) == 1
    assert len(found.states[0].places) == 2  # the same in both


def test_the_text_is_this(tmp_path, state, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path is part of it
    torch.save({"model": torch.zeros(3), "loaders": [state]}, "last.pt")
    assert run("last.pt").stdout == (
        "last.pt: 1 loader state\n"
        "\n"
        "['loaders'][0]\n"
        "  epoch      0\n"
        "  position   12 of 40 samples (30.0 %), after 3 batches\n"
        "  next       position 12: samples 24, 28, 8, 6, ... of the dataset; 28 samples\n"
        "             remain, 7 full steps\n"
        "  order      shuffled by seed 7\n"
        "  saved on   1 rank, batches of 4\n"
        "  to resume  the same 40 samples, shuffle=True, seed=7 or none given; batch\n"
        "             size, ranks and workers may differ\n"
    )


@pytest.mark.parametrize("length", [10, 60, 65, 70, 75, 80, 200])
def test_a_path_is_shown_whole_whatever_its_length(tmp_path, state, monkeypatch, length):
    monkeypatch.chdir(tmp_path)
    path = Path("a" * length)
    path.write_text(json.dumps(state))
    heading = run(path).stdout.partition("\n\n")[0]
    assert " ".join(heading.split()) == f"{path}: 1 loader state"
    path.write_text("nothing")
    assert f"{path} was not read" in refused(path)


def test_json_says_the_same_for_machines(tmp_path, state):
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"loader": state}))
    said = json.loads(run(path, "--json").stdout)
    assert said["path"] == str(path)
    assert said["unread"] == []
    (found,) = said["states"]
    assert found["places"] == ["['loader']"]
    expected = {"kind": "dataporter", "epoch": 0, "position": 12, "length": 40, "seed": 7}
    assert found.items() >= (expected | {"remaining": 28, "batches": 3}).items()
    assert found["next_indices"] == [24, 28, 8, 6]


PEAK = """
import re, sys
from pathlib import Path
from dataporter.tools.cli.files import inspect
for path in sys.argv[1:]:
    inspect([Path(path)])
    # Of this program alone: rusage would count what its parent had in memory at the fork.
    kilobytes = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
    print(int(kilobytes) >> 10, file=sys.stderr)
"""


def test_piped_it_is_plain_text_and_weights_are_not_read_into_memory(tmp_path, state):
    paths = [tmp_path / name for name in ("small", "large", "large_and_old")]
    for path, megabytes in zip(paths, (1, 128, 128), strict=True):
        weights = {f"w{i}": torch.ones(megabytes << 14) for i in range(16)}
        zipped = path.name != "large_and_old"
        torch.save({"model": weights, "loader": state}, path, _use_new_zipfile_serialization=zipped)
    child = subprocess.run(
        [sys.executable, "-c", PEAK, *(path.name for path in paths)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert child.stdout.isascii()
    assert "\x1b" not in child.stdout
    assert all(len(line) <= 80 for line in child.stdout.splitlines())
    small, *large = map(int, child.stderr.split())
    assert all(peak - small < 32 for peak in large), child.stderr


# Several paths


def test_several_checkpoints_are_shown_one_after_another(tmp_path, state, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, at in (("one.json", 4), ("two.json", 8)):
        Path(name).write_text(json.dumps({**state, "samples_processed": at}))
    paths = ["one.json", "two.json"]
    result = run(*paths)
    assert result.exit_code == 0
    assert result.stdout.index("one.json: 1 loader state") < result.stdout.index("two.json: 1 l")
    assert result.stdout.count("position ") >= 2
    each = json.loads(run(*paths, "--json").stdout)
    assert [found["path"] for found in each] == paths
    assert [found["states"][0]["position"] for found in each] == [4, 8]


def test_one_of_several_that_cannot_be_read_does_not_hide_the_others(tmp_path, state, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.json").write_text(json.dumps(state))
    Path("bad.pt").write_bytes(b"nonsense")
    result = run("bad.pt", "good.json", "missing.pt")
    assert result.exit_code == 2
    assert "good.json: 1 loader state" in result.stdout
    said = " ".join(result.stdout.split())
    assert "bad.pt was not read: it is not a checkpoint" in said
    assert "there is no missing.pt. Name a checkpoint" in said
    found = json.loads(run("bad.pt", "good.json", "--json").stdout)
    assert "not a checkpoint" in found[0]["error"]
    assert len(found[1]["states"]) == 1


def test_excluded_spans_are_shown(tmp_path):
    loader = ResumableDataLoader(Ids(100), 10, shuffle=True, seed=3)
    loader.exclude(0, 20, 30)
    loader.exclude(2, 0, 5)
    torch.save({"loader": loader.state_dict()}, tmp_path / "checkpoint.pt")
    result = run(tmp_path / "checkpoint.pt")
    assert "excluded   positions 20 to 29 of epoch 0, 0 to 4 of epoch 2" in result.stdout
    assert "90 samples remain" in " ".join(result.stdout.split())
    (found,) = json.loads(run(tmp_path / "checkpoint.pt", "--json").stdout)["states"]
    assert found["excluded"] == [[0, 20, 30], [2, 0, 5]]
    assert found["remaining"] == 90
