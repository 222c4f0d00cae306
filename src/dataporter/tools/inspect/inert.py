"""What stands for the names that checkpoints are made of: things that do nothing.

One list for files of all kinds. None of its names is ever looked up or called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Blank(dict[Any, Any]):
    """Stands for an object of some class: keeps its items and attributes, and is inert.

    A dict, since what may hold a state inside is an OrderedDict more often than not.
    """

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may be a key
    __eq__ = object.__eq__

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):  # whose names must not hide what a dict can do
            self.__dict__.update({key: state[key] for key in state if not hasattr(Blank, str(key))})

    def __reduce__(self) -> Any:
        return dict, ()  # states are copied and packed when they are parsed

    def __call__(self, *_: object) -> Blank:
        return Blank()

    def append(self, _: object) -> None:
        """A list of some class: its parts are left out."""

    extend = add = append


class _Items(Blank):
    """Stands for a dict of some class, which is what its items are."""

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
    """Stands for what makes bytes, of letters in pickles of old protocols."""
    if isinstance(contents, str):
        return contents.encode("latin-1")
    return contents if isinstance(contents, bytes) else Blank()


# All of these: generators' states, hyper-parameters, times and what else lies beside a state.
_PACKAGES = {
    *("collections", "datetime", "decimal", "fractions", "numpy", "pathlib", "torch"),
    *("torchdata", "uuid", "zoneinfo"),
}

_BUILTINS = (
    *("Ellipsis", "NotImplemented", "bool", "complex", "dict", "float", "int", "list", "long"),
    *("object", "range", "slice", "str", "tuple", "type", "unicode", "xrange"),
    "getattr",  # how a pickle names some functions of torch
)
_BLANKED = {
    *(("builtins", name) for name in _BUILTINS),
    ("argparse", "Namespace"),
    ("array", "_array_reconstructor"),
    ("array", "array"),
    ("copyreg", "_reconstructor"),
    ("random", "Random"),
    ("types", "SimpleNamespace"),
}
_MADE: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _bytes,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "set"): set,
    ("collections", "Counter"): _Items,
    ("collections", "OrderedDict"): _Items,
    ("collections", "defaultdict"): _Items,
    ("lightning.fabric.utilities.data", "AttributeDict"): _Items,
    ("lightning.pytorch.utilities.parsing", "AttributeDict"): _Items,
    ("lightning_fabric.utilities.data", "AttributeDict"): _Items,
    ("pytorch_lightning.utilities.parsing", "AttributeDict"): _Items,
}
_IN_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def stand_in(module: str, name: str) -> Any:
    """What stands for a name; None if it is not on the list.

    >>> stand_in("numpy", "ndarray")
    <class 'numpy.ndarray'>
    >>> isinstance(stand_in("numpy", "ndarray")(), Blank)
    True
    >>> stand_in("os", "system")
    """
    module = _IN_PYTHON_2.get(module, module)
    if (module, name) in _MADE:
        return _MADE[module, name]
    if module.partition(".")[0] in _PACKAGES or (module, name) in _BLANKED:
        return type(name, (Blank,), {"__module__": module})
    return None
