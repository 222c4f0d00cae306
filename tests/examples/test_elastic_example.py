"""The elastic example is run by torchrun, on three ranks and then on two."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter

import pytest
from guides import blocks, is_in_example, lines_that_an_example_lacks
from launching import EXAMPLES, finished, torchrun

ELASTIC = EXAMPLES / "elastic.py"
SAMPLES = 1009
BATCH_SIZE = 16


def run(ranks, *arguments):
    launch = f"--standalone --nproc-per-node {ranks}"
    with torchrun(launch, "elastic.py", *arguments) as process:
        return finished(process)


def batches(seen):
    return {
        log.stem: [json.loads(line)["ids"] for line in log.read_text().splitlines()]
        for log in seen.glob("rank*.jsonl")
    }


@pytest.mark.soak  # tests/trainers/test_torchrun.py loses a machine always
def test_an_epoch_begun_on_three_ranks_and_finished_on_two_has_every_sample_once(tmp_path):
    seen, stop_after = tmp_path / "seen", 5
    options = ("--checkpoint", tmp_path / "ck.pt", "--seen", seen)

    out = run(3, *options, "--stop-after", stop_after)
    before = batches(seen)
    consumed = 3 * stop_after * BATCH_SIZE
    assert {name: len(steps) for name, steps in before.items()} == dict.fromkeys(
        ["rank0", "rank1", "rank2"], stop_after
    )
    assert f"{consumed} of {SAMPLES} samples seen, 0 more than once" in out

    out = run(2, *options)
    after = batches(seen)
    assert after["rank2"] == before["rank2"]
    # 769 samples remain: rank 0 has one more than rank 1, and so a batch of its own.
    assert [len(after[name]) - stop_after for name in ("rank0", "rank1")] == [25, 24]
    ids = [index for steps in after.values() for batch in steps for index in batch]
    assert Counter(ids) == Counter(range(SAMPLES))
    assert f"{SAMPLES} of {SAMPLES} samples seen, 0 more than once" in out


def test_a_sample_seen_twice_is_counted(tmp_path):
    spec = importlib.util.spec_from_file_location("elastic", ELASTIC)
    elastic = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elastic)
    for rank, ids in enumerate(([1, 2], [2, 3])):
        line = json.dumps({"epoch": 0, "ids": ids})
        (tmp_path / f"rank{rank}.jsonl").write_text(f"{line}\n")
    assert elastic.count(tmp_path, 0) == f"Epoch 0: 3 of {SAMPLES} samples seen, 1 more than once."


def test_the_guide_to_torchrun_shows_lines_of_the_example():
    for code in blocks("torchrun.md", "python"):
        assert lines_that_an_example_lacks("elastic.py", code) == []
    (command,) = blocks("torchrun.md", "")
    assert is_in_example("elastic.py", command)
