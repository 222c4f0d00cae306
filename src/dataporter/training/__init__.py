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
"""What surrounds a loader in training: its configuration and its checkpoints."""

from dataporter.training.checkpoint import CheckpointManager
from dataporter.training.training_config import TrainingConfig

__all__ = ["CheckpointManager", "TrainingConfig"]
