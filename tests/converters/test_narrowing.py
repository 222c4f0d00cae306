"""No value becomes another one unnoticed."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataporter.converters.narrowing import cast
from dataporter.errors import ConversionError

INTEGERS = [
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]


def span(dtype):
    return (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


@st.composite
def integers(draw):
    """A tensor of integers, near to where dtypes end."""
    dtype = draw(st.sampled_from(INTEGERS))
    low, high = span(dtype)
    edges = [edge + off for other in INTEGERS for edge in span(other) for off in (-1, 0, 1)]
    near = st.sampled_from([edge for edge in edges if low <= edge <= high])
    return torch.tensor(draw(st.lists(near | st.integers(low, high), max_size=5)), dtype=dtype)


@st.composite
def floats(draw):
    """A tensor of floats, near to where dtypes end too."""
    dtype = draw(st.sampled_from([*FLOATS, *EIGHT_BITS]))
    edges = [torch.finfo(other).max for other in FLOATS] + [65519.0, 65520.0, 3.4028236e38]
    near = st.sampled_from([sign * edge for edge in edges for sign in (1, -1)])
    values = draw(st.lists(near | st.floats(), max_size=5))
    return torch.tensor(values, dtype=torch.float64).to(dtype)


# Integers


@given(integers(), st.sampled_from([*INTEGERS, torch.bool]))
def test_integers_are_kept_or_refused(tensor, dtype):
    low, high = span(dtype)
    if all(low <= value <= high for value in tensor.tolist()):
        converted = cast(tensor, dtype)
        assert converted.dtype is dtype
        assert converted.tolist() == tensor.tolist()
    else:
        with pytest.raises(ConversionError, match=f"holds {low} to {high}"):
            cast(tensor, dtype)


@given(integers(), st.sampled_from([*INTEGERS, torch.bool]))
def test_clamped_integers_are_the_nearest_there_are(tensor, dtype):
    low, high = span(dtype)
    wanted = [min(max(value, low), high) for value in tensor.tolist()]
    assert cast(tensor, dtype, "clamp").tolist() == wanted


@given(integers(), st.sampled_from(INTEGERS))
def test_wrapped_integers_are_equal_modulo_the_range(tensor, dtype):
    low, high = span(dtype)
    wanted = [(value - low) % (high - low + 1) + low for value in tensor.tolist()]
    assert cast(tensor, dtype, "wrap").tolist() == wanted


@pytest.mark.parametrize(
    ("value", "dtype", "held"),
    [
        (40000, torch.int16, "-32768 to 32767"),
        (-100, torch.uint8, "0 to 255"),
        (2, torch.bool, "0 to 1"),
    ],
)
def test_what_the_original_wrapped_in_silence_is_refused(value, dtype, held):
    with pytest.raises(ConversionError) as raised:
        cast(torch.tensor([1, value]), dtype, path="inputs.ids")
    assert str(raised.value).startswith(f"inputs.ids: {value} does not fit into ")
    assert f"holds {held}. Choose a wider dtype, or pass on_overflow=" in str(raised.value)


@given(integers(), st.sampled_from([*FLOATS, *EIGHT_BITS]))
def test_integers_become_the_very_same_floats_or_are_refused(tensor, dtype):
    try:
        converted = cast(tensor, dtype)
    except ConversionError:
        # Somewhere from here on, the floats have gaps.
        assert max(map(abs, tensor.tolist())) > 2 / torch.finfo(dtype).eps
    else:
        assert [Fraction(value) for value in converted.double().tolist()] == tensor.tolist()


def test_a_token_id_is_not_rounded_to_another_one():
    assert torch.tensor(50257).to(torch.float16).item() == 50272
    with pytest.raises(ConversionError, match="every integer only from -2048 to 2048"):
        cast(torch.tensor(50257), torch.float16)
    assert cast(torch.tensor(50257), torch.float16, "wrap").item() == 50272
    assert cast(torch.tensor(70000), torch.float16, "clamp").item() == 65504


# Floats


@given(floats(), st.sampled_from(FLOATS))
def test_floats_are_rounded_but_never_become_infinite(tensor, dtype):
    plainly = tensor.to(dtype)
    if (tensor.double().isfinite() & ~plainly.isfinite()).any():
        with pytest.raises(ConversionError, match="does not fit into"):
            cast(tensor, dtype)
    else:
        assert torch.equal(cast(tensor, dtype).nan_to_num(7), plainly.nan_to_num(7))


@given(floats(), st.sampled_from(FLOATS))
def test_clamped_floats_are_the_nearest_there_are(tensor, dtype):
    clamped = cast(tensor, dtype, "clamp").double()
    most = torch.finfo(dtype).max
    wanted = torch.where(
        tensor.double().isinf(), tensor.double(), tensor.double().clamp(-most, most)
    ).to(dtype)
    assert torch.equal(clamped.nan_to_num(7), wanted.double().nan_to_num(7))


def test_a_float_too_large_for_half_precision_is_refused():
    with pytest.raises(ConversionError, match=r"^image: 1e10|^image: 10000000000\.0 does not fit"):
        cast(torch.tensor([0.0, 1e10]), torch.float16, path="image")
    assert cast(torch.tensor([1e10, -1e10]), torch.float16, "clamp").tolist() == [65504, -65504]
    assert cast(torch.tensor([1e10]), torch.float16, "wrap").tolist() == [math.inf]


def test_nan_and_infinities_stay_what_they_are_in_floats():
    special = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    for mode in ("raise", "clamp", "wrap"):
        nan, *others = cast(special, torch.float16, mode).tolist()
        assert math.isnan(nan)
        assert others == [math.inf, -math.inf, 1.0]


def test_a_value_that_does_not_fit_is_found_beside_nan():
    with pytest.raises(ConversionError, match="-100000"):
        cast(torch.tensor([math.nan, -1e5, math.inf]), torch.float16)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_eight_bit_floats_are_checked_too(dtype):
    assert cast(torch.tensor([1.0, -2.0]), dtype).double().tolist() == [1, -2]
    with pytest.raises(ConversionError, match="does not fit"):
        cast(torch.tensor([1e6]), dtype)
    assert cast(torch.tensor([1e6]), dtype, "clamp").double().item() == torch.finfo(dtype).max


# Floats into integers


@given(floats(), st.sampled_from([*INTEGERS, torch.bool]))
def test_floats_become_the_very_same_integers_or_are_refused(tensor, dtype):
    low, high = span(dtype)
    values = tensor.double().tolist()
    if all(math.isfinite(v) and v == int(v) and low <= v <= high for v in values):
        assert cast(tensor, dtype).tolist() == values
    else:
        with pytest.raises(ConversionError):
            cast(tensor, dtype)


@given(floats(), st.sampled_from([*INTEGERS, torch.bool]))
def test_floats_are_clamped_to_the_nearest_integer(tensor, dtype):
    low, high = span(dtype)
    values = tensor.double().tolist()
    if all(map(math.isfinite, values)):
        wanted = [min(max(round(value), low), high) for value in values]
        assert cast(tensor, dtype, "clamp").tolist() == wanted
    else:
        with pytest.raises(ConversionError, match=r"(nan|inf) cannot become"):
            cast(tensor, dtype, "clamp")


def test_a_fraction_has_no_integer_unless_one_is_asked_for():
    scaled = torch.tensor([0.0, 0.75])
    with pytest.raises(ConversionError, match=r"image: the fraction 0\.75 cannot become uint8"):
        cast(scaled, torch.uint8, path="image")
    assert cast(scaled, torch.uint8, "clamp").tolist() == [0, 1]
    assert cast(scaled, torch.uint8, "wrap").tolist() == [0, 0]


@pytest.mark.parametrize("mode", ["raise", "clamp", "wrap"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_have_no_integer_in_any_mode(mode, value):
    with pytest.raises(ConversionError, match=f"{value} cannot become int32"):
        cast(torch.tensor([1.0, value]), torch.int32, mode)


def test_floats_out_of_range_do_not_wrap_into_integers():
    with pytest.raises(ConversionError, match="holds 0 to 255"):
        cast(torch.tensor([300.0]), torch.uint8, "wrap")
    with pytest.raises(ConversionError, match=r"or pass on_overflow='clamp'\.$"):
        cast(torch.tensor([300.0]), torch.uint8)
    assert cast(torch.tensor([300.0]), torch.uint8, "clamp").tolist() == [255]


def test_anything_but_zero_is_true_if_wrapped():
    assert cast(torch.tensor([0.0, 0.5, 7.0]), torch.bool, "wrap").tolist() == [False, True, True]


# The rest


def test_complex_numbers_are_checked_by_their_parts():
    fits = torch.tensor([1 + 2j], dtype=torch.complex128)
    assert cast(fits, torch.complex64).tolist() == [1 + 2j]
    with pytest.raises(ConversionError, match="2e\\+300"):
        cast(fits * 1e300, torch.complex64)
    with pytest.raises(
        ConversionError, match=r"complex128 cannot become float32. Convert its \.real"
    ):
        cast(fits, torch.float32)
    assert cast(torch.tensor([3]), torch.complex64).tolist() == [3 + 0j]


def test_bools_fit_everywhere():
    for dtype in (*INTEGERS, *FLOATS, *EIGHT_BITS):
        assert cast(torch.tensor([True, False]), dtype).double().tolist() == [1, 0]


def test_a_tensor_that_has_the_dtype_is_handed_on():
    tensor = torch.ones(2)
    assert cast(tensor, torch.float32) is tensor


def test_empty_tensors_keep_their_shape():
    assert cast(torch.empty(0, 3), torch.int8).shape == (0, 3)


def test_tensors_that_are_not_dense_are_refused():
    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    for tensor in (torch.eye(2).to_sparse(), ragged):
        with pytest.raises(ConversionError, match="only dense tensors"):
            cast(tensor, torch.float16)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t.transpose(0, 3),
        lambda t: t[:, :, ::2],
        lambda t: t[:1].expand(5, -1, -1, -1),
    ],
    ids=["channels-last", "transposed", "stepped", "expanded"],
)
def test_tensors_of_any_layout_are_checked(make):
    for index in ((0, 0, 0, 0), (0, 2, 2, 3)):
        tensor = torch.zeros(2, 3, 4, 4)
        assert torch.equal(cast(make(tensor), torch.float16), make(tensor).half())
        tensor[index] = 1e6
        with pytest.raises(ConversionError, match="1000000"):
            cast(make(tensor), torch.float16)


def test_the_memory_format_and_gradients_are_kept():
    image = torch.ones(1, 3, 4, 4).to(memory_format=torch.channels_last)
    assert cast(image, torch.float16).is_contiguous(memory_format=torch.channels_last)
    assert cast(torch.ones(2, requires_grad=True), torch.float16).requires_grad


def test_conversions_agree_with_numpy_where_everything_fits():
    values = np.arange(-100, 100)
    for dtype in (np.int8, np.float16, np.float32):
        name = np.dtype(dtype).name
        ours = cast(torch.from_numpy(values), getattr(torch, name)).numpy()
        np.testing.assert_array_equal(ours, values.astype(dtype))


# Eight bits


ALL_OF_EIGHT_BITS = [*EIGHT_BITS, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
WITHOUT_INFINITY = [each for each in ALL_OF_EIGHT_BITS if each is not torch.float8_e5m2]


@pytest.mark.parametrize("dtype", ALL_OF_EIGHT_BITS)
def test_every_integer_becomes_the_very_same_eight_bits_or_is_refused(dtype):
    kept = []
    for number in range(-40, 41):
        try:
            kept.append((number, cast(torch.tensor(number), dtype).float().item()))
        except ConversionError:
            continue
    assert all(number == found for number, found in kept)
    assert len(kept) >= 17  # from -8 to 8


@pytest.mark.parametrize("dtype", ALL_OF_EIGHT_BITS)
def test_floats_around_the_largest_of_eight_bits_become_it_or_are_refused(dtype):
    most = torch.finfo(dtype).max
    for value in torch.linspace(most * 0.9, most * 1.4, 2000).tolist():
        try:
            found = cast(torch.tensor(value), dtype).float().item()
        except ConversionError:
            assert value > most
        else:
            assert found <= most
            assert abs(found - value) <= most / 8
        assert cast(torch.tensor(value), dtype, "clamp").float().item() <= most


@pytest.mark.parametrize("dtype", WITHOUT_INFINITY)
@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize("source", [torch.float16, torch.float32, torch.float64, torch.float8_e5m2])
def test_infinities_do_not_fit_where_there_are_none(dtype, value, source):
    tensor = torch.tensor([1.0, value, math.nan]).to(source)
    with pytest.raises(ConversionError, match=f"image: {value} does not fit .*has no infinity"):
        cast(tensor, dtype, path="image")
    one, most, nan = cast(tensor, dtype, "clamp").float().tolist()
    assert (one, most) == (1, math.copysign(torch.finfo(dtype).max, value))
    assert math.isnan(nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_clamped_unsigned_integers_become_the_nearest_floats(dtype):
    numbers = [0, 3, 2**24 + 1, 2**63 - 1, 2**63 + 2**40, 2**64 - 1]
    found = cast(torch.tensor(numbers * 9, dtype=torch.uint64), dtype, "clamp")
    step = torch.finfo(dtype).eps
    for number, float_ in zip(numbers * 9, found.double().tolist(), strict=True):
        assert abs(Fraction(float_) - number) <= number * Fraction(step) / 2
