"""`dataporter bench` as a user runs it: it is shown to run, not what it measures."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from chromium import opened
from terminals import COMMAND, in_terminal, marked, piped
from watching import environment, state_of, until

from dataporter.tools.cli import bench, main
from dataporter.tools.comparison import resuming
from dataporter.tools.comparison.contenders import CONTENDERS, installed
from dataporter.tools.comparison.measure import in_turns
from dataporter.tools.comparison.page import page_of
from dataporter.tools.comparison.racing import race
from dataporter.tools.comparison.report import Comparison
from dataporter.tools.comparison.resuming import Point, Resumed, WrongBatchError, measured
from dataporter.tools.comparison.workloads import WORKLOADS, FiveFields

# torchdata uses what torch deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A short comparison, its output piped, where sockets' names would be too long."""
    folder = tmp_path_factory.mktemp("bench")
    temporary = folder / ("temporary" * 10)
    temporary.mkdir()
    command = (*COMMAND, "bench", "--seconds", "1", "--out", "out")
    done = piped(*command, cwd=folder, TMPDIR=str(temporary))
    assert list(temporary.iterdir()) == []
    return done, folder / "out"


def test_all_that_is_installed_is_compared_and_written(shown):
    done, out = shown
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert {path.name for path in out.iterdir()} == {"bench.md", "bench.html", "bench.json"}
    results = json.loads((out / "bench.json").read_text())
    assert {"torch", "torchdata", "dataporter"} <= set(results["versions"])
    first = results["races"][0]
    assert first["failed"] == {}
    assert all(len(times) >= 3 for times in first["times"].values())
    assert first["to_torch"]["torch"] == 1
    resumed = {(r["who"], r["samples"], r["position"]): r for r in results["resumes"]}
    largest = resumed["dataporter", 10**12, 5 * 10**11]
    assert largest["seconds"] or " s at " in largest["why"]  # which a busy machine leads to
    assert "36,000 GB" in resumed["torch", 10**12, 5 * 10**11]["why"]
    assert len(resumed["torchdata", 10**6, 0]["seconds"]) >= 1
    markdown = (out / "bench.md").read_text()
    assert "| token windows (256 int32), batches of 64, 2 workers" in markdown
    assert "| 10^12 " in markdown


def test_its_page_is_sound_in_a_browser_narrow_and_wide(shown, tmp_path):
    for width, (scrolled, drawn, figures) in opened(shown[1] / "bench.html", tmp_path).items():
        assert scrolled <= width
        assert drawn >= 3 + 2 * 3  # bars, and lines of two plots
        assert set(figures) == {"delivery", "by-size", "by-position"}
        assert all(across > width * 0.35 and down > 60 for across, down in figures.values())


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path):
    mark = f"bench-{os.getpid()}"
    (tmp_path / "temporary").mkdir()
    terminal = in_terminal(
        *(*COMMAND, "bench", "--seconds", "30"),
        cwd=tmp_path,
        mark=mark,
        TMPDIR=str(tmp_path / "temporary"),
    )
    until(lambda: len(marked(mark)) >= 4, 60)  # itself, its child, workers
    terminal.press(b"\x03")
    assert terminal.status() == 130
    until(lambda: not marked(mark))
    assert terminal.widest() <= 80
    assert list(tmp_path.rglob("*")) == [tmp_path / "temporary"]


