"""One of two ranks that train in Lightning, started as torchrun would start it.

    lightning_ranks.py FOLDER CHECKPOINT_OF_ONE_RANK

Trains to the end, saving at every batch's end, and resumes from some of the checkpoints; with
Lightning's own sampler wanted or not, and the loader built before the process group or in
Lightning's hook; from a checkpoint of one rank; between two optimizer steps; and after a signal
to one of the ranks. What was trained on is left as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning_training import Module, SaveAt, Shards, make_loader, make_trainer

from dataporter.trainers.lightning import PauseCallback, ResumeCallback

torch.set_num_threads(1)


class Hooked(Module):
    def train_dataloader(self):
        return make_loader()


class Laned(Module):
    def train_dataloader(self):
        return make_loader(Shards(), lanes=4)


class Signalled(Module):
    """The last rank gets a signal in its third step."""

    def training_step(self, batch):
        if len(self.steps) == 2 and os.environ["LOCAL_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch)


def fit(folder, callbacks, *, wants_sampler=True, early=True, path=None, module=None, **options):
    module = module or (Module() if early else Hooked())
    # Ranks agree on nothing, and a resume not with what it resumes.
    torch.manual_seed(int(os.environ["LOCAL_RANK"]) + (0 if path is None else 5))
    loader = make_loader() if early else None
    trainer = make_trainer(
        folder,
        callbacks or [ResumeCallback()],
        devices=2,
        strategy="ddp",
        use_distributed_sampler=wants_sampler,
        **options,
    )
    trainer.fit(module, loader, ckpt_path=path)
    return module.steps


def accumulate(folder):
    """Resume between two optimizer steps."""
    saver = SaveAt(folder / "accumulating", ["on_train_batch_end"])
    whole = fit(folder, [ResumeCallback(), saver], accumulate_grad_batches=3)
    _, made, path = saver.saved[0]
    return {"whole": whole[made:], "resumed": fit(folder, [], path=path, accumulate_grad_batches=3)}


def read_lanes(folder):
    """Resume ranks that each read lanes of their own."""
    saver = SaveAt(folder / "lanes", ["on_train_batch_end"])
    module = Laned()
    whole = fit(folder, [ResumeCallback(), saver], early=False, module=module)
    resumed = [
        {"from": made, "steps": fit(folder, [], early=False, path=path, module=Laned())}
        for _, made, path in saver.saved[::3]
    ]
    return {"whole": whole, "resumed": resumed}


def pause(folder):
    """Send a signal to one rank, and continue from the pause."""
    callback, module = PauseCallback(folder), Signalled()
    try:
        fit(folder, [callback], module=module)
    except SystemExit as exit_:
        status = exit_.code
    rest = fit(folder, [callback], path=callback.newest())
    return {"whole": fit(folder, []), "parts": [module.steps, rest], "status": status}


def main(folder, of_one_rank):
    answers = []
    for number, (wants_sampler, early) in enumerate(
        [(True, True), (True, False), (False, True), (False, False)]
    ):
        how = {"wants_sampler": wants_sampler, "early": early}
        saver = SaveAt(folder / str(number), ["on_train_batch_end"])
        steps = fit(folder, [ResumeCallback(), saver], **how)
        resumed = [
            {"from": made, "path": str(path), "steps": fit(folder, [], path=path, **how)}
            for _, made, path in saver.saved[1::2]  # the second and the last of each epoch
        ]
        answers.append({"how": how, "steps": steps, "resumed": resumed})
    answer = {
        "runs": answers,
        "from_one_rank": fit(folder, [], path=of_one_rank),
        "accumulating": accumulate(folder),
        "lanes": read_lanes(folder),
        "paused": pause(folder / "pause"),
    }
    (folder / f"rank{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
