"""Profiles of a user's own loader, as `dataporter profile` makes them.

from dataporter.profiling import profile

profile("my_project.data:make_loader")
"""

from dataporter.tools.profile import *  # noqa: F403  its whole surface
from dataporter.tools.profile import __all__ as __all__  # noqa: PLC0414  exported too
