"""Views: datasets made of datasets, each with an order that is a function of the position."""

from dataporter.views.filtered import where
from dataporter.views.length_batches import LengthBatches
from dataporter.views.mixture import Mixture
from dataporter.views.packing import Packed, collate_packed, packed

__all__ = ["LengthBatches", "Mixture", "Packed", "collate_packed", "packed", "where"]
