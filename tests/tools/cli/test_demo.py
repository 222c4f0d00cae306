"""`dataporter demo` as a stranger runs it, and its verdict, which depends on the logs."""

import io
import math
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chromium import opened
from forked_commands import in_terminal
from PIL import Image
from rich.console import Console
from terminals import marked
from watching import until

from dataporter.tools import pictures
from dataporter.tools.cli import demo, main
from dataporter.tools.cli.output import write_whole
from dataporter.tools.demo import Story, run_demo
from dataporter.tools.demo.report import (
    ASPECTS,
    NOBODY,
    beside_torch,
    judge,
    page_of,
    times_seen_with_torch,
    who_saw,
)
from dataporter.tools.demo.training import EPOCHS, STEP_SAMPLES, Drawings, Run, Step, read_steps

# On fewer samples than it has: what is shown does not depend on how many there are.
SHOWN_SAMPLES = 576
SHOWN_STEPS = EPOCHS * SHOWN_SAMPLES // STEP_SAMPLES
SHORT = f"""
import functools
from dataporter.tools import demo
demo.run_demo = functools.partial(demo.run_demo, samples={SHOWN_SAMPLES})
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The demo, run once, in a terminal."""
    folder = tmp_path_factory.mktemp("demo")
    temporary = folder / "temporary"
    temporary.mkdir()
    command = ("demo", "--seed", "3", "--out", "out")
    with in_terminal(*command, cwd=folder, first=SHORT, TMPDIR=str(temporary)) as terminal:
        status = terminal.status()
    assert list(temporary.iterdir()) == []
    return status, terminal, folder / "out"


def test_a_training_killed_and_resumed_on_other_ranks_is_identical_to_the_last_bit(shown):
    status, terminal, out = shown
    text = terminal.text()
    assert status == 0, text
    assert terminal.widest() <= 80
    words = " ".join(text.split())
    assert words.endswith("the training is the same to the last bit.")
    assert "2 ranks with 2 workers each, batches of 24" in words
    assert "3 ranks with 1 worker each, batches of 16" in words
    killed_after = int(re.search(r"SIGKILL to all after step (\d+)", words).group(1))
    resumed_from = int(re.search(r"checkpoint of step (\d+)", words).group(1))
    made = SHOWN_STEPS + killed_after - resumed_from
    assert SHOWN_STEPS // EPOCHS < killed_after < SHOWN_STEPS
    assert 0 <= killed_after - resumed_from < 12  # a busy machine may get to a checkpoint first
    assert words.count(f"{made} of {made} identical") == len(ASPECTS)
    assert f"{EPOCHS * SHOWN_SAMPLES} of {EPOCHS * SHOWN_SAMPLES}" in words
    assert sorted(path.name for path in out.iterdir()) == ["demo.html", "demo.png"]


def test_its_page_is_sound_in_a_browser_narrow_and_wide(shown, tmp_path):
    for width, (scrolled, drawn, figures) in opened(shown[2] / "demo.html", tmp_path).items():
        assert scrolled <= width
        assert drawn >= 5 + 2  # curves and marks, and ticks
        assert set(figures) == {"curves", "samples"}
        assert all(across > width * 0.8 and down > 200 for across, down in figures.values())


def test_its_picture_is_a_picture(shown):
    with Image.open(shown[2] / "demo.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 800
        assert len(picture.convert("RGB").getcolors(2**24)) > 50


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        (lambda terminal: terminal.press(b"\x03"), 130, "dataporter: interrupted."),
        (
            lambda terminal: os.kill(terminal.pid, signal.SIGHUP),
            129,
            "dataporter: ended by SIGHUP.",
        ),
        (lambda terminal: os.kill(terminal.pid, signal.SIGKILL), -signal.SIGKILL, None),
    ],
    ids=["Ctrl-C", "SIGHUP", "SIGKILL"],
)
def test_its_end_leaves_no_process_and_unless_it_is_killed_no_file(tmp_path, end, status, words):
    mark = f"demo-{os.getpid()}-{status}"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with in_terminal("demo", cwd=tmp_path, mark=mark, TMPDIR=str(temporary)) as terminal:
        until(lambda: len(marked(mark)) >= 2, seconds=60)  # two ranks, which have hardly begun
        end(terminal)
        assert terminal.status() == status
    until(lambda: not marked(mark), seconds=60)
    if words is not None:
        assert terminal.text().rstrip().endswith(words)
        assert list(tmp_path.rglob("*")) == [temporary]


