"""The former import path of `dataporter.trainers.distributed_checkpoint`."""

from dataporter.trainers.distributed_checkpoint import WholeState, load_loader

__all__ = ["WholeState", "load_loader"]
