"""The state of a loader, at the path under which it is documented. It lives in `law.state`."""

from dataporter.law.state import (
    VERSION,
    Identity,
    Progress,
    build_state,
    parse_state,
)

__all__ = ["VERSION", "Identity", "Progress", "build_state", "parse_state"]
