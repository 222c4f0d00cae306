"""Lightning's example is paused and started again; the guide's code is run, or is its lines."""

import importlib.util
import json
import re
import signal
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lightning_pause.py"
GUIDE = ROOT / "docs" / "lightning.md"


@pytest.fixture
def example():
    # Advice of Lightning's on workers and folders, and what it still uses of torch's.
    for about in ("does not have many workers", "exists and is not empty", "LeafSpec"):
        warnings.filterwarnings("ignore", message=f".*{about}.*")
    spec = importlib.util.spec_from_file_location("lightning_pause", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(folder):
    return [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


def test_the_example_paused_in_mid_epoch_and_started_again_sees_every_sample_once(
    example, tmp_path, capsys
):
    handler = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(SystemExit) as exit_:
        example.main(["--folder", str(tmp_path), "--pause-after", "100"])
    assert exit_.value.code == 0
    assert signal.getsignal(signal.SIGUSR1) is handler
    assert (tmp_path / "pause.ckpt").exists()
    assert len(steps(tmp_path)) == 100  # of 64 an epoch
    assert "samples seen" not in capsys.readouterr().out

    example.main(["--folder", str(tmp_path)])
    assert not (tmp_path / "pause.ckpt").exists()
    assert len(steps(tmp_path)) == example.EPOCHS * 64
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch")]
    assert lines == [
        f"Epoch {epoch}: 1009 of 1009 samples seen, 0 more than once." for epoch in range(3)
    ]


def test_a_sample_seen_twice_is_counted(example, tmp_path):
    log = tmp_path / "seen.jsonl"
    log.write_text("".join(json.dumps({"epoch": 1, "ids": ids}) + "\n" for ids in ([1, 2], [2])))
    assert example.count(log, 1) == "Epoch 1: 2 of 1009 samples seen, 1 more than once."


def test_every_line_of_the_guides_code_is_a_line_of_the_example():
    lines = {line.strip() for line in EXAMPLE.read_text().splitlines()}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    code = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    assert [line for line in code if line not in lines and not line.startswith("#")] == []


def test_the_guide_names_the_version_that_is_tested_here():
    import lightning

    assert f"lightning {lightning.__version__}" in GUIDE.read_text()