@pytest.fixture
def short():
    """A folder of a short name: torch's workers have sockets in it, whose names have a limit."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="b-") as folder:
        yield Path(folder)


def in_the_background(mark, folder):
    """The command, once workers of it stand still."""
    command = subprocess.Popen(
        [*COMMAND, "bench", "--seconds", "60"],
        cwd=folder,
        env={**environment(), "DATAPORTER_TEST_MARK": mark, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: any(_stands_still(pid) for pid in marked(mark)), 100)
    return command


def _stands_still(pid):
    with contextlib.suppress(OSError):
        return state_of(pid) == "T"
    return False


@pytest.mark.soak  # what a signal does to any command, tests/cli/test_main.py shows
def test_sigterm_leaves_no_process_and_no_file_though_workers_stand_still(short):
    mark = f"bench-ended-{os.getpid()}"
    command = in_the_background(mark, short)
    command.send_signal(signal.SIGTERM)
    _, errors = command.communicate(timeout=60)
    assert (command.returncode, errors) == (143, "dataporter: ended by SIGTERM.\n")
    until(lambda: not marked(mark))
    assert list(short.iterdir()) == []


def test_a_kill_leaves_no_process_though_workers_stand_still(short):
    mark = f"bench-killed-{os.getpid()}"
    command = in_the_background(mark, short)
    command.kill()
    command.communicate(timeout=60)
    until(lambda: not marked(mark), 60)


def ran(*arguments):
    """Run the command in this process; its status."""
    with pytest.raises(SystemExit) as ended:
        main.run(["bench", *map(str, arguments)])
    return ended.value.code


def test_an_impossible_time_is_bad_input(tmp_path, capsys):
    assert ran("--seconds", 0, "--json", "--out", tmp_path) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "seconds must be finite and above 0, found 0.0" in printed.err


def test_a_contender_that_fails_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
    def broken(dataset, batch_size, workers):
        raise LookupError("not today")
        yield

    monkeypatch.setitem(CONTENDERS, "torch", broken)
    found = race(WORKLOADS[1], 0.1, 0)
    assert found.failed == {"torch": "LookupError: not today"}
    assert found.speed("torch") is None
    assert found.speed("dataporter") > 0
    report = Comparison(versions=installed(), machine="", races=(found,), resumes=(), seconds=1.0)
    assert "| failed " in report.markdown()
    monkeypatch.setattr(bench, "compare", lambda *_args, **_named: report)
    assert ran("--json", "--out", tmp_path) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["races"][0]["failed"] == found.failed
    assert printed["races"][0]["to_torch"]["dataporter"] is None


def test_sizes_stand_in_powers_of_ten_and_positions_in_proportion():
    sizes = [10**5, 10**6, 10**7, 10**9, 10**12]
    shares = [0, 10, 50, 90]
    points = [(size, size // 2) for size in sizes]
    points += [(10**6, 10**4 * share) for share in shares if share != 50]
    resumes = tuple(
        Resumed(who="dataporter", samples=samples, position=position, seconds=(0.01,))
        for samples, position in points
    )
    found = Comparison(versions=installed(), machine="", races=(), resumes=resumes, seconds=1.0)
    page = page_of(found)
    for name, places in (
        ("by-size", [math.log10(size / 10**5) / 7 for size in sizes]),
        ("by-position", [share / 90 for share in shares]),
    ):
        figure = page.partition(f'id="{name}"')[2].partition("</figure>")[0]
        along = figure.partition('class="along"')[2]
        ticks = [float(at) for at in re.findall(r"--at:([\d.]+)", along)]
        assert ticks == pytest.approx(places, abs=1e-4)
        width = float(re.search(r'viewBox="0 0 (\S+)', figure)[1])
        line = re.findall(r'd="M([^"]+)"', figure)[-1]
        drawn = [float(point.split()[0]) / width for point in line.split("L")]
        assert drawn == pytest.approx(places, abs=1e-4)


def test_every_contender_delivers_all_samples_of_an_epoch():
    dataset = FiveFields(64)
    for who in installed():
        stream = CONTENDERS[who](dataset, 8, 1)
        seen = [int(id_) for _ in range(8) for id_ in next(stream)["id"]]
        stream.close()
        assert sorted(seen) == list(range(64)), who


def test_a_resume_to_the_wrong_batch_is_an_error_not_a_time(monkeypatch):
    right = resuming.RESUMES["dataporter"]

    def off_by_one(samples, batches):
        return right(samples, batches)[0], right(samples, batches + 1)[1]

    points = [Point(samples=10**4, position=6400)]
    assert next(iter(measured("dataporter", points, 2, 1.0))).seconds
    monkeypatch.setitem(resuming.RESUMES, "dataporter", off_by_one)
    with pytest.raises(WrongBatchError):
        list(measured("dataporter", points, 2, 1.0))


@pytest.mark.parametrize("who", [who for who in resuming.RESUMES if who in installed()])
def test_beyond_what_took_too_long_nothing_is_tried(who):
    points = [Point(samples=10**4, position=640), Point(samples=10**5, position=64_000)]
    first, second = measured(who, points, 3, limit=1e-9)
    assert len(first.seconds) == 1
    assert second.why.endswith("s at 640 of 10,000")


def test_turns_end_with_the_time_but_not_before_there_is_a_spread():
    made = in_turns({"a": lambda: None, "b": lambda: None}, 9, until=time.monotonic() - 1)
    assert [len(times) for times in made.values()] == [3, 3]
    assert len(in_turns({"a": lambda: None}, 9)["a"]) == 9
