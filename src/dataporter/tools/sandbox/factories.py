"""The user's factory: found by its name, checked, and made importable for other processes."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias, TypeGuard

from torch.utils.data import DataLoader

from dataporter.arguments import did_you_mean
from dataporter.errors import FactoryError, OptionError


class DataModule(Protocol):
    """An object that makes its loaders when asked to, such as Lightning's DataModule."""

    def train_dataloader(self) -> Any: ...


Factory: TypeAlias = Callable[[], Any] | DataLoader[Any] | DataModule


def is_made(factory: Any) -> TypeGuard[DataLoader[Any] | DataModule]:
    """Tell whether this is a loader or a DataModule already, not a function that makes one."""
    return isinstance(factory, DataLoader) or is_data_module(factory)


def is_data_module(made: Any) -> TypeGuard[DataModule]:
    """Tell whether this makes its loaders when asked to."""
    return callable(getattr(made, "train_dataloader", None)) and not isinstance(made, type)


def check_name(name: str) -> None:
    """Raise unless this has the form `package.module:function` or `path/to/file.py:function`."""
    module, _, function = name.partition(":")
    is_path = module.endswith(".py")
    is_found = Path(module).is_file() if is_path else _is_dotted(module)
    if is_found and _is_dotted(function):
        return
    hint = f" There is no file {module}." if is_path and not is_found else ""
    msg = (
        "the factory is named as package.module:function or path/to/file.py:function, found "
        f"{name!r}.{hint}"
    )
    raise OptionError(msg)


def _is_dotted(name: str) -> bool:
    return all(step.isidentifier() for step in name.split("."))


def import_by_name(name: str) -> Any:
    """Import what `package.module:function` or `path/to/file.py:function` names."""
    module_name, _, attribute = name.partition(":")
    is_path = module_name.endswith(".py")
    found: Any = _import_file(Path(module_name)) if is_path else _import(module_name)
    before = ""
    for step in attribute.split("."):
        if not hasattr(found, step):
            names = [each for each in dir(found) if not each.startswith("_")]
            functions = [each for each in names if callable(getattr(found, each, None))]
            hint = did_you_mean(before + step, [before + each for each in functions])
            msg = f"{module_name} has no {attribute!r}.{hint} Name a function that makes a loader."
            raise FactoryError(msg)
        found = getattr(found, step)
        before += f"{step}."
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
        msg = (
            f"there is no module {missing!r} in the folders where Python looks for packages. Check "
            "the name. If it is right, name the file, as in path/to/file.py:function, add the "
            "module's folder to PYTHONPATH, or install it."
        )
        raise FactoryError(msg) from error


def _import_file(file: Path) -> ModuleType:
    """Import a file as part of its package, or as a module beside which others are found.

    Its folder comes first in the path, as with `python file.py`. Workers that are spawned find the
    module there by its name.
    """
    file = Path(os.path.abspath(file))  # noqa: PTH100  a link is imported by its own name
    module = file.parent if file.name == "__init__.py" else file.with_suffix("")
    root = module.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    sys.path.insert(0, str(root))
    name = ".".join(module.relative_to(root).parts)
    if _is_dotted(name):
        found = sys.modules.get(name) or importlib.import_module(name)
        if os.path.abspath(found.__file__ or "") == str(file):  # noqa: PTH100  see above
            return found
    # No module has that name, or one that Python has imported before has it.
    name = "named_by_its_path_" + re.sub(r"\W", "_", name)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        msg = f"Python cannot import {file}."
        raise FactoryError(msg)
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def check_factory(factory: Any) -> None:
    """Raise unless this is a loader or a DataModule, or can be called without arguments."""
    if is_made(factory):
        return
    if not callable(factory):
        msg = (
            f"the factory cannot be called: its type is {type(factory).__name__}. Name a function "
            "that takes no arguments and returns the loader."
        )
        raise FactoryError(msg)
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some builtins have no signature
        return
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        repr(each.name)
        for each in parameters
        if each.default is inspect.Parameter.empty and each.kind not in several
    ]
    if required:
        name = getattr(factory, "__name__", type(factory).__name__)
        msg = (
            f"{name}() must work without arguments, but it requires {', '.join(required)}. Give "
            "its arguments defaults, or name a function that calls it with them."
        )
        raise FactoryError(msg)


def pickled(factory: Factory) -> bytes | None:
    """Pickle a factory for another interpreter; None if that could not import it.

    A loader is not pickled, since its dataset may be large.
    """
    if is_made(factory) or getattr(factory, "__module__", None) == "__main__":
        return None
    try:
        packed = pickle.dumps(factory)
        pickle.loads(packed)  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  whatever its pickling raises
        return None
    return None if b"__main__" in packed else packed
