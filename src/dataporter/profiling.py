"""Profiles of a user's own loader, as `dataporter profile` makes them.

from dataporter.profiling import profile

profile("my_project.data:make_loader")
"""

from dataporter.tools.profile import (
    Advice,
    Figures,
    Profile,
    Settings,
    Spread,
    Trial,
    Tuning,
    Verdict,
    WorkerFigures,
    profile,
)

__all__ = [
    "Advice",
    "Figures",
    "Profile",
    "Settings",
    "Spread",
    "Trial",
    "Tuning",
    "Verdict",
    "WorkerFigures",
    "profile",
]
