"""A drop-in torch DataLoader that resumes at the exact sample, by a seek.

from dataporter import ResumableDataLoader

loader = ResumableDataLoader(dataset, batch_size=32, shuffle=True)
state = loader.state_dict()       # anywhere in the loop
loader.load_state_dict(state)     # in a new process, on any number of ranks
"""

from dataporter.errors import (
    CheckpointDamagedError,
    CheckpointDamagedWarning,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    CollationError,
    ConversionError,
    DataPorterError,
    DataPorterWarning,
    DrawnAheadWarning,
    FactoryError,
    FastForwardWarning,
    LaneError,
    LengthWarning,
    MissingCallbackWarning,
    MissingExtraError,
    NoSampleError,
    NotExactError,
    OptionError,
    OptionTypeError,
    PageLockWarning,
    SharedGeneratorError,
    StaleIteratorError,
    StateError,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    StateMissingError,
    StateVersionError,
    TopologyError,
    UncheckedStateWarning,
    UnmatchedKeyWarning,
    UnsupportedSystemError,
    WorkerDiedError,
    WorkerError,
    WorkerRestartWarning,
    WorkerTimeoutError,
)
from dataporter.randomness import sample_rng
from dataporter.resumable_dataloader import ResumableDataLoader, create_resumable_dataloader
from dataporter.samplers import ResumableDistributedSampler, ResumableSampler

__version__ = "0.1.0"

__all__ = [
    "CheckpointDamagedError",
    "CheckpointDamagedWarning",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointWriteError",
    "CollationError",
    "ConversionError",
    "DataPorterError",
    "DataPorterWarning",
    "DrawnAheadWarning",
    "FactoryError",
    "FastForwardWarning",
    "LaneError",
    "LengthWarning",
    "MissingCallbackWarning",
    "MissingExtraError",
    "NoSampleError",
    "NotExactError",
    "OptionError",
    "OptionTypeError",
    "PageLockWarning",
    "ResumableDataLoader",
    "ResumableDistributedSampler",
    "ResumableSampler",
    "SharedGeneratorError",
    "StaleIteratorError",
    "StateError",
    "StateFormatError",
    "StateMismatchError",
    "StateMismatchWarning",
    "StateMissingError",
    "StateVersionError",
    "TopologyError",
    "UncheckedStateWarning",
    "UnmatchedKeyWarning",
    "UnsupportedSystemError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerRestartWarning",
    "WorkerTimeoutError",
    "__version__",
    "create_resumable_dataloader",
    "sample_rng",
]
