"""Whether two batches are the same: in value, in type, in dtype, all the way down."""

from collections.abc import Mapping

import numpy as np
import torch


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype is theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.layout is theirs.layout
        assert ours.requires_grad == theirs.requires_grad
        assert _bits(ours) == _bits(theirs)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()
    elif isinstance(theirs, Mapping):
        assert list(ours) == list(theirs)
        for name in theirs:
            assert_same(ours[name], theirs[name])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for own, other in zip(ours, theirs, strict=True):
            assert_same(own, other)
    else:
        assert ours == theirs


def assert_same_batches(ours, theirs):
    """Of two loaders."""
    assert_same(list(ours), list(theirs))


def outcome(function, *arguments):
    """What a function returns, or the type of what it raises."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  whatever it is, it is what is compared
        return type(error)


def _bits(tensor):
    # Bit by bit, so that a NaN equals itself and -0.0 differs from 0.0; any dtype, also those
    # of which torch can make no copy.
    dense = tensor.detach().resolve_conj().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()
