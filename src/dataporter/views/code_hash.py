"""A hash of all that a function can reach: equal hashes mean that it does the same.

There are two answers: a hash, or `UnknownCodeError`. What is in doubt is unknown, so that it leads
to an evaluation too many, never to a stale result:

- functions and classes of one's own: bytecode, constants, defaults, closure, attributes, bases, and
  the globals that they use; of modules the attributes that are read directly (`helpers.is_long`)
- all other values: what pickle makes of them, if no code of one's own has a say in that
- installed packages: a name there, the package's version and its list of files. Names by which
  packages read files or the network are errors in functions of one's own
- the standard library: likewise, of the modules in `_PURE` only

What an installed package reads without a name that says so is not seen, nor is a method of samples
whose class nothing here reaches. `version=` (`name=`) of the user's own stands for all of it.

A stricter rule was measured: code and values of one's own, and builtins. It keeps the verdicts of 3
of the 11 common predicates in the tests (no `re`, `json`, NumPy), of no tokenizer, and of no
dataset of one's own: an evaluation in every process, where nobody thinks of `version=`.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import io
import os
import pickle
import platform
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import numpy as np
import torch

from dataporter.sources.fingerprint import dataset_fingerprint

_ATOMS = (type(None), bool, int, float, complex, range, type(...), type(NotImplemented), CodeType)
# Attributes of a class that say nothing of its code.
_NO_CODE = (
    *("__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__"),
    *("_abc_impl", "__slotnames__"),  # kept by issubclass and pickle
)
_COMPILED = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
_WRAPPERS = (staticmethod, classmethod, property, types.MethodType)
_PARTS = ("__func__", "__self__", "fget", "fset", "fdel")  # of these
_PICKLED_BY = ("__reduce_ex__", "__reduce__", "__getstate__")
# Types of the interpreter, most of which are not found under their own names.
_OF_PYTHON = {kind for kind in vars(types).values() if isinstance(kind, type)}
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_READ_OF = ("LOAD_ATTR", "LOAD_METHOD")
_ATTRIBUTES = (*_READ_OF, "IMPORT_FROM", "LOAD_SUPER_ATTR")
_MISSING = object()
_STANDARD = "of Python"  # the release of the standard library
# Modules of the standard library, without the "_" of compiled ones, that use nothing but what they
# are given. All others may lead out of what can be seen from here, and so may some builtins.
_PURE = (
    *("abc", "array", "base64", "binascii", "bisect", "blake2", "builtins", "calendar", "cmath"),
    *("collections", "colorsys", "contextlib", "copy", "copyreg", "csv", "dataclasses", "datetime"),
    *("decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "html"),
    *("itertools", "json", "logging", "math", "md5", "numbers", "operator", "random", "re"),
    *("sha1", "sha2", "sha3", "sre", "statistics", "string", "struct", "textwrap", "thread"),
    *("types", "typing", "unicodedata", "urllib.parse", "warnings", "zlib"),
)
_DYNAMIC = ("__import__", "compile", "eval", "exec", "globals", "locals", "vars")
_OUTSIDE = ("open", "input", "breakpoint")
# Names by which packages read files, the network or the clock, and by which code reads itself.
_READS = re.compile(
    "open|load(?!s)|read|file|memmap|fromtxt|http|request|connect|download|from_pretrained"
    "|^(utc)?now$|^today$|^__(annotations|builtins|doc|globals|subclasses)__$",
    re.IGNORECASE,
)
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
    try:
        python = (sys.implementation.name, platform.python_version())
        return _Reached(is_data=is_data).hash(*python, reached)
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise UnknownCodeError(msg) from error


class _Reached:
    """All that objects reach: pickled, with a text in place of whatever pickle does not show."""

    def __init__(self, *, is_data: bool) -> None:
        self._is_data = is_data
        # By identity; kept, since another object may have the identity of one that is gone.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._way: list[str] = []  # names that led here

    def hash(self, *values: Any) -> str:
        pickler = _Pickler(self)
        try:
            pickler.dump(values)
        except (UnknownCodeError, RecursionError):
            raise
        except Exception:  # noqa: BLE001  whatever its class raises
            self._unknown(f"a {_shown(type(pickler.last))}")
        return hashlib.blake2b(pickler.pickled.getbuffer(), digest_size=8).hexdigest()

    def text_of(self, value: Any) -> str | None:
        """Return the text that stands for a value; None for one that is pickled as it is."""
        kind = type(value)
        if kind in (str, bytes):  # else pickle shows which of them are one object
            return f"{kind.__name__} {value!r}"
        if kind in (set, frozenset):  # in an order that depends on the process
            return f"set {sorted(map(self.hash, value))}"
        if kind is CodeType:
            return f"code {self.hash(*self._code(value))}"
        if kind in _ATOMS:
            return repr(value)
        if (name := self._installed(value)) is not None:
            return f"installed {name}"
        if kind is type and value in _OF_PYTHON:
            return f"of Python {value.__name__}"
        if kind is types.ModuleType:
            self._unknown(f"the module {value.__name__}")
        parts = self._parts(value)
        if parts is None:
            return None
        if id(value) in self._seen:
            return f"again {self._seen[id(value)][0]}"
        self._seen[id(value)] = (len(self._seen), value)
        return f"{kind.__name__} {self.hash(*parts)}"

    def _parts(self, value: Any) -> Iterator[Any] | None:
        """Return all that a value consists of; None for one that is pickled as it is."""
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind in _WRAPPERS:
            return iter([getattr(value, name, None) for name in _PARTS])
        if kind is types.MemberDescriptorType:
            return iter([value.__name__])
        if kind is types.MappingProxyType:
            return iter([dict(value)])
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, np.ndarray) and self._is_data and value.nbytes > _SMALL:
            return iter([value.dtype.str, value.shape, dataset_fingerprint(np.asarray(value))])
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        return self._object(value) if _release(kind.__module__) is None else None

    def _named(self, name: str, value: Any) -> str:
        self._way.append(name)
        found = f"{name} {self.hash(value)}"
        self._way.pop()
        return found

    def _unknown(self, what: str) -> NoReturn:
        way = f" (by {'.'.join(self._way)})" if self._way else ""
        msg = f"it uses {what}{way}, whose changes cannot be seen"
        raise UnknownCodeError(msg)

    # Code

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        code = function.__code__
        yield from (code, function.__defaults__, function.__kwdefaults__, function.__dict__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield self._named(name, cell.cell_contents)
            except ValueError:  # not filled yet
                yield name
        for names in sorted(set(_globals_of(code))):
            yield self._global(function.__globals__, *names)
        for each in _instructions(code):
            if each.opname in _ATTRIBUTES and self._reads(each.argval):
                self._unknown(f".{each.argval}")

    def _global(self, space: dict[str, Any], name: str, *attributes: str) -> str:
        """Hash a global, or of a module the attribute that is read of it."""
        value = space.get(name, getattr(builtins, name, _MISSING))
        for attribute in attributes:
            inner = getattr(value, attribute, _MISSING)
            is_own = type(value) is types.ModuleType and _release(value.__name__) is None
            if not is_own and not type(value) is type(inner) is types.ModuleType:
                break
            value, name = inner, f"{name}.{attribute}"
        if value is _MISSING:
            return f"no global {name}"
        if self._reads(name) and _release(_own_name(value)[0]) not in (None, _STANDARD):
            self._unknown(name)
        return self._named(name, value)

    def _reads(self, name: str) -> bool:
        """Return True if a name says that it reads. Datasets may."""
        return not self._is_data and _READS.search(name) is not None

    def _code(self, code: CodeType) -> Iterator[Any]:
        yield from (code.co_code, getattr(code, "co_exceptiontable", b""))  # from Python 3.11 on
        yield from (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        yield from (code.co_flags, code.co_names, code.co_consts)
        steps = list(dis.get_instructions(code))
        for level, each in zip(steps, steps[2:]):  # noqa: B905  a level and a list go before it
            if each.opname == "IMPORT_NAME":
                module = sys.modules.get(each.argval)
                if level.argval != 0 or module is None or _release(each.argval) is None:
                    self._unknown(
                        f"an import of {each.argval or 'a module beside it'} in a function"
                    )
                yield module

    def _class(self, cls: type) -> Iterator[Any]:
        yield from (cls.__qualname__, type(cls), cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if isinstance(value, _COMPILED) and value.__objclass__ is cls and name not in _NO_CODE:
                self._unknown(f"the compiled class {cls.__qualname__}")
            if name not in _NO_CODE:
                yield self._named(name, value)

    # Values

    def _tensor(self, tensor: torch.Tensor) -> Iterator[Any]:
        yield from (type(tensor), vars(tensor), str(tensor.dtype), tuple(tensor.shape))
        # Raises for tensors on a device, sparse or quantised ones: those are unknown.
        plain = tensor.detach().resolve_conj().resolve_neg()
        yield plain.contiguous().reshape(-1).view(torch.uint8).numpy()

    def _object(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        yield kind
        if isinstance(value, list):  # pickle asks their own __iter__ and items()
            yield list(list.__iter__(value))
        elif isinstance(value, dict):
            yield dict(dict.items(value))
        parts: tuple[Any, ...] = (*self.reduced(value), None, None, None)
        make, args, state, items, pairs, *rest = parts
        yield from (make, args, state, list(items or ()), list(pairs or ()), *rest)
        yield getattr(value, "__dict__", None)  # which a base of it may not have pickled

    def reduced(self, value: Any) -> tuple[Any, ...]:
        """Return what pickle makes of an object, if no code of one's own has a say in it."""
        kind = type(value)
        ways = [way := copyreg.dispatch_table.get(kind)]
        for name in _PICKLED_BY:
            owner = next((each for each in kind.__mro__ if name in vars(each)), object)
            if _release(owner.__module__) is None:
                ways.append(vars(owner)[name])
        if any(each is not None and self._installed(each) is None for each in ways):
            self._unknown(f"a {_shown(kind)}, which says itself how it is pickled,")
        found = value.__reduce_ex__(4) if way is None else way(value)
        if isinstance(found, tuple):
            return found
        module = getattr(value, "__module__", None) or kind.__module__  # of the name of a global
        if _release(module) is None or _found(module, found) is not value:
            self._unknown(f"a {_shown(kind)}")
        return str, (f"{module}.{found} {_release(module)}",)

    def _installed(self, value: Any) -> str | None:
        """Name what is found under its name in an installed package; None for others."""
        is_module = type(value) is types.ModuleType
        module, name = (value.__name__, "") if is_module else _own_name(value)
        if not is_module and (not name or _found(module, name) is not value):
            return None
        release = _release(module)
        if release is None:
            return None
        package = module.partition(".")[0].lstrip("_")
        if name in _DYNAMIC and package == "builtins":
            self._unknown(f"{name}()")
        if release == _STANDARD and not self._is_data:
            is_pure = package in _PURE or module in _PURE
            if not is_pure or name in _OUTSIDE:
                self._unknown(f"{module}.{name}" if name else f"the module {module}")
        return f"{module}.{name} {release}"


