"""What a training script needs around a loader: task specs, collators and their registry."""

from dataporter.training.default_collator import DefaultCollator
from dataporter.training.registry import CollatorRegistry
from dataporter.training.task_spec import TaskSpec
from dataporter.training.text_collator import LanguageModelingDataCollator, TextCollator
from dataporter.training.vision_collator import VisionCollator, VisionDataCollator

__all__ = [
    "CollatorRegistry",
    "DefaultCollator",
    "LanguageModelingDataCollator",
    "TaskSpec",
    "TextCollator",
    "VisionCollator",
    "VisionDataCollator",
]
