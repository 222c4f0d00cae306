"""Converters that change the dtypes of a batch and nothing else.

Tensors stay tensors. NumPy arrays stay arrays, or become tensors if NumPy lacks the dtype
(bfloat16). Containers keep their class. Parts that need no change are passed on as they are.
No batch is changed in place. A value that does not fit raises: see `narrowing`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import numpy as np
import torch

from dataporter.arguments import did_you_mean
from dataporter.converters.dtypes import as_dtype, dtype_name
from dataporter.converters.narrowing import OnOverflow, cast
from dataporter.converters.numbers import KINDS, as_array
from dataporter.converters.report import ConversionReport, ReportRow
from dataporter.converters.rules import Rules, as_rules, take_step
from dataporter.errors import ConversionError, OptionError, UnmatchedKeyWarning
from dataporter.fetch import draws_nothing
from dataporter.fetch.containers import joined, parts_of, with_parts

_NUMBERS = (bool, int, float, complex)
_NOT_IN_NUMPY = ("bfloat16", "float8")
_PLAIN = {str, bytes, type(None), *_NUMBERS}


class DtypeConverter:
    """Converts all tensors and NumPy arrays of a sample or batch to one dtype.

    This includes labels and masks. `floating_only=True` converts only floats, and
    `KeyBasedDtypeConverter` converts only named parts. Plain Python numbers stay as they are.

    >>> converter = DtypeConverter("float16", floating_only=True)
    >>> converter.convert_batch({"image": torch.ones(2), "label": torch.tensor(3), "id": "a"})
    {'image': tensor([1., 1.], dtype=torch.float16), 'label': tensor(3), 'id': 'a'}

    `on_overflow` decides about values that do not fit: "raise", "clamp" or "wrap".
    """

    def __init__(
        self,
        dtype: str | torch.dtype | np.dtype[Any] | type[np.generic],
        *,
        on_overflow: OnOverflow = "raise",
        floating_only: bool = False,
    ) -> None:
        self.dtype = as_dtype(dtype)
        self._on_overflow = _checked_mode(on_overflow)
        self._floating_only = floating_only

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dtype_name(self.dtype)!r})"

    @draws_nothing
    def convert_batch(self, batch: Any) -> Any:
        """Return the sample or batch with its tensors and arrays converted."""
        return self._conversion().part(batch, "", (), self.dtype)

    __call__ = convert_batch

    def report(self, batch: Any) -> ConversionReport:
        """Convert a sample or batch, and report how many bytes that saves.

        >>> report = DtypeConverter("float16").report({"image": torch.zeros(10)})
        >>> report.bytes_before, report.bytes_after
        (40, 20)
        """
        conversion = self._conversion(rows=[])
        conversion.part(batch, "", (), self.dtype)
        return conversion.report()

    def _conversion(self, rows: list[ReportRow] | None = None) -> _Conversion:
        return _Conversion(self._on_overflow, rows=rows, floating_only=self._floating_only)


class KeyBasedDtypeConverter:
    """Converts the named parts of a sample or batch, each to its own dtype.

    >>> converter = KeyBasedDtypeConverter({"image": "float16", "label": "int32"})
    >>> converter.convert_batch({"label": 3, "id": "a"})
    {'label': tensor(3, dtype=torch.int32), 'id': 'a'}

    A key is a path from the batch to a part. `image` matches only at the top of the batch.
    `inputs.image` and `arrays[0]` lead inside, `*.image` matches under any first key, and 0 is
    the first part of a tuple. Fields of namedtuples and dataclasses are addressed by name. A key
    that names a container converts everything in it.

    Plain numbers and lists of numbers, also empty ones, become tensors if a key names them. A key
    that matches nothing is ignored, with one warning if it looks misspelled. A key that names
    something without numbers, such as a string or a PIL image, is ignored with one warning. With
    `strict=True` both raise. None is a missing value and stays None, but numbers beside None or
    strings in one list raise.
    `on_overflow` decides about values that do not fit: "raise", "clamp" or "wrap".
    """

    def __init__(
        self,
        conversions: Mapping[Any, str | torch.dtype | np.dtype[Any] | type[np.generic]],
        *,
        on_overflow: OnOverflow = "raise",
        strict: bool = False,
    ) -> None:
        self._rules: Rules = as_rules(conversions)
        self._keys = {rule.key for rule in self._rules}
        self._on_overflow = _checked_mode(on_overflow)
        self._strict = strict
        self._known_unmatched: set[str] = set()  # keys that matched nothing in an earlier batch
        self._known_numberless: set[str] = set()  # keys that named no numbers in an earlier batch

    def __repr__(self) -> str:
        named = {rule.key: dtype_name(rule.dtype) for rule in self._rules}
        return f"{type(self).__name__}({named})"

    @draws_nothing
    def convert_batch(self, batch: Any) -> Any:
        """Return the sample or batch with its named parts converted."""
        return self._converted(batch, self._conversion())

    __call__ = convert_batch

    def report(self, batch: Any) -> ConversionReport:
        """Convert a sample or batch, and report how many of all its bytes that saves.

        >>> KeyBasedDtypeConverter({"mask": "uint8"}).report({"mask": torch.ones(8).long()}).saved
        0.875
        """
        conversion = self._conversion(rows=[])
        self._converted(batch, conversion)
        return conversion.report()

    def _conversion(self, rows: list[ReportRow] | None = None) -> _Conversion:
        return _Conversion(self._on_overflow, rows=rows, takes_numbers=True)

    def _converted(self, batch: Any, conversion: _Conversion) -> Any:
        converted = conversion.part(batch, "", self._rules, None)
        for key, part in conversion.numberless.items():
            self._report_numberless(key, part)
        unmatched = self._keys - conversion.matched
        if unmatched and (self._strict or not unmatched <= self._known_unmatched):
            self._report_unmatched(unmatched, list(_paths(batch)))
        return converted

    def _report_numberless(self, key: str, part: Any) -> None:
        kind = type(part).__name__
        found = f"a list of {type(part[0]).__name__}" if isinstance(part, list) else f"a {kind}"
        if self._strict:
            msg = (
                f"the key {key!r} names {found}, which has no numbers. Make a tensor of it in the "
                "dataset, remove the key, or pass strict=False to ignore it."
            )
            raise ConversionError(msg)
        if key not in self._known_numberless:
            self._known_numberless.add(key)
            msg = (
                f"the key {key!r} names {found}, which has no numbers, and was ignored. Make a "
                "tensor of it in the dataset, or remove the key."
            )
            warnings.warn(msg, UnmatchedKeyWarning, stacklevel=4)

    def _report_unmatched(self, unmatched: set[str], paths: list[str]) -> None:
        free = [path for path in paths if path not in self._keys]
        for key in sorted(unmatched):
            inside = [path for path in free if path.endswith(f".{key}")][:1]
            if self._strict:
                hint = did_you_mean(key, inside or free)
                found = ", ".join(paths[:20]) or "no keys"
                msg = (
                    f"the key {key!r} matches nothing in the batch.{hint} The batch has: {found}. "
                    "Correct the key, or pass strict=False to ignore it."
                )
                raise ConversionError(msg)
            hint = did_you_mean(key, inside or free, cutoff=0.0 if inside else 0.8)
            if hint and key not in self._known_unmatched:
                msg = f"the key {key!r} matches nothing in the batch and was ignored.{hint}"
                warnings.warn(msg, UnmatchedKeyWarning, stacklevel=4)
        self._known_unmatched |= unmatched


def _checked_mode(on_overflow: Any) -> OnOverflow:
    if on_overflow not in get_args(OnOverflow):
        msg = f"on_overflow must be 'raise', 'clamp' or 'wrap', found {on_overflow!r}."
        raise OptionError(msg)
    mode: OnOverflow = on_overflow
    return mode


def _paths(batch: Any, path: str = "") -> Iterator[str]:
    """Yield all paths of a batch, and of long lists only the first 100."""
    for _, step, part in list(parts_of(batch) or ())[:100]:
        yield joined(path, step)
        yield from _paths(part, joined(path, step))


class _Conversion:
    """One conversion of one batch."""

    def __init__(
        self,
        on_overflow: OnOverflow,
        *,
        rows: list[ReportRow] | None,
        takes_numbers: bool = False,
        floating_only: bool = False,
    ) -> None:
        self._on_overflow: OnOverflow = on_overflow
        self._rows = rows
        self._takes_numbers = takes_numbers
        self._floating_only = floating_only
        # An object that is in a batch twice is converted once and stays one object in the result.
        # The original is kept alive, since its id could be reused after its death.
        self._done: dict[tuple[int, torch.dtype], tuple[Any, Any]] = {}
        self.matched: set[str] = set()
        self.numberless: dict[str, Any] = {}  # the parts without numbers that keys name

    def report(self) -> ConversionReport:
        return ConversionReport(rows=tuple(self._rows or ()))

    def part(
        self,
        part: Any,
        path: str,
        rules: Rules,
        dtype: torch.dtype | None,
        *,
        is_named: bool = False,
    ) -> Any:
        """Convert a part of the batch to `dtype`, and its contents by the rules.

        `is_named` means that a key names it, or a list that it is in.
        """
        if isinstance(part, torch.Tensor) or _is_array(part):
            return self._leaf(part, path, dtype)
        if dtype is not None and self._takes_numbers:
            numbers = _as_numbers(part, path, is_named=is_named)
            if numbers is not None:
                return self._noted(numbers, self._cast(numbers, path, dtype), path)
        if dtype is None and not rules and self._rows is None:
            return part
        if type(part) is list and not rules and _PLAIN.issuperset(map(type, part)):
            _check_no_numbers(part, path, dtype if self._takes_numbers else None)
            return part  # a column of strings, for one
        parts = parts_of(part)
        if parts is None:
            return part
        new = {}
        for key, name, before in parts:
            step = take_step(rules, name)
            self.matched.update(step.matched)
            after = self.part(
                before,
                joined(path, name),
                step.rules,
                step.dtype or dtype,
                is_named=bool(step.named) or (is_named and type(part) is list),
            )
            if after is not before:
                new[key] = after
            elif step.named and _is_numberless(before):
                self.numberless.update(dict.fromkeys(step.named, before))
        return with_parts(part, new, path) if new else part

    def _leaf(self, before: Any, path: str, dtype: torch.dtype | None) -> Any:
        if dtype is None or (self._floating_only and not _is_floating(before)):
            return self._noted(before, before, path)
        known = (id(before), dtype)
        if known not in self._done:
            self._done[known] = before, self._cast(before, path, dtype)
        return self._noted(before, self._done[known][1], path)

    def _cast(self, values: Any, path: str, dtype: torch.dtype) -> Any:
        if isinstance(values, torch.Tensor):
            return cast(values, dtype, self._on_overflow, path)
        name = dtype_name(dtype)
        if values.dtype.name == name:
            return values
        converted = cast(_as_tensor(values), dtype, self._on_overflow, path)
        if name.startswith(_NOT_IN_NUMPY):
            return converted
        array = converted.numpy()
        return array[()] if isinstance(values, np.generic) else array

    def _noted(self, before: Any, after: Any, path: str) -> Any:
        if self._rows is not None:
            row = ReportRow(path, _name(before), _name(after), before.nbytes, after.nbytes)
            self._rows.append(row)
        return after


def _is_array(part: Any) -> bool:
    """Return True for a NumPy array or scalar whose numbers torch supports."""
    is_numpy = isinstance(part, np.generic) or type(part) in (np.ndarray, np.memmap)
    return is_numpy and part.dtype.kind in KINDS and part.dtype.alignment <= _LARGEST


_LARGEST = np.dtype(np.float64).alignment  # long doubles, which torch lacks, have a larger one


def _is_floating(part: Any) -> bool:
    return part.is_floating_point() if isinstance(part, torch.Tensor) else part.dtype.kind == "f"


def _name(part: Any) -> str:
    return dtype_name(part.dtype) if isinstance(part, torch.Tensor) else part.dtype.name


def _as_tensor(array: Any) -> torch.Tensor:
    """Return a tensor with an array's values, sharing its memory if torch allows that."""
    array = np.asarray(array)
    is_usable = (
        array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0
    )
    return torch.from_numpy(array if is_usable else array.astype(array.dtype.newbyteorder("=")))


