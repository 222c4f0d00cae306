"""Documented import paths for the loader state and for steps and timing of a loader."""
