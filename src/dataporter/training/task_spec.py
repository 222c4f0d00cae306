"""Task specifications, by which a collator is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from dataporter.arguments import check_int
from dataporter.errors import OptionError, OptionTypeError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A training task: its kind of data and its objective.

    `modality` chooses the collator: "text", "vision", or a registered one. `task_type` is the
    objective. For the text tasks "lm" and "masked_lm" the collator makes the labels; other
    tasks have labels in their rows. `max_length` truncates token sequences.

    >>> TaskSpec.lm_tiny().modality
    'text'
    >>> TaskSpec(name="speech", modality="audio", task_type="classification").max_length is None
    True
    """

    name: str
    modality: str
    task_type: str
    max_length: int | None = None

    def __post_init__(self) -> None:
        for field in ("name", "modality", "task_type"):
            value = getattr(self, field)
            if not isinstance(value, str):
                msg = f"{field} must be a str, found {type(value).__name__} {value!r}."
                raise OptionTypeError(msg)
            if not value:
                msg = f"{field} must not be empty."
                raise OptionError(msg)
        check_int("max_length", self.max_length, least=1, optional=True)

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """Return a task of causal language modelling with up to 128 tokens."""
        return cls(name="lm_tiny", modality="text", task_type="lm", max_length=128)

    @classmethod
    def cls_tiny(cls) -> TaskSpec:
        """Return a task of text classification with up to 128 tokens."""
        return cls(name="cls_tiny", modality="text", task_type="classification", max_length=128)

    @classmethod
    def seq2seq_tiny(cls) -> TaskSpec:
        """Return a sequence-to-sequence task with up to 128 tokens on both sides."""
        return cls(name="seq2seq_tiny", modality="text", task_type="seq2seq", max_length=128)

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Return a task of image classification with images of any size."""
        return cls(name="vision_tiny", modality="vision", task_type="classification")
