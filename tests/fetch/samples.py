"""Hypothesis strategies for samples: `batches` are lists of samples of one make."""

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Mapping

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024  the untyped kind is what many use


class Frozen(Mapping):
    """A mapping that is not mutable, and can be made of a dict."""

    def __init__(self, content):
        self._content = dict(content)

    def __getitem__(self, name):
        return self._content[name]

    def __iter__(self):
        return iter(self._content)

    def __len__(self):
        return len(self._content)


class Unmakeable(Frozen):
    """A mapping that cannot be made of a dict."""

    def __init__(self, content, more):
        super().__init__(content)
        self.more = more


class Record(dict):
    """A dict with something of its own."""

    source = "a subclass"


class Row(list):
    """A list of somebody's own."""


TENSOR_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
ARRAY_DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
numbers = st.integers(0, 100)

# A make is a strategy for samples that collate with each other.
tensor_makes = st.builds(
    lambda dtype, shape: numbers.map(lambda number: torch.full(shape, number, dtype=dtype)),
    st.sampled_from(TENSOR_DTYPES),
    shapes,
)
array_makes = st.builds(np_st.arrays, st.sampled_from(ARRAY_DTYPES), shapes)
# Without uint64: torch cannot collate those at all.
scalar_makes = st.sampled_from([dtype for dtype in ARRAY_DTYPES if dtype != "uint64"]).map(
    lambda dtype: np_st.from_dtype(np.dtype(dtype))
)
number_makes = st.sampled_from(
    [
        st.integers(-(2**63), 2**63 - 1),
        st.integers(),
        st.integers(-(2**80), 2**80),
        st.booleans(),
        st.floats(),
        st.integers() | st.floats(),
        st.integers(-5, 5) | st.booleans(),
        st.floats() | st.booleans() | st.integers(-5, 5),
        st.integers(-5, 5) | np_st.from_dtype(np.dtype("int32")),
        st.floats() | np_st.from_dtype(np.dtype("float32")),
    ]
)
text_makes = st.sampled_from([st.text(max_size=3), st.binary(max_size=3)])
leaf_makes = tensor_makes | array_makes | scalar_makes | number_makes | text_makes

names = st.sampled_from(["x", "y", "label", 0, ("a", 1)])


def containers(makes):
    fields = st.dictionaries(names, makes, max_size=3).map(st.fixed_dictionaries)
    columns = st.lists(makes, max_size=3).map(lambda inner: st.tuples(*inner))
    return st.one_of(
        fields,
        fields.map(lambda make: make.map(OrderedDict)),
        fields.map(lambda make: make.map(lambda content: defaultdict(int, content))),
        fields.map(lambda make: make.map(Record)),
        fields.map(lambda make: make.map(Frozen)),
        fields.map(lambda make: make.map(lambda content: Unmakeable(content, more=1))),
        columns,
        columns.map(lambda make: make.map(list)),
        columns.map(lambda make: make.map(Row)),
        st.tuples(makes, makes).map(lambda inner: st.builds(Point, *inner)),
    )


makes = st.recursive(leaf_makes, containers, max_leaves=6)
batches = makes.flatmap(lambda make: st.lists(make, min_size=1, max_size=4))
mixtures = st.lists(makes.flatmap(lambda make: make), min_size=1, max_size=3)
