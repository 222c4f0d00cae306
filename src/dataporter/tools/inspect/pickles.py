"""Pickles, read without running any code in them.

A pickle is a program: it names functions and calls them. Here no name is ever looked up. Names that
checkpoints are made of are replaced by blanks, which do nothing. If a pickle has any other name,
its contents are not returned.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import IO, Any

from dataporter.errors import CheckpointError

_SHOWN = 5  # names in an error


class Blank(dict[Any, Any]):
    """An inert object in place of any other; keeps its items and attributes.

    It is a dict, since the objects that hold states are mostly OrderedDicts.
    """

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may be a key
    __eq__ = object.__eq__

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):  # whose names must not hide the methods of a dict
            self.__dict__.update({key: state[key] for key in state if not hasattr(Blank, str(key))})

    def __reduce__(self) -> Any:
        return dict, ()  # states are copied and packed when they are parsed

    def __call__(self, *_: object) -> Blank:
        return Blank()

    def append(self, _: object) -> None:
        """Leave out the parts of a list."""

    extend = add = append


class _Items(Blank):
    """A dict in place of a dict of another class."""

    def __init__(self, *parts: object, **_: object) -> None:
        super().__init__()
        for part in parts:
            if isinstance(part, Mapping):
                self.update(part)

    __hash__ = object.__hash__
    __eq__ = dict.__eq__

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _bytes(contents: object = b"", *_: object) -> Any:
    """Make bytes; pickles of old protocols have them as text."""
    if isinstance(contents, str):
        return contents.encode("latin-1")
    return contents if isinstance(contents, bytes) else Blank()


# Names of these packages, and these names, become blanks: generator states, hyper-parameters,
# times and other objects that are saved beside a state.
_PACKAGES = {
    *("collections", "datetime", "decimal", "fractions", "numpy", "pathlib", "torch"),
    *("torchdata", "uuid", "zoneinfo"),
}
_BLANKED = {
    *("argparse.Namespace", "array._array_reconstructor", "array.array"),
    *("copyreg._reconstructor", "random.Random", "types.SimpleNamespace"),
    *("builtins.Ellipsis", "builtins.NotImplemented", "builtins.bool", "builtins.complex"),
    *("builtins.dict", "builtins.float", "builtins.int", "builtins.list", "builtins.long"),
    *("builtins.object", "builtins.range", "builtins.slice", "builtins.str", "builtins.tuple"),
    *("builtins.type", "builtins.unicode", "builtins.xrange"),
    "builtins.getattr",  # by which a pickle names some functions of torch
}
_REPLACED: dict[str, Any] = {
    "_codecs.encode": _bytes,
    "builtins.bytearray": _bytes,
    "builtins.bytes": _bytes,
    "builtins.frozenset": frozenset,
    "builtins.set": set,
    "collections.Counter": _Items,
    "collections.OrderedDict": _Items,
    "collections.defaultdict": _Items,
    "lightning.fabric.utilities.data.AttributeDict": _Items,
    "lightning.pytorch.utilities.parsing.AttributeDict": _Items,
    "lightning_fabric.utilities.data.AttributeDict": _Items,
    "pytorch_lightning.utilities.parsing.AttributeDict": _Items,
}
_IN_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def replacement(module: str, name: str) -> Any:
    """The replacement of a name, or None if the name is not allowed.

    >>> replacement("numpy", "ndarray")
    <class 'numpy.ndarray'>
    >>> isinstance(replacement("numpy", "ndarray")(), Blank)
    True
    >>> replacement("os", "system")
    """
    module = _IN_PYTHON_2.get(module, module)
    full = f"{module}.{name}"
    if full in _REPLACED:
        return _REPLACED[full]
    if module.partition(".")[0] in _PACKAGES or full in _BLANKED:
        return type(name, (Blank,), {"__module__": module})
    return None


class _Unpickler(pickle.Unpickler):
    """Knows only replacements, and notes the names that have none."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.refused: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = replacement(module, name)
        if found is None:
            self.refused.add(f"{module}.{name}")
            return Blank
        return found

    def persistent_load(self, what: Any) -> Any:
        """Replace what lies elsewhere in a file of torch.save: numbers of tensors, classes."""
        is_class = isinstance(what, tuple) and what[:1] == ("module",)
        return what[1] if is_class else Blank()


def read_pickle(raw: bytes) -> Any:
    """Read a pickle as builtins and blanks. A damaged pickle may raise any error.

    >>> read_pickle(pickle.dumps({"epoch": 3}))
    {'epoch': 3}
    >>> read_pickle(pickle.dumps(print))
    Traceback (most recent call last):
    dataporter.errors.CheckpointError: loading it would call builtins.print, which may run...
    """
    return read_next_pickle(io.BytesIO(raw))


def read_next_pickle(file: IO[bytes]) -> Any:
    """Read the next pickle of a file."""
    unpickler = _Unpickler(file)
    try:
        found = unpickler.load()
    except Exception as error:
        if unpickler.refused:
            raise _refusal(sorted(unpickler.refused)) from error
        raise
    if unpickler.refused:
        raise _refusal(sorted(unpickler.refused))
    return found


def _refusal(names: list[str]) -> CheckpointError:
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    msg = (
        f"loading it would call {shown}, which may run anything. None of it was run. Only tensors, "
        "arrays, numbers, strings, times, paths, and dicts and lists of these are read."
    )
    return CheckpointError(msg)
