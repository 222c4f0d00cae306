"""`dataporter profile` as a user meets it: words, files, exit statuses."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from watching import until

from dataporter.tools.cli.main import run as run_command

LOADERS = Path(__file__).parents[1] / "profile"


class Result(NamedTuple):
    exit_code: Any
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_loaders(monkeypatch):
    monkeypatch.chdir(LOADERS)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the current folder


def run(*arguments: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_command(["profile", *map(str, arguments)])
    return Result(ended.value.code, out.getvalue(), err.getvalue())


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2
    assert not result.stdout
    assert "Traceback" not in result.stderr
    assert all(len(line) <= 80 for line in result.stderr.splitlines())
    return " ".join(result.stderr.split())


def test_it_says_where_the_time_goes_and_writes_the_page_and_the_trace(tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    options = ["--batches", 24, "--step-ms", 2, "--html", page, "--trace", trace]
    result = run("profiled_loaders.py:slow", *options)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line)
    assert "\x1b" not in result.stdout
    assert "ResumableDataLoader over Slow, 256 samples" in result.stdout
    assert "BOUND" in result.stdout
    rows = [line.split()[0] for line in lines if line.startswith("  ")]
    for name in ("fetch", "collate", "write", "take", "wait", "worker"):
        assert name in rows
    assert "slowest samples, by index" in result.stdout
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]
    assert sorted(tmp_path.iterdir()) == [page, trace]  # and nothing half written


@pytest.mark.parametrize(("encoding", "unit"), [("ascii", "us"), ("latin-1", "µs")])
def test_a_terminal_that_lacks_its_letters_shows_others(encoding, unit):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        run_command(["profile", "profiled_loaders:tokens", "--batches", "8", "--step-ms", "1"])
    assert ended.value.code == 0
    out.seek(0)
    text = out.read()
    assert f" {unit} " in text
    assert "% #" in " ".join(text.split())  # the bars
    assert "?" not in text


def test_for_machines_it_prints_json_alone():
    result = run("profiled_loaders:tokens", "--batches", 8, "--step-ms", 1, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["figures"]["batches"] == 8
    assert found["loader"]["way"] == "gathered"
    assert found["verdict"]["bound"] in ("loader", "step")
    assert found["step_ms"] == 1
    assert found["tuning"] is None


def test_tuning_ends_with_what_to_do():
    options = ["--batches", 6, "--step-ms", 3, "--seconds", 30, "--tune"]
    result = run("profiled_loaders:inline", *options)
    assert result.exit_code == 0, result.stderr
    now, *_ = result.stdout.partition("Tuning:\n")[2].splitlines()
    assert now.startswith("num_workers=0: ")
    assert now.endswith(" (now)")
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "\nBest: num_workers=" in result.stdout


def test_a_torch_loader_is_profiled_as_far_as_it_can_be_seen():
    result = run("profiled_loaders:torchs", "--batches", 6, "--step-ms", 1)
    assert result.exit_code == 0
    assert "Of torch's DataLoader only waits and steps are visible" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no_such_module:make"], "there is no module 'no_such_module'"),
        (["profiled_loaders:slaw"], "Did you mean 'slow'?"),
        (["no_such_loaders.py:slow"], "There is no file no_such_loaders.py."),
        (["profiled_loaders"], "named as package.module:function"),
        (["profiled_loaders:number"], "cannot be called"),
        (["profiled_loaders:nothing"], "returned None, not a loader"),
        (["profiled_loaders:failing"], "RuntimeError: no such disk"),
        (["profiled_loaders:broken"], "LookupError: the ninth is missing"),
        (["profiled_loaders:hanging", "--seconds", "0.7"], "has not returned after 0.7 seconds"),
        (["profiled_loaders:slow", "--batches", "0"], "batches must be at least 1"),
        (["profiled_loaders:slow", "--html", "no_such_folder/page.html"], "cannot be written"),
        (["profiled_loaders:slow", "--trace", "."], "cannot be written"),
        (["profiled_loaders:slow", "--trace", "/dev/null"], "cannot be written"),
        (["profiled_loaders:slow", "--trace", "/proc/trace"], "cannot be written"),
    ],
)
def test_what_cannot_be_profiled_is_refused_in_plain_words(arguments, words):
    assert words in refused(*arguments)


def test_a_traceback_of_the_users_code_and_its_output_are_for_debug():
    result = run("profiled_loaders:broken", "--debug")
    assert result.exit_code == 2
    assert "in __getitem__" in result.stderr


def running_with(mark: str) -> list[int]:
    """Processes that have this in their environment."""
    time.sleep(0.05)  # there are many to be looked at
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                environment = (process / "environ").read_bytes()
            except OSError:  # it has just ended, or is another's
                continue
            if mark.encode() in environment:
                found.append(int(process.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_an_interrupt_leaves_no_process_and_no_file(tmp_path):
    mark = f"PROFILED={tmp_path}"
    script = "from dataporter.tools.cli import start; start()"
    arguments = ["profiled_loaders:slow", "--batches", "100000", "--html", tmp_path / "page.html"]
    command = subprocess.Popen(
        [sys.executable, "-c", script, "profile", *map(str, arguments)],
        env={**os.environ, "PROFILED": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with command:
        # The command, a nursery, a host, the process that measures, and its two workers.
        until(lambda: len(running_with(mark)) >= 6, seconds=60)
        command.send_signal(signal.SIGINT)
        _, complaint = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in complaint
    until(lambda: not running_with(mark), seconds=60)
    assert list(tmp_path.iterdir()) == []
