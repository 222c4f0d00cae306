"""Races among loaders: tests run them, and do not judge the measured speeds."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from contenders import CONTENDERS, installed
from loaders import Delivery
from machine import Clocks, reasons_for_distrust
from measure import AT_ONCE, BARE, Row, Run, Turns, in_turns
from players import Player
from race import race
from script import execute
from workloads import WITH_WORKERS, WITHOUT_WORKERS, FiveFields

ROOT = Path(__file__).parents[2]

# torchdata calls functions that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def script(name, *arguments):
    """Run a script as users do; what it prints."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


def test_loaders_are_measured_beside_the_limit_and_the_run_is_stored(tmp_path):
    path = tmp_path / "folder" / "run.json"
    options = ("--workers", "0,2", "--rows", "five fields", "--seconds", "1")
    printed = script("loaders.py", *options, "--out", str(path))
    run = Run.read(path)
    assert {"torch", "dataporter"} <= set(run.versions)
    assert {"processor", "cores", "date", "load_before", "load_after"} <= set(run.machine)
    inline, workers = run.rows
    assert [set(row.turns) for row in (inline, workers)] == [
        {BARE, "torch", "dataporter"},
        {BARE, AT_ONCE, "torch", "dataporter"},
    ]
    for row in run.rows:
        for turns in row.turns.values():
            assert not turns.failed
            assert len(turns.seconds) >= 3
        assert row.of_limit("dataporter").median > 0
    assert inline.cpu_ratio("dataporter", "torch").median > 0
    assert workers.of_bare_loops("dataporter").median > 0
    assert workers.turns["dataporter"].peak_mb > 10
    assert workers.turns["torch"].consumer_us.median > 0
    assert "## Without workers" in printed
    assert "of 2 bare loops at once" in printed
    figures = json.loads(path.read_text())["rows"][0]["figures"]
    assert figures["torch"]["to_torch"]["median"] == 1


def test_starts_are_measured_in_milliseconds(tmp_path):
    path = tmp_path / "run.json"
    rows = "first batch, fork, small|workers kept"
    printed = script("starting.py", "--rows", rows, "--seconds", "0.5", "--out", str(path))
    first, between = Run.read(path).rows
    assert first.values("dataporter").median > 0
    assert between.turns["torch"].consumer_us.median > 0
    assert "| first batch, fork, small dataset " in printed


class Constant:
    """A contender that takes the same time in every turn."""

    def warm_up(self, _seconds):
        return 3

    def turn(self, size):
        return size, 0.5, 0.25


class Busy(Constant):
    """A contender that computes for a moment."""

    def turn(self, size):
        began = time.thread_time()
        while time.thread_time() < began + 0.2:
            pass
        return size, 0.2, 0.2


class Broken(Constant):
    def warm_up(self, _seconds):
        raise LookupError("not today")


class Dying(Constant):
    """A contender that dies in its first turn."""

    def turn(self, _size):
        os._exit(3)


def test_a_contender_that_fails_does_not_stop_the_others():
    makers = {"torch": Broken, "other": Dying, "dataporter": Constant}
    row = race("work", 0, makers, seconds=60.0, batch_size=64, unit="samples/s")
    assert row.turns["torch"].failed == "LookupError: not today"
    assert row.turns["other"].failed == "its process ended with status 3"
    ours = row.turns["dataporter"]
    assert ours.seconds == (0.5,) * 5
    assert ours.speeds[0] == 3 * 64 / 0.5
    assert ours.consumer_us.median == pytest.approx(0.25 / 3 * 1e6)
    assert row.values("torch") is None
    assert row.ratio("dataporter", "torch") is None


def test_rows_that_are_not_to_be_trusted_are_named(monkeypatch, capsys):
    monkeypatch.setattr("script.torch.set_num_threads", lambda _: None)
    monkeypatch.setattr("script.warnings.filterwarnings", lambda _: None)
    monkeypatch.setattr("script.signal.signal", lambda *_: None)
    quiet, noisy = ({"torch": Turns(seconds=seconds)} for seconds in ((1.0,) * 5, (1.0, 2.0, 3.0)))
    rows = [
        Row(work="quiet", workers=2, unit="ms", turns=quiet),
        Row(work="loud", workers=2, unit="ms", turns=quiet, warnings=("other processes ran",)),
        Row(work="noisy", workers=2, unit="ms", turns=noisy),
    ]
    execute(rows, lambda _: "the table", None)
    busy, noise = capsys.readouterr().out.split("the table\n\n")[1].split("\n\n")
    assert busy == "Too busy to trust:\n- loud, 2 workers: other processes ran"
    assert noise.endswith("were over:\n- noisy, 2 workers: torch 25%\n")


def test_shares_of_the_cores_become_reasons_for_distrust():
    assert reasons_for_distrust({"others": 0.04, "stolen": 0.01, "withheld": 0.0}) == []
    found = reasons_for_distrust({"others": 0.4, "stolen": 0.1, "withheld": 0.03})
    assert found == [
        "other processes used 40% of the cores",
        "the host gave 10% of the cores' time to others",
        "the control group withheld 3% of the cores' time",
    ]
    assert reasons_for_distrust({}) == []  # where the system does not say


def test_work_of_child_processes_is_not_the_work_of_others():
    before = Clocks.now()
    player = Player(Busy)
    try:
        spent = player.call("turn", 1)[2]
        after = Clocks.now()
    finally:
        player.close()
    assert after.own - before.own >= 0.8 * spent


def test_a_player_is_stopped_between_its_turns():
    player = Player(Constant)
    try:
        assert player.call("turn", 2) == (2, 0.5, 0.25)
        os.waitid(os.P_PID, player.pid, os.WSTOPPED)  # returns when it has been stopped
        assert player.peak_mb("turn", 2) > 0
    finally:
        player.close()


def test_a_turn_longer_than_an_epoch_consists_of_whole_epochs():
    assert Delivery(iter(range(10**9)), epoch=7).warm_up(0.01) % 7 == 0
    assert Delivery(iter(range(10**9)), epoch=10**9).warm_up(0.01) < 10**9


def test_every_contender_delivers_all_samples_of_an_epoch():
    dataset = FiveFields(64)
    for who in installed():
        stream = CONTENDERS[who](dataset, 8, 1)
        seen = [int(id_) for _ in range(8) for id_ in next(stream)["id"]]
        stream.close()
        assert sorted(seen) == list(range(64)), who


def test_the_names_of_rows_are_unique_and_epochs_have_whole_batches():
    for workloads in (WITHOUT_WORKERS, WITH_WORKERS):
        assert len({workload.title for workload in workloads}) == len(workloads)
        assert all(workload.length % workload.batch_size == 0 for workload in workloads)


def test_turns_end_when_all_are_quiet_or_time_is_over_but_not_before_there_is_a_spread():
    def turns(seconds, **options):
        contenders = {"a": iter(seconds).__next__, "b": iter(seconds).__next__}
        return [len(each) for each in in_turns(contenders, seconds_of=float, **options).values()]

    quiet, loud = [1.0] * 99, [1.0, 2.0] * 99
    assert turns(quiet) == [5, 5]
    assert turns([1.0, 2.0, *quiet]) == [5, 5]
    assert turns([1.0, 2.0] * 3 + quiet)[0] > 5
    assert turns(loud, until=time.monotonic() - 1) == [3, 3]
    assert turns(loud, rounds=9) == [9, 9]
