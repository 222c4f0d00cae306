"""One checkpoint on disk: there whole or not at all, and checked before it is trusted.

A file is what `torch.save` writes, so that plain `torch.load(path)` reads it, with something
behind it that torch does not look at::

    body, from torch.save | label, JSON | seal: magic, length and CRC of the label

The label says of the body how long it is and its CRC, and what a folder's keeper wants to
know without reading gigabytes: epoch, step, metrics. So no index is needed that a crash
could leave behind the truth: the folder is the index.

A file is written under a temporary name, loaded once for a test, flushed to the disk and
renamed. The temporary name reserves the number, by being created exclusively; a lock on it,
which ends with its process, tells a writer at work from one that was killed.
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
    """What a checkpoint says of itself. `size` and `crc` are those of the body."""

    epoch: int
    step: int | None
    metrics: dict[str, float]
    size: int = 0
    crc: int = 0
    version: int = _VERSION


# Names


def checkpoints_in(folder: Path) -> list[Path]:
    """The folder's checkpoints, oldest first: by number, whatever the clock said."""
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
    """Make a new checkpoint, the newest of its folder, of what `save(file)` writes.

    Whatever fails or is killed, no other checkpoint is touched.
    """
    if fcntl is None:
        msg = (
            f"a checkpoint is locked while it is written, and this system ({sys.platform}) has no "
            "fcntl to do that with. Save loader.state_dict() and the rest by torch.save."
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
            f"no checkpoint could be written in {folder}: {error.strerror or error}. Those that "
            "were there are unharmed. Make room or choose another folder, and save again."
        )
        raise CheckpointWriteError(error.errno, msg) from error
    return final


@contextmanager
def _reserved(folder: Path) -> Iterator[tuple[int, Path, int]]:
    """A number above all others, and a temporary file that is ours until it is renamed."""
    while True:
        taken = [*_numbered(folder, _FINAL), *_numbered(folder, _TEMPORARY)]
        number = 1 + max((number for number, _ in taken), default=0)
        temporary = folder / f"checkpoint-{number:06}.tmp"
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:  # another writer was quicker
            continue
        try:
            with suppress(OSError):  # a file system without locks: then nobody tidies there
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:  # tidied away before it was locked
                continue
            if any(number <= other for other, _ in _numbered(folder, _FINAL)):
                temporary.unlink()  # since the first look, another writer got further
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
    """Remove the temporary files of writers that were killed, and of no others, if it can."""
    if fcntl is None:
        return
    with suppress(OSError):  # saving says what is wrong, loading may well work
        for _, path in _numbered(folder, _TEMPORARY):
            with suppress(OSError):  # it is locked, or locks do not work here, or it is gone
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
    """What torch writes to: counts, sums up, and keeps the first error for `end`.

    torch's writer would turn an error of ours into one of its own that says nothing.
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
        """Nothing is kept back."""

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
            f"metrics take {len(text):,} bytes, and at most {_MAX_LABEL:,} are kept. "
            "Put what is not compared between checkpoints into custom_state."
        )
        raise OptionError(msg)
    return text + _SEAL.pack(_MAGIC, len(text), zlib.crc32(text))


def _sync(folder: Path) -> None:
    """Have the new name on the disk, not only the file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading


def read_label(path: Path) -> Label:
    """What a checkpoint says of itself, without reading its body."""
    with _opened(path) as file:
        return _label(file, path)


def verify(path: Path) -> None:
    """Read every byte of a checkpoint; raise if one is not as it was written."""
    with _opened(path) as file:
        label = _label(file, path)
        file.seek(0)
        crc, rest = 0, label.size
        while rest and (piece := file.read(min(_PIECE, rest))):
            crc, rest = zlib.crc32(piece, crc), rest - len(piece)
        if crc != label.crc:
            raise _damaged(path, f"its checksum is {crc:08x}, {label.crc:08x} was written")


def read(path: Path, map_location: Any) -> dict[str, Any]:
    """The contents of a checkpoint that was verified."""
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
        msg = f"there is no checkpoint {path}. Of its folder's checkpoints there are: {there}."
        raise CheckpointNotFoundError(msg) from error
    except IsADirectoryError as error:
        msg = (
            f"{path} is a folder, not a checkpoint. Name one of its files, or make a "
            "CheckpointManager of it and load() its newest."
        )
        raise CheckpointNotFoundError(msg) from error
    with file:
        yield file


def _label(file: BinaryIO, path: Path) -> Label:
    end = file.seek(0, os.SEEK_END)
    if end < _SEAL.size:
        raise _damaged(path, f"it ends after {end:,} bytes")
    file.seek(end - _SEAL.size)
    magic, length, crc = _SEAL.unpack(file.read(_SEAL.size))
    start = end - _SEAL.size - length
    if magic != _MAGIC or start < 0:
        raise _damaged(path, "its last bytes are not those that CheckpointManager writes")
    file.seek(start)
    text = file.read(length)
    if zlib.crc32(text) != crc:
        raise _damaged(path, "the checksum of its label does not fit")
    values = json.loads(text)
    if values["version"] > _VERSION:
        msg = (
            f"{path} has format {values['version']}, this version of dataporter reads up to "
            f"{_VERSION}. Load it with the version that wrote it, or a newer one."
        )
        raise StateVersionError(msg)
    label = Label(**{field.name: values[field.name] for field in fields(Label)})
    if label.size != start:
        raise _damaged(path, f"its body has {start:,} bytes, {label.size:,} were written")
    return label


def _damaged(path: Path, why: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(f"{path} is damaged or no checkpoint: {why}.")
