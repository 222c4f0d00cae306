"""Casts of tensors in which no value changes silently.

Floats may lose precision, as in any cast between floats. Everything else is checked: an integer
out of range, a float that would become infinite, an integer that a float would round, and a
fraction, NaN or infinity that would become an integer. The check computes the minimum and the
maximum, and only if the source dtype can hold values that the target dtype cannot.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from dataporter.converters.dtypes import dtype_name
from dataporter.errors import ConversionError

OnOverflow: TypeAlias = Literal["raise", "clamp", "wrap"]


class _Limits(NamedTuple):
    """A range of values, with both ends included."""

    low: float
    high: float


def cast(
    tensor: torch.Tensor, dtype: torch.dtype, on_overflow: OnOverflow = "raise", path: str = ""
) -> torch.Tensor:
    """Cast a tensor. `on_overflow` decides about values that do not fit.

    - "raise": raise a `ConversionError` that names `path`.
    - "clamp": take the nearest value of the target dtype. Floats are rounded to integers.
      Infinities become the largest value of a dtype without infinities.
    - "wrap": do what torch's own cast does: integers wrap around, floats become infinite,
      fractions are cut off. Floats outside an integer's range still raise, since torch does
      not define their result.

    NaN and infinities are kept in floats, and always raise in casts to integers. Three of the
    8-bit floats have no infinities, so those do not fit into them.

    >>> cast(torch.tensor([1, 2]), torch.uint8)
    tensor([1, 2], dtype=torch.uint8)
    >>> cast(torch.tensor([300, -5]), torch.uint8, "clamp")
    tensor([255,   0], dtype=torch.uint8)
    """
    source = tensor.dtype
    if source == dtype:
        return tensor
    _check_dense(tensor, path)
    if source.is_complex or dtype.is_complex:
        return _cast_complex(tensor, dtype, on_overflow, path)
    limits = _limits(source, dtype)
    if limits is None or not tensor.numel():
        return tensor.to(dtype)
    if source.is_floating_point and not dtype.is_floating_point:
        return _float_to_integer(tensor, dtype, on_overflow, path)
    low, high = _extremes(tensor)
    fits = limits.low <= low and high <= limits.high
    if not fits and not (math.isfinite(low) and math.isfinite(high)):
        low, high = _checked_extremes(tensor, dtype)
        fits = limits.low <= low and high <= limits.high
    if fits or on_overflow == "wrap":
        return tensor.to(dtype)
    if on_overflow == "clamp":
        return _clamped(tensor, dtype)
    raise _overflow_error(path, high if high > limits.high else low, source, dtype)


def _check_dense(tensor: torch.Tensor, path: str) -> None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else f"{tensor.layout}, {tensor.dtype}"
        raise _error(path, f"only dense tensors can be converted, found a tensor that is {kind}")


def _cast_complex(
    tensor: torch.Tensor, dtype: torch.dtype, on_overflow: OnOverflow, path: str
) -> torch.Tensor:
    if not tensor.is_complex():
        return cast(tensor, dtype.to_real(), on_overflow, path).to(dtype)
    if not dtype.is_complex:
        found, wanted = dtype_name(tensor.dtype), dtype_name(dtype)
        raise _error(path, f"{found} cannot become {wanted}. Convert its .real or .abs() instead")
    parts = torch.view_as_real(tensor.resolve_conj())
    return torch.view_as_complex(cast(parts, dtype.to_real(), on_overflow, path))


@cache
def _limits(source: torch.dtype, target: torch.dtype) -> _Limits | None:
    """Return the source values that fit into the target, or None if all of them do."""
    if source is torch.bool:
        return None
    limits = _range_of(target)
    if target.is_floating_point:
        about = torch.finfo(target)
        if source.is_floating_point:
            # Up to half a step above its largest value, a float is rounded down to it.
            half_step = math.ldexp(_step_at_one(target), math.frexp(about.max)[1] - 2)
            most = math.nextafter(about.max + half_step, 0)
        else:
            most = _last_of_all_integers(target)
        limits = _Limits(-most, most)
    held = _range_of(source)
    fits = limits.low <= held.low and held.high <= limits.high
    if source.is_floating_point and target.is_floating_point:
        fits = fits and _has_infinity(target) >= _has_infinity(source)
    # A float that becomes an integer is always checked, since it may be a fraction.
    is_fractional = source.is_floating_point and not target.is_floating_point
    return None if fits and not is_fractional else limits


def _range_of(dtype: torch.dtype) -> _Limits:
    if dtype is torch.bool:
        return _Limits(0, 1)
    about: Any = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return _Limits(about.min, about.max)


@cache
def _step_at_one(dtype: torch.dtype) -> float:
    """Return the distance from 1 to the next float."""
    if dtype.itemsize > 1:
        return torch.finfo(dtype).eps
    # Of float8_e5m2fnuz, torch.finfo has half of it.
    bits = torch.ones(1).to(dtype).view(torch.uint8) + 1
    return bits.view(dtype).item() - 1


def _last_of_all_integers(dtype: torch.dtype) -> int:
    """Return the integer up to which a float dtype has every integer."""
    return int(2 / _step_at_one(dtype))


@cache
def _has_infinity(dtype: torch.dtype) -> bool:
    return bool(torch.tensor(math.inf).to(dtype).float().isinf())


def _computable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in a dtype that torch can compute with. uint64 stops at int64's."""
    if tensor.dtype in (torch.uint16, torch.uint32):
        return tensor.to(torch.int64)
    if tensor.dtype is torch.uint64:
        signed = tensor.view(torch.int64)
        return torch.where(signed < 0, torch.iinfo(torch.int64).max, signed)
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        return tensor.to(torch.float32)
    return tensor


