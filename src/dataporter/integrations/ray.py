"""The former import path of `dataporter.trainers.ray`."""

from dataporter.trainers.ray import load_loader, save_loader, topology

__all__ = ["load_loader", "save_loader", "topology"]
