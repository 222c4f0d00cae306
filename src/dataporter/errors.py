"""Every exception and warning of this package.

Catch `DataPorterError` for all of them, or the builtin that fits::

    DataPorterError
    ├── OptionError           (ValueError)    an argument has a value that cannot work
    ├── OptionTypeError       (TypeError)     an argument has the wrong type or is unknown
    ├── ConversionError       (ValueError)    a batch does not fit its new dtypes
    ├── MissingExtraError     (ImportError)   a required package is missing, too old or too new
    ├── FactoryError          (ValueError)    the function that makes a loader does not work
    ├── NotExactError         (AssertionError) a verified loader does not resume exactly
    ├── TopologyError         (RuntimeError)  rank and world size are required and unknown
    ├── UnsupportedSystemError (RuntimeError) the operating system lacks a required feature
    ├── StateError            (ValueError)
    │   ├── StateFormatError                  the value is not a state, or is damaged
    │   ├── StateVersionError                 the state comes from a newer dataporter
    │   ├── StateMismatchError                the state belongs to other data or another order
    │   └── StateMissingError                 (KeyError too) a checkpoint has no loader state
    ├── CollationError        (ValueError)    rows that do not fit into one batch
    ├── TooManySkippedError   (RuntimeError)  more samples than `max_skipped` cannot be read
    ├── LeftOutError          (LookupError)   a dataset leaves this sample out of its batch
    ├── EmptyStepError        (RuntimeError)  one rank has nothing to deliver in a step
    ├── PredicateError        (RuntimeError)  a predicate raised, or returned no bool
    ├── StaleIteratorError    (RuntimeError)  an old iterator after `load_state_dict`
    ├── SharedIteratorError   (RuntimeError)  two threads ask one iterator at the same time
    ├── LaneError             (RuntimeError)  a lane's state cannot be saved, copied or restored
    ├── NoSampleError         (RuntimeError)  `sample_rng()` outside of a sample's fetch
    ├── SharedGeneratorError  (RuntimeError)  a dataset draws from global generators in threads
    ├── WorkerError           (RuntimeError)  an error in a worker that cannot be rebuilt here
    │   ├── WorkerStartError                  a worker cannot start, and the message says why
    │   ├── WorkerDiedError                   workers died repeatedly without progress
    │   ├── ClusterLostError                  the Ray cluster of the workers is gone
    │   └── WorkerTimeoutError                a batch took longer than `timeout`
    ├── ShardError            (RuntimeError)  data in files cannot be read
    │   ├── ShardsNotFoundError               (FileNotFoundError too) no file is there
    │   ├── ShardFormatError                  (ValueError too) a truncated, damaged or foreign file
    │   ├── ShardSchemaError                  (ValueError too) a missing column, differing schemas
    │   ├── ShardChangedError                 a file is not the one that was indexed
    │   ├── ShardCacheError                   (OSError too) a full disk, a read-only folder
    │   └── StorageError                      a storage that refuses or does not answer
    └── CheckpointError       (RuntimeError)  a checkpoint cannot be saved or loaded
        ├── CheckpointDamagedError            a file's contents differ from what was written
        ├── CheckpointNotFoundError           (FileNotFoundError too) no checkpoint is there
        └── CheckpointWriteError              (OSError too) a full disk, a read-only folder

    DataPorterWarning         (UserWarning)
    ├── ClusterRoomWarning                    a Ray cluster has no free CPU for a worker
    ├── DrawnAheadWarning                     a sampler's state counts undelivered samples
    ├── FastForwardWarning                    a resume has to read data again
    ├── LengthWarning                         an iterable is longer than its __len__
    ├── MissingCallbackWarning                Lightning resumes a loader without our callback
    ├── PageLockWarning                       the system refused to page-lock memory
    ├── PositionDroppedWarning                set_epoch leads away from a loaded position
    ├── PredicateWarning                      another predicate has this name already
    ├── ShardWarning                          files changed, or read slower than they could
    ├── StateMismatchWarning                  a mismatch that was accepted, as by `strict=False`
    ├── UncheckedStateWarning                 a state has too little information to be checked
    ├── UnmatchedKeyWarning                   a converter's key that looks misspelled
    ├── WorkerRestartWarning                  a worker died and was replaced
    └── CheckpointDamagedWarning              damaged checkpoints were skipped

A message says what is wrong, the value found, the value expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class DataPorterError(Exception):
    """Base of every error that dataporter raises on purpose."""


class OptionError(DataPorterError, ValueError):
    """An argument has a value that cannot work."""


class OptionTypeError(DataPorterError, TypeError):
    """An argument has the wrong type, or no such argument exists."""


class ConversionError(DataPorterError, ValueError):
    """A value does not fit its new dtype, or a batch does not fit its converter."""


class MissingExtraError(DataPorterError, ImportError):
    """A package that an integration or a command needs is missing, too old or too new."""


class FactoryError(DataPorterError, ValueError):
    """A loader factory cannot be found or called, or returns no loader that can be verified."""


class NotExactError(DataPorterError, AssertionError):
    """A verified loader does not resume exactly. The message is the report."""


class TopologyError(DataPorterError, RuntimeError):
    """Rank and world size are required and unknown."""


class UnsupportedSystemError(DataPorterError, RuntimeError):
    """The operating system lacks a feature that this call requires."""


class StateError(DataPorterError, ValueError):
    """A state cannot be loaded. The loader is unchanged."""


class StateFormatError(StateError):
    """The given value is not a state of this package, or is damaged."""


class StateVersionError(StateError):
    """The state was written by a newer version of this package."""


class StateMismatchError(StateError):
    """The state is sound, but continuing it here would change the data.

    `mismatches` has one item for each difference, whose `field` is the name of the state's entry.
    It is empty if the message alone describes the difference.
    """

    def __init__(self, *args: object, mismatches: Iterable[Any] = ()) -> None:
        super().__init__(*args)
        self.mismatches = tuple(mismatches)


class StateMissingError(StateError, KeyError):
    """A checkpoint holds no state for this loader."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class CollationError(DataPorterError, ValueError):
    """The rows of a batch do not fit together, or do not fit the collator."""


