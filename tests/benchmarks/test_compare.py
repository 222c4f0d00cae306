"""The comparison with other loaders: tests run it, and do not judge the measured speeds."""

import json
import time
from contextlib import suppress

import compare
import psutil
import pytest
import resume
from contenders import CONTENDERS, installed
from measure import in_turns
from race import children, race
from resume import Point, WrongBatchError, measured
from watching import until
from workloads import WORKLOADS, FiveFields

# torchdata calls functions that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def runs(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def _in_one_thread(monkeypatch):
    """The script changes its process, which is this one."""
    monkeypatch.setattr(compare.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(compare.warnings, "filterwarnings", lambda _: None)


@pytest.mark.usefixtures("_in_one_thread")
@pytest.mark.filterwarnings("ignore")
def test_every_installed_loader_is_compared_and_written(tmp_path, capsys):
    compare.main(["--seconds", "1", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "bench.json").read_text())
    assert {"torch", "torchdata", "dataporter"} <= set(results["versions"])
    first = results["races"][0]
    assert first["failed"] == {}
    assert all(len(times) >= 3 for times in first["times"].values())
    assert first["to_torch"]["torch"] == 1
    resumed = {(r["who"], r["samples"], r["position"]): r for r in results["resumes"]}
    largest = resumed["dataporter", 10**12, 5 * 10**11]
    assert largest["seconds"] or " s at " in largest["why"]  # on a busy machine
    assert "36,000 GB" in resumed["torch", 10**12, 5 * 10**11]["why"]
    assert len(resumed["torchdata", 10**6, 0]["seconds"]) >= 1
    markdown = (tmp_path / "bench.md").read_text()
    assert "| token windows (256 int32), batches of 64, 2 workers" in markdown
    assert "| 10^12 " in markdown
    assert markdown in capsys.readouterr().out


def test_a_contender_that_fails_does_not_stop_the_others(monkeypatch):
    def broken(dataset, batch_size, workers):
        raise LookupError("not today")
        yield

    before = children()
    monkeypatch.setitem(CONTENDERS, "torch", broken)
    found = race(WORKLOADS[1], 0.1, 0)
    assert found.failed == {"torch": "LookupError: not today"}
    assert found.speed("torch") is None
    assert found.speed("dataporter") > 0
    until(lambda: not any(map(runs, children() - before)))
    report = compare.Comparison(
        versions=installed(), machine="", races=(found,), resumes=(), seconds=1.0
    )
    assert "| failed " in report.markdown()
    assert report.as_dict()["races"][0]["to_torch"]["dataporter"] is None


def test_every_contender_delivers_all_samples_of_an_epoch():
    dataset = FiveFields(64)
    for who in installed():
        stream = CONTENDERS[who](dataset, 8, 1)
        seen = [int(id_) for _ in range(8) for id_ in next(stream)["id"]]
        stream.close()
        assert sorted(seen) == list(range(64)), who


def test_a_resume_to_the_wrong_batch_is_an_error_not_a_time(monkeypatch):
    right = resume.RESUMES["dataporter"]

    def off_by_one(samples, batches):
        return right(samples, batches)[0], right(samples, batches + 1)[1]

    points = [Point(samples=10**4, position=6400)]
    assert next(iter(measured("dataporter", points, 2, 1.0))).seconds
    monkeypatch.setitem(resume.RESUMES, "dataporter", off_by_one)
    with pytest.raises(WrongBatchError):
        list(measured("dataporter", points, 2, 1.0))


@pytest.mark.parametrize("who", [who for who in resume.RESUMES if who in installed()])
def test_beyond_what_took_too_long_nothing_is_tried(who):
    points = [Point(samples=10**4, position=640), Point(samples=10**5, position=64_000)]
    first, second = measured(who, points, 3, limit=1e-9)
    assert len(first.seconds) == 1
    assert second.why.endswith("s at 640 of 10,000")


def test_turns_end_with_the_time_but_not_before_there_is_a_spread():
    made = in_turns({"a": lambda: None, "b": lambda: None}, 9, until=time.monotonic() - 1)
    assert [len(times) for times in made.values()] == [3, 3]
    assert len(in_turns({"a": lambda: None}, 9)["a"]) == 9
