"""The example of Ray Train: a worker is killed, and the run restored from Ray's checkpoint."""

from collections import Counter

import pytest
from guides import blocks, lines_that_an_example_lacks
from launching import EXAMPLES, RAY, finished, started
from torch import nn
from two_ranks import SAMPLES, before_and_after, kept, steps_of, uninterrupted

KILLED_AT = 13


@pytest.mark.long(280, reason="Ray starts a controller, workers, and those workers once more")
def test_a_killed_worker_changes_neither_samples_nor_losses(tmp_path):
    command = (EXAMPLES / "ray_train.py", "--folder", tmp_path, "--kill-after", KILLED_AT)
    with started(*command, **RAY) as process:
        finished(process)
    ids: list[int] = []
    for rank, reference in enumerate(uninterrupted(lambda: nn.Linear(8, 1))):
        steps = steps_of(tmp_path, rank)
        first, second = before_and_after(steps)
        # The other rank may have been ended before it had logged the last step.
        assert len(first) in {KILLED_AT, KILLED_AT - (rank == 0)}
        resumed_at = second[0]["step"] - 1
        assert resumed_at in {5, 10}  # the second checkpoint may not have reached Ray
        assert first == reference[: len(first)]
        assert second == reference[resumed_at:]  # losses included, bit by bit
        ids += kept(steps)
    # 499 samples on two workers: one comes twice, so that both make the same steps.
    assert sorted(Counter(ids).values()) == [1] * (SAMPLES - 1) + [2]


def test_the_guide_shows_lines_of_the_example():
    first, *_ = blocks("ray.md", "python")
    assert lines_that_an_example_lacks("ray_train.py", first) == []
