"""The process that lists and indexes files elsewhere, for `open_dataset`.

It runs as `python -m dataporter.shards.surveying`, with a socket as its argument and what is wanted
as its standard input. It imports no torch. If it is killed, its journal keeps what was scanned.
"""

from __future__ import annotations

import logging
import pickle
import socket
import sys

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


def main() -> None:
    """Open the dataset that is wanted, and send it or an error."""
    wanted: Wanted
    channel = socket.socket(fileno=int(sys.argv[1]))
    wanted, level = pickle.load(sys.stdin.buffer)  # noqa: S301  from our own user
    _Sent(level, channel)
    try:
        opened = opened_here(wanted)
    except BaseException as error:  # noqa: BLE001  it is raised where the dataset is opened
        channel.sendall(pack((packed_error(error), None)))
    else:
        channel.sendall(pack((None, opened)))


if __name__ == "__main__":
    main()
