"""Parts of a training script around a loader: collators, configuration, checkpoints."""

from dataporter.training.checkpoint import CheckpointManager
from dataporter.training.data_module import DataModuleProtocol, UniversalDataModule
from dataporter.training.factory import DataLoaderConfig, DataLoaderFactory
from dataporter.training.registry import CollatorRegistry, DefaultCollator, TaskSpec
from dataporter.training.text_collator import LanguageModelingDataCollator, TextCollator
from dataporter.training.training_config import TrainingConfig
from dataporter.training.vision_collator import VisionCollator, VisionDataCollator

__all__ = [
    "CheckpointManager",
    "CollatorRegistry",
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataModuleProtocol",
    "DefaultCollator",
    "LanguageModelingDataCollator",
    "TaskSpec",
    "TextCollator",
    "TrainingConfig",
    "UniversalDataModule",
    "VisionCollator",
    "VisionDataCollator",
]