def _check_no_numbers(part: list[Any], path: str, dtype: torch.dtype | None) -> None:
    """Raise for a list of plain values of which only some can become `dtype`."""
    if dtype is None:
        return
    others = [value for value in part if not isinstance(value, _NUMBERS)]
    if len(others) < len(part):
        msg = (
            f"{path}: a list of numbers holds {(others or part)[0]!r} too, which does not fit into "
            "any dtype. Fill such values in the dataset, or remove the key."
        )
        raise ConversionError(msg)


def _is_numberless(part: Any) -> bool:
    """Return True for a part that no dtype could be given to, not even inside.

    None is no such part: it stands for a missing one.
    """
    if part is None or isinstance(part, torch.Tensor) or _is_array(part):
        return False
    return parts_of(part) is None or (type(part) is list and _PLAIN.issuperset(map(type, part)))


def _as_numbers(part: Any, path: str, *, is_named: bool) -> torch.Tensor | None:
    """Return a plain number or a rectangular list of numbers as a tensor, else None.

    An empty list may be one of strings, unless a key names it.
    """
    first = part
    while type(first) is list and first:
        first = first[0]
    if type(first) not in _NUMBERS and not (is_named and type(first) is list):
        return None
    try:
        array = as_array(part, path)
    except ValueError as error:
        if isinstance(error, ConversionError):
            raise
        return None  # rows of unequal lengths
    return None if array is None else torch.from_numpy(array)