@pytest.mark.soak
def test_the_demo_fails_where_samples_have_no_random_numbers_of_their_own(tmp_path):
    verdict = judge(run_demo(tmp_path, 1, samples=576, loader_options={"randomness": False}))
    assert not verdict.is_exact
    bad = [finding.what for finding in verdict.findings if not finding.is_good]
    assert {"losses, every bit, on every rank", "weights at the end, SHA-256"} <= set(bad)
    assert "sample ids and epoch" not in bad


# The verdict


PER_EPOCH = 4
SAMPLES = PER_EPOCH * STEP_SAMPLES


def steps(first, last, world_size):
    made = []
    for step in range(first, last + 1):
        epoch, number = divmod(step - 1, PER_EPOCH)
        begin = number * STEP_SAMPLES
        made.append(
            Step(
                step=step,
                epoch=epoch,
                ids=tuple(range(begin, begin + STEP_SAMPLES)),
                inputs=tuple(f"{step} {place}" for place in range(STEP_SAMPLES)),
                losses=((1 / step).hex(),) * world_size,
                wait_ms=1.0,
            )
        )
    return tuple(made)


def story(**changes):
    run = Run(folder="", checkpoint="", world_size=2, workers=2, seed=1, samples=SAMPLES)
    last = EPOCHS * PER_EPOCH
    plain = Story(
        seed=1,
        before=run,
        after=replace(run, world_size=3, workers=1),
        whole=steps(1, last, 2),
        killed=steps(1, 7, 2),
        resumed=steps(6, last, 3),
        same_weights=True,
        seconds=1.0,
    )
    return replace(plain, **changes)


def ran(*arguments):
    """Run the command in this process; its status."""
    with pytest.raises(SystemExit) as ended:
        main.run(["demo", *map(str, arguments)])
    return ended.value.code


def test_a_difference_ends_with_status_1_and_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "dataporter.tools.demo.run_demo", lambda *_args, **_named: story(same_weights=False)
    )
    assert ran("--out", tmp_path / "new" / "folder") == 1
    assert "DIFFERENT: the resumed training differs from the one" in capsys.readouterr().out
    page = (tmp_path / "new" / "folder" / "demo.html").read_text()
    assert '<h1 class="bad">DIFFERENT' in page
    monkeypatch.setattr("dataporter.tools.demo.run_demo", lambda *_args, **_named: story())
    assert ran("--out", tmp_path) == 0


def test_its_axes_have_round_numbers_and_its_lines_names():
    page = page_of(story(), judge(story()))
    curves = page.partition('id="curves"')[2].partition("</figure>")[0]
    texts = set(re.findall(r"<text[^>]*>([^<]+)</text>", curves))
    assert {"step", "loss", "0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "2", "4", "10"} <= texts
    assert {"never interrupted (wide)", "until the kill after step 7"} <= texts
    assert "resumed after step 5" in texts


def test_a_run_has_a_bar_once_it_has_begun():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with demo._bars(console) as watch:
        watch("whole", 1, 96)
        watch("whole", 96, 96)
        assert "1. uninterrupted" in console.file.getvalue()
        assert "2. killed" not in console.file.getvalue()
        watch("killed", 3, 96)
    shown = console.file.getvalue()
    assert "2. killed" in shown
    assert "/100" not in shown
    assert "3. resumed" not in shown


def test_a_run_has_a_line_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), width=80)
    with demo._bars(console) as watch:
        for made in range(9):
            watch("whole", made, 96)
        watch("killed", 0, 96)
    assert console.file.getvalue().splitlines() == [
        "1. uninterrupted: 96 steps",
        "2. killed: 96 steps",
    ]


