"""How tests watch porters: those that this test's processes have started, and no others."""

import contextlib
import gc
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from watching import is_running, until

_COMMAND = re.compile(rb"dataporter\.shards\.(porting|surveying)")
_MARK = "DATAPORTER_TEST_OF_PORTERS"


def porter_pids() -> list[int]:
    """The porters that inherited this test's environment; those that index files become some."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                folder.name.isdigit()
                and _COMMAND.search((folder / "cmdline").read_bytes())
                and mark in (folder / "environ").read_bytes()
                and is_running(int(folder.name))
            ):
                found.append(int(folder.name))
    return found


def until_no_porter_is_left() -> None:
    """Wait for the end of the porters there are, which are looked for once: that takes long."""
    pids = porter_pids()
    until(lambda: not any(map(is_running, pids)))
    until(lambda: not porter_pids())


def leaves_no_zombie() -> bool:
    """Whether a collection of garbage has taken note of all ends of this process's children."""
    gc.collect()
    return all(child.status() != "zombie" for child in psutil.Process().children())


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """No test leaves a porter behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_MARK, secrets.token_hex(8))
        yield
        until_no_porter_is_left()
