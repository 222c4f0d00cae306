"""The process that lists and indexes files elsewhere, for `open_dataset`.

It runs as `python -m dataporter.shards.surveying`, with a socket as its argument and what is wanted
as its standard input. It imports no torch. It ends with the process that it works for, or becomes
its porter. If it is killed, its journal keeps what was scanned.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue

from dataporter.shards.opening import Wanted, opened_here
from dataporter.shards.processes import Notes, note_of, pack, packed_error


class _Sent(Notes):
    """Notes that are sent at once."""

    def __init__(self, level: int, channel: socket.socket) -> None:
        super().__init__(level)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.sendall(pack(note_of(record)))


class _Duty(threading.Thread):
    """Waits for the descriptors of a porter, and ends this process with its client."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(daemon=True)
        self._channel = channel
        self.descriptors: SimpleQueue[list[int]] = SimpleQueue()

    def run(self) -> None:
        descriptors: list[int] = []
        with suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(self._channel, 1, 2)
        if not descriptors:
            os._exit(1)  # without waiting for requests
        self.descriptors.put(descriptors)


def main() -> None:
    """Open the dataset that is wanted, and send it or an error. Then be its porter, if asked."""
    wanted: Wanted
    channel = socket.socket(fileno=int(sys.argv[1]))
    wanted, level = pickle.load(sys.stdin.buffer)  # noqa: S301  from our own user
    notes = _Sent(level, channel)
    duty = _Duty(channel)
    duty.start()
    try:
        opened = opened_here(wanted)
    except BaseException as error:  # noqa: BLE001  it is raised where the dataset is opened
        channel.sendall(pack((packed_error(error), None)))
        return
    channel.sendall(pack((None, opened)))
    from dataporter.shards.porting import serve  # noqa: PLC0415  the client does not wait for it

    listener, given = duty.descriptors.get()
    notes.end()
    channel.close()
    serve(socket.socket(fileno=listener), os.fdopen(given, "rb"))


if __name__ == "__main__":
    main()
