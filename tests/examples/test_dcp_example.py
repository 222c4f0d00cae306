"""The example of torch.distributed.checkpoint: killed and not, the same samples and losses."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from guides import blocks, lines_that_an_example_lacks
from launching import finished, torchrun

SAMPLES = 499
BATCH_SIZE = 8
KILLED_AT = 13
LAUNCH = "--standalone --nproc-per-node 2 --max-restarts 1"


def lives_of(log: Path) -> list[list[dict[str, Any]]]:
    """The steps in a rank's log, for each time that it was started."""
    lives: list[list[dict[str, Any]]] = []
    for line in log.read_text().splitlines():
        step = json.loads(line)
        if not lives or step["step"] <= lives[-1][-1]["step"]:
            lives.append([])
        lives[-1].append(step)
    return lives


def test_a_killed_rank_changes_neither_samples_nor_losses(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with (
        torchrun(LAUNCH, "dcp_fsdp.py", "--folder", killed, "--kill-after", KILLED_AT) as one,
        torchrun(LAUNCH, "dcp_fsdp.py", "--folder", whole) as other,
    ):
        finished(one)
        finished(other)
    ids: list[int] = []
    for rank in ("rank0.jsonl", "rank1.jsonl"):
        (reference,) = lives_of(whole / rank)
        first, second = lives_of(killed / rank)
        resumed_at = second[0]["step"] - 1
        assert resumed_at in {5, 10}  # the second checkpoint may not have been complete
        assert len(first) == KILLED_AT
        assert first == reference[:KILLED_AT]
        assert second == reference[resumed_at:]  # losses included, bit by bit
        ids += [index for step in first[:resumed_at] + second for index in step["ids"]]
    # 499 samples on two ranks: one comes twice, so that both make the same steps.
    assert sorted(Counter(ids).values()) == [1] * (SAMPLES - 1) + [2]


def test_the_guide_shows_lines_of_the_example():
    first, *_ = blocks("torch_checkpoint.md", "python")
    assert lines_that_an_example_lacks("dcp_fsdp.py", first) == []
