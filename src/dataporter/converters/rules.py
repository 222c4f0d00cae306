"""Rules that give the dtype for a key path.

A path leads from the batch to one of its parts: `image`, `inputs.image`, `arrays[0]`,
`[1].boxes`. In a rule, `*` matches any one step. A rule for a container applies to everything
in it. The longer rule wins, then the rule with fewer `*`, then the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch

from dataporter.converters.dtypes import as_dtype
from dataporter.errors import OptionError, OptionTypeError


class Rule(NamedTuple):
    """The rest of a key's path below some part of a batch, and the dtype at its end."""

    rest: str
    dtype: torch.dtype
    key: str


Rules: TypeAlias = tuple[Rule, ...]


class Step(NamedTuple):
    """The result of following rules by one step: this part's dtype, and rules for its contents.

    `named` are the matched keys that name this part itself, and do not end with `*`.
    """

    dtype: torch.dtype | None
    rules: Rules
    matched: tuple[str, ...]
    named: tuple[str, ...]


def as_rules(conversions: Any) -> Rules:
    """Make rules of {key: dtype}. An int key is an index into a tuple or list.

    >>> [rule.rest for rule in as_rules({"*.x": "int8", "a.x": "int8", 0: "int8"})]
    ['a.x', '[0]', '*.x']
    """
    if not isinstance(conversions, Mapping):
        msg = (
            "conversions must be a dict of keys and dtypes such as {'image': 'float16'}, "
            f"found {type(conversions).__name__} {conversions!r}."
        )
        raise OptionTypeError(msg)
    rules = []
    for key, dtype in conversions.items():
        if isinstance(key, bool) or not isinstance(key, str | int):
            msg = (
                "a key must be a path such as 'inputs.image' or an index into a tuple, "
                f"found {type(key).__name__} {key!r}."
            )
            raise OptionTypeError(msg)
        path = key if isinstance(key, str) else f"[{key}]"
        if not path:
            msg = (
                "a key must not be empty, found ''. Use DtypeConverter(dtype) to convert the whole "
                "batch."
            )
            raise OptionError(msg)
        rules.append(Rule(path.replace("[*]", ".*").removeprefix("."), as_dtype(dtype, path), path))
    return tuple(sorted(rules, key=lambda rule: rule.rest.count("*")))


@lru_cache(maxsize=4096)  # batches have the same few keys over and over
def take_step(rules: Rules, step: str) -> Step:
    """Follow rules by one step.

    >>> take_step(as_rules({"inputs.image": "float16"}), "inputs").rules[0].rest
    'image'
    """
    left = []
    for rule in rules:
        rest = _after(rule.rest, step)
        if rest is None:
            rest = _after(rule.rest, "*")
        if rest is not None:
            left.append(rule._replace(rest=rest))
    ended = [rule for rule in left if not rule.rest]
    matched = tuple(rule.key for rule in ended)
    return Step(
        dtype=ended[0].dtype if ended else None,
        rules=tuple(rule for rule in left if rule.rest),
        matched=matched,
        named=tuple(key for key in matched if not key.endswith(("*", "[*]"))),
    )


def _after(path: str, step: str) -> str | None:
    """Return the rest of a path after this step, or None. A key may itself contain dots."""
    if not path.startswith(step):
        return None
    rest = path[len(step) :]
    if rest.startswith("."):
        return rest[1:]
    return rest if not rest or rest.startswith("[") else None
