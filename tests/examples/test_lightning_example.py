"""Lightning's example is paused and started again; the guide's code is run, or is its lines."""

import json
import re
from pathlib import Path

from forked_scripts import LIGHTNING, started_to_files

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lightning_pause.py"
GUIDE = ROOT / "docs" / "lightning.md"


def steps(folder):
    return [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


def run(*arguments):
    with started_to_files(EXAMPLE, *arguments, imports=LIGHTNING) as process:
        ended = process.ended()
    assert ended.status == 0, ended.err
    return ended.out


def test_the_example_paused_in_mid_epoch_and_started_again_sees_every_sample_once(tmp_path):
    printed = run("--folder", tmp_path, "--pause-after", 100)
    assert (tmp_path / "pause.ckpt").exists()
    assert len(steps(tmp_path)) == 100  # of 64 an epoch
    assert "samples seen" not in printed

    printed = run("--folder", tmp_path)
    assert not (tmp_path / "pause.ckpt").exists()
    for epoch in range(3):
        batches = [step["ids"] for step in steps(tmp_path) if step["epoch"] == epoch]
        assert len(batches) == 64
        assert sorted(index for batch in batches for index in batch) == list(range(1009))
    lines = [line for line in printed.splitlines() if line.startswith("Epoch")]
    assert lines == [
        f"Epoch {epoch}: 1009 of 1009 samples seen, 0 more than once." for epoch in range(3)
    ]


def test_every_line_of_the_guides_code_is_a_line_of_the_example():
    lines = {line.strip() for line in EXAMPLE.read_text().splitlines()}
    guide, _, _ = GUIDE.read_text().partition("\n## Fabric\n")  # whose loop tests/test_docs.py runs
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) >= 2
    code = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    assert [line for line in code if line not in lines and not line.startswith("#")] == []


def test_the_guide_names_the_version_that_is_tested_here():
    import lightning

    assert f"lightning {lightning.__version__}" in GUIDE.read_text()
