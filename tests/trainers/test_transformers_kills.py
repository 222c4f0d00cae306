"""A Trainer killed by SIGKILL and resumed in new processes, alone and under torchrun."""

import contextlib
import json
import signal
from pathlib import Path

import pytest
from forked_scripts import TRANSFORMERS, started_to_files
from ports import reserved_port

SCRIPT = Path(__file__).with_name("transformers_runs.py")
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}


def run(processes: int, task: str, folder: Path, options: dict) -> tuple[list[int], str]:
    """Run a task; the exit statuses of its processes, and what they wrote to stderr."""
    with reserved_port() as port, contextlib.ExitStack() as running:
        group = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [
            running.enter_context(
                started_to_files(
                    SCRIPT,
                    *(task, folder, json.dumps(options)),
                    imports=TRANSFORMERS,
                    **({**group, "RANK": rank, "LOCAL_RANK": rank} if processes > 1 else {}),
                )
            )
            for rank in map(str, range(processes))
        ]
        ended = [rank.ended(100) for rank in ranks]
    return [rank.status for rank in ended], "".join(rank.err for rank in ended)


def lines(log: Path) -> list:
    return [json.loads(line) for line in log.read_text().splitlines()]


def check_kill_and_resume(folder: Path, processes: int, options: dict) -> list[dict]:
    """Kill a run in its ninth batch, resume it, and compare; returns what each rank found."""
    statuses, errors = run(processes, "killed", folder, options)
    assert -signal.SIGKILL in statuses, errors  # another one may have noticed that first
    statuses, errors = run(processes, "resumed", folder, options)
    assert statuses == [0] * processes, errors
    accumulated = options.get("gradient_accumulation_steps", 1)
    per_epoch = -(-29 // (3 * processes))
    # Steps end with an epoch too. The last one before the ninth batch was saved.
    ends = [at for at in range(1, 9) if at % per_epoch % accumulated == 0 or at % per_epoch == 0]
    found = []
    for rank in range(processes):
        seen = lines(folder / "run" / f"seen-{rank}.jsonl")
        whole = lines(folder / "whole" / f"seen-{rank}.jsonl")
        assert seen[:8] == whole[:8]
        assert seen[8:] == whole[ends[-1] :]
        assert len(whole) > per_epoch
        found.append(json.loads((folder / f"found-{rank}.json").read_text()))
        if not options.get("dataloader_num_workers"):
            begun = ends[-1] // per_epoch * per_epoch
            consumed = {index for ids, _ in whole[begun : ends[-1]] for index in ids}
            rest = whole[ends[-1] : begun + per_epoch]
            read = found[-1]["read"][: sum(len(ids) for ids, _ in rest)]
            assert not consumed & set(read)
    return found


def test_two_processes_resume_in_the_second_epoch_accumulating_and_evaluating(tmp_path):
    options = {"num_train_epochs": 3, "gradient_accumulation_steps": 2, **EVALUATED}
    found = check_kill_and_resume(tmp_path, 2, options)
    for one in found:
        assert one["stream"].startswith("OptionError: an iterable on 2 processes")
        assert one["split"].startswith("OptionError: split_batches=True")


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("length", [{"num_train_epochs": 4}, {"max_steps": 11}], ids=str)
@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_was_killed_resumes(processes, length, accumulated, workers, tmp_path):
    options = {
        **length,
        "gradient_accumulation_steps": accumulated,
        "dataloader_num_workers": workers,
    }
    check_kill_and_resume(tmp_path, processes, options)
