"""An error in the user's code, as it travels from a run to whoever asked for it."""

from __future__ import annotations

import traceback
from typing import NamedTuple, NoReturn

from dataporter.errors import DataPorterError, FactoryError, add_note


class Problem(NamedTuple):
    """A description of an error that was raised in another process."""

    message: str
    traceback: str = ""
    is_complete: bool = False  # whether the message says by itself what failed
    mismatched: tuple[str, ...] = ()  # fields of a state that do not fit the loader

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Describe an error."""
        is_ours = isinstance(error, DataPorterError)
        return cls(
            message=str(error) if is_ours else f"{type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
            is_complete=isinstance(error, FactoryError),
            mismatched=tuple(each.field for each in getattr(error, "mismatches", ())),
        )

    def fail(self, what: str) -> NoReturn:
        """Raise an error that says what failed, with the user's traceback as a note."""
        error = FactoryError(self.message if self.is_complete else f"{what}: {self.message}")
        add_note(error, self.traceback)
        raise error
