"""One checkpoint file: written completely or not at all, and checked before it is loaded.

A file is the output of `torch.save`, so that plain `torch.load(path)` reads it, followed by a
label and a seal that torch ignores::

    body, from torch.save | label, JSON | seal: magic, length and CRC of the label

The label holds the body's length and CRC, and the values for managing a folder without reading
gigabytes: epoch, step, metrics. There is no index file, so a crash cannot make one outdated.

A file is written under a temporary name, loaded once as a test, flushed to disk and renamed.
The temporary file is created exclusively, which reserves its number. It is locked until its
process ends, which distinguishes a live writer from a killed one.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dataporter.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    OptionError,
    StateVersionError,
    UnsupportedSystemError,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_VERSION = 1
_MAGIC = b"dataport"
_SEAL = struct.Struct("<8sII")  # magic, the label's length in bytes, the label's CRC
_MAX_LABEL = 60_000  # torch looks for the end of its zip in a file's last 64 KiB
_PIECE = 1 << 22  # bytes read at once

_FINAL = re.compile(r"checkpoint-(\d{6,})-epoch\d+\.pt")
_TEMPORARY = re.compile(r"checkpoint-(\d{6,})\.tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Metadata of a checkpoint. `size` and `crc` describe its body."""

    epoch: int
    step: int | None
    metrics: dict[str, float]
    size: int = 0
    crc: int = 0
    version: int = _VERSION


# Names


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the folder's checkpoints by number, oldest first."""
    return [path for _, path in sorted(_numbered(folder, _FINAL))]


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        paths = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):  # nothing was saved yet
        return []
    found = [(pattern.fullmatch(path.name), path) for path in paths]
    return [(int(match[1]), path) for match, path in found if match]


# Writing


def write(folder: Path, label: Label, save: Callable[[Any], None]) -> Path:
    """Write a new checkpoint with `save(file)`. It becomes the newest of its folder.

    A failure or a kill leaves all other checkpoints unchanged.
    """
    if fcntl is None:
        msg = (
            f"checkpoints cannot be locked: this system ({sys.platform}) has no fcntl. Save "
            "loader.state_dict() and your other states with torch.save."
        )
        raise UnsupportedSystemError(msg)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _reserved(folder) as (number, temporary, descriptor):
            body = _Body(descriptor)
            save(body)
            body.end()
            _write_all(descriptor, _label_and_seal(label, body))
            _load(temporary, mmap=True)
            os.fsync(descriptor)
            final = folder / f"checkpoint-{number:06}-epoch{label.epoch}.pt"
            temporary.rename(final)
        _sync(folder)
    except OSError as error:
        msg = (
            f"the checkpoint could not be written to {folder}: {error.strerror or error}. Existing "
            "checkpoints are unchanged. Free some space or choose another folder, and save again."
        )
        raise CheckpointWriteError(error.errno, msg) from error
    return final


@contextmanager
def _reserved(folder: Path) -> Iterator[tuple[int, Path, int]]:
    """Reserve a number above all others, with a locked temporary file."""
    while True:
        taken = [*_numbered(folder, _FINAL), *_numbered(folder, _TEMPORARY)]
        number = 1 + max((number for number, _ in taken), default=0)
        temporary = folder / f"checkpoint-{number:06}.tmp"
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # another writer was faster
            continue
        try:
            with suppress(OSError):  # without locks on this file system, leftovers are kept too
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:  # removed as a leftover before it was locked
                continue
            if any(number <= other for other, _ in _numbered(folder, _FINAL)):
                temporary.unlink()  # another writer has finished a higher number meanwhile
                continue
            try:
                yield number, temporary, descriptor
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            return
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed writers, as far as the system allows."""
    if fcntl is None:
        return
    with suppress(OSError):  # `write` will report the problem, and loading may still work
        for _, path in _numbered(folder, _TEMPORARY):
            with suppress(OSError):  # locked, or locks do not work here, or already removed
                _remove_if_nobody_writes(path)


def _remove_if_nobody_writes(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            path.unlink()
    finally:
        os.close(descriptor)


class _Body:
    """The file object that torch writes to. It counts bytes, sums a CRC and defers errors.

    Torch's writer would replace an error raised here by one without the cause, so `end` raises it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._error: BaseException | None = None
        self.size = 0
        self.crc = 0

    def write(self, data: memoryview | bytes) -> int:
        if self._error is None:
            try:
                _write_all(self._descriptor, data)
                self.crc = zlib.crc32(data, self.crc)
                self.size += memoryview(data).nbytes
            except BaseException as error:  # noqa: BLE001  an interrupt waits for `end` too
                self._error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Do nothing: `write` buffers nothing."""

    def end(self) -> None:
        if self._error is not None:
            raise self._error


def _write_all(descriptor: int, data: memoryview | bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _label_and_seal(label: Label, body: _Body) -> bytes:
    text = json.dumps(asdict(label) | {"size": body.size, "crc": body.crc}).encode()
    if len(text) > _MAX_LABEL:
        msg = (
            f"metrics are too large: {len(text):,} bytes, at most {_MAX_LABEL:,} are allowed. Put "
            "values that are not compared between checkpoints into custom_state."
        )
        raise OptionError(msg)
    return text + _SEAL.pack(_MAGIC, len(text), zlib.crc32(text))


def _sync(folder: Path) -> None:
    """Flush the folder, so that the new name is on disk too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading


