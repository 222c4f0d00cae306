"""A hash of all that a function can reach: equal hashes mean that it does the same.

There are two answers: a hash, or `UnknownCodeError`. Whatever is not listed here is unknown, so a
kind that nobody has thought of leads to an evaluation too many, never to a stale result:

- installed packages: what is found there under its name counts by that name, the package's version
  and its list of files. One's own code must not use what reads files or the network by its name
- the standard library: the same, of the modules in `_KNOWN_MODULES` only
- functions of one's own: bytecode, constants, defaults, closure, attributes, and the globals that
  they use; of modules the attributes that are read directly, as in `helpers.is_long(text)`
- classes of one's own: all bases and all attributes
- plain values, containers, arrays and tensors
- other objects: what pickle makes of them, unless code of one's own decides that

The outside is unknown too: files, the environment, other processes, the time, code made from text,
and code that looks at code. What an installed package reads of it by itself is not seen, nor is a
method of samples whose class nothing here reaches.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NoReturn

import numpy as np
import torch

from dataporter.sources.fingerprint import dataset_fingerprint

_PLAIN = (bool, int, float, complex, str, bytes, range, type(None), type(...), type(NotImplemented))
# Attributes of a class that say nothing of its code.
_NO_CODE = (
    *("__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__"),
    *("_abc_impl", "__slotnames__"),  # kept by issubclass and pickle
)
_PICKLED_BY = ("__reduce_ex__", "__reduce__", "__getstate__")
_COMPILED = (MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType)
# Types of the interpreter, most of which are not found under their own names.
_OF_PYTHON = {kind for kind in vars(types).values() if isinstance(kind, type)}
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_IMPORTED = ("IMPORT_FROM", "LOAD_SUPER_ATTR")
_STANDARD = "of Python"  # the release of the standard library
# Modules of the standard library, without the "_" before names of compiled ones, that use nothing
# but what they are given. All others are ways out of what can be seen from here.
_KNOWN_MODULES = {
    *("abc", "array", "base64", "binascii", "bisect", "blake2", "builtins", "calendar", "cmath"),
    *("collections", "colorsys", "contextlib", "copy", "copyreg", "csv", "dataclasses", "datetime"),
    *("decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "html"),
    *("itertools", "json", "logging", "math", "md5", "numbers", "operator", "random", "re"),
    *("sha1", "sha2", "sha3", "sre", "statistics", "string", "struct", "textwrap", "thread"),
    *("types", "typing", "unicodedata", "urllib.parse", "warnings", "zlib"),
}
_DYNAMIC = ("__import__", "compile", "eval", "exec", "globals", "locals", "vars")
_OUTSIDE = ("open", "input", "breakpoint")
# Names by which other packages read files, the network or the clock.
_READS = re.compile(
    "open|load(?!s)|read|file|memmap|fromtxt|http|request|connect|download|from_pretrained"
    "|^(utc)?now$|^today$",
    re.IGNORECASE,
)
# Attributes by which code reaches other code, or its own text.
_REFLECTION = ("__annotations__", "__builtins__", "__doc__", "__globals__", "__subclasses__")
_SMALL = 1 << 20  # bytes of an array of a dataset that are all looked at


class UnknownCodeError(Exception):
    """Something that is reached may change unnoticed; the message names it."""


def code_hash(*reached: Any, is_data: bool = False) -> str:
    """Hash all that can be reached from objects, as 16 letters; raise if some of it is unknown.

    >>> code_hash(lambda text: len(text) > 100) == code_hash(lambda words: len(words) > 100)
    True
    >>> code_hash(lambda text: len(text) > 100) == code_hash(lambda text: len(text) > 200)
    False

    - `is_data`: True for datasets that declare a fingerprint: it speaks for the files that they
      read, and for large arrays, of which some values are looked at.
    """
    walk = _Walk(is_data=is_data)
    try:
        walk.add(f"{sys.implementation.name} {platform.python_version()}")
        walk.add(reached)
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise UnknownCodeError(msg) from error
    return walk.digest()


class _Walk:
    """A walk over all that objects reach, which hashes what it meets."""

    def __init__(self, *, is_data: bool) -> None:
        self._is_data = is_data
        self._hash = hashlib.blake2b(digest_size=8)
        # By identity; kept, since another object may have the identity of one that is gone.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._way: list[str] = []  # names that led here

    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self._say(type(value).__name__, value)
        elif id(value) in self._seen:
            self._say("again", self._seen[id(value)][0])
        else:
            self._seen[id(value)] = (len(self._seen), value)
            self._add_new(value)

    def _add_new(self, value: Any) -> None:  # noqa: C901, PLR0912  a table
        kind = type(value)
        if (name := self._installed(value)) is not None:
            self._say("installed", name)
        elif kind in (list, tuple):
            self._all(kind.__name__, *value)
        elif kind in (dict, MappingProxyType):
            self._all("dict", *value.keys(), *value.values())
        elif kind in (set, frozenset):
            self._all("set", *sorted(map(self._alone, value)))
        elif kind is CodeType:
            self._code(value)
        elif kind is FunctionType:
            self._function(value)
        elif kind is MethodType:
            self._all("method", value.__func__, value.__self__)
        elif kind in (staticmethod, classmethod):
            self._all(kind.__name__, value.__func__)
        elif kind is property:
            self._all("property", value.fget, value.fset, value.fdel)
        elif kind is MemberDescriptorType:
            self._say("slot", value.__name__)
        elif kind is type and value in _OF_PYTHON:
            self._say("of Python", value.__name__)
        elif issubclass(kind, type):
            self._class(value)
        elif kind in (np.ndarray, np.memmap) and not value.dtype.hasobject:
            self._array(value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif kind is ModuleType:
            self._unknown(f"the module {value.__name__}")
        else:
            self._object(value)

    def _all(self, what: str, *values: Any) -> None:
        self._say(what, len(values))
        for value in values:
            self.add(value)

    def _named(self, name: str, value: Any) -> None:
        self._say("named", name)
        self._way.append(name)
        self.add(value)
        self._way.pop()

    def _say(self, what: str, value: Any) -> None:
        data = value if isinstance(value, bytes) else repr(value).encode()
        self._hash.update(f"{what} {len(data)} ".encode() + data)

    def _alone(self, value: Any) -> str:
        """Hash a member of a set by itself: the order of a set depends on the process."""
        walk = _Walk(is_data=self._is_data)
        walk.add(value)
        return walk.digest()

    def _unknown(self, what: str) -> NoReturn:
        way = f" (by {'.'.join(self._way)})" if self._way else ""
        msg = f"it uses {what}{way}, whose changes cannot be seen"
        raise UnknownCodeError(msg)

    # Installed packages

    def _installed(self, value: Any) -> str | None:
        """Name what is found under its name in an installed package; None for others."""
        if type(value) is ModuleType:
            module, name = value.__name__, ""
        else:
            module, name = _own_name(value)
            if not name or _found(module, name) is not value:
                return None
        release = _release(module)
        if release is None:
            return None
        package = module.partition(".")[0].lstrip("_")
        if name in _DYNAMIC and package == "builtins":
            self._unknown(f"{name}()")
        if not self._is_data and release == _STANDARD:
            is_known = package in _KNOWN_MODULES or module in _KNOWN_MODULES
            if not is_known or name in _OUTSIDE:
                self._unknown(f"{module}.{name}" if name else f"the module {module}")
        return f"{module}.{name} {release}"

    # Code

    def _function(self, function: FunctionType) -> None:
        kept = (function.__defaults__, function.__kwdefaults__, function.__dict__)
        self._all("function", function.__code__, *kept)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                self._named(name, cell.cell_contents)
            except ValueError:  # not filled yet
                self._say("cell", "empty")
        for names in sorted(set(_globals_of(function.__code__))):
            self._global(function.__globals__, names)
        for name in sorted(set(_attributes_of(function.__code__))):
            if name in _REFLECTION or self._reads(name):
                self._unknown(f".{name}")

    def _global(self, space: dict[str, Any], names: tuple[str, ...]) -> None:
        """Add a global, or of a module the attribute that is read of it."""
        name, *attributes = names
        missing = object()
        value = space.get(name, getattr(builtins, name, missing))
        while attributes and type(value) is ModuleType:
            inner = getattr(value, attributes[0], missing)
            if type(inner) is not ModuleType and _release(value.__name__) is not None:
                break
            value, name = inner, f"{name}.{attributes.pop(0)}"
        if value is missing:
            self._say("no global", name)
        else:
            if self._reads(name) and _release(_module_of(value)) not in (None, _STANDARD):
                self._unknown(name)
            self._named(name, value)

    def _reads(self, name: str) -> bool:
        """Return True if a name says that it reads. Datasets may."""
        return not self._is_data and _READS.search(name) is not None

    def _code(self, code: CodeType) -> None:
        self._say("code", code.co_code)
        self._say("exceptions", getattr(code, "co_exceptiontable", b""))  # from Python 3.11 on
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._all("code", *counts, code.co_names, *code.co_consts)
        steps = list(dis.get_instructions(code))
        for level, each in zip(steps, steps[2:]):  # noqa: B905  a level and a list go before it
            if each.opname == "IMPORT_NAME":
                module = sys.modules.get(each.argval)
                if level.argval != 0 or module is None or _release(each.argval) is None:
                    self._unknown(
                        f"an import of {each.argval or 'a module beside it'} in a function"
                    )
                self.add(module)

    def _class(self, cls: type) -> None:
        self._all("class", cls.__qualname__, type(cls), *cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if name in _NO_CODE:
                continue
            if isinstance(value, _COMPILED) and value.__objclass__ is cls:
                self._unknown(f"the compiled class {cls.__qualname__}")
            self._named(name, value)

    # Values

    def _array(self, array: Any) -> None:
        self._all("array", array.dtype, array.shape)
        if self._is_data and array.nbytes > _SMALL:
            self._say("values", dataset_fingerprint(np.asarray(array)))
        else:
            self._say("values", np.ascontiguousarray(array).tobytes())

    def _tensor(self, tensor: torch.Tensor) -> None:
        is_plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
        if not is_plain or not tensor.is_cpu:
            self._unknown(f"a tensor on {tensor.device} of layout {tensor.layout}")
        kept = (type(tensor), vars(tensor))
        self._all("tensor", *kept, str(tensor.dtype), tuple(tensor.shape))
        plain = tensor.detach().resolve_conj().resolve_neg()
        self._array(plain.contiguous().reshape(-1).view(torch.uint8).numpy())

    def _object(self, value: Any) -> None:
        kind = type(value)
        self._all("object", kind)
        own_way = copyreg.dispatch_table.get(kind)
        if self._pickles_itself(kind, own_way):
            self._unknown(f"a {_shown(kind)}, which says itself how it is pickled,")
        if isinstance(value, list):  # pickle asks their own __iter__ and items()
            self._all("held", *list.__iter__(value))
        elif isinstance(value, dict):
            self._all("held", *dict.items(value))
        try:
            reduced = value.__reduce_ex__(4) if own_way is None else own_way(value)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  whatever its class raises
            self._unknown(f"a {_shown(kind)}")
        if isinstance(reduced, str):  # the name of a global
            module = getattr(value, "__module__", None) or kind.__module__
            if _release(module) is None or _found(module, reduced) is not value:
                self._unknown(f"a {_shown(kind)}")
            self._say("installed", f"{module}.{reduced} {_release(module)}")
        else:
            parts: tuple[Any, ...] = (*reduced, None, None, None)
            make, args, state, items, pairs, *rest = parts
            self._all("pickled", make, args, state, list(items or ()), list(pairs or ()), *rest)
        if _release(kind.__module__) is None:  # what a base of it may not have pickled
            self._all("attributes", getattr(value, "__dict__", None))

    def _pickles_itself(self, kind: type, registered: Any) -> bool:
        """Return True if code of one's own decides what pickle makes of objects."""
        ways = [registered]
        for name in _PICKLED_BY:
            owner = next((each for each in kind.__mro__ if name in vars(each)), object)
            if _release(owner.__module__) is None:
                ways.append(vars(owner)[name])
        return any(each is not None and self._installed(each) is None for each in ways)


