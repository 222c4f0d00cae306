"""Loader states wherever they were saved: found in any checkpoint, without running it."""

from dataporter.tools.inspect.search import Findings, SavedState, Unread, find_states

__all__ = ["Findings", "SavedState", "Unread", "find_states"]
