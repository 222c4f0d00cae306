"""Notes: what the processes of ours log, sent to those they work for and logged there.

Between answers, which are pairs, a note is a pair of NOTE and its level and text.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from typing import Any

from dataporter.shards.messages import receive

NOTE = "note"

_logger = logging.getLogger("dataporter.shards")


def is_note(kind: object, value: Any) -> bool:
    """Log a note, and return True if a pair is one."""
    if kind != NOTE:
        return False
    level, text = value
    _logger.log(level, "%s", text)
    return True


def received(connection: socket.socket) -> tuple[bytes | None, Any]:
    """Wait for an answer, and log the notes that come before it."""
    while True:
        error, answer = receive(connection)
        if not is_note(error, answer):
            return error, answer


class Notes(logging.Handler):
    """What this process logs, as notes that wait to be sent. The oldest are dropped."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.waiting: deque[tuple[str, tuple[int, str]]] = deque(maxlen=1000)
        logger = logging.getLogger("dataporter")
        logger.addHandler(self)
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.waiting.append((NOTE, (record.levelno, record.getMessage())))

    def end(self) -> None:
        """Take no more notes."""
        logging.getLogger("dataporter").removeHandler(self)
