"""Counting cores: no more than the scheduler and the control group allow."""

import os
from pathlib import Path

import pytest

from dataporter.system.cores import usable_cores


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