class _Pickler(pickle.Pickler):
    """Pickles values, and asks for each which text stands for it."""

    def __init__(self, reached: _Reached) -> None:
        self.pickled = io.BytesIO()
        self.last: Any = None  # the value that was pickled last
        self._reached = reached
        super().__init__(self.pickled, protocol=4)

    def persistent_id(self, value: Any) -> str | None:
        self.last = value
        return self._reached.text_of(value)

    def reducer_override(self, value: Any) -> Any:
        return self._reached.reduced(value)


def _shown(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _own_name(value: Any) -> tuple[str, str]:
    """Return the module and name that an object has; empty if it has none."""
    if type(value) is types.ModuleType:
        return (value.__name__, "")
    try:
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    except Exception:  # noqa: BLE001  whatever a __getattr__ of one's own raises
        return ("", "")
    return (module, name) if isinstance(module, str) and isinstance(name, str) else ("", "")


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
    if not {"site-packages", "dist-packages"} & {*(() if file is None else Path(file).parts)}:
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


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of code, and of the functions inside of it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _globals_of(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the globals that code uses, each with the attributes that are read of it at once."""
    names: tuple[str, ...] = ()
    for each in _instructions(code):
        if names and each.opname in _READ_OF:
            names += (each.argval,)
            continue
        if names:
            yield names
        names = (each.argval,) if each.opname in _GLOBALS else ()
    if names:
        yield names
