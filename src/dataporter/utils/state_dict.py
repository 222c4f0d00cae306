"""The loader state under its documented path. The code is in `law.state`."""

from dataporter.law.state import (
    VERSION,
    Identity,
    Progress,
    build_state,
    parse_state,
)

__all__ = ["VERSION", "Identity", "Progress", "build_state", "parse_state"]
