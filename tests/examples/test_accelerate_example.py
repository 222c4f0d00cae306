"""The Accelerate example is killed in mid-epoch and resumed; its guide shows its lines."""

import importlib.util
import json
import re
import signal
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, GradientState
from forked_scripts import TRANSFORMERS, started_to_files

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "accelerate_loop.py"


@pytest.fixture(autouse=True)
def _alone():
    """Accelerate keeps its state for the life of a process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


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
    assert "| 8/13 [" in resumed.err  # where the bar begins
    spec = importlib.util.spec_from_file_location("accelerate_loop", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.train(tmp_path / "whole")
    seen, whole = lines(tmp_path / "run" / "seen-0.jsonl"), lines(tmp_path / "whole/seen-0.jsonl")
    assert len(whole) == 26
    assert seen[:10] == whole[:10]
    assert seen[10:] == whole[8:]


def test_every_line_of_code_in_the_guide_is_one_of_the_example():
    known = {line.strip() for line in EXAMPLE.read_text().splitlines()}
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/accelerate.md").read_text(), re.DOTALL
    )
    shown = {line.strip() for block in blocks for line in block.splitlines()} - {"...", ""}
    assert len(shown) > 5
    assert shown <= known
