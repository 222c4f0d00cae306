"""Notes: what the processes of ours log, sent to those they work for and logged there.

Between answers, which are pairs, a note is a pair of NOTE and its logger's name, level and text.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from dataporter.shards.messages import has_arrived, receive

NOTE = "note"
_NOW_AND_THEN = 0.01  # seconds


def is_note(kind: object, value: Any) -> bool:
    """Log a note, and return True if a pair is one."""
    if kind != NOTE:
        return False
    name, level, text = value
    logging.getLogger(name).log(level, "%s", text)
    return True


def note_of(record: logging.LogRecord) -> tuple[str, tuple[str, int, str]]:
    """Return a line of the log as a note."""
    return NOTE, (record.name, record.levelno, record.getMessage())


def received(
    connection: socket.socket, meanwhile: Callable[[], None] | None = None
) -> tuple[bytes | None, Any]:
    """Wait for an answer, log the notes that come before it, and call `meanwhile` now and then."""
    while True:
        while meanwhile is not None and not has_arrived(connection, _NOW_AND_THEN):
            meanwhile()
        error, answer = receive(connection)
        if not is_note(error, answer):
            return error, answer


class Notes(logging.Handler):
    """Log records of this process, as notes that wait to be sent. The oldest are dropped."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.waiting: deque[tuple[str, tuple[str, int, str]]] = deque(maxlen=1000)
        logger = logging.getLogger("dataporter")
        logger.addHandler(self)
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.waiting.append(note_of(record))

    def end(self) -> None:
        """Take no more notes."""
        logging.getLogger("dataporter").removeHandler(self)
