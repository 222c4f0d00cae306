"""Names of functions and other callables that change when their code does."""

from __future__ import annotations

import functools
import hashlib
import pickle
from types import CodeType
from typing import Any

from dataporter.errors import OptionError


def code_name(called: Any) -> str:
    """Return the name of a callable and a hash of what it does, as far as that can be seen.

    >>> code_name(lambda text: text.split()) == code_name(lambda text: text.split(","))
    False
    """
    return f"{_name(called)} {hashlib.blake2b(_shown(called), digest_size=8).hexdigest()}"


def _name(called: Any) -> str:
    known = getattr(called, "name_or_path", None)  # of Hugging Face's tokenizers
    own = getattr(called, "__qualname__", type(called).__qualname__)
    return f"{own} {known}" if isinstance(known, str) and known else own


def _shown(value: Any) -> bytes:
    """Return bytes that are equal for callables that do the same."""
    if isinstance(value, functools.partial):
        parts = [value.func, value.args, sorted(value.keywords.items())]
        return b"partial" + b"\x1f".join(map(_shown, parts))
    if hasattr(value, "__func__"):  # a method
        return _shown(value.__self__) + _shown(value.__func__)
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        return _code(code) + _shown([getattr(value, "__defaults__", None), *cells])
    tokenizer = getattr(value, "backend_tokenizer", value)
    if hasattr(tokenizer, "to_str"):  # of the package tokenizers: its JSON
        return str(tokenizer.to_str()).encode()
    if isinstance(value, list | tuple):
        return b"[" + b"\x1f".join(map(_shown, value)) + b"]"
    try:
        return pickle.dumps(value, protocol=4)
    except Exception as error:
        msg = (
            f"{type(value).__name__} cannot be told from others ({type(error).__name__}: {error}). "
            "Pass name=, and another name whenever it changes."
        )
        raise OptionError(msg) from error


def _code(code: CodeType) -> bytes:
    constants = [_constant(each) for each in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants)).encode()


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    # The order of a set of strings differs from process to process.
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
