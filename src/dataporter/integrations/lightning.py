"""The former import path of `dataporter.trainers.lightning`."""

from dataporter.trainers.lightning import PauseCallback, ResumeCallback

__all__ = ["PauseCallback", "ResumeCallback"]
