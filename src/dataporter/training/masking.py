"""Masked language modelling: the choice of tokens to predict, and their replacements.

The choice for a token is a hash of its row's key and its index in the row. So it does not
depend on padding or on other rows. In a loader, a row's key is the key of its sample: masks are
a function of seed, epoch and position, the same after any resume and for any number of workers
and ranks and any batch size. If rows are not samples one to one, they are numbered under the
batch's key. Outside a loader the key is drawn from a torch generator.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.errors import NoSampleError
from dataporter.fetch.ragged import IGNORED, Ragged
from dataporter.fetch.randomness import keys_of_samples, sample_rng
from dataporter.law.keys import key_as_int, mix, uniform

# BERT's recipe for chosen tokens: 80 % become the mask token, 10 % a random token, and 10 % stay.
_MASKED = 0.8
_MASKED_OR_RANDOM = 0.9

_CHOICE = key_as_int("masking: choice")
_FATE = key_as_int("masking: fate")
_TOKEN = key_as_int("masking: token")


def row_keys(count: int, generator: torch.Generator | None) -> NDArray[np.int64]:
    """Return a key for each row of the batch that is being collated.

    Only outside a loader is it drawn from the generator, by default torch's global one.
    """
    keys = keys_of_samples()
    if keys is not None and len(keys) == count:
        return np.array(keys, dtype=np.uint64).view(np.int64)
    try:
        key = int(sample_rng().integers(2**63))
    except NoSampleError:
        key = int(torch.randint(2**63 - 1, (), generator=generator))
    return mix(key, np.arange(count)).view(np.int64)


def mask_tokens(
    tokens: Ragged,
    maskable: NDArray[np.bool_],
    keys: NDArray[np.int64],
    *,
    probability: float,
    mask_token_id: int,
    vocab_size: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose tokens among the maskable ones and mask them. Return ids and labels."""
    counters = np.repeat(keys, tokens.lengths) + tokens.positions()
    chosen = maskable & (uniform(_CHOICE, counters) < probability)
    labels = np.where(chosen, tokens.flat, IGNORED)
    counters = counters[chosen]
    fate = uniform(_FATE, counters)
    anything = (uniform(_TOKEN, counters) * vocab_size).astype(np.int64)
    ids = tokens.flat.copy()
    kept_or_random = np.where(fate < _MASKED_OR_RANDOM, anything, tokens.flat[chosen])
    ids[chosen] = np.where(fate < _MASKED, mask_token_id, kept_or_random)
    return ids, labels
