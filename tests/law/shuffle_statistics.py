"""How far an order is from chance, as z-scores: a fair shuffle scores about -2 to 2.

A histogram is scored by chi-square, brought to a normal variable by Wilson and Hilferty's
cube root. Too even counts against an order as too uneven does, so scores are two-sided.
`indices` has shape (permutations, k): what several permutations have at k positions.
"""

import numpy as np

# A fair shuffle is beyond 5 with probability 6e-7. The tests look at some 300 scores, with
# fixed seeds: a fair shuffle would fail for one choice of those seeds in 5,000. The bad
# orders that the tests try score beyond 20, most of them in the hundreds.
Z_LIMIT = 5.0


def beyond_chance(scores):
    """The scores that a fair shuffle would not have."""
    return {name: score for name, score in scores.items() if not abs(score) < Z_LIMIT}


def position_scores(positions, indices, length):
    """Whether an index has to do with the position it is at."""
    return {
        "correlation": _correlation(np.broadcast_to(positions, indices.shape), indices),
        "distance": uniform_score((indices - positions) % length, length),
    }


def neighbour_scores(indices, length, lags):
    """Whether an index has to do with the one that comes `lag` positions later."""
    scores = {}
    for lag in lags:
        before, after = indices[:, :-lag], indices[:, lag:]
        scores[f"correlation at {lag}"] = _correlation(before, after)
        scores[f"distance at {lag}"] = uniform_score((after - before) % length, length)
    return scores


def succession_scores(indices, length):
    """Whether a permutation has to do with the next one, or the one after that."""
    scores = {}
    for lag in (1, 2):
        before, after = indices[:-lag], indices[lag:]
        scores[f"correlation at {lag}"] = _correlation(before, after)
        scores[f"distance at {lag}"] = uniform_score((after - before) % length, length)
    return scores


def uniform_score(values, length, bins=64):
    """Whether values in [0, length) are anywhere in it, independent of each other."""
    counts = np.bincount(_bin(np.ravel(values), length, bins), minlength=bins)
    return counts_score(counts, counts.sum() * _bin_sizes(length, bins) / length)


def counts_score(counts, expected):
    """Whether counts that are free but for their sum are as expected."""
    return chi_square_score(((counts - expected) ** 2 / expected).sum(), counts.size - 1)


def cells_score(indices, length, bins=16):
    """Whether each stretch of positions has its share of each stretch of indices.

    For whole permutations. The cells of this table then have the variance of a permutation
    matrix, m * m / (length - 1) for stretches of m, in each of the (bins - 1)**2 directions
    that its fixed row and column sums leave.
    """
    rows = np.broadcast_to(_bin(np.arange(length), length, bins), indices.shape)
    cells = rows * bins + _bin(indices, length, bins)
    counts = np.bincount(cells.ravel(), minlength=bins**2).reshape(bins, bins)
    sizes = _bin_sizes(length, bins)
    products = len(indices) * np.outer(sizes, sizes)
    squares = (counts - products / length) ** 2 / (products / (length - 1))
    return chi_square_score(squares.sum(), (bins - 1) ** 2)


def events_score(events, expected):
    """Whether rare events are as many as expected, which should be 20 or more."""
    return (np.count_nonzero(events) - expected) / np.sqrt(expected)


def _correlation(first, second):
    """Whether rows go up and down together; of k independent pairs it varies by 1 / (k - 1)."""
    first = first - first.mean(axis=1, keepdims=True)
    second = second - second.mean(axis=1, keepdims=True)
    norms = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    correlations = (first * second).sum(axis=1) / norms
    return correlations.sum() * np.sqrt((first.shape[1] - 1) / len(first))


def chi_square_score(chi_square, freedom):
    spread = 2 / (9 * freedom)
    return (np.cbrt(chi_square / freedom) - (1 - spread)) / np.sqrt(spread)


def _bin(values, length, bins):
    return values * bins // length


def _bin_sizes(length, bins):
    return np.diff(-(-np.arange(bins + 1) * length // bins))
