"""The C library of this process, for what Python does not offer of it.

Windows has none that goes by no name: there `libc` is None.
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
