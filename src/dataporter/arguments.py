"""Arguments: their checks, with one wording for the whole package, and signatures written once."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Concatenate, ParamSpec, TypeVar, get_origin

from dataporter.errors import OptionError, OptionTypeError

Made = TypeVar("Made")
Options = TypeVar("Options")
Arguments = ParamSpec("Arguments")


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


def arguments_of(
    options: Callable[Arguments, Options],
) -> Callable[[Callable[[Made, Options], None]], Callable[Concatenate[Made, Arguments], None]]:
    """Give an `__init__` that takes options the arguments that the options are made of.

    So the list of arguments is written once. Signature and types are those of the options.
    """
    kind: Any = get_origin(options) or options
    names = [field.name for field in fields(kind)]

    def decorate(
        init: Callable[[Made, Options], None],
    ) -> Callable[Concatenate[Made, Arguments], None]:
        @functools.wraps(init)
        def with_arguments(
            self: Made, /, *args: Arguments.args, **kwargs: Arguments.kwargs
        ) -> None:
            unknown = sorted(kwargs.keys() - set(names))
            if unknown:
                hints = "".join(did_you_mean(name, names) for name in unknown)
                msg = (
                    f"unknown arguments: {', '.join(unknown)}.{hints} "
                    f"help({type(self).__name__}) lists those it takes."
                )
                raise OptionTypeError(msg)
            try:
                found.bind(*args, **kwargs)
            except TypeError as error:
                name = type(self).__name__
                msg = f"{name}(): {error}. help({name}) lists the arguments it takes."
                raise OptionTypeError(msg) from None
            init(self, kind(*args, **kwargs))

        found = inspect.signature(kind)
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        with_arguments.__signature__ = found.replace(  # type: ignore[attr-defined]
            parameters=[itself, *found.parameters.values()], return_annotation=None
        )
        return with_arguments

    return decorate


def same_arguments_as(
    made: Callable[Arguments, Made],
) -> Callable[[Callable[..., Any]], Callable[Arguments, Made]]:
    """Show the signature of a class in place of a function's `**options`."""

    def decorate(function: Callable[..., Any]) -> Callable[Arguments, Made]:
        function.__signature__ = inspect.signature(made)  # type: ignore[attr-defined]
        return function

    return decorate
