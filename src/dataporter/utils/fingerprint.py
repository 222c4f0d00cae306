"""What tells one dataset from another, as far as the dataset offers it cheaply.

Nothing is read: a fingerprint is what the dataset already knows about itself. A dataset
that knows nothing has none, and then only its length is compared at a resume.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from torch.utils.data import Subset

from dataporter.errors import OptionTypeError

# Indices looked at to tell one split of a dataset from another.
_PROBES = 64


def dataset_length(dataset: Any) -> int | None:
    """`len(dataset)`, or None where it has none."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def dataset_fingerprint(dataset: Any) -> str | None:
    """Ask a dataset for its fingerprint.

    In this order: the user's own `fingerprint()`, Hugging Face's `_fingerprint`, and for a
    `Subset` that of what it is taken from, with a hash of some of its indices.

    >>> class Corpus(list):
    ...     def fingerprint(self):
    ...         return "wiki-2026-11"
    >>> dataset_fingerprint(Corpus())
    'wiki-2026-11'
    >>> dataset_fingerprint([1, 2, 3]) is None
    True
    """
    own = getattr(dataset, "fingerprint", None)
    if callable(own):
        found = own()
        if not isinstance(found, str):
            msg = (
                f"{type(dataset).__name__}.fingerprint() must return a string, "
                f"found {type(found).__name__} {found!r}."
            )
            raise OptionTypeError(msg)
        return found
    known = getattr(dataset, "_fingerprint", None)
    if isinstance(known, str):
        return known
    if isinstance(dataset, Subset):
        return f"{dataset_fingerprint(dataset.dataset) or ''}[{_split_hash(dataset)}]"
    return None


def _split_hash(subset: Subset[Any]) -> str:
    count = len(subset.indices)
    probes = np.unique(np.linspace(0, max(count - 1, 0), min(_PROBES, count)).astype(int))
    seen = [_index(subset.indices[probe]) for probe in probes.tolist()]
    return hashlib.blake2b(repr((count, seen)).encode(), digest_size=6).hexdigest()


def _index(index: Any) -> Any:
    """An index as a plain number, whether it was stored as one of NumPy's or torch's."""
    return index.item() if hasattr(index, "item") else index
