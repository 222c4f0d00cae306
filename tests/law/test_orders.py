import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shuffle_statistics import beyond_chance, counts_score, uniform_score

from dataporter import OptionError
from dataporter.law import Order, SequentialOrder, ShuffledOrder, WeightedOrder
from dataporter.law.permutation import MAX_LENGTH

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 10**6)
# Zeros among others, at least one that can be drawn.
weight_lists = st.lists(st.just(0.0) | st.floats(1e-9, 1e9), min_size=1, max_size=30).filter(any)


@st.composite
def orders(draw):
    """An order of any kind."""
    seed = draw(seeds)
    kind = draw(st.sampled_from(["sequential", "shuffled", "with", "without"]))
    if kind == "sequential":
        return SequentialOrder(draw(st.integers(0, 10**15)), seed)
    if kind == "shuffled":
        return ShuffledOrder(draw(st.integers(0, 10**15)), seed)
    weights = draw(weight_lists)
    replacement = kind == "with"
    most = 100 if replacement else np.count_nonzero(weights)
    return WeightedOrder(
        weights, length=draw(st.integers(0, most)), replacement=replacement, seed=seed
    )


def positions_in(order):
    return st.lists(st.integers(0, order.length - 1) if order.length else st.nothing())


def one_epoch(order, epoch=0):
    return order.indices(epoch, np.arange(order.length)).tolist()


# The laws


@given(order=orders(), epoch=epochs, data=st.data())
def test_an_index_is_a_pure_function_of_seed_epoch_and_position(order, epoch, data):
    positions = data.draw(positions_in(order))
    together = order.indices(epoch, np.array(positions, dtype=np.int64)).tolist()
    again = order.with_seed(order.seed)
    again.indices(epoch + 1, np.array(positions, dtype=np.int64))  # asked in between
    shuffled = data.draw(st.permutations(positions))
    one_by_one = {p: int(again.indices(epoch, np.array([p]))[0]) for p in shuffled}
    assert together == [one_by_one[p] for p in positions]


@given(order=orders(), seed=seeds, epoch=epochs, data=st.data())
def test_with_seed_changes_the_seed_and_nothing_else(order, seed, epoch, data):
    positions = np.array(data.draw(positions_in(order)), dtype=np.int64)
    before = order.indices(epoch, positions).tolist()
    other = order.with_seed(seed)
    assert (other.seed, other.id, other.length) == (seed, order.id, order.length)
    assert type(other) is type(order)
    assert order.indices(epoch, positions).tolist() == before
    back = other.with_seed(order.seed)
    assert back.indices(epoch, positions).tolist() == before


@given(order=orders())
def test_every_order_fulfils_the_protocol(order):
    assert isinstance(order, Order)


@given(weights=weight_lists, seed=seeds, epoch=epochs)
def test_a_weight_of_zero_is_never_drawn_with_replacement(weights, seed, epoch):
    order = WeightedOrder(weights, length=50, replacement=True, seed=seed)
    assert all(weights[index] > 0 for index in one_epoch(order, epoch))


@given(weights=weight_lists, seed=seeds, epoch=epochs)
def test_without_replacement_everything_that_can_be_drawn_is_drawn_once(weights, seed, epoch):
    drawable = [index for index, weight in enumerate(weights) if weight > 0]
    order = WeightedOrder(weights, length=len(drawable), replacement=False, seed=seed)
    assert sorted(one_epoch(order, epoch)) == drawable


@given(weights=weight_lists, seed=seeds)
def test_fewer_draws_without_replacement_are_the_first_of_more(weights, seed):
    most = np.count_nonzero(weights)
    everything = one_epoch(WeightedOrder(weights, length=most, replacement=False, seed=seed))
    for length in range(most):
        order = WeightedOrder(weights, length=length, replacement=False, seed=seed)
        assert one_epoch(order) == everything[:length]


@given(one=weight_lists, other=weight_lists)
def test_other_weights_are_another_order(one, other):
    ids = [WeightedOrder(weights, length=3).id for weights in (one, other)]
    assert (ids[0] == ids[1]) == (one == other)


# Sequential and shuffled


def test_a_sequential_order_counts_up_in_every_epoch():
    order = SequentialOrder(5, seed=9)
    assert one_epoch(order, 0) == one_epoch(order, 7) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("length", [50, 5000])
def test_a_shuffled_order_is_another_permutation_in_every_epoch(length):
    passes = [one_epoch(ShuffledOrder(length, seed=2), epoch) for epoch in range(20)]
    assert all(sorted(order) == list(range(length)) for order in passes)
    assert len({tuple(order) for order in passes}) == 20


def test_seed_and_epoch_are_not_added_up():
    assert one_epoch(ShuffledOrder(50, seed=1), 0) != one_epoch(ShuffledOrder(50, seed=0), 1)


def test_a_shuffled_order_past_the_longest_is_refused():
    with pytest.raises(OptionError, match=str(MAX_LENGTH + 1)):
        ShuffledOrder(MAX_LENGTH + 1)


