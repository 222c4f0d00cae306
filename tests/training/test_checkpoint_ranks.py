"""Ranks save one checkpoint together, and each gets its own state back."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from watching import environment

from dataporter import ResumableDataLoader
from dataporter.errors import (
    StateMismatchError,
)
from dataporter.training import CheckpointManager

RANK = """
import json, os, random, sys, warnings
import numpy as np, torch, torch.distributed as dist
from pathlib import Path
from dataporter import ResumableDataLoader
from dataporter.training import CheckpointManager
rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
store = dist.FileStore(str(folder / "store"), world_size)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
dist.barrier()  # else a quick rank may leave while another is still connecting to it
torch.manual_seed(rank)
manager = CheckpointManager(folder / "checkpoints", keep_last=2)

def outcome(work):
    try:
        return str(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

class Stateful:
    def __init__(self, state):
        self.state = state
    def state_dict(self):
        if isinstance(self.state, Exception):
            raise self.state
        return self.state
    def load_state_dict(self, state):
        self.state = state
"""


def on_ranks(world_size: int, script: str, folder: Path) -> list[Any]:
    """Run a script on every rank of a gloo group; what each said last, as JSON."""
    body = RANK + textwrap.dedent(script) + "\ndist.destroy_process_group()\n"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", body, str(rank), str(world_size), str(folder)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        answers = [process.communicate(timeout=110) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * world_size, answers
    return [json.loads(out) for out, _ in answers]


def test_ranks_save_one_file_and_come_out_alike(tmp_path):
    answers = on_ranks(
        2,
        """
        loader = ResumableDataLoader(range(16), 2, shuffle=True, seed=4)
        batches = iter(loader)
        next(batches)
        own = Stateful({"rank": rank})
        said = {}
        # The rest of this run is lost, and drawn again by the one that resumes.
        said["path"] = outcome(lambda: manager.save(
            epoch=0, model={"x": torch.ones(2)}, dataloader=loader, custom_state={"by": rank}))
        said["next"] = torch.rand(3).tolist(), [batch.tolist() for batch in batches]
        said["at rank 1"] = outcome(lambda: manager.save(
            epoch=1, dataloader=Stateful(OSError("no state here") if rank == 1 else {})))
        said["at rank 0"] = outcome(lambda: manager.save(
            epoch=1, custom_state={"bad": manager.checkpoint_dir} if rank == 0 else {}))
        said["own"] = outcome(lambda: manager.save(epoch=2, dataloader=own))

        # What a new run does, with nothing of the first one.
        torch.manual_seed(100 + rank)
        manager = CheckpointManager(folder / "checkpoints", keep_last=2)
        loader = ResumableDataLoader(range(16), 2, shuffle=True, seed=4)
        path = manager.checkpoint_dir / "checkpoint-000001-epoch0.pt"
        state = manager.load(path, dataloader=loader, restore_rng=True)
        again = {"next": (torch.rand(3).tolist(), [batch.tolist() for batch in loader])}
        again["by"] = state["custom_state"]["by"]
        own = Stateful(None)
        manager.load(dataloader=own)
        again["own"] = own.state
        again["missing"] = outcome(lambda: manager.load(manager.checkpoint_dir / f"no-{rank}.pt"))
        print(json.dumps([said, again]))
        """,
        tmp_path,
    )
    (first, second), resumed = zip(*answers, strict=True)
    folder = tmp_path / "checkpoints"
    for name in ("path", "at rank 1", "at rank 0", "own"):
        assert first[name] == second[name], name
    assert first["path"] == str(folder / "checkpoint-000001-epoch0.pt")
    assert first["at rank 1"] == "OSError: no state here"
    assert first["at rank 0"].startswith("OptionTypeError: custom_state['bad']")
    assert first["own"] == str(folder / "checkpoint-000002-epoch2.pt")
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-000001-epoch0.pt",
        "checkpoint-000002-epoch2.pt",
    ]

    assert [answer["next"] for answer in resumed] == [first["next"], second["next"]]
    assert first["next"][0] != second["next"][0]  # ranks have generators of their own
    assert [answer["by"] for answer in resumed] == [0, 0]
    assert [answer["own"] for answer in resumed] == [{"rank": 0}, {"rank": 1}]
    assert resumed[0]["missing"] == resumed[1]["missing"]
    assert "no-0.pt" in resumed[0]["missing"]

    # Alone: the loader goes on, what belongs to each of two ranks is refused or left out.
    manager = CheckpointManager(folder)
    loader = ResumableDataLoader(range(16), 2, shuffle=True, seed=4)
    state = manager.load(first["path"], dataloader=loader)
    assert sum(len(batch) for batch in loader) == 12
    assert state["rng_state"] is None
    with pytest.raises(StateMismatchError, match="saved for 2 ranks, this run has 1"):
        manager.load(first["path"], restore_rng=True)
    with pytest.raises(StateMismatchError, match="the loader's state"):
        manager.load(dataloader=SimpleNamespace(load_state_dict=print))
    assert manager.load()["dataloader"] is None
