"""Loaders compared on the same work, in one run: how fast they deliver, how fast they resume."""

from dataporter.tools.comparison.running import compare

__all__ = ["compare"]
