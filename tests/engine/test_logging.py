"""The package logs as libraries do: it sets up nothing, and says what happened."""

import ast
import logging
import os
import re
import signal
from pathlib import Path

import pytest
from forked_scripts import run
from support import Ids
from watching import until, worker_pids

import dataporter
from dataporter import ResumableDataLoader
from dataporter.errors import WorkerRestartWarning

SOURCE = Path(dataporter.__file__).parent
# They pass the level on to processes of ours, and their logs back.
OF_THE_PACKAGE = {"shards/processes.py", "shards/opening.py", "shards/porter.py"}


def test_importing_and_using_it_sets_up_no_logging():
    code = (
        "import logging, dataporter\n"
        "list(dataporter.ResumableDataLoader(range(4)))\n"
        "package = logging.getLogger('dataporter')\n"
        "assert [type(each) for each in package.handlers] == [logging.NullHandler]\n"
        "assert package.level == logging.NOTSET and package.propagate\n"
        "named = [n for n in logging.root.manager.loggerDict if n.startswith('dataporter.')]\n"
        "assert named and not any(logging.getLogger(n).handlers for n in named), named\n"
    )
    assert run(code) == ""


def test_every_module_has_a_logger_of_its_own_name():
    found = 0
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                found += 1
                assert name in OF_THE_PACKAGE or ast.unparse(node.args[0]) == "__name__", name
    assert found > 10


@pytest.fixture
def log(caplog):
    """Lines of the log at INFO, without the numbers of processes."""
    caplog.set_level(logging.INFO, "dataporter")

    def lines() -> list[str]:
        return [f"{each.name}: {re.sub('pid [0-9, ]+', 'pid N', each.getMessage())}"
                for each in caplog.records]  # fmt: skip

    return lines


def test_a_resume_is_told(log):
    loader = ResumableDataLoader(Ids(600), batch_size=32, shuffle=True, seed=1)
    list(loader)
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    assert log() == []
    resumed = ResumableDataLoader(Ids(600), batch_size=32, shuffle=True, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert log() == []
    list(resumed)
    list(resumed)
    assert log() == ["dataporter.sources.passes: resumed epoch 1 at 320 of 600"]


def test_workers_that_are_started_and_replaced_are_told(log):
    loader = ResumableDataLoader(Ids(40), batch_size=4, num_workers=2, prefetch_bytes=0)
    batches = iter(loader)
    next(batches)
    assert log() == ["dataporter.engine.crew: started 2 workers (pid N)"]
    killed = worker_pids()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: loader.stats().workers == 0, seconds=60)
    with pytest.warns(WorkerRestartWarning):
        list(batches)
    assert log()[1:] == [
        "dataporter.engine.recovery: replacing worker 0 (pid N), which has died",
        "dataporter.engine.recovery: replacing worker 1 (pid N), which has died",
        "dataporter.engine.crew: started 2 workers (pid N)",
    ]


def test_threads_are_told(log):
    list(ResumableDataLoader(Ids(8), num_workers=1, engine="threads"))
    assert log() == ["dataporter.engine.local: started 1 worker in threads"]


def test_where_passes_begin_and_end_is_told_to_those_who_debug(caplog):
    caplog.set_level(logging.DEBUG, "dataporter")
    loader = ResumableDataLoader(Ids(8), batch_size=4)
    list(loader)
    told = [each.getMessage() for each in caplog.records if each.name.endswith("passes")]
    assert told == ["begins epoch 0 at 0 of 8", "epoch 0 ends after 2 batches"]
