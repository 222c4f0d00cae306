"""Accelerate with two processes of a real `accelerate launch`, killed and resumed."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from dataporter import ResumableDataLoader
from dataporter.trainers.accelerate import Accelerator

SCRIPT = Path(__file__).with_name("accelerate_ranks.py")


def launch(*arguments) -> subprocess.CompletedProcess:
    # The launcher starts several processes on one machine only in its mode for several GPUs;
    # that they use the CPU is up to the script.
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    command += ["--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    return subprocess.run(
        [*command, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def lines(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def check_on_one_process(checkpoint: Path, *, seen: set[int]) -> None:
    """The checkpoint of two processes, gone on with by one: the rest of the data."""
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(ResumableDataLoader(range(50), 4, shuffle=True, seed=7))
    accelerator.load_state(str(checkpoint))
    rest = Counter(index for batch in loader for index in batch.tolist())
    assert rest == Counter(set(range(50)) - seen)


def test_two_processes_killed_in_mid_epoch_resume_to_the_same_samples_and_losses(tmp_path):
    killed = launch("killed", tmp_path)
    assert f"Signal {int(signal.SIGKILL)}" in killed.stderr
    # Saved at batch 4, killed at batch 6 of 7: batch 5 was trained on, and will be again.
    assert [len(lines(tmp_path / "run" / f"seen-{rank}.jsonl")) for rank in range(2)] == [5, 5]

    resumed = launch("resumed", tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "57%" in resumed.stderr.split("whole")[0]  # the bar begins at batch 4 of 7
    first_epoch: Counter[int] = Counter()
    first_epoch_until_saved: set[int] = set()
    for rank in range(2):
        seen = lines(tmp_path / "run" / f"seen-{rank}.jsonl")
        whole = lines(tmp_path / "whole" / f"seen-{rank}.jsonl")
        assert len(whole) == 14
        assert seen[:5] == whole[:5]
        assert seen[5:] == whole[4:]
        first_epoch.update(index for step in seen[:4] + seen[5:8] for index in step["ids"])
        first_epoch_until_saved.update(index for step in seen[:4] for index in step["ids"])
    assert first_epoch == Counter(range(50))

    check_on_one_process(tmp_path / "run" / "batch-0-4", seen=first_epoch_until_saved)

    found = [json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(2)]
    before, after = zip(*(one["lanes"] for one in found), strict=True)
    assert [len(ids) for ids in before] == [6, 6]
    assert sorted(itertools.chain(*before, *after)) == list(range(24))
    assert [one["uneven"] for one in found] == [[0, 2, 4, 6], [1, 3, 5]]
    for one in found:
        assert one["padded"].startswith("OptionError: even_batches=False")
        assert one["alone"].startswith("TopologyError: the loader does not share its data")
        assert one["missing"].startswith("StateMissingError")
