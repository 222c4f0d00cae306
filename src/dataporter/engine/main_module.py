"""The main module, seen from processes that are not forked: they import it from its file.

A notebook, an interactive session and `python -c` have no such file. A script that is read from
stdin has one in name only, and no process starts that imports it.
"""

from __future__ import annotations

from multiprocessing.spawn import get_preparation_data
from pathlib import Path

from dataporter.errors import WorkerStartError


def is_main_importable() -> bool:
    """Tell whether other processes have what is defined in the main module of this one."""
    return bool({"init_main_from_name", "init_main_from_path"} & _main_module().keys())


def check_main_file(method: str) -> None:
    """Raise if a process started by this method would look in vain for the main script."""
    path = Path(_main_module().get("init_main_from_path", "script.py"))
    # A file that was deleted is another matter: a fork server may have imported it before.
    if not path.name.startswith("<") or path.exists():
        return
    msg = (
        f"the script comes from {path.name}, but a worker started by {method!r} has to import it. "
        "Save the script as a file and run that, or use multiprocessing_context='fork'."
    )
    raise WorkerStartError(msg)


def _main_module() -> dict[str, str]:
    """Return what a new process is told about the main module."""
    return get_preparation_data("")
