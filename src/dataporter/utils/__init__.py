"""Paths of documents: the state, and steps and timing of a loader."""
