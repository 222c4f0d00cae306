"""Shows the arguments that a function takes, where a decorator has put them in place of its own."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from griffe import Extension, Function, Parameter, ParameterKind, Parameters

_DECORATORS = {"arguments_of", "same_arguments_as"}


class Signatures(Extension):
    """Gives decorated functions the signature that `inspect.signature` finds."""

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """Called for each function when it is loaded."""
        names = {decorator.callable_path.rpartition(".")[2] for decorator in func.decorators}
        if names & _DECORATORS:
            found = inspect.signature(_runtime(func))
            func.parameters = Parameters(*map(_shown, found.parameters.values()))


def _runtime(func: Function) -> Any:
    found: Any = importlib.import_module(func.module.path)
    for name in func.path.removeprefix(f"{func.module.path}.").split("."):
        found = getattr(found, name)
    return found


def _shown(parameter: inspect.Parameter) -> Parameter:
    annotation, default = parameter.annotation, parameter.default
    if not isinstance(annotation, str):  # postponed ones are
        annotation = None if annotation is parameter.empty else inspect.formatannotation(annotation)
    return Parameter(
        parameter.name,
        annotation=annotation,
        kind=ParameterKind(parameter.kind.description),
        default=None if default is parameter.empty else repr(default),
    )
