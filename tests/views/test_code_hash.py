"""Hashes of code: equal for what does the same, different after an edit."""

import functools
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from dataporter.views.code_hash import code_hash

LIMIT = 5


def made(source, **names):
    """Compile a function named `f`, as if it stood in a module."""
    space = {"__name__": "somewhere", **names}
    exec(source, space)  # noqa: S102  the subject of these tests
    return space["f"]


def closed_over(value):
    return lambda sample: sample == value


class Longer:
    def __init__(self, least):
        self.least = least

    def __call__(self, sample):
        return self.passes(sample)

    def passes(self, sample):
        return len(sample) > self.least


SAME = {
    "names of locals": ("def f(a): return len(a) > 3", "def f(text): return len(text) > 3"),
    "lines and comments": ("def f(a): return a > 3", "\n\ndef f(a):\n    # why\n    return a > 3"),
}
EDITED = {
    "a constant": ("def f(a): return a > 3", "def f(a): return a > 4"),
    "an operator": ("def f(a): return a > 3", "def f(a): return a >= 3"),
    "an attribute": ("def f(a): return a.x > 3", "def f(a): return a.y > 3"),
    "a default": ("def f(a, n=3): return a > n", "def f(a, n=4): return a > n"),
    "a keyword's default": ("def f(a, *, n=3): return a > n", "def f(a, *, n=4): return a > n"),
    "a global": ("N = 3\ndef f(a): return a > N", "N = 4\ndef f(a): return a > N"),
    "a function beside it": (
        "def g(a): return a > 3\ndef f(a): return g(a)",
        "def g(a): return a > 4\ndef f(a): return g(a)",
    ),
    "a function inside of it": (
        "def f(a): return all(b > 3 for b in a)",
        "def f(a): return all(b > 4 for b in a)",
    ),
    "a global used inside of it": (
        "N = 3\ndef f(a): return all(b > N for b in a)",
        "N = 4\ndef f(a): return all(b > N for b in a)",
    ),
    "a class beside it": (
        "class C:\n  n = 3\ndef f(a): return a > C.n",
        "class C:\n  n = 4\ndef f(a): return a > C.n",
    ),
    "a type of constant": ("def f(a): return a == 1", "def f(a): return a == True"),
}


@pytest.mark.parametrize("what", SAME)
def test_the_hash_is_the_same_for_other(what):
    one, other = map(made, SAME[what])
    assert code_hash(one) == code_hash(other)


@pytest.mark.parametrize("what", EDITED)
def test_the_hash_notices_a_change_of(what):
    one, other = map(made, EDITED[what])
    assert code_hash(one) != code_hash(other)


VALUES = [
    *(None, 1, 1.0, "1", b"1", (1,), [1], {1}, {1: 2}, {1: 3}, [1, 2], [2, 1], range(3)),
    *(np.int64(1), np.arange(3), np.arange(3.0), np.arange(4), torch.arange(3), torch.ones(3)),
    *(re.compile("a"), re.compile("a", re.IGNORECASE), math.sin, math, len, Longer, Longer(3)),
    *(Longer(4), functools.partial(pow, 2), functools.partial(pow, 3), Longer(3).passes),
]


def test_every_value_of_a_closure_counts():
    hashes = [code_hash(closed_over(value)) for value in VALUES]
    assert len(set(hashes)) == len(VALUES)
    again = [code_hash(closed_over(value)) for value in VALUES]
    assert hashes == again


def test_callables_of_all_kinds_have_hashes():
    kinds = [Longer(3), Longer(4), Longer(3).passes, functools.partial(pow, 2), str.isdigit, len]
    assert len({code_hash(kind) for kind in kinds}) == len(kinds)


def test_what_refers_to_itself_has_a_hash():
    around = [1]
    around.append(around)
    assert code_hash(closed_over(around)) == code_hash(closed_over(around))

    def f(sample):
        return f(sample - 1) if sample else LIMIT > 3

    assert code_hash(f) == code_hash(f)


def test_the_hash_is_the_same_in_every_process():
    script = (
        "from dataporter.views.code_hash import code_hash\n"
        "words = {'a', 'b', 'c', 'd'}\n"
        "print(code_hash(lambda text: text in words and text in {'x', 'y', 'z'}))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in "12"
    ]
    one, other = (process.communicate()[0] for process in processes)
    assert one == other != ""
