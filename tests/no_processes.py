"""`pytest --no-processes`: a test that starts a process is skipped where it does.

For `make quick`. Tests need no mark for it, so none has a wrong one.
"""

import multiprocessing.util
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

_STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}


class NoProcesses:
    """Watches the tests of a session."""

    def __init__(self) -> None:
        self._in_test = False
        sys.addaudithook(self._hear)
        # Starts what is neither forked nor has an event of its own.
        multiprocessing.util.spawnv_passfds = self._skip

    def _hear(self, event: str, _: Any) -> None:
        if self._in_test and event in _STARTS:
            self._skip()

    def _skip(self, *_: Any) -> NoReturn:
        self._in_test = False  # tidying up may start one
        pytest.skip("it starts a process")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._in_test = True
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        self._in_test = False
        return (yield)
