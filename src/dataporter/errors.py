"""Every exception and warning of this package.

Catch `DataPorterError` for all of them, or the builtin that fits::

    DataPorterError
    ├── OptionError           (ValueError)    an argument has a value that cannot work
    ├── OptionTypeError       (TypeError)     an argument has the wrong type or is unknown
    ├── ConversionError       (ValueError)    a batch does not fit its new dtypes
    ├── MissingExtraError     (ImportError)   what is to be integrated is not installed
    ├── FactoryError          (ValueError)    a loader that is to be verified cannot be made
    ├── NotExactError         (AssertionError) a loader that was verified does not resume exactly
    ├── TopologyError         (RuntimeError)  rank and world size are needed and not known
    ├── UnsupportedSystemError (RuntimeError) the operating system lacks what this needs
    ├── StateError            (ValueError)
    │   ├── StateFormatError                  this is not a state, or a damaged one
    │   ├── StateVersionError                 the state comes from a newer dataporter
    │   ├── StateMismatchError                the state belongs to other data or another order
    │   └── StateMissingError                 (KeyError too) a checkpoint has no state of a loader
    ├── CollationError        (ValueError)    rows that cannot be put into one batch
    ├── StaleIteratorError    (RuntimeError)  an old iterator after `load_state_dict`
    ├── LaneError             (RuntimeError)  a lane of a dataset cannot be put back or kept
    ├── NoSampleError         (RuntimeError)  `sample_rng()` outside of a sample's fetch
    ├── SharedGeneratorError  (RuntimeError)  a dataset draws from global generators in threads
    ├── WorkerError           (RuntimeError)  an error in a worker that cannot be rebuilt here
    │   ├── WorkerStartError                  a worker cannot start, and has said why
    │   ├── WorkerDiedError                   workers die again and again, without progress
    │   └── WorkerTimeoutError                a batch took longer than `timeout`
    └── CheckpointError       (RuntimeError)  a checkpoint cannot be saved or loaded
        ├── CheckpointDamagedError            a file is not as it was written
        ├── CheckpointNotFoundError           (FileNotFoundError too) there is none
        └── CheckpointWriteError              (OSError too) a full disk, a read-only folder

    DataPorterWarning         (UserWarning)
    ├── DrawnAheadWarning                     a sampler's state counts what was only drawn
    ├── FastForwardWarning                    a resume has to read data again
    ├── LengthWarning                         an iterable is longer than it says
    ├── MissingCallbackWarning                Lightning resumes a loader without our callback
    ├── PageLockWarning                       batches cannot be page-locked where they lie
    ├── StateMismatchWarning                  a mismatch that was let pass, as by `strict=False`
    ├── UncheckedStateWarning                 a state says too little to be checked
    ├── UnmatchedKeyWarning                   a converter's key that looks misspelled
    ├── WorkerRestartWarning                  a worker died and was replaced
    └── CheckpointDamagedWarning              damaged checkpoints were passed over

A message says what is wrong, what was found, what was expected and what to do.
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
    """A value does not fit the dtype it is to have, or a batch does not fit its converter."""


class MissingExtraError(DataPorterError, ImportError):
    """What an integration is for is not installed, or in a version that is too old."""


class FactoryError(DataPorterError, ValueError):
    """What makes a loader cannot be found or called, or makes none that can be verified."""


class NotExactError(DataPorterError, AssertionError):
    """A verified loader does not resume exactly. The message is the report."""


class TopologyError(DataPorterError, RuntimeError):
    """Rank and world size are needed, and nothing says what they are."""


class UnsupportedSystemError(DataPorterError, RuntimeError):
    """The operating system lacks something that this cannot do without."""


class StateError(DataPorterError, ValueError):
    """A state cannot be loaded. The loader is as it was before the attempt."""


class StateFormatError(StateError):
    """What was given is not a state of this package, or a damaged one."""


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
    """A checkpoint holds no state of the loader that is to continue."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class CollationError(DataPorterError, ValueError):
    """The rows of a batch do not fit each other, or not the collator."""


class StaleIteratorError(DataPorterError, RuntimeError):
    """An iterator was advanced after another one took over the loaded position."""


class LaneError(DataPorterError, RuntimeError):
    """A lane of an iterable or stateful dataset cannot be put back, copied, or its state kept."""


class NoSampleError(DataPorterError, RuntimeError):
    """`sample_rng()` was called where no sample is being fetched."""


class SharedGeneratorError(DataPorterError, RuntimeError):
    """In threads, a dataset draws from generators that all threads share."""


class WorkerError(DataPorterError, RuntimeError):
    """An error in a worker process, told in words where it cannot be rebuilt here."""


class WorkerStartError(WorkerError):
    """A worker process cannot start, for a reason that others would meet as well."""


class WorkerDiedError(WorkerError):
    """Worker processes died of the same batch, or with none delivered in between, too often."""


class WorkerTimeoutError(WorkerError):
    """A batch was not there in time. The next call of `next` waits on for it."""


class CheckpointError(DataPorterError, RuntimeError):
    """A checkpoint cannot be saved or loaded."""


class CheckpointDamagedError(CheckpointError):
    """A checkpoint's file is not as it was written, or never was one."""


# OSError comes first in these two, since it is its constructor that keeps the errno.
class CheckpointNotFoundError(FileNotFoundError, CheckpointError):
    """There is no such checkpoint, or none at all."""


class CheckpointWriteError(OSError, CheckpointError):
    """The system did not let a checkpoint be written; those that were there are unharmed."""


def add_note(error: Exception, note: str) -> None:
    """Add a note to an error, once, for Python versions that show such."""
    notes = getattr(error, "__notes__", [])
    if note not in notes:
        error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]  # since 3.11


class DataPorterWarning(UserWarning):
    """Base of every warning that dataporter gives."""


class DrawnAheadWarning(DataPorterWarning):
    """A sampler's state counts samples that torch's loader has drawn but not delivered."""


class FastForwardWarning(DataPorterWarning):
    """No state of a dataset was saved: what was delivered is read again and dropped."""


class LengthWarning(DataPorterWarning):
    """An iterable delivers more samples than its `__len__` said when `len(loader)` was asked."""


class MissingCallbackWarning(DataPorterWarning):
    """Lightning resumes a loader, and its trainer has no `ResumeCallback`."""


class PageLockWarning(DataPorterWarning):
    """The system refused to page-lock memory: batches are copied into such memory instead."""


class StateMismatchWarning(DataPorterWarning):
    """A mismatch that `load_state_dict(..., strict=False)` let pass, or a position past the end."""


class UncheckedStateWarning(DataPorterWarning):
    """A state says only where a run stood: whether it was this one could not be checked."""


class UnmatchedKeyWarning(DataPorterWarning):
    """A key of a converter names nothing in a batch that has something of a similar name."""


class WorkerRestartWarning(DataPorterWarning):
    """A worker process died; it was replaced and its batch fetched again."""


class CheckpointDamagedWarning(DataPorterWarning):
    """Damaged checkpoints were passed over for an older one that is sound."""
