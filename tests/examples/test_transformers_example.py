"""The Trainer's example is killed in mid-epoch and resumed; its guide shows its lines."""

import importlib.util
import json
import re
import signal
from pathlib import Path

from forked_scripts import TRANSFORMERS, started_to_files

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "transformers_trainer.py"


def lines(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_run_that_was_killed_resumes_to_the_same_samples_and_losses(tmp_path):
    folder = tmp_path / "run"
    with started_to_files(
        EXAMPLE, "--output", folder, "--kill-at", 11, imports=TRANSFORMERS
    ) as run:
        assert run.wait() == -signal.SIGKILL
    with started_to_files(EXAMPLE, "--output", folder, imports=TRANSFORMERS) as run:
        resumed = run.ended()
    assert resumed.status == 0, resumed.err
    assert "| 8/20 [" in resumed.err  # where the bar begins
    spec = importlib.util.spec_from_file_location("transformers_trainer", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.train(tmp_path / "whole")
    seen, whole = lines(tmp_path / "run" / "seen.jsonl"), lines(tmp_path / "whole" / "seen.jsonl")
    assert len(whole) == 20
    assert seen[:10] == whole[:10]
    assert seen[10:] == whole[8:]


def test_every_line_of_code_in_the_guide_is_one_of_the_example():
    known = {line.strip() for line in EXAMPLE.read_text().splitlines()}
    text = (ROOT / "docs" / "transformers.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = {line.strip() for block in blocks for line in block.splitlines()} - {"...", ""}
    assert len(shown) > 3
    assert shown <= known
