"""The user's factory: found by its name, checked, and made importable for other processes."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from dataporter.arguments import did_you_mean
from dataporter.errors import FactoryError, OptionError

Factory: TypeAlias = Callable[[], Any]


def check_name(name: str) -> None:
    """Raise unless this has the form `package.module:function`."""
    module, _, function = name.partition(":")
    is_file = module.endswith(".py") and Path(module).is_file()
    steps = (*module.split("."), *function.split("."))
    if is_file or not all(step.isidentifier() for step in steps):
        hint = _about_file(Path(module), function) if module.endswith(".py") else ""
        msg = f"the factory is named as package.module:function, found {name!r}.{hint}"
        raise OptionError(msg)


def _about_file(file: Path, function: str) -> str:
    """Say how a function in a file is named, and how Python finds it."""
    if not file.is_file():
        return f" There is no file {file}."
    file = Path(os.path.abspath(file))  # noqa: PTH100  a link is imported by its own name
    module = file.parent if file.name == "__init__.py" else file.with_suffix("")
    root = module.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    steps = module.relative_to(root).parts
    for step in steps:
        if not step.isidentifier():
            better = re.sub(r"\W|^(?=\d)", "_", step)
            return f" Python cannot import {step!r}: rename it, for example to {better!r}."
    name = f"{'.'.join(steps)}:{function or 'function'}"
    if any(os.path.abspath(folder) == str(root) for folder in sys.path):  # noqa: PTH100
        return f" For this file, that is {name}."
    return f" For this file, add {root} to PYTHONPATH and name {name}."


def import_by_name(name: str) -> Factory:
    """Import the function that `package.module:function` names."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise
        msg = (
            f"there is no module {missing!r} in the folders where Python looks for packages. Check "
            "the name. If it is right, add the module's folder to PYTHONPATH, or install it."
        )
        raise FactoryError(msg) from error
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
    return found  # type: ignore[no-any-return]  # checked where it is called


def check_factory(factory: Any) -> None:
    """Raise unless this can be called without arguments."""
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
    """Pickle a factory for another interpreter; None if that could not import it."""
    if getattr(factory, "__module__", None) == "__main__":
        return None
    try:
        packed = pickle.dumps(factory)
        pickle.loads(packed)  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  whatever its pickling raises
        return None
    return None if b"__main__" in packed else packed
