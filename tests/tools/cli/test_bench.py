"""`dataporter bench` on small loaders: its table, its verdict and its errors, not its speeds."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console
from terminals import COMMAND, in_terminal, marked
from watching import until

from dataporter.tools.bench import Comparison
from dataporter.tools.cli.bench import _table
from dataporter.tools.cli.main import run as run_command

LOADERS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_loaders(monkeypatch):
    monkeypatch.chdir(LOADERS)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the current folder


def run(*arguments):
    """Run the command in this process; its status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_command(["bench", *map(str, arguments)])
    return ended.value.code, out.getvalue(), err.getvalue()


def found(factory):
    status, out, err = run(factory, "--batches", 4, "--rounds", 1, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_three_loaders_are_compared_in_a_table_with_a_verdict():
    status, out, err = run("benched_loaders:torchs", "--batches", 8, "--rounds", 2)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "\x1b" not in out
    assert lines[0] == "Rows, batches of 8, 2 workers"
    rows = {line.split()[0]: line.split() for line in lines[1:] if line.strip()}
    assert {"torch", "torchdata", "dataporter", "limit"} <= set(rows)
    assert rows["torch"][3] == "1.00x"
    verdict = " ".join(out.split()).partition("100 % ")[2]
    assert verdict.startswith("dataporter ")
    assert verdict.endswith("of the limit.")


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        ("torchs", 8),
        ("ours", 8),
        ("stateful", 8),
        ("sampled", 8),
        ("weighted", 8),
        ("batched", 2),
        ("without_length", 8),
        ("single", 1),
    ],
)
def test_loaders_of_every_kind_are_compared(name, batch_size):
    comparison = found(f"benched_loaders:{name}")
    assert comparison["batch_size"] == pytest.approx(batch_size, abs=0.3)
    assert comparison["limit"] > 0
    assert list(comparison["speeds"]) == ["torch", "torchdata", "dataporter"]
    assert comparison["failed"] == {}
    assert comparison["to_torch"]["torch"] == 1
    for loader, speed in comparison["speeds"].items():
        assert speed > 0
        assert comparison["of_limit"][loader] == pytest.approx(speed / comparison["limit"])


def test_an_iterable_dataset_is_compared():
    comparison = found("benched_loaders:iterable")
    assert comparison["dataset"] == "Stream"
    assert list(comparison["speeds"]) == ["torch", "torchdata", "dataporter"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["benched_loaders:nothing"], "the factory returned None, not a loader"),
        (["benched_loaders:a_list"], "the factory returned a builtins.list, not a loader"),
        (["benched_loaders:broken"], "the loader failed: LookupError: the disk is gone"),
        (["benched_loaders:empty"], "dataporter: the loader delivered no batch"),
        (["benched_loaders:crashing"], "the process ended while the factory ran"),
        (["benched_loaders:endless", "--seconds", "0.5"], "has not returned after 0.5 seconds"),
        (["benched_loaders:torhcs"], "Did you mean 'torchs'"),
        (["benched_loaders:torchs", "--rounds", "0"], "rounds must be at least 1"),
        (["benched_loaders:torchs", "--batches", "0"], "batches must be at least 1"),
        (["benched_loaders:torchs", "--seconds", "0"], "seconds must be"),
    ],
)
def test_a_factory_that_cannot_be_compared_is_refused_in_plain_words(arguments, words):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert words in " ".join(err.split())
    assert "Traceback" not in err


def test_a_loader_that_fails_does_not_stop_the_others():
    comparison = found("benched_loaders:partly")
    assert comparison["limit"] > 0
    assert list(comparison["failed"]) == ["torch", "torchdata", "dataporter"]
    assert all("not in a worker" in why for why in comparison["failed"].values())
    assert comparison["verdict"].startswith("dataporter cannot run this loader: ")


def test_the_table_has_a_row_for_a_loader_that_fails():
    comparison = Comparison(
        dataset="Rows",
        batch_size=8,
        num_workers=2,
        versions={"torch": "1", "dataporter": "1"},
        limit=300,
        speeds={"dataporter": 90.0},
        failed={"torch": "LookupError: not in a worker"},
    )
    console = Console(file=io.StringIO(), width=80)
    console.print(_table(comparison))
    assert [line.split()[:3] for line in console.file.getvalue().splitlines()[2:4]] == [
        ["torch", "1", "failed"],
        ["dataporter", "1", "90"],
    ]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (
            240.0,
            "dataporter is faster than torch's DataLoader (2.40x) and reaches 80 %",
        ),
        (
            90.0,
            "dataporter is slower than torch's DataLoader (0.90x) and reaches 30 %",
        ),
        (103.0, "dataporter and torch's DataLoader are equally fast; dataporter reaches 34 %"),
    ],
)
def test_the_verdict_is_one_sentence(ours, verdict):
    comparison = Comparison(
        dataset="Rows",
        batch_size=8,
        num_workers=2,
        versions={"torch": "1", "dataporter": "1"},
        limit=300,
        speeds={"torch": 100.0, "dataporter": ours},
        failed={},
    )
    assert comparison.verdict == f"{verdict} of the limit."


def test_ctrl_c_leaves_no_process(tmp_path):
    mark = f"bench-{os.getpid()}"
    arguments = ("benched_loaders:held", "--batches", "8", "--seconds", "500")
    terminal = in_terminal(
        *COMMAND, "bench", *arguments, cwd=LOADERS, mark=mark, HELD=str(tmp_path)
    )
    until(lambda: len(list(tmp_path.iterdir())) == 2, seconds=60)  # two workers are at work
    terminal.press(b"\x03")
    assert terminal.status() == 130
    until(lambda: not marked(mark), seconds=60)
    assert terminal.widest() <= 80
