"""The former import path of `dataporter.trainers.accelerate`."""

from dataporter.trainers.accelerate import Accelerator, PreparedLoader

__all__ = ["Accelerator", "PreparedLoader"]
