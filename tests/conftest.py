"""Hypothesis settings, and a watch over the tests that start workers."""

import compileall
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import support  # noqa: F401  it says how workers are started
from cheap_forks import keep_for_forks
from hypothesis import HealthCheck, settings
from no_processes import NoProcesses
from second_tries import SecondTries
from time_limits import TimeLimits
from watching import is_running, until, worker_pids

import dataporter

# Imports make many objects that stay: to look for garbage in between takes a third of their time.
gc.disable()

# No deadlines, since the machine is shared; the same runs everywhere.
settings.register_profile(
    "dataporter",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("dataporter")

# What tests start imports sooner so.
_HERE = Path(__file__).parent
QUICK_IMPORTS = str(_HERE / "quick_imports")
if QUICK_IMPORTS not in sys.path:
    sys.path.insert(0, QUICK_IMPORTS)  # `watching.environment` hands on what is here
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [QUICK_IMPORTS, inherited]))

# Tests run side by side: to spin while waiting for a thread takes a core from another one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The scripts of benchmarks/ import each other by their bare names.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

_SHORTEST = "/tmp"  # noqa: S108  as is usual
_SHORT = 40  # letters of a path that leave room for Ray's sockets, which take 60 more

# A script's background jobs ignore Ctrl-C, what nohup runs ignores SIGHUP, and so would all that
# tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-processes", action="store_true", help="skip tests that start processes")


def pytest_configure(config: pytest.Config) -> None:
    if sys.dont_write_bytecode and not hasattr(config, "workerinput"):
        # Tests start hundreds of interpreters: each would compile the package anew.
        compileall.compile_dir(Path(dataporter.__file__).parent, quiet=2)
    config.pluginmanager.register(TimeLimits(config))
    config.pluginmanager.register(SecondTries())
    if config.getoption("--no-processes"):
        config.pluginmanager.register(NoProcesses())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Look for doctests in src only: helpers of tests are imported by those that need them."""
    name = collection_path.name
    is_helper = name.endswith(".py") and not name.startswith("test_")
    return (is_helper and _HERE in collection_path.parents) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run last what imports much: until then, workers are forked from smaller processes."""
    items.sort(key=lambda item: item.get_closest_marker("imports_much") is not None)


def pytest_collection_finish() -> None:
    """Leave what was imported out of every collection of garbage: there are many of these."""
    keep_for_forks()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _room_for_sockets(tmp_path_factory: pytest.TempPathFactory):
    """Give sockets of torch, Ray and fork servers a short folder: their names have a limit.

    Files of tests lie where they were to lie, however long the path is.
    """
    tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        if len(tempfile.gettempdir()) > _SHORT:
            patch.setenv("TMPDIR", _SHORTEST)
            patch.setattr(tempfile, "tempdir", _SHORTEST)
        yield


@pytest.fixture(autouse=True)
def _no_worker_is_left():
    """No test leaves a worker behind for the next."""
    yield
    if worker_pids():
        gc.collect()  # an error that was caught holds what it came through in a cycle
        try:
            until(lambda: not worker_pids())
        finally:
            for pid in filter(is_running, worker_pids()):
                os.kill(pid, signal.SIGKILL)
