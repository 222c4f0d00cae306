"""Checkpoints on full and read-only disks, and beside other writers and readers."""

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest
import torch
from watching import environment, run_script

from dataporter.errors import (
    CheckpointWriteError,
)
from dataporter.training import CheckpointManager

# Disks

DISK = """
import os, resource, subprocess, sys, torch
from pathlib import Path
from dataporter.errors import CheckpointWriteError
from dataporter.training import CheckpointManager
folder = Path(sys.argv[1])
manager = CheckpointManager(folder, keep_last=1)
small, large = {"x": torch.ones(1000)}, {"x": torch.ones(1_000_000), "y": torch.ones(1_000_000)}

def refused(save, words):
    before = sorted(folder.iterdir())
    try:
        save()
    except CheckpointWriteError as error:
        assert words in str(error), error
        assert isinstance(error, OSError) and error.errno, error
    else:
        raise AssertionError("no error")
    assert sorted(folder.iterdir()) == before
"""


def in_mounts(commands: str, script: str, folder: Path) -> None:
    """Run a script where mounts can be made that nobody else sees."""
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:  # noqa: S607
        pytest.skip("this system lets nobody make mounts of their own")
    line = f"{commands} && exec {sys.executable} -c \"$1\" '{folder}'"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", line, "sh", DISK + textwrap.dedent(script)],  # noqa: S607
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_full_disk_and_a_read_only_one_are_errors_that_harm_nothing(tmp_path):
    in_mounts(
        f"mount -t tmpfs -o size=6m none '{tmp_path}'",
        """
        manager.save(epoch=0, model=small)
        for _ in range(3):
            refused(lambda: manager.save(epoch=1, model=large), "No space left")
        assert manager.load()["epoch"] == 0
        manager.save(epoch=1, model=small)  # it goes on where there is room
        assert manager.load()["epoch"] == 1 and len(manager.checkpoints()) == 1

        leftover = folder / "checkpoint-000009.tmp"
        leftover.touch()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        manager = CheckpointManager(folder)
        assert leftover.exists() and manager.load()["epoch"] == 1
        refused(lambda: manager.save(epoch=1), "Read-only file system")
        refused(lambda: CheckpointManager(folder / "new").save(epoch=1), "Read-only file system")
        """,
        tmp_path,
    )


def test_limits_on_files_and_descriptors_are_errors_that_harm_nothing(tmp_path):
    script = """
    manager.save(epoch=0, model=small)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
    refused(lambda: manager.save(epoch=1, model=large), "File too large")
    manager.save(epoch=2, model=small)
    assert manager.load()["epoch"] == 2

    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    try:
        manager.save(epoch=3, model=small)
    except CheckpointWriteError as error:
        assert "Too many open files" in str(error)
    else:
        raise AssertionError("no error")
    for descriptor in taken:
        os.close(descriptor)
    assert manager.load()["epoch"] == 2
    manager.save(epoch=4, model=small)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-000003-epoch4.pt"]
    """
    run_script(DISK + textwrap.dedent(script), tmp_path)


def test_a_folder_on_a_file_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").touch()
    manager = CheckpointManager(tmp_path / "file" / "folder")
    with pytest.raises(CheckpointWriteError, match="Not a directory"):
        manager.save(epoch=1)


# Beside other writers


def test_writers_in_threads_beside_each_other_all_get_their_own_file(tmp_path):
    paths: list[Path] = []

    def save() -> None:
        for n in range(10):
            path = CheckpointManager(tmp_path).save(epoch=n, model={"x": torch.ones(100)})
            paths.append(path)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 40
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    for path in paths:
        CheckpointManager(tmp_path).load(path)


def test_a_reader_beside_a_writer_that_removes_always_finds_one(tmp_path):
    writer = CheckpointManager(tmp_path, keep_last=1)
    writer.save(epoch=0)
    stop = threading.Event()

    def save() -> None:
        while not stop.is_set():
            writer.save(epoch=1)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(50):
                CheckpointManager(tmp_path).load()
    finally:
        stop.set()
        thread.join()


def test_the_files_of_a_checkpoint_are_the_users_to_share(tmp_path):
    previous = os.umask(0o027)
    try:
        path = CheckpointManager(tmp_path).save(epoch=0)
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o640
