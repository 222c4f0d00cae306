"""Ray Train: what a worker's loader learns of Ray and leaves in its checkpoints.

These run in Ray's own local mode, one worker in this process. Two workers, of which one is
killed, are in the example's test.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bounds import least
from guides import blocks
from support import Ids, flat, one_pass
from torch.utils.data import IterableDataset
from tracked import Tracked, numbered_lines

import dataporter
from dataporter import ResumableDataLoader
from dataporter.errors import (
    OptionError,
    OptionTypeError,
    StateFormatError,
    StateMismatchError,
    StateMissingError,
    TopologyError,
)


class Odd(IterableDataset):
    """Its state is of a type that no checkpoint can be loaded with."""

    def __iter__(self):
        yield from range(9)

    def state_dict(self) -> dict[str, Any]:
        return {"at": Path("here")}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def in_a_worker(work, folder: Path) -> dict[str, Any]:
    """Run this as a Ray Train worker does; what it put into a dict."""
    from ray import train
    from ray.train.torch import TorchTrainer

    found: dict[str, Any] = {}
    trainer = TorchTrainer(
        lambda: work(found, folder), scaling_config=train.ScalingConfig(num_workers=0)
    )
    trainer.fit()
    return found


def save_and_go_on(found: dict[str, Any], folder: Path) -> None:
    from dataporter.trainers.ray import load_loader, save_loader, topology

    found["topology"] = topology()
    loader = ResumableDataLoader(Ids(30), 4, shuffle=True, **topology())
    with pytest.raises(StateMissingError, match=r"'loader' in .*\. It holds model\.pt.*'begin'"):
        load_loader(loader, folder)
    with pytest.raises(OptionError, match="'raise' or 'begin', found 'skip'"):
        load_loader(loader, folder, missing="skip")
    assert not load_loader(loader, folder, missing="begin")
    assert not load_loader(loader, folder / "nowhere", missing="begin")
    seen = [next(batches).tolist() for batches in [iter(loader)] for _ in range(3)]
    save_loader(loader, folder)
    resumed = ResumableDataLoader(Ids(30), 4, shuffle=True)
    assert load_loader(resumed, folder)
    found["ids"] = flat(seen) + flat(one_pass(resumed))
    corpus = Tracked(numbered_lines(folder.parent / "data", 24))
    loader = ResumableDataLoader(corpus, 4, shuffle=True, **topology())
    seen = [next(batches)["id"].tolist() for batches in [iter(loader)] for _ in range(3)]
    save_loader(loader, folder, key="corpus")
    sharded = ResumableDataLoader(corpus, 5, shuffle=True)
    assert load_loader(sharded, folder, key="corpus")
    found["ids in files"] = flat(seen) + flat(batch["id"].tolist() for batch in sharded)
    found["order"] = sharded.state_dict()["order"]
    (folder / "corpus-rank00000.pt").unlink()
    with pytest.raises(StateMismatchError, match="num_samples changed"):
        load_loader(ResumableDataLoader(Ids(31), 4, shuffle=True), folder)
    (folder / "torn-rank00000.pt").write_bytes(b"torn")
    with pytest.raises(StateFormatError, match=r"torn-rank00000\.pt is damaged"):
        load_loader(resumed, folder, key="torn")
    (folder / "torn-rank00000.pt").unlink()
    with pytest.raises(StateMissingError, match=r"key 'l\*' in"):
        load_loader(resumed, folder, key="l*")
    odd = ResumableDataLoader(Odd(), 4)
    next(iter(odd))
    with pytest.raises(OptionTypeError, match=r"\['at'\], a pathlib.*weights_only=True"):
        save_loader(odd, folder, key="odd")
    guide = {"ResumableDataLoader": ResumableDataLoader, "dataset": Ids(30)}
    exec(blocks("ray.md", "python")[1], guide)  # noqa: S102
    found["guide"] = flat(one_pass(guide["loader"]))
    found["files"] = sorted(path.name for path in folder.iterdir())


def test_only_a_worker_has_a_place_and_it_goes_on_from_a_checkpoint(tmp_path):
    from dataporter.trainers.ray import save_loader, topology

    with pytest.raises(TopologyError, match="not a Ray Train worker"):
        topology()  # not yet
    with pytest.raises(TopologyError, match="not a Ray Train worker"):
        save_loader(ResumableDataLoader(Ids(30), 4), tmp_path)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    torch.save({}, folder / "model.pt")
    found = in_a_worker(save_and_go_on, folder)
    assert found["topology"] == {"rank": 0, "world_size": 1}
    assert sorted(found["ids"]) == list(range(30))
    assert sorted(found["ids in files"]) == list(range(24))
    assert found["order"].startswith("tracks-1, 2 side by side")
    assert sorted(found["guide"]) == list(range(30))
    assert found["files"] == ["loader-rank00000.pt", "model.pt"]


WITHOUT_RAY = """
import sys
import dataporter
found = []
for folder in (None, sys.argv[1]):
    if folder:
        sys.path.insert(0, folder)
    try:
        import dataporter.trainers.ray
    except dataporter.MissingExtraError as error:
        found.append(str(error))
    try:
        dataporter.ResumableDataLoader(range(3), engine="ray", num_workers=1)
    except dataporter.MissingExtraError as error:
        assert str(error) == found[-1]
        assert "ray" not in sys.modules
    else:
        raise AssertionError
print("\\n".join(found))
"""


def test_without_ray_or_with_an_old_one_the_extra_is_named(tmp_path):
    installed, old = tmp_path / "installed", tmp_path / "old" / "ray-2.50.1.dist-info"
    installed.mkdir()
    for path in Path(torch.__file__).parents[1].iterdir():
        if not path.name.startswith("ray"):
            (installed / path.name).symlink_to(path)
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.50.1\n")
    path = os.pathsep.join(map(str, (Path(dataporter.__file__).parents[1], installed)))
    answer = subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_RAY, old.parent],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    missing, too_old = answer.stdout.splitlines()
    assert missing == (
        f"ray {least('ray', 'ray')} or newer is needed, found none. Install it: pip install "
        '"torch-dataporter[ray]".'
    )
    assert "found ray 2.50.1. Install it" in too_old
