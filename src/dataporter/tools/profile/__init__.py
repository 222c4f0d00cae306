"""The profile of a loader: its times, whether a training would wait, and what to change.

runs ──▶ sandbox: a process of its own ──▶ measuring: batches, steps, stamps
                                                      │
  report, page, trace ◀── verdict, tuning ◀── figures ◀┘
"""

from dataporter.tools.profile.figures import Advice, Figures, Spread, Verdict, WorkerFigures
from dataporter.tools.profile.profiles import Profile, profile
from dataporter.tools.profile.tuning import Settings, Trial, Tuning

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
