"""torchrun's elastic launches: a machine or a rank is lost, and the epoch is finished exactly."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from launching import finished, torchrun
from watching import until

from dataporter import ResumableDataLoader

SAMPLES = 1009
BATCH_SIZE = 16
SAVED_AT, LOST_AT = 10, 13  # steps
EMPTY_MEETING = 200  # bytes, more than a store has that nobody has joined


def steps_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def ids_of(steps: list[dict[str, Any]]) -> list[int]:
    return [index for step in steps for index in step["ids"]]


def the_order() -> list[int]:
    alone = ResumableDataLoader(range(SAMPLES), SAMPLES, shuffle=True, seed=3)
    return next(iter(alone)).tolist()


def launch_at(meeting: Path, *, attempts: int, last_call: int) -> str:
    """How one of up to two machines is launched.

    It counts the other one as lost after `attempts` seconds without a sign of life, and once it
    could begin alone it waits `last_call` seconds for the other one.
    """
    return (
        f"--nnodes 1:2 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint {meeting} "
        "--rdzv-conf store_type=file,keep_alive_interval=1,"
        f"keep_alive_max_attempt={attempts},last_call_timeout={last_call}"
    )


def has_joined(meeting: Path) -> bool:
    """Whether a launcher has written that it takes part."""
    return meeting.exists() and meeting.stat().st_size > EMPTY_MEETING


def test_a_lost_machine_is_gone_on_without_and_every_sample_comes_once(tmp_path):
    seen, meeting = tmp_path / "seen", tmp_path / "meeting"
    options = ("--checkpoint", tmp_path / "ck.pt", "--seen", seen, "--save-every", 5)
    # The first one waits for the second however late that starts, and never gives it up. The
    # second one finds both there, and it does not wait for others when it is alone.
    first_to_join = launch_at(meeting, attempts=100, last_call=100)
    with torchrun(first_to_join, "elastic.py", *options, "--lose-after", LOST_AT) as lost:
        until(lambda: has_joined(meeting), seconds=60)
        with torchrun(launch_at(meeting, attempts=2, last_call=1), "elastic.py", *options) as left:
            out = finished(left)
        lost.communicate(timeout=60)
        assert lost.returncode == -9
    assert "World size 1: up to position 1009." in out
    assert "1009 of 1009 samples seen, 0 more than once." in out

    order, position = the_order(), SAVED_AT * 2 * BATCH_SIZE
    first, second, undone = (
        steps_of(seen / name) for name in ("rank0.jsonl", "rank1.jsonl", "undone.jsonl")
    )
    before, after = first[:SAVED_AT] + second, first[SAVED_AT:]
    # On two ranks, up to the checkpoint: a prefix of the one order.
    assert len(second) == SAVED_AT
    assert Counter(ids_of(before)) == Counter(order[:position])
    # On one rank, after it: the rest, in order, with the lost steps' samples first.
    assert ids_of(after) == order[position:]
    assert after[0]["position"] == position + BATCH_SIZE
    # The machine that was lost had made its steps. The other may have failed in the last of them.
    again = Counter(order[position : LOST_AT * 2 * BATCH_SIZE])
    assert Counter(ids_of(undone)) <= again
    assert len(undone) >= 2 * (LOST_AT - SAVED_AT) - 1


@pytest.mark.soak
@pytest.mark.parametrize(("tail", "twice"), [("pad", 1), ("drop", 0)])
def test_the_tail_of_an_epoch_that_went_on_with_fewer_is_as_declared(tmp_path, tail, twice):
    options = ("--checkpoint", tmp_path / "ck.pt", "--seen", tmp_path, "--tail", tail)
    for ranks, stop in ((3, ("--stop-after", 5)), (2, ())):
        launch = f"--standalone --nproc-per-node {ranks}"
        with torchrun(launch, "elastic.py", *options, *stop) as process:
            finished(process)
    times = Counter(ids_of([step for log in tmp_path.glob("rank*") for step in steps_of(log)]))
    missing = SAMPLES - len(times)
    # 769 samples are left for two ranks: 24 steps of 32, and one sample.
    assert missing == (1 if tail == "drop" else 0)
    assert [n for n in times.values() if n > 1] == [2] * twice
