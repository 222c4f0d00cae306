"""Loader states in checkpoints of any framework, found without running any code in them."""

from dataporter.tools.inspect.data import Data, KnownData
from dataporter.tools.inspect.search import Findings, SavedState, Unread, find_states

__all__ = ["Data", "Findings", "KnownData", "SavedState", "Unread", "find_states"]
