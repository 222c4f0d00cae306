"""The example of torch.distributed.checkpoint: a killed rank changes nothing."""

from collections import Counter

import pytest
from guides import blocks, lines_that_an_example_lacks
from launching import finished, torchrun
from torch import nn
from two_ranks import SAMPLES, before_and_after, kept, steps_of, uninterrupted

KILLED_AT = 13


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def test_a_killed_rank_changes_neither_samples_nor_losses(tmp_path):
    launch = "--standalone --nproc-per-node 2 --max-restarts 1"
    arguments = ("--folder", tmp_path, "--kill-after", KILLED_AT)
    with torchrun(launch, "dcp_fsdp.py", *arguments) as process:
        finished(process)
    ids: list[int] = []
    for rank, reference in enumerate(uninterrupted(model)):
        steps = steps_of(tmp_path, rank)
        first, second = before_and_after(steps)
        # The other rank may have been ended before it had logged the last step.
        assert len(first) in {KILLED_AT, KILLED_AT - (rank == 0)}
        resumed_at = second[0]["step"] - 1
        assert resumed_at in {5, 10}  # the second checkpoint may not have been complete
        assert first == reference[: len(first)]
        assert second == reference[resumed_at:]  # losses included, bit by bit
        ids += kept(steps)
    # 499 samples on two ranks: one comes twice, so that both make the same steps.
    assert sorted(Counter(ids).values()) == [1] * (SAMPLES - 1) + [2]


@pytest.mark.soak
def test_the_next_epoch_is_trained_on_another_number_of_ranks(tmp_path):
    for ranks in (2, 3):
        launch = f"--standalone --nproc-per-node {ranks}"
        with torchrun(launch, "dcp_fsdp.py", "--folder", tmp_path) as process:
            finished(process)
    steps = [step for rank in range(3) for step in steps_of(tmp_path, rank)]
    assert {step["epoch"] for step in steps} == {0, 1}
    ids = [index for step in steps if step["epoch"] == 1 for index in step["ids"]]
    assert sorted(Counter(ids).values()) == [1] * (SAMPLES - 2) + [2, 2]


def test_the_guide_shows_lines_of_the_example():
    first, *_ = blocks("torch_checkpoint.md", "python")
    assert lines_that_an_example_lacks("dcp_fsdp.py", first) == []
