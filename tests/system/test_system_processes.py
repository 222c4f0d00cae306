"""Processes: the cores that they may use, and errors on their way from one to another."""

import os
import pickle
from pathlib import Path

import pytest

from dataporter.system.processes import die_with, pickled_error, usable_cores


def limit(root: Path, name: str, text: str) -> None:
    path = root / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_control_group_it_is_what_the_scheduler_allows(tmp_path):
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("text", "most"), [("100000 100000\n", 1), ("max 100000\n", 10**6)])
def test_the_control_groups_limit_counts(tmp_path, text, most):
    limit(tmp_path, "cpu.max", text)
    assert usable_cores(tmp_path) == min(most, len(os.sched_getaffinity(0)))


def test_the_older_control_groups_limit_counts(tmp_path):
    limit(tmp_path, "cpu/cpu.cfs_quota_us", "50000\n")
    limit(tmp_path, "cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(tmp_path) == 1


class TwoWordsError(Exception):
    """An error whose arguments are not those that it keeps."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.second = second


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_comes_back_though_its_class_takes_other_arguments():
    again = pickle.loads(pickled_error(TwoWordsError("not", "found")))
    assert type(again) is TwoWordsError
    assert (str(again), again.second) == ("not found", "found")


@pytest.mark.parametrize("error", [UnprintableError(), ValueError(lambda: None)])
def test_an_error_that_would_not_come_back_is_not_pickled(error):
    assert pickled_error(error) is None


def test_a_process_whose_parent_was_gone_before_it_could_be_watched_ends_itself():
    pid = os.fork()
    if pid == 0:
        die_with(os.getpid())  # which is not its parent
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