def read_label(path: Path) -> Label:
    """Read a checkpoint's label without reading its body."""
    with _opened(path) as file:
        return _label(file, path)


def verify(path: Path) -> None:
    """Read all bytes of a checkpoint, and raise if any has changed."""
    with _opened(path) as file:
        label = _label(file, path)
        file.seek(0)
        crc, rest = 0, label.size
        while rest and (piece := file.read(min(_PIECE, rest))):
            crc, rest = zlib.crc32(piece, crc), rest - len(piece)
        if crc != label.crc:
            raise _damaged(path, f"its checksum is {crc:08x}, expected {label.crc:08x}")


def read(path: Path, map_location: Any) -> dict[str, Any]:
    """Return the contents of a verified checkpoint."""
    with _opened(path) as file:
        return _load(file, map_location=map_location)


def _load(
    file: Path | BinaryIO, *, map_location: Any = "cpu", mmap: bool = False
) -> dict[str, Any]:
    contents: dict[str, Any] = torch.load(
        file, map_location=map_location, weights_only=True, mmap=mmap
    )
    return contents


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        there = ", ".join(other.name for other in checkpoints_in(path.parent)) or "none"
        msg = f"there is no checkpoint {path}. Checkpoints in its folder: {there}."
        raise CheckpointNotFoundError(msg) from error
    except IsADirectoryError as error:
        msg = (
            f"{path} is a folder, not a checkpoint. Pass one of its files, or call "
            "CheckpointManager(folder).load() to load its newest."
        )
        raise CheckpointNotFoundError(msg) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        try:
            yield file
        except OSError as error:
            raise _unreadable(path, error) from error


def _label(file: BinaryIO, path: Path) -> Label:
    end = file.seek(0, os.SEEK_END)
    if end < _SEAL.size:
        raise _damaged(path, f"it ends after {end:,} bytes")
    file.seek(end - _SEAL.size)
    magic, length, crc = _SEAL.unpack(file.read(_SEAL.size))
    start = end - _SEAL.size - length
    if magic != _MAGIC or start < 0:
        raise _damaged(path, "it does not end with a CheckpointManager label")
    file.seek(start)
    text = file.read(length)
    if zlib.crc32(text) != crc:
        raise _damaged(path, "the checksum of its label does not match")
    values = json.loads(text)
    if values["version"] > _VERSION:
        msg = (
            f"{path} has format {values['version']}, this version of dataporter reads formats up "
            f"to {_VERSION}. Upgrade dataporter to the version that wrote it, or a newer one."
        )
        raise StateVersionError(msg)
    label = Label(**{field.name: values[field.name] for field in fields(Label)})
    if label.size != start:
        raise _damaged(path, f"its body has {start:,} bytes, expected {label.size:,}")
    return label


def _unreadable(path: Path, error: OSError) -> CheckpointDamagedError:
    msg = (
        f"{path} cannot be read: {error.strerror or error}. Make it readable for this user, or "
        "move it out of the folder."
    )
    return CheckpointDamagedError(msg)


def _damaged(path: Path, why: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(f"{path} is damaged or not a checkpoint: {why}.")
