"""`dataporter bench` on small loaders: its table, its verdict and its errors, not its speeds."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists
from terminals import COMMAND, in_terminal, marked
from torch.utils.data import DataLoader
from watching import until

from dataporter.tools.bench import Comparison, bench
from dataporter.tools.cli.main import run as run_command
from dataporter.tools.report import Table, as_lines

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


def found(factory, *, status=0):
    ended, out, err = run(factory, "--batches", 4, "--rounds", 1, "--json")
    assert (ended, err) == (status, "")
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
    assert verdict.startswith("No verdict: 2 turns of each loader may differ by chance. ")
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


def test_where_all_loaders_fail_the_data_is_blamed_and_not_one_of_them():
    status, out, err = run("benched_loaders:broken_in_workers", "--batches", 4, "--rounds", 1)
    assert (status, out) == (2, "")
    words = " ".join(err.split())
    assert "no loader did, torch's neither" in words
    assert words.endswith("LookupError: not in a worker")


def test_a_loader_that_fails_does_not_stop_the_others():
    comparison = found("benched_loaders:not_ours", status=1)
    assert list(comparison["speeds"]) == ["torch", "torchdata"]
    assert comparison["verdict"].startswith("dataporter cannot run this loader: LookupError")


def test_the_reason_of_every_loader_that_fails_is_shown():
    status, out, err = run("benched_loaders:only_ours", "--batches", 4, "--rounds", 1)
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    assert "torch failed: LookupError: not in torch's" in words
    assert "torchdata failed: LookupError: not in torch's" in words
    assert "torch's DataLoader failed on this data; dataporter reaches" in words


def compared(*ours, torch=100.0, **others):
    return Comparison(
        dataset="Rows",
        batch_size=8,
        num_workers=2,
        versions={"torch": "1", "dataporter": "1"},
        limit=300,
        turns={"torch": (torch,) * len(ours), "dataporter": ours},
        **{"failed": {}, **others},
    )


def rows_of(comparison):
    (table,) = (part for part in comparison.parts() if isinstance(part, Table))
    return [line.split() for line, _ in list(as_lines(table))[1:]]


def test_the_table_has_a_row_for_a_loader_that_fails():
    comparison = replace(
        compared(90.0), turns={"dataporter": (90.0,)}, failed={"torch": "LookupError: gone"}
    )
    assert [row[:3] for row in rows_of(comparison)[:2]] == [
        ["torch", "1", "failed"],
        ["dataporter", "1", "90"],
    ]


def test_the_table_has_a_row_for_a_loader_that_is_not_installed():
    rows = rows_of(compared(90.0, absent=("torchdata",)))
    assert ["torchdata", "not", "installed"] in rows


def test_a_loader_that_is_not_installed_is_named(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    comparison = bench(lambda: DataLoader(range(64), 4), batches=2, rounds=1)  # in a fork
    assert comparison.absent == ("torchdata",)


def test_the_table_has_the_spread_of_each_ratio():
    rows = rows_of(compared(120.0, 110.0, 130.0, 125.0, 115.0))
    assert rows[0][:5] == ["torch", "1", "100", "1.00x", "33"]
    assert " ".join(rows[1]) == "dataporter 1 120 1.20x 1.10x to 1.30x 40 %"


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (
            (240.0, 200.0, 250.0, 210.0, 260.0),
            "dataporter is faster than torch's DataLoader (2.40x, between 2.00x and 2.60x); 80 %",
        ),
        (
            (90.0, 80.0, 95.0, 85.0, 99.0),
            "dataporter is slower than torch's DataLoader (0.90x, between 0.80x and 0.99x); 30 %",
        ),
        (
            (103.0, 98.0, 104.0, 102.0, 104.0),
            (
                "dataporter and torch's DataLoader are equally fast (1.03x, between 0.98x and "
                "1.04x); 34 %"
            ),
        ),
        (
            (122.0, 93.0, 128.0, 93.0, 81.0),
            (
                "No verdict: dataporter and torch's DataLoader differ by less than their turns do "
                "(0.93x, between 0.81x and 1.28x). Use an idle machine, more --rounds or more "
                "--batches; 31 %"
            ),
        ),
        (
            (240.0, 240.0, 240.0, 240.0),
            "No verdict: 4 turns of each loader may differ by chance. Use --rounds 5 or more; 80 %",
        ),
    ],
)
def test_the_verdict_names_its_spread_and_there_is_none_where_that_spans_1(ours, verdict):
    words, _, share = verdict.rpartition("; ")
    expected = f"{words}; dataporter reaches {share} of the limit."
    assert compared(*ours).verdict == expected


@given(lists(floats(0.1, 10), min_size=5, max_size=40))
def test_a_spread_is_narrower_with_more_turns_and_holds_the_median(speeds):
    comparison = compared(*speeds, torch=1.0)
    low, high = comparison.spread("dataporter")
    assert low <= comparison.to_torch("dataporter") <= high
    inside = sum(low <= speed <= high for speed in speeds)
    assert inside < len(speeds) or len(set(speeds)) < len(speeds) or len(speeds) < 8


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
