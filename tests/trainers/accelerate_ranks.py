"""The program of each process of `accelerate launch`, for test_accelerate_ranks.py.

    accelerate_ranks.py killed FOLDER    the example, killed in mid-epoch
    accelerate_ranks.py resumed FOLDER   resumed, and once more without an interruption; then
                                         what only several processes can show

What was found is written to FOLDER/found-RANK.json.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import torch
from accelerate import DataLoaderConfiguration
from torch.utils.data import IterableDataset, get_worker_info

from dataporter import DataPorterError, ResumableDataLoader
from dataporter.trainers.accelerate import Accelerator

UNEVEN = DataLoaderConfiguration(even_batches=False)
EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerate_loop.py"


def example():
    spec = importlib.util.spec_from_file_location("accelerate_loop", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Parts(IterableDataset):
    """The numbers up to 24, one part for each worker; with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        worker = get_worker_info()
        while self.at < 24 // worker.num_workers:
            self.at += 1
            yield worker.id + (self.at - 1) * worker.num_workers
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def lanes_resume(folder: Path) -> list[list[int]]:
    """Save in mid-epoch, load in new objects; what was delivered before and after."""
    both = []
    for resumes in (False, True):
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(ResumableDataLoader(Parts(), 3, lanes=4))
        if resumes:
            accelerator.load_state(str(folder))
        ids = []
        for number, batch in enumerate(loader, start=1):
            ids += batch.tolist()
            if number == 2 and not resumes:
                accelerator.save_state(str(folder))
                break
        both.append(ids)
    return both


def uneven() -> list[int]:
    """Return a process's share of seven samples in batches of two, with none repeated."""
    accelerator = Accelerator(cpu=True, dataloader_config=UNEVEN)
    loader = ResumableDataLoader(range(7), 2, tail="uneven")
    return [number for batch in accelerator.prepare(loader) for number in batch.tolist()]


def error_of(make, folder: Path | None = None, **options) -> str:
    """The error of preparing a loader or loading a checkpoint, on this process."""
    accelerator = Accelerator(cpu=True, **options)
    try:
        accelerator.prepare(make())
        accelerator.load_state(str(folder))
    except DataPorterError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main(task: str, folder: Path) -> None:
    train = example().train
    if task == "killed":
        train(folder / "run", kill_at=6)
    accelerator = train(folder / "run")
    train(folder / "whole")
    rank = accelerator.process_index
    (folder / "empty").mkdir(exist_ok=True)
    found = {
        "lanes": lanes_resume(folder / "lanes"),
        "uneven": uneven(),
        "padded": error_of(lambda: ResumableDataLoader(range(7), 2), dataloader_config=UNEVEN),
        "alone": error_of(lambda: ResumableDataLoader(range(7), strategy="simple")),
        "missing": error_of(lambda: ResumableDataLoader(range(7)), folder / "empty"),
    }
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    accelerator.wait_for_everyone()  # a group that only one rank has left may abort the other
    accelerator.end_training()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch's own threads abort an interpreter that ends, now and then
