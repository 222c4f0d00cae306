"""Measured resumes: tests run them, and do not judge the times."""

import pytest
import resume
from contenders import installed
from resume import Point, WrongBatchError, measured

# torchdata calls functions that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def test_chosen_loaders_resume_at_every_point():
    points = [Point(samples=10**6, position=0), Point(samples=10**12, position=5 * 10**11)]
    found = resume.resumes(["torch", "dataporter"], points, rounds=1, limit=5.0)
    assert "| torch " in found
    assert "| 10^12 " in found
    assert "its list needs 36,000 GB" in found


def test_the_positions_to_resume_at_are_in_order_and_distinct():
    points = resume.points()
    assert len(set(points)) == len(points) == 8
    assert points[0] == Point(samples=10**5, position=5 * 10**4)


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
