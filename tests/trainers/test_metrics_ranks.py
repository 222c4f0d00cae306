"""Metrics of an evaluation are the same on 1, 2 and 3 ranks, padding or not."""

import json
from pathlib import Path

from forked_scripts import LIGHTNING, started_to_files

RANKS = Path(__file__).with_name("metrics_ranks.py")
SAMPLES = 25  # on 2 and 3 ranks, some have nothing but padding in their last batch


def test_accelerate_and_lightning_count_every_sample_once_on_any_number_of_ranks(tmp_path):
    with started_to_files(RANKS, tmp_path, imports=LIGHTNING) as script:
        ended = script.ended(110)
    assert ended.status == 0, ended.err
    for world_size in (1, 2, 3):
        for rank in range(world_size):
            found = json.loads((tmp_path / f"{world_size}-{rank}.json").read_text())
            gathered = found["accelerate"]
            assert gathered["tensors"] == [[index, 2 * index] for index in range(SAMPLES)]
            assert gathered["objects"] == [str(index) for index in range(SAMPLES)]
            assert set(gathered["losses"]) == {2 * world_size}
            assert found["lightning"] == {
                "sum": 1000.0 * sum(range(SAMPLES)),
                "count": float(SAMPLES),
            }
