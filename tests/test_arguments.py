"""One wording for arguments that cannot work."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataporter import OptionError, OptionTypeError
from dataporter.arguments import check_flag, check_int, check_names, check_number, did_you_mean


@given(least=st.integers(-5, 5), value=st.integers(-9, 9))
def test_an_int_passes_from_its_least_on(least, value):
    if value >= least:
        check_int("n", value, least=least)
    else:
        with pytest.raises(OptionError, match=f"n must be at least {least}, found {value}"):
            check_int("n", value, least=least)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_nothing_but_an_int_is_an_int(value):
    with pytest.raises(OptionTypeError, match=f"n must be an int, found {type(value).__name__}"):
        check_int("n", value, least=0)


def test_none_passes_where_it_is_allowed():
    check_int("n", None, least=0, optional=True)
    check_flag("pin_memory", None, optional=True)
    with pytest.raises(OptionTypeError, match="n must be an int or None, found str 'x'"):
        check_int("n", "x", least=0, optional=True)
    with pytest.raises(OptionTypeError, match="pin_memory must be True or False, found None"):
        check_flag("pin_memory", None)
    with pytest.raises(OptionTypeError, match="pin_memory must be True, False or None, found int"):
        check_flag("pin_memory", 1, optional=True)


@pytest.mark.parametrize("value", [-0.1, 1, 1.0, math.nan, math.inf])
def test_a_number_lies_between_its_limits(value):
    with pytest.raises(OptionError, match="share must be below 1 and at least 0, found"):
        check_number("share", value, below=1)


def test_a_number_may_have_to_be_above_its_limit():
    check_number("rate", 1e-9, above=0)
    check_number("rate", 0)
    with pytest.raises(OptionError, match="rate must be finite and above 0, found 0"):
        check_number("rate", 0, above=0)
    with pytest.raises(OptionTypeError, match="rate must be a number, found bool True"):
        check_number("rate", value=True)


def test_an_unknown_name_is_told_with_those_that_are_known():
    check_names("It", ["epochs"], ["seed", "epochs"])
    message = "It has no 'sede'. Did you mean 'seed'? It has seed, epochs."
    with pytest.raises(OptionTypeError) as raised:
        check_names("It", ["epochs", "sede"], ["seed", "epochs"])
    assert str(raised.value) == message
    assert did_you_mean("colour", ["seed", "epochs"]) == ""
