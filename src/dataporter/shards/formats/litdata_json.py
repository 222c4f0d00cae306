"""LitData's encoding of lists and dicts: a tag, then binary values or JSON."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

_LAST_TAG = 0x20  # values that begin with a larger byte are JSON, as earlier versions wrote them
_JSON, _TEXTS, _INTS, _FLOATS, _BOOLS, _DICT, _RECORDS = range(7)
_TEXT, _INT, _FLOAT, _BOOL, _NONE = range(7, 12)
# Kinds of the fields of a record.
_FIELD_KINDS = {0x10: _NONE, 0x11: _TEXT, 0x12: _INT, 0x13: _FLOAT, 0x14: _BOOL}


def read_json(value: memoryview) -> Any:
    """Decode a list, a dict or a plain value."""
    data = bytes(value)
    if not data or data[0] > _LAST_TAG:
        return json.loads(data)
    return _Cursor(data).value()


class _Cursor:
    """A position in an encoded value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self) -> Any:
        tag = self._byte()
        if tag == _JSON:
            return json.loads(self._take(self._count()))
        if tag == _TEXTS:
            return [self._text() for _ in range(self._count())]
        if tag in {_INTS, _FLOATS}:
            dtype = "<i8" if tag == _INTS else "<f8"
            return np.frombuffer(self._take(8 * self._count()), dtype).tolist()
        if tag == _BOOLS:
            return [byte != 0 for byte in self._take(self._count())]
        if tag == _DICT:
            return {self._text(): self.value() for _ in range(self._count())}
        if tag == _RECORDS:
            return self._records()
        return self._plain(tag)

    def _records(self) -> list[dict[str, Any]]:
        rows = self._count()
        keys = [self._text() for _ in range(self._count())]
        return [{key: self._plain(_FIELD_KINDS[self._byte()]) for key in keys} for _ in range(rows)]

    def _plain(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind in {_INT, _FLOAT}:
            return struct.unpack("<q" if kind == _INT else "<d", self._take(8))[0]
        if kind == _BOOL:
            return self._byte() != 0
        if kind == _NONE:
            return None
        msg = f"unknown tag {kind}"
        raise ValueError(msg)

    def _byte(self) -> int:
        return self._take(1)[0]

    def _count(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _text(self) -> str:
        return self._take(self._count()).decode("utf-8")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            msg = f"{size} bytes at {self._at} are more than there are"
            raise ValueError(msg)
        taken = self._data[self._at : end]
        self._at = end
        return taken
