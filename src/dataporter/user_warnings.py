"""Warnings that show the line of the user's program, however deep in this package they arise."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the innermost frame outside this package."""
    # From Python 3.12 on, warnings.warn(skip_file_prefixes=…) does this.
    frame, level = sys._getframe(), 1  # noqa: SLF001  the documented way to walk frames
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
