"""The choice of a collator: tasks, the registry, and the collator for rows of unknown kind."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from dataporter.arguments import check_int, did_you_mean
from dataporter.errors import OptionError, OptionTypeError
from dataporter.fetch import draws_nothing
from dataporter.fetch.rows import check_rows, collate_columns, collate_values, columns_of
from dataporter.training.text_collator import LanguageModelingDataCollator
from dataporter.training.vision_collator import VisionDataCollator


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A training task: its kind of data and its objective.

    `modality` chooses the collator: "text", "vision", or a registered one. `task_type` is the
    objective. For the text tasks "lm" and "masked_lm" the collator makes the labels; other
    tasks have labels in their rows. `max_length` truncates token sequences.

    >>> TaskSpec.lm_tiny().modality
    'text'
    >>> TaskSpec(name="speech", modality="audio", task_type="classification").max_length is None
    True
    """

    name: str
    modality: str
    task_type: str
    max_length: int | None = None

    def __post_init__(self) -> None:
        for field in ("name", "modality", "task_type"):
            value = getattr(self, field)
            if not isinstance(value, str):
                msg = f"{field} must be a str, found {type(value).__name__} {value!r}."
                raise OptionTypeError(msg)
            if not value:
                msg = f"{field} must not be empty."
                raise OptionError(msg)
        check_int("max_length", self.max_length, least=1, optional=True)

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """Return a task of causal language modelling with up to 128 tokens."""
        return cls(name="lm_tiny", modality="text", task_type="lm", max_length=128)

    @classmethod
    def cls_tiny(cls) -> TaskSpec:
        """Return a task of text classification with up to 128 tokens."""
        return cls(name="cls_tiny", modality="text", task_type="classification", max_length=128)

    @classmethod
    def seq2seq_tiny(cls) -> TaskSpec:
        """Return a sequence-to-sequence task with up to 128 tokens on both sides."""
        return cls(name="seq2seq_tiny", modality="text", task_type="seq2seq", max_length=128)

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Return a task of image classification with images of any size."""
        return cls(name="vision_tiny", modality="vision", task_type="classification")


class DefaultCollator:
    """Collates like torch's `default_collate`, with errors that name the row that does not fit.

    >>> DefaultCollator()([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': tensor([1, 2]), 'name': ['a', 'b']}
    """

    @draws_nothing
    def __call__(self, rows: Sequence[Any]) -> Any:
        check_rows(rows)
        # Subclasses of dict keep their type: default collation takes care of that.
        if type(rows[0]) is not dict:
            return collate_values(rows, "the rows")
        return collate_columns(columns_of(rows))

    def __repr__(self) -> str:
        return "DefaultCollator()"


Collator: TypeAlias = Callable[[Any], Any]
Factory = TypeVar("Factory", bound=Callable[..., Any])


# Tasks whose labels the text collator makes. True means that it makes them by masking.
_MASKS = {"lm": False, "causal_lm": False, "masked_lm": True, "mlm": True}
# Other tasks whose labels are tokens, so that `max_length` truncates them.
_TOKEN_LABELS = (
    *("seq2seq", "translation", "summarization"),
    *("token_classification", "ner"),
)


def _no_defaults(_: TaskSpec) -> dict[str, Any]:
    return {}


def _text_defaults(task_spec: TaskSpec) -> dict[str, Any]:
    return {
        "max_length": task_spec.max_length,
        "mlm": _MASKS.get(task_spec.task_type, False),
        "own_labels_only": task_spec.task_type not in _MASKS,
        "token_labels": task_spec.task_type in (*_MASKS, *_TOKEN_LABELS),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CollatorEntry:
    """A registered collator: `factory` makes it, with `defaults` that depend on the task."""

    name: str
    modality: str | None
    description: str
    factory: Callable[..., Collator]
    defaults: Callable[[TaskSpec], dict[str, Any]] = _no_defaults


class CollatorRegistry:
    """Makes collators by name, or by the modality of a task.

    >>> registry = CollatorRegistry.get_instance()
    >>> registry.get_collator(task_spec=TaskSpec.lm_tiny())
    LanguageModelingDataCollator(causal, max_length=128)

    Register your own with a function that makes one:

    >>> registry = CollatorRegistry()
    >>> @registry.register("sum", modality="numbers", description="adds up")
    ... def create_sum(start=0):
    ...     return lambda rows: sum(rows, start)
    >>> registry.get_collator(collator_name="sum", start=10)([1, 2])
    13

    Tasks of a modality get the first collator registered for it. Later ones are chosen by
    name. All methods are thread-safe. A pickled registry is a copy.
    """

    _instance: CollatorRegistry | None = None
    _instance_lock = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries = {entry.name: entry for entry in _BUILT_IN}

    @classmethod
    def get_instance(cls) -> CollatorRegistry:
        """Return the registry of this process."""
        with cls._instance_lock:
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

    def register(
        self,
        name: str,
        modality: str | None = None,
        description: str = "",
        *,
        replace: bool = False,
    ) -> Callable[[Factory], Factory]:
        """Register the decorated function or class as a factory of collators.

        A name can be registered twice only for the same function, as when a notebook cell runs
        again. `replace=True` replaces any earlier registration, including its modality.
        """
        if not isinstance(name, str) or not name:
            msg = f"a collator's name must be a non-empty str, found {name!r}."
            raise OptionTypeError(msg)

        def add(factory: Factory) -> Factory:
            if not callable(factory):
                msg = f"a collator factory must be callable, found {type(factory).__name__}."
                raise OptionTypeError(msg)
            entry = CollatorEntry(
                name=name, modality=modality, description=description, factory=factory
            )
            with self._lock:
                before = self._entries.get(name)
                if before and not replace and not _is_same(before.factory, factory):
                    msg = (
                        f"the name {name!r} is already registered, for a collator for "
                        f"{before.modality or 'any modality'}. Choose another name, or pass "
                        "replace=True."
                    )
                    raise OptionError(msg)
                self._entries = {**self._entries, name: entry}
            return factory

        return add

    def get_collator(
        self,
        task_spec: TaskSpec | None = None,
        collator_name: str | None = None,
        *,
        tokenizer: Any = None,
        **options: Any,
    ) -> Collator:
        """Make the collator of this name, or the collator of this task's modality.

        `task_spec` and `tokenizer` are passed to factories that have such parameters. `options`
        are passed on, and an unknown option is an error. An unknown modality gets the default
        collator, unless it looks like a misspelling of a known one.
        """
        entries = self._entries
        if collator_name is not None:
            if collator_name not in entries:
                msg = f"there is no collator {collator_name!r}{_known(collator_name, entries)}"
                raise OptionError(msg)
            entry = entries[collator_name]
        else:
            entry = _entry_for(task_spec, entries)
        defaults = {} if task_spec is None else entry.defaults(task_spec)
        offered = {"task_spec": task_spec, "tokenizer": tokenizer}
        return _make(entry, offered, defaults, options)

    def list_collators(self) -> dict[str, dict[str, str | None]]:
        """Return the modality and the description of each collator, by name.

        >>> sorted(CollatorRegistry().list_collators())
        ['default', 'text', 'vision']
        """
        return {
            name: {"modality": entry.modality, "description": entry.description}
            for name, entry in self._entries.items()
        }

    def reset(self) -> None:
        """Remove all registered collators except the built-in ones."""
        with self._lock:
            self._entries = {entry.name: entry for entry in _BUILT_IN}

    def __getstate__(self) -> dict[str, Any]:
        return {"_entries": self._entries}  # locks cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self._entries = state["_entries"]


def _entry_for(task_spec: TaskSpec | None, entries: dict[str, CollatorEntry]) -> CollatorEntry:
    if task_spec is None:
        return entries["default"]
    modality = getattr(task_spec, "modality", None)
    if not isinstance(modality, str):
        msg = (
            f"task_spec must be a TaskSpec, found {type(task_spec).__name__} {task_spec!r}. "
            "Pass one, such as TaskSpec.lm_tiny(), or pass "
            "collate_fn=CollatorRegistry.get_instance().get_collator(collator_name=...)."
        )
        raise OptionTypeError(msg)
    of_modality: dict[str, CollatorEntry] = {}
    for entry in entries.values():
        if entry.modality is not None:
            of_modality.setdefault(entry.modality, entry)
    if modality in of_modality:
        return of_modality[modality]
    if did_you_mean(modality, of_modality):
        msg = f"there is no collator for the modality {modality!r}{_known(modality, of_modality)}"
        raise OptionError(msg)
    return entries["default"]


def _make(
    entry: CollatorEntry,
    offered: dict[str, Any],
    defaults: dict[str, Any],
    options: dict[str, Any],
) -> Collator:
    taken, takes_any = _parameters(entry.factory)
    for name in options:
        if name not in taken and not takes_any:
            msg = f"the collator {entry.name!r} has no option {name!r}{_known(name, taken)}"
            raise OptionTypeError(msg)
    implied = {name: value for name, value in offered.items() if name in taken or takes_any}
    return entry.factory(**{**implied, **defaults, **options})


def _parameters(factory: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of a factory's parameters, and True if it has **kwargs."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return [], True
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return (
        [parameter.name for parameter in parameters if parameter.kind in named],
        any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
    )


def _known(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: a suggestion and all known names."""
    return f".{did_you_mean(name, known)} Known names: {', '.join(sorted(known)) or 'none'}."


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return True if two functions come from the same definition, run twice."""
    name = getattr(one, "__qualname__", "<lambda>")
    return (
        not name.endswith("<lambda>")  # all lambdas share this name
        and name == getattr(other, "__qualname__", None)
        and one.__module__ == other.__module__
    )


_BUILT_IN = (
    CollatorEntry(
        name="text",
        modality="text",
        description="token sequences: padding, attention masks, causal or masked labels",
        factory=LanguageModelingDataCollator,
        defaults=_text_defaults,
    ),
    CollatorEntry(
        name="vision",
        modality="vision",
        description="images: scaled to [0, 1] and normalised",
        factory=VisionDataCollator,
    ),
    CollatorEntry(
        name="default",
        modality=None,
        description="anything: torch's default collation",
        factory=DefaultCollator,
    ),
)
