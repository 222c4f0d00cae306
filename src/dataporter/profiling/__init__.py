"""Where a loader's time goes, whether a training would wait for it, and what to change.

profile ──▶ laboratory: a process of its own ──▶ measuring: batches, steps, stamps
                                                      │
  report, page, trace ◀── verdict, tuning ◀── figures ◀┘
"""

from dataporter.profiling.figures import Figures, Spread, WorkerFigures
from dataporter.profiling.report import Profile
from dataporter.profiling.runs import profile
from dataporter.profiling.tuning import Settings, Trial, Tuning
from dataporter.profiling.verdict import Advice, Verdict

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
