"""The profile of a loader: its times, whether a training would wait, and what to change.

runs ──▶ sandbox: a process of its own ──▶ measuring: batches, steps, stamps
                                                      │
  report, page, trace ◀── verdict, tuning ◀── figures ◀┘
"""

from dataporter.tools.profile.figures import Figures, Spread, WorkerFigures
from dataporter.tools.profile.report import Profile
from dataporter.tools.profile.runs import profile
from dataporter.tools.profile.tuning import Settings, Trial, Tuning
from dataporter.tools.profile.verdict import Advice, Verdict

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
