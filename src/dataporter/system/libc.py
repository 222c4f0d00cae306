"""The C library of this process, for calls that Python does not offer.

On Windows `libc` is None.
"""

from __future__ import annotations

import ctypes
from typing import Any


def _loaded() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return None


libc = _loaded()
