"""The former import path of `dataporter.trainers.transformers`."""

from dataporter.trainers.transformers import ResumableTrainer

__all__ = ["ResumableTrainer"]
