"""One of two ranks that train in Lightning, started as torchrun would start it.

    lightning_ranks.py FOLDER CHECKPOINT_OF_ONE_RANK

Trains to the end, saving at every batch's end, and resumes from some of the checkpoints; with
Lightning's own sampler wanted or not, and the loader built before the process group or in
Lightning's hook. What was trained on is left as JSON.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning_training import Module, SaveAt, make_loader, make_trainer

from dataporter.integrations.lightning import ResumeCallback

torch.set_num_threads(1)


class Hooked(Module):
    def train_dataloader(self):
        return make_loader()


def fit(folder, callbacks, *, wants_sampler, early, path=None, **options):
    module = Module() if early else Hooked()
    # Ranks agree on nothing, and a resume not with what it resumes.
    torch.manual_seed(int(os.environ["LOCAL_RANK"]) + (0 if path is None else 5))
    loader = make_loader() if early else None
    trainer = make_trainer(
        folder,
        [ResumeCallback(), *callbacks],
        devices=2,
        strategy="ddp",
        use_distributed_sampler=wants_sampler,
        **options,
    )
    trainer.fit(module, loader, ckpt_path=path)
    return module.steps


def main(folder, of_one_rank):
    answers = []
    for number, (wants_sampler, early) in enumerate(
        [(True, True), (True, False), (False, True), (False, False)]
    ):
        how = {"wants_sampler": wants_sampler, "early": early, "accumulate_grad_batches": 1}
        saver = SaveAt(folder / str(number), ["on_train_batch_end"])
        steps = fit(folder, [saver], **how)
        resumed = [
            {"from": made, "path": str(path), "steps": fit(folder, [], path=path, **how)}
            for _, made, path in saver.saved[1::2]  # the second and the last of each epoch
        ]
        answers.append({"how": how, "steps": steps, "resumed": resumed})
    how = {"wants_sampler": True, "early": True}
    more = fit(folder, [], path=of_one_rank, **how)
    saver = SaveAt(folder / "accumulating", ["on_train_batch_end"])
    how["accumulate_grad_batches"] = 3
    whole = fit(folder, [saver], **how)
    in_window = [fit(folder, [], path=path, **how) for _, _, path in saver.saved[:1]]
    answer = {"runs": answers, "from_one_rank": more, "whole": whole, "in_window": in_window}
    (folder / f"rank{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