def test_a_folder_that_cannot_be_made_is_bad_input_at_once(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert ran("--out", tmp_path / "file" / "inside") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "cannot be written to: Not a directory." in " ".join(printed.err.split())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_folder_that_only_seems_to_be_writable_is_bad_input_at_once(capsys):
    assert ran("--out", "/proc/demo") == 2  # where even root may make nothing
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "/proc/demo cannot be written to: " in " ".join(printed.err.split())


def test_a_folder_is_made_only_once_there_is_something_to_put_into_it(tmp_path, monkeypatch):
    def interrupted(*_args, **_named):
        assert list(tmp_path.iterdir()) == []
        raise KeyboardInterrupt

    monkeypatch.setattr("dataporter.tools.demo.run_demo", interrupted)
    assert ran("--out", tmp_path / "new" / "folder") == 130
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_says_so_before_it_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda _name: None)
    assert ran("--out", tmp_path / "out") == 2
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_whole(path, "old")

    def interrupted(_self, _target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def found(verdict):
    return {finding.what: finding.result for finding in verdict.findings}


def test_logs_that_agree_are_identical():
    verdict = judge(story())
    assert verdict.is_exact
    assert list(found(verdict).values()).count("14 of 14 identical") == len(ASPECTS)
    assert found(verdict)["steps lost in the kill, made again"] == "2 of 2 identical"


SAME = (1 / 6).hex()
OTHER = math.nextafter(1 / 6, 1).hex()


@pytest.mark.parametrize(
    ("aspect", "change"),
    [
        ("losses, every bit, on every rank", {"losses": (OTHER,) * 3}),
        ("losses, every bit, on every rank", {"losses": (SAME, SAME, OTHER)}),
        ("augmented images, SHA-256 of bytes", {"inputs": ("6 0",) * STEP_SAMPLES}),
        ("sample ids and epoch", {"ids": tuple(range(STEP_SAMPLES, 0, -1))}),
        ("sample ids and epoch", {"epoch": 2}),
    ],
)
@pytest.mark.parametrize("run", ["killed", "resumed"])
def test_one_difference_in_one_step_is_found_and_named(aspect, change, run):
    whole = story()
    logged = [replace(s, **change) if s.step == 6 else s for s in getattr(whole, run)]
    wrong = replace(whole, **{run: tuple(logged)})
    verdict = judge(wrong)
    assert not verdict.is_exact
    assert found(verdict)[aspect] == "13 of 14 identical (first: step 6)"
    again = found(verdict)["steps lost in the kill, made again"]
    assert again == "1 of 2 identical (first: step 6)"


def test_a_step_left_out_or_too_many_and_other_weights_are_differences():
    left_out = judge(story(resumed=steps(9, 12, 3)))
    assert found(left_out)["steps left out"] == "1 (first: step 8)"
    assert found(left_out)["samples seen once in each epoch"].startswith(f"{2 * SAMPLES + 144} of")
    assert not left_out.is_exact
    assert not judge(story(resumed=steps(6, 13, 3))).is_exact
    assert not judge(story(same_weights=False)).is_exact


def test_the_map_has_every_sample_by_who_learned_from_it_for_good():
    seen = who_saw(story()).ravel()
    assert (seen[:SAMPLES] != NOBODY).all()
    # Epoch 1 is steps 5 to 8; step 5 is in the checkpoint, 6 and 7 are lost, 6 to 8 resumed.
    assert set(seen[:STEP_SAMPLES]) == {1, 2}
    assert set(seen[STEP_SAMPLES:SAMPLES]) == {3, 4, 5}
    gap = who_saw(story(resumed=steps(9, 12, 3)))
    assert (gap == NOBODY).sum() == STEP_SAMPLES


def test_torchs_loader_sees_the_samples_before_the_checkpoint_twice():
    seen = times_seen_with_torch(story()).ravel()[:SAMPLES]
    assert sorted(seen.tolist()) == [1] * (SAMPLES - STEP_SAMPLES) + [2] * STEP_SAMPLES
    assert f"{STEP_SAMPLES} of {SAMPLES} samples are seen twice" in beside_torch(story())


def test_a_step_counts_once_all_ranks_have_logged_it_whole(tmp_path):
    line = '{"step": 1, "epoch": 0, "ids": [%d], "inputs": ["x"], "loss": "0x1p0", "wait_ms": 1}\n'
    (tmp_path / "rank0.jsonl").write_text(line % 7 + line % 9)
    (tmp_path / "rank1.jsonl").write_text(line % 8 + '{"step": 2, "ep')
    assert [step.ids for step in read_steps(tmp_path, 2)] == [(7, 8)]


def test_drawings_are_other_ones_at_every_reading():
    drawings = Drawings(4)
    (_, first, _), (_, second, _) = drawings[0], drawings[0]
    assert not torch.equal(first, second)