def _shown(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _own_name(value: Any) -> tuple[str, str]:
    """Return the module and name that an object has; empty if it has none."""
    try:
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    except Exception:  # noqa: BLE001  whatever a __getattr__ of one's own raises
        return ("", "")
    return (module, name) if isinstance(module, str) and isinstance(name, str) else ("", "")


def _module_of(value: Any) -> str:
    return value.__name__ if type(value) is ModuleType else _own_name(value)[0]


def _found(module: str, name: str) -> Any:
    """Return the object of this name in a module; None if there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@functools.cache
def _release(module: str) -> str | None:
    """Return the version of the installed package that a module belongs to; None for one's own."""
    package = module.partition(".")[0]
    if package == "dataporter":
        return sys.modules[package].__version__  # type: ignore[no-any-return]
    loaded = sys.modules.get(module) or sys.modules.get(package)
    if loaded is None or package == "__main__":
        return None
    file = getattr(loaded, "__file__", None)
    folders = () if file is None else Path(file).parts
    if not {"site-packages", "dist-packages"} & {*folders}:
        is_standard = package in sys.stdlib_module_names and (
            file is None or Path(file).is_relative_to(Path(os.__file__).parent)
        )
        return _STANDARD if is_standard else None
    try:
        return _installation(package)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(package, [])
        return ", ".join(f"{name} {_installation(name)}" for name in names) or None


def _installation(name: str) -> str:
    """Return the version of a distribution, and a hash of the list of its files and their hashes.

    One's own package may be installed again under the same version.
    """
    found = importlib.metadata.distribution(name)
    listed = (found.read_text("RECORD") or "").encode()
    return f"{found.version} {hashlib.blake2b(listed, digest_size=8).hexdigest()}"


def _globals_of(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the globals that code uses, each with the attributes that are read of it at once."""
    names: tuple[str, ...] = ()
    for each in dis.get_instructions(code):
        if names and each.opname in _ATTRIBUTES:
            names += (each.argval,)
            continue
        if names:
            yield names
        names = (each.argval,) if each.opname in _GLOBALS else ()
    if names:
        yield names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _attributes_of(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes that code reads, and that it imports."""
    for each in dis.get_instructions(code):
        if each.opname in _ATTRIBUTES or each.opname in _IMPORTED:
            yield each.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _attributes_of(constant)
