"""Files: whether another process uses one, and files without a name."""

import mmap
import os
from pathlib import Path

import pytest

from dataporter.system.files import is_in_use
from dataporter.system.memory import unnamed_file


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"block")
    return path


def test_a_file_that_is_open_is_in_use_until_it_is_closed(path):
    assert not is_in_use(path)
    with path.open("rb"):
        assert is_in_use(path)
    assert not is_in_use(path)


def test_a_file_that_is_mapped_is_in_use_though_its_descriptor_is_closed(path):
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with mapped:
        assert is_in_use(path)
    assert not is_in_use(path)


def test_a_file_without_a_name_lies_in_memory():
    descriptor = unnamed_file()
    try:
        assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:")
    finally:
        os.close(descriptor)