class TooManySkippedError(DataPorterError, RuntimeError):
    """More samples than `max_skipped` cannot be read."""


class LeftOutError(DataPorterError, LookupError):
    """A dataset raises it for a sample that is to be left out of its batch.

    A loader makes the batch without the sample. Positions count as if it were there.
    """


class EmptyStepError(DataPorterError, RuntimeError):
    """One rank has nothing to deliver in a step that other ranks may make."""


class PredicateError(DataPorterError, RuntimeError):
    """A predicate raised an error, or returned something else than True or False."""


class StaleIteratorError(DataPorterError, RuntimeError):
    """An iterator was advanced after another one took over the loaded position."""


class SharedIteratorError(DataPorterError, RuntimeError):
    """An iterator was advanced while another call was advancing it."""


class LaneError(DataPorterError, RuntimeError):
    """The state of a lane cannot be saved, copied or restored."""


class NoSampleError(DataPorterError, RuntimeError):
    """`sample_rng()` was called where no sample is being fetched."""


class SharedGeneratorError(DataPorterError, RuntimeError):
    """A dataset that runs in threads draws from generators that all threads share."""


class WorkerError(DataPorterError, RuntimeError):
    """An error in a worker process, as text where the original cannot be rebuilt here."""


class WorkerStartError(WorkerError):
    """A worker process cannot start, for a reason that would stop every other worker too."""


class WorkerDiedError(WorkerError):
    """Worker processes died too often on one batch, or with no batch delivered in between."""


class ClusterLostError(WorkerError):
    """The Ray cluster that workers run on is gone. The state is exact; continue it anywhere."""


class WorkerTimeoutError(WorkerError):
    """A batch took longer than `timeout`. Call `next` again to keep waiting for it."""


class ShardError(DataPorterError, RuntimeError):
    """Data in files cannot be read."""


class ShardFormatError(ShardError, ValueError):
    """A file is truncated, damaged or of another format."""


class ShardSchemaError(ShardError, ValueError):
    """A column is missing, or the files of a dataset have different schemas."""


class ShardChangedError(ShardError):
    """A file is not the one that was indexed: it was replaced, truncated or removed."""


class StorageError(ShardError):
    """A storage refused a request, or did not answer it within the time it was tried for."""


# OSError comes first in these two, since it is its constructor that keeps the errno.
class ShardsNotFoundError(FileNotFoundError, ShardError):
    """No file of a dataset is there."""


class ShardCacheError(OSError, ShardError):
    """The system could not write an index or a decoded block. Nothing is half written."""


class CheckpointError(DataPorterError, RuntimeError):
    """A checkpoint cannot be saved or loaded."""


class CheckpointDamagedError(CheckpointError):
    """A checkpoint file is damaged, or is not a checkpoint."""


# OSError comes first in these two, since it is its constructor that keeps the errno.
class CheckpointNotFoundError(FileNotFoundError, CheckpointError):
    """The named checkpoint does not exist, or the folder holds none."""


class CheckpointWriteError(OSError, CheckpointError):
    """The system could not write a checkpoint. Existing checkpoints are unchanged."""


def add_note(error: Exception, note: str) -> None:
    """Add a note to an error once. Python 3.11 and later show it."""
    notes = getattr(error, "__notes__", [])
    if note not in notes:
        error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]  # since 3.11


class DataPorterWarning(UserWarning):
    """Base of every warning that dataporter gives."""


class DrawnAheadWarning(DataPorterWarning):
    """A sampler's state counts samples that torch's loader has drawn but not delivered."""


class FastForwardWarning(DataPorterWarning):
    """No dataset state was saved, so delivered samples are read again and dropped."""


class LengthWarning(DataPorterWarning):
    """An iterable delivers more samples than its `__len__` promised."""


class MissingCallbackWarning(DataPorterWarning):
    """Lightning resumes a loader without `ResumeCallback`."""


class PageLockWarning(DataPorterWarning):
    """The system refused to page-lock shared memory, so batches are copied before a transfer."""


class PositionDroppedWarning(DataPorterWarning):
    """A loaded position is dropped, since `set_epoch` was called with another epoch."""


class PredicateWarning(DataPorterWarning):
    """Another predicate had this name, or code may change unseen, so results are not kept."""


class ShardWarning(DataPorterWarning):
    """Files were added, removed or replaced since they were indexed, or are slow to read."""


class StateMismatchWarning(DataPorterWarning):
    """A mismatch that `load_state_dict(..., strict=False)` accepted, or a position past the end."""


class UncheckedStateWarning(DataPorterWarning):
    """A state holds only a position, so its data could not be compared with this dataset."""


class UnmatchedKeyWarning(DataPorterWarning):
    """A converter's key matches nothing in the batch, but resembles a key of the batch."""


class ClusterRoomWarning(DataPorterWarning):
    """A Ray cluster has no free CPU for a worker; one was started that reserves none."""


class WorkerRestartWarning(DataPorterWarning):
    """A worker process died; it was replaced and its batch fetched again."""


class CheckpointDamagedWarning(DataPorterWarning):
    """Damaged checkpoints were skipped, and an older intact one was loaded."""
