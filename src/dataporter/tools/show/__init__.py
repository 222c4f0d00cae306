"""One batch of a run, fetched again from a checkpoint's state: what training saw, and of whom."""

from dataporter.tools.show.showing import BatchToShow, Shown, show

__all__ = ["BatchToShow", "Shown", "show"]
