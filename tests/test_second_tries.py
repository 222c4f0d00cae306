"""Failures are not forgiven, but for marked tests, once, and not in silence."""

import pytest
from second_tries import MOST
from test_time_limits import run_pytest

FAILS_ONCE = """
import os, pytest
from pathlib import Path

def once():
    first = not Path("tried").exists()
    Path("tried").touch()
    return first

@pytest.mark.upset_by_load(reason="a made-up one")
def test_marked():
    assert not once(), "upset"

def test_bare():
    assert not once()

@pytest.mark.upset_by_load(reason="a made-up one")
def test_crashes():
    if once():
        os._exit(3)

@pytest.mark.upset_by_load(reason="a made-up one")
def test_hangs():
    import time
    if once():
        time.sleep(1000)

@pytest.mark.upset_by_load(reason="a made-up one")
def test_fails_twice():
    assert False

@pytest.fixture
def broken_once():
    assert not once(), "no set-up"

@pytest.mark.upset_by_load(reason="a made-up one")
def test_fixture(broken_once):
    pass
"""


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(("test", "failure"), [("marked", "upset"), ("fixture", "no set-up")])
def test_a_marked_test_may_fail_once_and_is_listed(tmp_path, test, failure, workers):
    said = run_pytest(tmp_path, FAILS_ONCE, "-n", workers, "--timeout=60", "-k", test)
    assert "status 0" in said, said
    assert "1 passed" in said, said
    assert "second tries: 1" in said, said
    assert "may be upset: a made-up one" in said, said
    assert failure in said, said


@pytest.mark.parametrize("test", ["bare", "crashes", "hangs", "fails_twice"])
def test_other_failures_stay_failures(tmp_path, test):
    said = run_pytest(tmp_path, FAILS_ONCE, "-n", "1", "--timeout=5", "-k", test)
    assert "1 failed" in said, said
    assert "status 1" in said, said


def test_few_tests_may_be_marked_and_each_says_why(tmp_path):
    mark = "import pytest\n" + '@pytest.mark.upset_by_load(reason="no")\ndef test_{0}(): pass\n' * (
        MOST + 1
    )
    many = "".join(part.format(i) for i, part in enumerate(mark.splitlines(keepends=True)))
    assert f"at most {MOST} may be" in run_pytest(tmp_path, many, "--timeout=60")
    bare = "import pytest\n@pytest.mark.upset_by_load\ndef test_it(): pass\n"
    assert "takes reason= alone" in run_pytest(tmp_path, bare, "--timeout=60")
