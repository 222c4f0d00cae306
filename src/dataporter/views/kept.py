"""Arrays that are made once and kept in files: verdicts on samples, numbers of tokens.

A file is a head of one line with a seal, and the array. One of an older version, or a damaged one,
is made again.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataporter.errors import ShardCacheError
from dataporter.system.files import Records, written_whole
from dataporter.system.memory import map_file

_HEAD = b"dataporter kept 1 "  # the number rises if the format ever changes
_ALIGNED = 64  # bytes that a head is padded to
_PLACE = struct.Struct("<Q")  # of a record: the number of its first value


def made_once(
    paths: Sequence[Path],
    values: NDArray[Any],
    pieces: Callable[[int], Iterator[NDArray[Any]]],
    what: str,
    about: Callable[[NDArray[Any]], Mapping[str, Any]],
) -> NDArray[Any]:
    """Return an array from the first file that has it; else fill in `values`, and keep them.

    `pieces(start)` yields the values from a number on. Of several processes that ask, one makes
    them, in the first folder that can be written to, and the others wait.
    """
    for path in paths:
        if (found := read_kept(path, values)) is not None:
            return found
    with closing(_opened(paths, what)) as records:
        path = records.result
        found = read_kept(path, values)  # another process may have made it
        if found is None:
            with _writing(path, what):
                known = _fill(values, records)
            for piece in pieces(known):
                values[known : known + len(piece)] = piece
                with _writing(path, what):
                    records.add(_PLACE.pack(known) + piece.tobytes())
                known += len(piece)
            with _writing(path, what):
                _write_kept(path, values, about(values))
        records.finish()
    return values if found is None else found


def read_kept(path: Path, like: NDArray[Any]) -> NDArray[Any] | None:
    """Map an array of such a shape and dtype. None if it is absent, damaged or another one."""
    try:
        data = _mapped(path)
        head = _head(data)
        values = np.frombuffer(data[head[1] :], like.dtype)
    except (OSError, ValueError):
        return None
    about, seal = head[0], head[0].pop("seal", None)
    is_whole = values.shape == like.shape and seal == _seal(about, values)
    return values if is_whole else None


def read_about(path: Path) -> dict[str, Any]:
    """Return what a file says of its array. It may raise OSError or ValueError."""
    return _head(_mapped(path))[0]


def digest_of(values: NDArray[Any]) -> str:
    """Hash an array."""
    plain = np.ascontiguousarray(values).view(np.uint8)
    return hashlib.blake2b(plain.data, digest_size=8).hexdigest()


def _opened(paths: Sequence[Path], what: str) -> Records:
    refused = []
    for path in paths:
        try:
            return Records(path, f"the process that makes {what}, into {path.parent}")
        except OSError as error:
            refused.append((path, error))
    raise _unwritable(refused, what)


def _fill(values: NDArray[Any], records: Records) -> int:
    """Fill in what was made before, and return the number of such values."""
    known = 0
    for record in records.read():
        (first,) = _PLACE.unpack_from(record)
        piece = np.frombuffer(record[_PLACE.size :], values.dtype)
        if first == known and known + len(piece) <= len(values):  # else two processes wrote it
            values[known : known + len(piece)] = piece
            known += len(piece)
    return known


def _write_kept(path: Path, values: NDArray[Any], about: Mapping[str, Any]) -> None:
    head = _HEAD + json.dumps({**about, "seal": _seal(about, values)}).encode()
    with written_whole(path) as file:
        file.write(head + b" " * (-(len(head) + 1) % _ALIGNED) + b"\n")
        file.write(values.data)


def _seal(about: Mapping[str, Any], values: NDArray[Any]) -> str:
    sealed = f"{json.dumps(about)} {values.dtype.str} {digest_of(values)}"
    return hashlib.blake2b(sealed.encode(), digest_size=8).hexdigest()


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return map_file(file.fileno())


def _head(data: memoryview) -> tuple[dict[str, Any], int]:
    """Return the head of a file and its bytes, or raise ValueError."""
    first = bytes(data[: 1 << 16])
    end = first.find(b"\n") + 1
    about = json.loads(first[len(_HEAD) : end]) if first.startswith(_HEAD) else None
    if not isinstance(about, dict) or end % _ALIGNED:
        msg = "the file has no head"
        raise ValueError(msg)
    return about, end


@contextmanager
def _writing(path: Path, what: str) -> Iterator[None]:
    """Name the folder if it cannot be written to."""
    try:
        yield
    except OSError as error:
        raise _unwritable([(path, error)], what) from error


def _unwritable(refused: Sequence[tuple[Path, OSError]], what: str) -> ShardCacheError:
    places = " and ".join(f"{path.parent} ({error.strerror or error})" for path, error in refused)
    msg = (
        f"{what} could not be written to {places}. Free some space, make the folder writable, or "
        "name another one by folder=."
    )
    return ShardCacheError(refused[0][1].errno, msg)
