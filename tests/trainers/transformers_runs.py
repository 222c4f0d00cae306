"""Small trainings under a Trainer, and what each process of torchrun does with them.

    transformers_runs.py killed FOLDER    killed by SIGKILL in mid-epoch
    transformers_runs.py resumed FOLDER   resumed, and once more without an interruption; then
                                          what only several processes can show

OPTIONS, TrainingArguments as JSON, may follow. What was found is written to
FOLDER/found-RANK.json.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from transformers import TrainingArguments

from dataporter import DataPorterError
from dataporter.trainers.transformers import ResumableTrainer


class Rows(Dataset):
    """Numbered samples with noise that is drawn at reading; knows what was read."""

    def __init__(self, samples: int = 20) -> None:
        self.samples = samples
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self.samples:
            raise IndexError(index)
        self.read.append(index)
        x = torch.tensor([torch.rand(()), np.random.standard_normal(), index / 10])
        return {"ids": torch.tensor(index), "input_ids": x, "labels": torch.tensor(index / 7)}


class Stream(IterableDataset):
    """Rows in their order, without a length but with a state."""

    def __init__(self, samples: int = 20) -> None:
        self.rows = Rows(samples)
        self.at = 0

    def __iter__(self):
        while self.at < len(self.rows):
            self.at += 1
            yield self.rows[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Model(nn.Module):
    """Draws (a dropout), and notes what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 1))
        self.seen: list[tuple[list[int], float]] = []
        self.log: Path | None = None
        self.kill_at: int | None = None

    def forward(self, ids, input_ids, labels):
        loss = nn.functional.mse_loss(self.layers(input_ids).squeeze(-1), labels)
        if self.training:
            self.note(ids.tolist(), loss.item())
        return {"loss": loss, "logits": labels}

    def note(self, ids: list[int], loss: float) -> None:
        self.seen.append((ids, loss))
        if len(self.seen) == self.kill_at:
            if torch.distributed.is_initialized():
                torch.distributed.barrier()  # all have logged the batch before
            os.kill(os.getpid(), signal.SIGKILL)
        if self.log is not None:
            with self.log.open("a") as lines:
                lines.write(json.dumps((ids, loss)) + "\n")


def make(folder: Path, dataset: Dataset, *, loader_options=None, **options) -> ResumableTrainer:
    """A Trainer that saves at every step."""
    torch.manual_seed(0)
    more = {name: options.pop(name) for name in ("eval_dataset", "callbacks") if name in options}
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 3,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        **options,
    }
    return ResumableTrainer(
        model=Model(),
        args=TrainingArguments(**arguments),
        train_dataset=dataset,
        loader_options=loader_options,
        **more,
    )


def error_of(folder: Path, dataset: Dataset, **options) -> str:
    try:
        make(folder, dataset, max_steps=2, **options).train()
    except DataPorterError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main(task: str, folder: Path, options: dict) -> None:
    rank = int(os.environ.get("RANK", "0"))

    def run(name: str, *, resume: bool = False, kill_at: int | None = None) -> Rows:
        rows = Rows(29)
        trainer = make(folder / name, rows, eval_dataset=Rows(5), **options)
        (folder / name).mkdir(parents=True, exist_ok=True)
        trainer.model.log = folder / name / f"seen-{rank}.jsonl"
        trainer.model.kill_at = kill_at
        trainer.train(resume_from_checkpoint=resume)
        return rows

    if task == "killed":
        run("run", kill_at=9)
    found: dict = {"read": run("run", resume=True).read}
    run("whole")
    if "RANK" in os.environ:
        split = {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 4}
        found["stream"] = error_of(folder / "none", Stream())
        found["split"] = error_of(folder / "none", Rows(), **split)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch's own threads abort an interpreter that ends, now and then
