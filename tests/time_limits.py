"""Time limits: no test can hang a run, and none that ran out of time leaves a process behind.

pytest-timeout limits every test and shows all stacks. A test that needs longer says why:
`@pytest.mark.long(300, reason=...)`. Where it cannot end a test, since the main thread is stuck
outside Python or the error is swallowed, the fault handler ends that worker of pytest soon after.
"""

import faulthandler
import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

_RUN = "DATAPORTER_TEST_RUN"  # in the environment of every process of a run
_SOAK = 900  # seconds of a long run that names no limit of its own
_GRACE = 20  # seconds: porters end by themselves, soon after their readers
_STASH = pytest.StashKey[bool]()


def ran_out_of_time(item: pytest.Item) -> bool:
    return item.stash.get(_STASH, False)


class TimeLimits:
    """Gives tests their limit, and ends the processes of those that exceed it."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_controller = not hasattr(config, "workerinput")
        if self._is_controller:
            os.environ[_RUN] = secrets.token_hex(8)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if (mark := item.get_closest_marker("long")) is not None:
                if len(mark.args) != 1 or set(mark.kwargs) != {"reason"}:
                    raise pytest.UsageError(f"{item.nodeid}: long takes seconds and reason=.")
                _limit(item, mark.args[0])
            elif item.get_closest_marker("soak") is not None:
                _limit(item, _SOAK)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        mark = item.get_closest_marker("timeout")
        limit = mark.args[0] if mark is not None and mark.args else _usual_limit(item.config)
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(1.5 * limit, exit=True, file=stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Iterator[None]:
        if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
            item.stash[_STASH] = True
            # In psutil's clock, which is not that of time.time(). Ticks are of 10 ms.
            now = psutil.boot_time() + time.clock_gettime(time.CLOCK_BOOTTIME)
            children = psutil.Process().children(recursive=True)
            end([child for child in children if _began(child) > now - call.duration - 0.02])
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """End what a crashed worker of pytest has left."""
        if error:
            # A process closes its pipes, by which this is known, before its children leave it.
            with suppress(subprocess.TimeoutExpired):
                node.gateway._io.popen.wait(_GRACE)
            end(orphans())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that leaves processes behind, and end them."""
        if not self._is_controller:
            return
        deadline = time.monotonic() + _GRACE
        while (left := orphans()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            reporter = session.config.pluginmanager.get_plugin("terminalreporter")
            for process in left:
                reporter.write_line(f"left behind: {_said(process)}", red=True)
            end(left)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _limit(item: pytest.Item, seconds: float) -> None:
    usual = item.get_closest_marker("timeout")  # it may name a method
    item.add_marker(pytest.mark.timeout(seconds, **(usual.kwargs if usual is not None else {})))


def _usual_limit(config: pytest.Config) -> float:
    return float(config.getoption("timeout") or config.getini("timeout"))


def orphans() -> list[psutil.Process]:
    """The processes of this run that are no longer below this one."""
    run, below = (
        os.environ[_RUN],
        {child.pid for child in psutil.Process().children(recursive=True)},
    )
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(_RUN) == run and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:  # it has ended, or belongs to somebody else
            continue
        if ours and process.pid != os.getpid() and process.pid not in below:
            found.append(process)
    return found


def end(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _began(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.NoSuchProcess:
        return 0


def _said(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)
