"""Failures are not forgiven, but for marked tests, once, and not in silence."""

import re

import pytest
from second_tries import MOST
from test_time_limits import run_pytest

FAIL_ONCE = """
import os, pytest
from pathlib import Path

def once(name):
    first = not Path(name).exists()
    Path(name).touch()
    return first

@pytest.mark.upset_by_load(reason="a made-up one")
def test_marked():
    assert not once("marked"), "upset"

@pytest.fixture
def broken_once():
    assert not once("fixture"), "no set-up"

@pytest.mark.upset_by_load(reason="a made-up one")
def test_fixture(broken_once):
    pass

def test_bare():
    assert not once("bare")

@pytest.mark.upset_by_load(reason="a made-up one")
def test_fails_twice():
    assert False, "always"
"""

CRASH_ONCE = """
@pytest.mark.upset_by_load(reason="a made-up one")
def test_crashes():
    if once("crashes"):
        os._exit(3)

@pytest.mark.timeout(2)
@pytest.mark.upset_by_load(reason="a made-up one")
def test_hangs():
    import time
    if once("hangs"):
        time.sleep(1000)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_marked_tests_may_fail_once_and_are_listed_and_nothing_else_is_forgiven(tmp_path, workers):
    # A crash without workers of pytest would end the run.
    tests = FAIL_ONCE + (CRASH_ONCE if workers else "")
    said = run_pytest(tmp_path, tests, "-n", str(workers), "--timeout=60", "-rfp")
    assert "status 1" in said, said
    assert re.findall(r"^PASSED .*::test_(\w+)", said, re.MULTILINE) == ["marked", "fixture"], said
    failed = set(re.findall(r"^FAILED .*::test_(\w+)", said, re.MULTILINE))
    assert failed == {"bare", "fails_twice", *(("crashes", "hangs") if workers else ())}, said
    listed = said.partition("second tries: 3")[2]
    assert re.findall(r"^\S+::test_(\w+)\n  may be upset: a made-up one", listed, re.MULTILINE) == [
        "marked",
        "fixture",
        "fails_twice",
    ], said
    assert "was: AssertionError: upset" in listed, said
    assert "was: AssertionError: no set-up" in listed, said


def test_few_tests_may_be_marked_and_each_says_why(tmp_path):
    marked = '@pytest.mark.upset_by_load(reason="no")\ndef test_{}(): pass\n'
    many = "import pytest\n" + "".join(marked.format(i) for i in range(MOST + 1))
    assert f"at most {MOST} may be" in run_pytest(tmp_path, many, "--timeout=60")
    bare = "import pytest\n@pytest.mark.upset_by_load\ndef test_it(): pass\n"
    assert "takes reason= alone" in run_pytest(tmp_path, bare, "--timeout=60")
