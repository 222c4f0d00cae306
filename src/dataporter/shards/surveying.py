"""The process that lists and indexes files elsewhere, for `open_dataset`.

It runs as `python -m dataporter.shards.surveying`, with a socket as its argument and what is wanted
as its standard input. It imports no torch. It ends with the process that it works for. If it is
killed, its journal keeps what was scanned.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
from contextlib import suppress

from dataporter.shards.messages import pack, packed_error
from dataporter.shards.notes import NOTE, Notes
from dataporter.shards.opening import Wanted, opened_here


class _Sent(Notes):
    """Notes that are sent at once."""

    def __init__(self, level: int, channel: socket.socket) -> None:
        super().__init__(level)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.sendall(pack((NOTE, (record.levelno, record.getMessage()))))


def _end_with_client(channel: socket.socket) -> None:
    with suppress(OSError):
        channel.recv(1)  # nothing is sent: this is the end of the connection
    os._exit(1)  # without waiting for requests


def main() -> None:
    """Open the dataset that is wanted, and send it or an error."""
    wanted: Wanted
    channel = socket.socket(fileno=int(sys.argv[1]))
    wanted, level = pickle.load(sys.stdin.buffer)  # noqa: S301  from our own user
    _Sent(level, channel)
    threading.Thread(target=_end_with_client, args=(channel,), daemon=True).start()
    try:
        opened = opened_here(wanted)
    except BaseException as error:  # noqa: BLE001  it is raised where the dataset is opened
        channel.sendall(pack((packed_error(error), None)))
    else:
        channel.sendall(pack((None, opened)))


if __name__ == "__main__":
    main()