def _extremes(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the minimum and maximum. Both are NaN if any value is NaN."""
    if tensor.dtype is torch.uint64:
        # With the first bit turned, the order of unsigned integers is that of signed ones.
        least = torch.iinfo(torch.int64).min
        low, high = _extremes(tensor.view(torch.int64) ^ least)
        return low - least, high - least
    if not tensor.is_contiguous():
        # In memory order this takes a tenth of the time, for example for channels-last images.
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))
    found = _computable(tensor).aminmax()
    return found.min.item(), found.max.item()


def _checked_extremes(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Return the minimum and maximum of the values that are not kept as they are."""
    values = _computable(tensor)
    kept = ~values.isfinite() if _has_infinity(dtype) else values.isnan()
    left = values[~kept]
    return _extremes(left) if left.numel() else (0.0, 0.0)


def _float_to_integer(
    tensor: torch.Tensor, dtype: torch.dtype, on_overflow: OnOverflow, path: str
) -> torch.Tensor:
    if dtype is torch.bool and on_overflow == "wrap":
        return tensor.to(dtype)
    low, high = _extremes(tensor)
    if not (math.isfinite(low) and math.isfinite(high)):
        value = low if math.isfinite(high) else high
        reason = (
            f"{value} cannot become {dtype_name(dtype)}. Mask such values before the conversion"
        )
        raise _error(path, reason)
    if on_overflow == "clamp":
        return _rounded(tensor, dtype)
    held = _range_of(dtype)
    if low < held.low or high > held.high:
        value = high if high > held.high else low
        raise _overflow_error(path, value, tensor.dtype, dtype, remedy="'clamp'")
    values = _computable(tensor)
    if on_overflow == "raise" and not torch.equal(values, whole := values.trunc()):
        fraction = values[values != whole][0].item()
        reason = (
            f"the fraction {fraction} cannot become {dtype_name(dtype)}. Round before the "
            "conversion, or pass on_overflow='clamp' to round or 'wrap' to cut off"
        )
        raise _error(path, reason)
    return tensor.to(dtype)


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # A float may not have an integer's upper limit, but always has that limit plus 1.
    low, high = _range_of(dtype)
    values = tensor.to(torch.float64).round()
    over, under = values >= float(high + 1), values < low
    inside = torch.where(over | under, 0.0, values).to(dtype)
    # Torch cannot assign to the wider unsigned dtypes. Seen as signed, their maximum is -1.
    signed = _SIGNED.get(dtype)
    written = inside if signed is None else inside.view(signed)
    written[over] = high if signed is None else -1
    written[under] = low
    return inside


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _clamped(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target, source = _range_of(dtype), _range_of(tensor.dtype)
    if not tensor.is_floating_point() and target.low <= source.low and source.high <= target.high:
        return tensor.to(dtype)  # the nearest float
    # A narrow float may lack another dtype's limits: bfloat16 has no 65504.
    values = tensor.double() if tensor.is_floating_point() else _computable(tensor)
    own = _range_of(values.dtype)
    clamped = values.clamp(max(target.low, own.low), min(target.high, own.high))
    if values.is_floating_point() and _has_infinity(dtype):
        clamped = torch.where(values.isinf(), values, clamped)
    return clamped.to(dtype)


def _overflow_error(
    path: str,
    value: float,
    source: torch.dtype,
    dtype: torch.dtype,
    remedy: str = "'clamp' or 'wrap'",
) -> ConversionError:
    if dtype.is_floating_point and not source.is_floating_point:
        most = _last_of_all_integers(dtype)
        held = f"represents every integer only from {-most} to {most}"
    else:
        low, high = _range_of(dtype)
        held = f"holds {low} to {high}"
        if math.isinf(value):
            held += " and has no infinity"
    reason = (
        f"{value} does not fit into {dtype_name(dtype)}, which {held}. "
        f"Choose a wider dtype, or pass on_overflow={remedy}"
    )
    return _error(path, reason)


def _error(path: str, reason: str) -> ConversionError:
    return ConversionError(f"{path or 'the value'}: {reason}.")