def test_an_order_without_samples_has_no_indices():
    assert one_epoch(SequentialOrder(0)) == one_epoch(ShuffledOrder(0)) == []


# Weighted

WEIGHTS = np.array([1.0, 2.0, 0.0, 3.0, 10.0, 0.5])
SHARES = WEIGHTS / WEIGHTS.sum()


def test_frequencies_with_replacement_follow_the_weights():
    order = WeightedOrder(WEIGHTS, length=100_000, replacement=True, seed=4)
    assert not beyond_chance({"share": share_score(one_epoch(order), SHARES)})


def test_the_first_draws_without_replacement_follow_the_weights():
    order = WeightedOrder(WEIGHTS, length=5, replacement=False, seed=4)
    passes = np.array([one_epoch(order, epoch) for epoch in range(5000)])
    assert not beyond_chance({"first": share_score(passes[:, 0], SHARES)})
    # The second is drawn in proportion to what the first has left.
    for first in (1, 4):
        left = np.where(np.arange(6) == first, 0, WEIGHTS)
        seconds = passes[passes[:, 0] == first, 1]
        assert not beyond_chance({first: share_score(seconds, left / left.sum())})


def share_score(drawn, shares):
    counts = np.bincount(drawn, minlength=len(shares))
    drawable = shares > 0
    assert not counts[~drawable].any()
    return counts_score(counts[drawable], counts.sum() * shares[drawable])


def test_equal_weights_without_replacement_are_a_fair_shuffle():
    order = WeightedOrder(np.ones(8), length=8, replacement=False, seed=1)
    passes = np.array([one_epoch(order, epoch) for epoch in range(4000)])
    scores = {position: uniform_score(passes[:, position], 8, bins=8) for position in range(8)}
    assert not beyond_chance(scores)


def test_draws_with_replacement_do_not_depend_on_their_neighbours():
    drawn = np.array(one_epoch(WeightedOrder(np.ones(4), length=40_000, seed=2)))
    pairs = drawn[:-1] * 4 + drawn[1:]
    assert not beyond_chance({"pairs": uniform_score(pairs, 16, bins=16)})


@pytest.mark.parametrize("replacement", [True, False])
def test_a_weighted_order_is_another_one_in_every_epoch_and_under_every_seed(replacement):
    order = WeightedOrder(np.ones(40), length=40, replacement=replacement)
    drawn = [one_epoch(order.with_seed(seed), epoch) for seed in range(5) for epoch in range(5)]
    assert len({tuple(indices) for indices in drawn}) == 25


def test_an_order_keeps_its_weights_when_the_callers_change():
    weights = np.ones(20)
    order = WeightedOrder(weights, length=20)
    before = one_epoch(order, 0)
    weights[:] = 0
    assert one_epoch(order, 0) == before


def test_the_id_tells_apart_whatever_decides_the_draws():
    ids = [
        WeightedOrder([1, 2], length=2).id,
        WeightedOrder([2, 1], length=2).id,
        WeightedOrder([1, 2, 0], length=2).id,
        WeightedOrder([1, 2], length=1).id,
        WeightedOrder([1, 2], length=2, replacement=False).id,
        ShuffledOrder(2).id,
        SequentialOrder(2).id,
    ]
    assert len(set(ids)) == len(ids)
    assert WeightedOrder([1, 2], length=2, seed=5).id == ids[0]


def test_weights_may_be_so_large_that_their_sum_is_not_finite():
    weights = [1e308, 0.0, 1e308, 1e308]
    drawn = one_epoch(WeightedOrder(weights, length=30_000, seed=1))
    assert not beyond_chance({"share": share_score(drawn, np.array([1, 0, 1, 1]) / 3)})
    without = WeightedOrder(weights, length=3, replacement=False, seed=1)
    assert sorted(one_epoch(without)) == [0, 2, 3]


def test_weights_may_be_so_small_that_a_wait_is_not_finite():
    order = WeightedOrder([0.0, 1e-310, 0.0, 1.0], length=2, replacement=False, seed=1)
    assert one_epoch(order) == [3, 1]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([], "non-empty"),
        ([[1.0, 2.0]], "shape"),
        (3.0, "shape"),
        ([1.0, -0.5], "index 1"),
        ([float("nan"), 1.0], "index 0"),
        ([1.0, float("inf")], "index 1"),
        ([0.0, 0.0], "all be zero"),
        (["heavy", "light"], "numbers"),
        ([1.0, None], "numbers|index 1"),
        ([[1.0], [1.0, 2.0]], "numbers"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weights, said):
    with pytest.raises(OptionError, match=said):
        WeightedOrder(weights, length=1)


def test_more_samples_than_can_be_drawn_without_replacement_are_refused():
    with pytest.raises(OptionError, match="only 2 of 3"):
        WeightedOrder([1.0, 0.0, 1.0], length=3, replacement=False)
