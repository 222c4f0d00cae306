"""The contents of a checkpoint's file or folder, read without running any code in them.

The first bytes of a file tell its kind, not its name: by torch.save, `pickle.dump` or JSON. The
numbers of tensors stay on the disk: of a file by torch.save, only the pickle is read that describes
them.

A pickle is a program: it names functions and calls them. Here no name is ever looked up. Names that
checkpoints are made of are replaced by blanks, which do nothing. If a pickle has any other name,
its contents are not returned.

In a folder of torch.distributed.checkpoint, `.metadata`, a pickle, says where the bytes of every
entry are. A nested dict was cut into one entry for each value; here it is put together again.
"""

from __future__ import annotations

import codecs
import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from dataporter.errors import CheckpointDamagedError, CheckpointError

_SHOWN = 5  # names in an error
_HEAD = 64  # bytes that tell the kind
_ZIP = b"PK\x03\x04"
# Before zip files, torch.save wrote a pickled number, then a version and a system, each a pickle.
_OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
_PICKLES_BEFORE_CONTENTS = 3
_CONTENTS = re.compile(r"[^/]+/data\.pkl")  # in a zip file
_PICKLE = b"\x80"
# Pickles of protocols 0 and 1 have no number: they begin with a tuple, dict, list or name.
_OLD_PICKLE = re.compile(rb"[(}\]]|c[\w.]+\n[\w.]+\n")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
METADATA = ".metadata"


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


def read_file(path: Path) -> Any:
    """Return the contents of a file. Errors say "it", since the caller knows the name."""
    try:
        if not path.is_file():
            path.stat()
            msg = "it is neither a file nor a folder."
            raise CheckpointError(msg)
        with path.open("rb") as file:
            return _read(file)
    except OSError as error:
        msg = f"it cannot be read: {error.strerror or error}."
        raise CheckpointError(msg) from error


def read_bytes(raw: bytes) -> Any:
    """Return the contents of bytes that were written like a file."""
    return _read(io.BytesIO(raw))


def _read(file: IO[bytes]) -> Any:
    head = file.read(_HEAD)
    file.seek(0)
    try:
        if head.startswith(_ZIP):
            with zipfile.ZipFile(file) as archive:
                return read_pickle(archive.read(_name_of_contents(archive)))
        if head.startswith(_OLD_TORCH):
            for _ in range(_PICKLES_BEFORE_CONTENTS):
                read_next_pickle(file)
            return read_next_pickle(file)
        if head.startswith(_BYTE_ORDER_MARKS) or head.lstrip()[:1] in (b"{", b"["):
            return json.loads(file.read())
        if head.startswith(_PICKLE) or _OLD_PICKLE.match(head):
            return read_pickle(file.read())
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes may lead to anything
        raise damage(error) from error
    if not head:
        msg = "it is empty."
    else:
        msg = (
            "it is not a checkpoint: neither torch.save, pickle nor JSON begins a file with "
            f"{head[:12]!r}."
        )
    raise CheckpointDamagedError(msg)


def _name_of_contents(archive: zipfile.ZipFile) -> str:
    found = [name for name in archive.namelist() if _CONTENTS.fullmatch(name)]
    if len(found) != 1:
        msg = "it is a zip file, but not a complete one of torch.save."
        raise CheckpointDamagedError(msg)
    return found[0]


def damage(error: Exception) -> CheckpointDamagedError:
    """Say that contents are damaged, with the error that reading them led to."""
    # The first sentence only: in the next ones, torch recommends to load without safety.
    why = re.split(r"\.\s|\n", str(error).strip())[0].rstrip(".") or "it ends too early"
    msg = f"it is damaged, cut short or no checkpoint ({type(error).__name__}: {why})."
    return CheckpointDamagedError(msg)


def read_folder(folder: Path) -> tuple[dict[Any, Any], list[tuple[str, str]]]:
    """Return the values except tensors, and the entries that were not read with the reason.

    Lists come back as dicts with indices as keys.
    """
    contents: dict[Any, Any] = {}
    unread = []
    for name, path, info in _entries(folder):
        try:
            _put(contents, path, read_bytes(_bytes_of(folder, info)))
        except CheckpointError as error:
            unread.append((name, str(error)))
    return contents, unread


def _entries(folder: Path) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Yield the name, the path in the dicts and the location of each entry that is no tensor."""
    try:
        metadata = read_pickle((folder / METADATA).read_bytes())
        kinds, stored = metadata.state_dict_metadata, metadata.storage_data
        paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        where = {index.fqn: info for index, info in stored.items()}
        entries = [
            (str(name), tuple(paths.get(name, (name,))), where[name])
            for name, kind in kinds.items()
            if type(kind).__name__ == "BytesStorageMetadata"
        ]
    except CheckpointError:
        raise
    except Exception as error:  # the file may contain anything
        raise damage(error) from error
    yield from entries


def _bytes_of(folder: Path, info: Any) -> bytes:
    try:
        path: Path = (folder / info.relative_path).resolve()
        if not path.is_relative_to(folder.resolve()):
            msg = f"it is outside of the folder, in {info.relative_path!r}."
            raise CheckpointDamagedError(msg)
        if info.offset < 0 or not 0 <= info.length <= path.stat().st_size - info.offset:
            msg = f"{info.relative_path} is cut short."
            raise CheckpointDamagedError(msg)
        with path.open("rb") as file:
            file.seek(info.offset)
            return file.read(info.length)
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise damage(error) from error


def _put(contents: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    *outer, last = path
    for key in outer:
        contents = contents.setdefault(key, {})
        if not isinstance(contents, dict):
            msg = f"{path} is inside of a value."
            raise CheckpointDamagedError(msg)
    contents[last] = value
