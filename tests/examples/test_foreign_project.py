"""The commands tried on a project that is not ours, in a terminal of 80 columns and piped."""

import json
import shutil
import sys

import forked_commands
import pytest
from launching import EXAMPLES
from terminals import piped

PROJECT = EXAMPLES / "foreign_project"
QUICK = ("--batches", "4", "--points", "1", "--workers", "1", "--batch-size", "7")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project, trained for a while."""
    folder = tmp_path_factory.mktemp("foreign") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__", "*.pt"))
    done = piped(sys.executable, "train.py", "--steps", "60", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "epoch 1, step 60: loss" in done.stdout
    return folder


def in_both(project, *arguments):
    """Run a command piped and in a terminal; what both have shown."""
    one_hash = {"PYTHONHASHSEED": "0", "COLUMNS": "80"}  # then verify starts fewer interpreters
    done = forked_commands.piped(*arguments, cwd=project, **one_hash)
    assert (done.status, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    with forked_commands.in_terminal(*arguments, cwd=project, **one_hash) as terminal:
        assert terminal.status() == 0
        assert terminal.widest() <= 80
    return done.out, terminal.text()


def test_verify_says_that_its_loader_is_exact(project):
    for shown in in_both(project, "verify", "train:make_loader", *QUICK):
        assert "ResumableDataLoader over Chirps, 1,000 samples, batches of 25" in shown
        assert "EXACT: all " in shown


def test_profile_says_where_its_loaders_time_goes(project):
    quick = ("--batches", "10", "--step-ms", "1", "--html", "profile.html", "--trace", "trace.json")
    for shown in in_both(project, "profile", "train:make_loader", *quick):
        assert "The page is in profile.html." in shown
        assert "fetch" in shown
    assert "<h1" in (project / "profile.html").read_text()
    assert json.loads((project / "trace.json").read_text())["traceEvents"]


def test_inspect_says_where_its_training_stands(project):
    for shown in in_both(project, "inspect", "checkpoint.pt"):
        words = " ".join(shown.split())
        assert "['data']['train']" in words
        assert "500 of 1,000 samples (50.0 %), after 20 batches" in words


def test_its_training_goes_on_from_there(project):
    done = piped(sys.executable, "train.py", "--steps", "10", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert "going on in epoch 1, after 500 clips" in done.stdout
