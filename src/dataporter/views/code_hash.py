"""A hash of what a function does: equal for equal code, another one if the code was edited.

It covers bytecode, constants, defaults, the values of a closure and the globals that are used, as
far as they are plain values. Functions of the same module count with their own code, those of
other modules by name. Objects of other kinds count by their type: their contents may change
unnoticed. Another version of Python makes other bytecode, and so another hash.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), type(...))
# Attributes of a class that are described, and of these the ones that say nothing of its code.
_OF_CLASSES = (FunctionType, bool, int, float, complex, str, bytes, tuple, frozenset)
_UNSAID = ("__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")


def code_hash(function: Any) -> str:
    """Hash the code of a callable, as 16 letters.

    >>> code_hash(lambda text: len(text) > 100) == code_hash(lambda words: len(words) > 100)
    True
    >>> code_hash(lambda text: len(text) > 100) == code_hash(lambda text: len(text) > 200)
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in _Described().of(function):
        digest.update(part.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


class _Described:
    """Describes values as text."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # functions and objects, which are described once
        self._path: list[int] = []  # containers around what is described
        self._module: str | None = None  # of the function that is described

    def of(self, value: Any) -> Iterator[str]:
        text = _text_of(value)
        if text is not None:
            yield text
        elif isinstance(value, CodeType):
            yield from self._of_code(value)
        elif isinstance(value, tuple | list | dict | set | frozenset):
            yield from self._of_container(value)
        elif id(value) in self._seen:
            yield f"again {self._seen[id(value)]}"
        else:
            self._seen[id(value)] = len(self._seen)
            yield from self._of_object(value)

    def _of_container(self, value: Any) -> Iterator[str]:
        if id(value) in self._path:
            yield f"around {len(self._path) - self._path.index(id(value))}"
            return
        self._path.append(id(value))
        if isinstance(value, set | frozenset):
            # Sorted: their own order depends on the process.
            each = sorted(" ".join(_Described().of(part)) for part in value)
            yield from self._all("set", *each)
        elif isinstance(value, dict):
            yield from self._all("dict", *(part for item in value.items() for part in item))
        else:
            yield from self._all(type(value).__name__, *value)
        self._path.pop()

    def _of_object(self, value: Any) -> Iterator[str]:
        if isinstance(value, FunctionType):
            if self._is_here(value.__module__):
                yield from self._of_function(value)
            else:
                yield f"function {_name(value)}"
        elif isinstance(value, MethodType):
            yield from self._all("method", value.__func__, value.__self__)
        elif isinstance(value, functools.partial):
            yield from self._all("partial", value.func, value.args, value.keywords)
        elif isinstance(value, type):
            yield f"type {_name(value)}"
            if self._is_here(value.__module__):
                yield from self._of_attributes(value)
        else:
            yield "object"
            yield from self.of(type(value))
            if self._is_here(type(value).__module__):
                yield from self._of_attributes(value)

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
        yield from self._all("function", *parts)
        for cell in function.__closure__ or ():
            try:
                yield from self.of(cell.cell_contents)
            except ValueError:  # not filled yet
                yield "empty"
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                yield from self._all(f"global {name}", function.__globals__[name])

    def _of_code(self, code: CodeType) -> Iterator[str]:
        yield code.co_code.hex()
        yield getattr(code, "co_exceptiontable", b"").hex()  # from Python 3.11 on
        yield f"{code.co_argcount} {code.co_kwonlyargcount} {code.co_flags} {code.co_names}"
        yield from self._all("constants", *code.co_consts)

    def _of_attributes(self, value: Any) -> Iterator[str]:
        """Describe attributes: of a class, those that are functions or plain values."""
        for name, part in sorted(getattr(value, "__dict__", {}).items()):
            is_plain = isinstance(part, _OF_CLASSES) and name not in _UNSAID
            if not isinstance(value, type) or is_plain:
                yield from self._all(f"attribute {name}", part)

    def _is_here(self, module: str) -> bool:
        """Return True in the module of the function; the first one decides."""
        self._module = self._module or module
        return module == self._module

    def _all(self, what: str, *values: Any) -> Iterator[str]:
        yield f"{what} {len(values)}"
        for value in values:
            yield from self.of(value)


def _text_of(value: Any) -> str | None:
    """Describe a value that is made of no other; None for others."""
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value.item()!r}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"array {value.shape} {value.dtype.str} {_bytes_hash(value)}"
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.is_cpu:
        words = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return f"tensor {tuple(value.shape)} {value.dtype} {_bytes_hash(words)}"
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r} {value.flags}"
    if isinstance(value, PurePath):
        return f"path {value}"
    if isinstance(value, ModuleType | BuiltinFunctionType):
        return f"{type(value).__name__} {_name(value)}"
    return None


def _globals_of(code: CodeType) -> set[str]:
    """Return the names of the globals that code uses, with the functions that it makes."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in _GLOBALS}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _globals_of(constant)
    return names


def _name(value: Any) -> str:
    names = (getattr(value, name, None) for name in ("__module__", "__qualname__", "__name__"))
    return ".".join(str(name) for name in names if name is not None)


def _bytes_hash(array: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
