"""One batch of a run, fetched again from a checkpoint's state: what training saw, and of whom."""

from dataporter.tools.show.showing import Shown, Wanted, show

__all__ = ["Shown", "Wanted", "show"]
