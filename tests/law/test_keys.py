import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shuffle_statistics import beyond_chance, chi_square_score, events_score, uniform_score

from dataporter.law.keys import derive_key, key_as_int, mix, uniform

parts = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=5), max_size=4)
key_values = st.integers(0, 2**64 - 1)
counters = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20)


@given(one=parts, other=parts)
def test_keys_are_equal_exactly_where_all_parts_are(one, other):
    assert (derive_key("order", *one) == derive_key("order", *other)) == (one == other)


@given(parts=parts)
def test_another_purpose_is_another_key(parts):
    assert derive_key("order", *parts) != derive_key("sample", *parts)


@given(parts=parts, num_bytes=st.integers(1, 64))
def test_a_key_has_as_many_bytes_as_were_asked_for(parts, num_bytes):
    assert len(derive_key("order", *parts, num_bytes=num_bytes)) == num_bytes


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 0), (0, 1)), ((12, 3), (1, 23)), ((12,), ("12",)), ((1, 2), (1, 2, 0)), (("a",), ("b",))],
)
def test_parts_that_look_alike_have_keys_of_their_own(one, other):
    assert derive_key("order", *one) != derive_key("order", *other)


def test_keys_never_change():
    # Saved states rely on them: the order and the random numbers of a run come from these.
    assert derive_key("order", 1, 0).hex() == "b571f55498b95423"
    assert key_as_int("order", 1, 0) == 2545863753282711989
    assert mix(12, np.array([0, 1, 2**62])).tolist() == [
        7900392304664795800,
        12735800799753180293,
        1019624512840847601,
    ]


def test_a_key_is_an_unsigned_64_bit_number():
    keys = [key_as_int("order", seed) for seed in range(1000)]
    assert min(keys) >= 0
    assert 2**63 < max(keys) < 2**64


@given(key=key_values, counters=counters)
def test_mixing_is_pure_and_keeps_counters_apart(key, counters):
    given_counters = np.array(counters)
    mixed = mix(key, given_counters)
    assert given_counters.tolist() == counters
    assert mixed.tolist() == [int(mix(key, np.array([counter]))[0]) for counter in counters]
    assert len(set(mixed.tolist())) == len(set(counters))


def test_mixing_keeps_the_shape():
    grid = np.arange(12).reshape(3, 4)
    assert np.array_equal(mix(5, grid).ravel(), mix(5, grid.ravel()))


@pytest.mark.parametrize("bit", range(63))
def test_a_changed_bit_of_a_counter_changes_half_of_the_bits(bit):
    # Counters that all lack this bit, since a pair that came twice would count twice.
    below, above = np.arange(2000) % (1 << bit), np.arange(2000) >> bit
    counters = below + (above << (bit + 1))
    changed = mix(77, counters) ^ mix(77, counters + (1 << bit))
    assert not beyond_chance(flipped_bits(changed))


@pytest.mark.parametrize("bit", range(64))
def test_a_changed_bit_of_the_key_changes_half_of_the_bits(bit):
    counters = np.arange(2000)
    changed = mix(77, counters) ^ mix(77 ^ (1 << bit), counters)
    assert not beyond_chance(flipped_bits(changed))


def flipped_bits(changed):
    bits = np.unpackbits(changed.view(np.uint8)).reshape(len(changed), 64)
    excess = (bits.sum(axis=0) - len(bits) / 2) / np.sqrt(len(bits) / 4)  # as z-scores
    return {
        "all bits": excess.sum() / np.sqrt(64),
        "each bit": chi_square_score((excess**2).sum(), freedom=64),
    }


@given(key=key_values, counters=counters)
def test_uniform_numbers_lie_strictly_between_0_and_1(key, counters):
    drawn = uniform(key, np.array(counters))
    assert ((drawn > 0) & (drawn < 1)).all()


@pytest.mark.parametrize("start", [0, 10**12, 2**62])
def test_uniform_numbers_are_uniform(start):
    drawn = uniform(key_as_int("order", 1, 2), np.arange(start, start + 10**5))
    fine = (drawn * 2**20).astype(np.int64)
    assert not beyond_chance(
        {
            "high bits": uniform_score(fine, 2**20, bins=256),
            "low bits": uniform_score(fine % 1024, 1024, bins=256),
            "neighbours": uniform_score(np.diff(fine) % 2**20, 2**20, bins=256),
            "below 0.001": events_score(drawn < 0.001, expected=100),
        }
    )
