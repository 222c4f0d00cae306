"""Messages between processes of ours: pickles with their length in front, on a socket.

An answer is a pair: None and the answer, or a pickled error and None.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
import sys
from contextlib import suppress
from typing import IO, Any

from dataporter.errors import ShardError
from dataporter.system.memory import unnamed_file
from dataporter.system.processes import pickled_error

_LENGTH = struct.Struct("<I")


def pack(message: Any) -> bytes:
    """Pack a message for `socket.sendall`."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def answer(connection: socket.socket, message: Any) -> None:
    """Answer a client. If it has gone, it will ask again if it still needs the answer."""
    with suppress(OSError):
        connection.sendall(pack(message))


def receive(connection: socket.socket) -> Any:
    """Wait for one message. The end of the connection is a `ConnectionError`."""
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    return pickle.loads(_receive_bytes(connection, length))  # noqa: S301  from our own user


def has_arrived(connection: socket.socket, seconds: float = 0) -> bool:
    """Wait so long for a message, or the end of the connection; False if none has come."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(count)
        if not part:
            msg = "the other side has gone"
            raise ConnectionResetError(msg)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Incoming:
    """Messages of one connection, from bytes and descriptors as they arrive."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def receive(self) -> list[Any] | None:
        """Return the messages that are complete now; None at the end of the connection."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, 1 << 16, 4)
        except ConnectionError:
            return None
        self._descriptors += descriptors
        if not data:
            return None
        self._bytes += data
        messages = []
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                break
            messages.append(pickle.loads(self._bytes[_LENGTH.size : end]))  # noqa: S301  likewise
            del self._bytes[:end]
        return messages

    def attachment(self) -> Any:
        """Unpickle the file that came with a message."""
        with os.fdopen(self._descriptors.pop(0), "rb") as file:
            file.seek(0)
            return pickle.load(file)  # noqa: S301  likewise

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self.connection.close()


def attached(value: Any) -> IO[bytes]:
    """Pickle a value into a file without a name, to be sent or to be a process's input."""
    pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    file = os.fdopen(unnamed_file(), "w+b")
    file.write(pickled)
    file.flush()
    file.seek(0)
    return file


def is_ours(connection: socket.socket) -> bool:
    """Return True if the process at the other side belongs to the same user."""
    if sys.platform != "linux":
        return True  # the folder of the socket is closed to other users
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


def packed_error(error: BaseException) -> bytes:
    """Pickle an error so that it comes back with its type and message, or as a `ShardError`."""
    other = ShardError(f"{type(error).__name__}: {error}")
    return pickled_error(error) or pickle.dumps(other)
