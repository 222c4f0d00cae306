"""The demo is run as a stranger would run it, and its verdict is shown to depend on the logs."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def load_demo():
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


demo = load_demo()


def run(script, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert list(folder.iterdir()) == []
    return done


def test_a_training_killed_in_mid_epoch_and_resumed_is_identical_to_the_last_bit(tmp_path):
    done = run(DEMO, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("IDENTICAL")
    assert max(map(len, lines)) <= 80

    killed_after = int(re.search(r"SIGKILL after step (\d+)", done.stdout).group(1))
    resumed_from = int(re.search(r"checkpoint of step (\d+)", done.stdout).group(1))
    total = demo.EPOCHS * demo.STEPS_PER_EPOCH
    made_twice = killed_after - resumed_from
    assert demo.STEPS_PER_EPOCH < killed_after < total
    assert killed_after % demo.STEPS_PER_EPOCH != 0
    assert 0 < made_twice <= demo.STEPS_PER_CHECKPOINT
    compared = total + made_twice
    assert done.stdout.count(f"{compared} of {compared} identical") == len(demo.ASPECTS)
    assert f"{made_twice} of {made_twice} identical" in done.stdout


def test_the_demo_fails_where_samples_have_no_random_numbers_of_their_own(tmp_path):
    source = DEMO.read_text()
    script = tmp_path / "sabotaged.py"
    for found, replacement in (
        ("shuffle=True, seed=7)", "shuffle=True, seed=7, randomness=False)"),
        ("SAMPLES = 2048\n", "SAMPLES = 1024\n"),  # sooner done
    ):
        assert source.count(found) == 1
        source = source.replace(found, replacement)
    script.write_text(source)
    done = run(script, tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("DIFFERENT")


def steps(first, last):
    return [
        demo.Step(
            step=step,
            epoch=0,
            ids=[step, step + 1],
            input=f"{step:064x}",
            loss=(1 / step).hex(),
            wait_ms=1.0,
        )
        for step in range(first, last + 1)
    ]


def test_logs_that_agree_are_reported_as_identical(capsys):
    assert demo.report(steps(1, 20), steps(1, 12), steps(9, 20), same_weights=True)
    assert capsys.readouterr().out.count("24 of 24 identical") == len(demo.ASPECTS)


@pytest.mark.parametrize(
    ("aspect", "change"),
    [
        ("losses", {"loss": math.nextafter(1 / 10, 1).hex()}),
        ("augmented inputs", {"input": f"{11:064x}"}),
        ("sample ids", {"ids": [10, 12]}),
        ("sample ids", {"epoch": 1}),
    ],
)
@pytest.mark.parametrize("process", ["killed", "resumed"])
def test_one_difference_in_one_step_is_found_and_named(aspect, change, process, capsys):
    logs = {"killed": steps(1, 12), "resumed": steps(9, 20)}
    logs[process] = [replace(s, **change) if s.step == 10 else s for s in logs[process]]
    assert not demo.report(steps(1, 20), **logs, same_weights=True)
    out = capsys.readouterr().out
    assert re.search(rf"{aspect}.* 23 of 24 identical \(first: step 10\)", out)
    assert re.search(r"steps made twice +3 of 4 identical \(first: step 10\)", out)
    rows = demo.table(steps(1, 20), **logs).splitlines()
    assert [row.split()[0] for row in rows if row.endswith("| NO")] == ["10"]


def test_a_step_that_was_left_out_is_found(capsys):
    assert not demo.report(steps(1, 20), steps(1, 12), steps(14, 20), same_weights=True)
    assert re.search(r"steps left out +1 \(first: step 13\)", capsys.readouterr().out)


def test_a_step_too_many_is_found():
    assert not demo.report(steps(1, 20), steps(1, 12), steps(9, 21), same_weights=True)


def test_other_weights_at_the_end_are_a_difference(capsys):
    assert not demo.report(steps(1, 20), steps(1, 12), steps(9, 20), same_weights=False)
    assert re.search(r"weights at the end +DIFFERENT", capsys.readouterr().out)


def test_a_line_cut_short_by_a_kill_is_no_step(tmp_path):
    log = tmp_path / "log"
    log.write_text(f"{demo.json.dumps(demo.asdict(steps(1, 1)[0]))}\n" + '{"step": 2, "ep')
    assert demo.read_log(log) == steps(1, 1)


def test_the_demo_draws_other_images_at_every_reading():
    drawings = demo.Drawings()
    (_, first, _), (_, second, _) = drawings[0], drawings[0]
    assert not torch.equal(first, second)
