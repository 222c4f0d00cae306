"""Checks of arguments and names, with one wording for the whole package."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

from dataporter.errors import OptionError, OptionTypeError


def check_int(name: str, value: object, *, least: int, optional: bool = False) -> None:
    """Raise unless `value` is an int of at least `least`, or None if `optional`.

    >>> check_int("batch_size", 0, least=1)
    Traceback (most recent call last):
    dataporter.errors.OptionError: batch_size must be at least 1, found 0.
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        expected = "an int or None" if optional else "an int"
        msg = f"{name} must be {expected}, found {type(value).__name__} {value!r}."
        raise OptionTypeError(msg)
    if value < least:
        msg = f"{name} must be at least {least}, found {value}."
        raise OptionError(msg)


def check_number(
    name: str, value: object, *, above: float | None = None, below: float = math.inf
) -> None:
    """Raise unless `value` is finite, at least 0 (or above `above`) and below `below`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be a number, found {type(value).__name__} {value!r}."
        raise OptionTypeError(msg)
    allowed = value >= 0 if above is None else value > above
    if not (math.isfinite(value) and allowed and value < below):
        expected = "at least 0" if above is None else f"above {above:g}"
        limit = "finite" if below == math.inf else f"below {below:g}"
        msg = f"{name} must be {limit} and {expected}, found {value}."
        raise OptionError(msg)


def check_flag(name: str, value: object, *, optional: bool = False) -> None:
    """Raise unless `value` is True or False, or None if `optional`."""
    if not isinstance(value, bool) and not (optional and value is None):
        expected = "True, False or None" if optional else "True or False"
        msg = f"{name} must be {expected}, found {type(value).__name__} {value!r}."
        raise OptionTypeError(msg)


def check_names(owner: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first name that is not among the known names of `owner`.

    >>> check_names("TrainingConfig", ["learning_rat"], ["batch_size", "learning_rate"])
    Traceback (most recent call last):
    dataporter.errors.OptionTypeError: TrainingConfig has no 'learning_rat'. Did you mean ...
    """
    known = list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, cutoff=0.5)
            msg = f"{owner} has no {name!r}.{hint} It has {', '.join(known)}."
            raise OptionTypeError(msg)


def did_you_mean(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a sentence that suggests similar candidates, with a leading space, or "".

    >>> did_you_mean("lable", ["label", "image"])
    " Did you mean 'label'?"
    """
    close = get_close_matches(word, list(candidates), n=3, cutoff=cutoff)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
