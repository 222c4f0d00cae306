"""The README's code runs unchanged, and resumes."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from support import Augmented, passes, plain

from dataporter import ResumableDataLoader

README = Path(__file__).parents[1] / "README.md"


def the_ten_lines() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return code


class DiedError(Exception):
    """An error that represents the death of the machine."""


def test_the_ten_lines_resume_where_the_last_checkpoint_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = the_ten_lines()
    for shown, run in {
        "step % 100 == 99": "step % 4 == 3",
        "range(loader.epoch, 10)": "range(loader.epoch, 3)",
        "shuffle=True": "shuffle=True, seed=5",
        "...  ": "train(batch)",
    }.items():
        assert shown in code
        code = code.replace(shown, run)
    reference = ResumableDataLoader(Augmented(320), batch_size=32, shuffle=True, seed=5)
    wanted = [batch for epoch in passes(reference, 3) for batch in epoch]

    # Epochs of 10 batches, a checkpoint after 4 and 8 of each.
    for begins, dies_after in ((0, 7), (4, 7), (8, 30)):
        seen: list = []

        def train(batch, seen=seen, dies_after=dies_after):
            seen.append(plain(batch))
            if len(seen) == dies_after:
                raise DiedError

        with suppress(DiedError):
            exec(code, {"dataset": Augmented(320), "train": train})  # noqa: S102
        assert seen == wanted[begins : begins + dies_after]


def sides_of_the_diff() -> tuple[str, str]:
    """The training script before and after the change."""
    (diff,) = re.findall(r"```diff\n(.*?)```", README.read_text(), re.DOTALL)
    lines = diff.splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    assert len(after) - len(before) + sum(line.startswith("-") for line in lines) == 3
    return "\n".join(before), "\n".join(after)


def test_the_three_lines_make_a_killed_run_see_every_sample_once(tmp_path, monkeypatch):
    model = torch.nn.Linear(1, 1)
    names = {"os": os, "torch": torch, "dataset": list(range(320)), "model": model}
    times_seen = []
    for side, code in zip(("before", "after"), sides_of_the_diff(), strict=True):
        (tmp_path / side).mkdir()
        monkeypatch.chdir(tmp_path / side)
        runs = []
        for dies_after in (7, 99):  # of 10 batches; the last of them is not saved
            seen: list = []

            def train(_model, batch, seen=seen, dies_after=dies_after):
                seen.append(batch.tolist())
                if len(seen) == dies_after:
                    raise DiedError

            tools = {"train": train, "save": lambda saved: torch.save(saved, "checkpoint.pt")}
            with suppress(DiedError):
                exec(code, {**names, **tools})  # noqa: S102
            runs.append(seen)
        kept = [index for batch in [*runs[0][:6], *runs[1]] for index in batch]
        times_seen.append(Counter(Counter(kept).values()))
    assert times_seen == [{1: 320 - 6 * 32, 2: 6 * 32}, {1: 320}]


def test_the_home_page_begins_as_the_readme_does():
    home = (README.parent / "docs" / "index.md").read_text()
    of_readme, diff, _ = re.split(r"(```diff.*?```)", README.read_text(), flags=re.DOTALL)
    of_home, same_diff, _ = re.split(r"(```diff.*?```)", home, flags=re.DOTALL)
    assert same_diff == diff
    words = of_readme.replace("docs/", "").replace(", and several times as fast", "").split()
    assert of_home.split() == words


def test_the_readme_is_short_and_has_no_hole():
    text = README.read_text()
    assert len(text.splitlines()) < 150
    assert "BENCH_" not in text


def fresh_clone(folder: Path) -> Path:
    """The files of the last commit, without anything that was made here."""
    clone = folder / "clone"
    git = shutil.which("git") or "git"
    subprocess.run([git, "clone", "--quiet", str(README.parent), str(clone)], check=True)
    return clone


def make(clone: Path, *arguments: str, seconds: float = 60) -> str:
    done = subprocess.run(
        [shutil.which("make") or "make", *arguments],
        cwd=clone,
        env={name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout


needs_a_clone = pytest.mark.skipif(
    not (README.parent / ".git").exists() or shutil.which("git") is None,
    reason="a clone is made of a repository",
)


@needs_a_clone
def test_the_readme_names_the_two_commands_and_a_fresh_clone_has_them(tmp_path):
    text, clone = README.read_text(), fresh_clone(tmp_path)
    for command in ("demo", "test"):
        assert f"`make {command}`" in text
        steps = make(clone, "--dry-run", command)
        assert "-m venv .venv" in steps
        assert "--constraint constraints.txt torch" in steps
    assert "pytest" in steps


@needs_a_clone
@pytest.mark.soak
@pytest.mark.long(3600, reason="it installs everything, and runs all tests")
def test_both_commands_of_the_readme_work_in_a_fresh_clone(tmp_path):
    clone = fresh_clone(tmp_path)
    assert "identical" in make(clone, "demo", f"PYTHON={sys.executable}", seconds=900)
    assert " passed" in make(clone, "test", f"PYTHON={sys.executable}", seconds=2700)
