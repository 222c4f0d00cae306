"""Names of tokenizers and other callables that change when they do."""

from __future__ import annotations

import functools
import hashlib
import pickle
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from dataporter.errors import OptionError
from dataporter.views.code_hash import code_hash


def code_name(called: Any) -> str:
    """Return the name of a callable and a hash of what it does, as far as that can be seen.

    >>> code_name(lambda text: text.split()) == code_name(lambda text: text.split(","))
    False
    """
    digest = hashlib.blake2b(code_hash(called).encode() + _contents(called), digest_size=8)
    return f"{_name(called)} {digest.hexdigest()}"


def _name(called: Any) -> str:
    known = getattr(called, "name_or_path", None)  # of Hugging Face's tokenizers
    own = getattr(called, "__qualname__", type(called).__qualname__)
    return f"{own} {known}" if isinstance(known, str) and known else own


def _contents(called: Any) -> bytes:
    """Return what an object holds, which its code does not tell."""
    if isinstance(called, functools.partial):
        return _contents(called.func)
    if isinstance(called, MethodType):
        return _contents(called.__self__)
    if isinstance(called, FunctionType | BuiltinFunctionType | type):
        return b""
    tokenizer = getattr(called, "backend_tokenizer", called)
    if hasattr(tokenizer, "to_str"):  # of the package tokenizers: its JSON
        return str(tokenizer.to_str()).encode()
    try:
        return pickle.dumps(called, protocol=4)
    except Exception as error:
        msg = (
            f"{type(called).__name__} cannot be told from others ({type(error).__name__}: "
            f"{error}). Pass name=, and another name whenever it changes."
        )
        raise OptionError(msg) from error
