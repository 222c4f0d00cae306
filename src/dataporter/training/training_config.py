"""`TrainingConfig`: the numbers of a training run, checked, and saved as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dataporter.arguments import check_int, check_names, check_number
from dataporter.errors import OptionError
from dataporter.law.keys import checked_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The numbers of a training run. `dataclasses.replace` makes a changed copy.

    >>> config = TrainingConfig(batch_size=32, epochs=10, learning_rate=5e-5, random_seed=42)
    >>> config.to_dict()["batch_size"]
    32
    >>> TrainingConfig(learning_rat=0.1)
    Traceback (most recent call last):
    dataporter.errors.OptionTypeError: TrainingConfig has no 'learning_rat'. Did you mean ...
    """

    batch_size: int = 32
    epochs: int = 10
    learning_rate: float = 5e-5
    random_seed: int = 42
    weight_decay: float = 0.0
    warmup_steps: int = 0
    gradient_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    val_split: float = 0.2
    num_workers: int | None = None

    # Runs before the generated __init__, whose error for an unknown name suggests nothing.
    def __new__(cls, **options: Any) -> TrainingConfig:  # noqa: PYI034  Self is Python 3.11's
        check_names("TrainingConfig", options, [field.name for field in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise for an invalid value. The constructor does this already."""
        for name in ("batch_size", "epochs", "gradient_accumulation_steps"):
            check_int(name, getattr(self, name), least=1)
        check_int("warmup_steps", self.warmup_steps, least=0)
        check_int("num_workers", self.num_workers, least=0, optional=True)
        check_number("learning_rate", self.learning_rate, above=0.0)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, above=0.0)
        check_number("weight_decay", self.weight_decay)
        check_number("val_split", self.val_split, below=1)
        checked_seed(self.random_seed, "random_seed")

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of builtins, so that `TrainingConfig(**config.to_dict())` is equal."""
        return asdict(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the configuration as JSON, replacing the file in one step."""
        path = Path(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.to_dict(), indent=2) + "\n")
        temporary.replace(path)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingConfig:
        """Read a file of `save`. Fields that the file lacks get their defaults."""
        try:
            values = json.loads(Path(path).read_text())
        except ValueError as error:
            msg = f"{path} is not JSON: {error}. Load a file written by TrainingConfig.save()."
            raise OptionError(msg) from error
        if not isinstance(values, dict):
            msg = f"{path} must hold a JSON object, found {type(values).__name__}."
            raise OptionError(msg)
        return cls(**values)
