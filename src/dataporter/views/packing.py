"""`packed`: documents of any length as samples of one length, for language models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dataporter.arguments import check_int
from dataporter.errors import OptionError, OptionTypeError, PredicateWarning
from dataporter.fetch.collate import Empty, collate
from dataporter.fetch.fetcher import CONTAINERS
from dataporter.law import Order, ShuffledOrder
from dataporter.law.datasets import (
    Asked,
    Gather,
    InBlocks,
    Leaf,
    has_flat_columns,
    leaves_of,
    leaves_samples_out,
)
from dataporter.law.tracks import tracks_for
from dataporter.layout import counted
from dataporter.sources.fingerprint import dataset_fingerprint
from dataporter.sources.tally import counters_of
from dataporter.user_warnings import warn_user
from dataporter.views.bins import Bins, best_fit
from dataporter.views.code_hash import UnknownCodeError, code_hash
from dataporter.views.counted import MOST, Counted, places_of
from dataporter.views.mixture import Mixture
from dataporter.views.parts import evidence_of, plain_order, read
from dataporter.views.tokens import (
    PADDING,
    Boundary,
    FlatTokens,
    TokenIds,
    boundaries_of,
    check_fits,
    check_lengths,
    padded,
    padding,
)
from dataporter.views.windows import Pieces, WindowOrder, Windows

Kind = Literal["windows", "best-fit"]

# Documents of data without blocks that are shuffled one by one. More are shuffled in small groups.
_SHUFFLED = 1 << 20
_FITTED = 1 << 16  # documents of data without blocks that are put into bins together


def packed(
    data: Any,
    length: int = 2048,
    *,
    by: str | None = None,
    tokenizer: Callable[[Any], Any] | None = None,
    kind: Kind = "windows",
    boundaries: bool | Sequence[Boundary] = False,
    last: Literal["pad", "drop"] = "pad",
    pad_id: int = 0,
    end_id: int | None = None,
    lengths: ArrayLike | None = None,
    name: str | None = None,
    folder: str | PathLike[str] | None = None,
    num_workers: int | None = None,
) -> Packed:
    """Return documents as samples of `length` tokens each.

    >>> documents = [[1, 1, 1], [2, 2, 2, 2], [3], [4, 4]]
    >>> data = packed(documents, length=5)
    >>> [sample["tokens"].tolist() for sample in data]
    [[1, 1, 1, 2, 2], [2, 2, 3, 4, 4]]
    >>> whole = packed(documents, length=5, kind="best-fit")
    >>> [sample["tokens"].tolist() for sample in whole]
    [[1, 1, 1, 4, 4], [2, 2, 2, 2, 3]]

    Kinds:

    - "windows": the documents of an epoch are laid end to end in its order, and cut every `length`
      tokens. Each token comes once in an epoch. With `last="pad"` the rest at the end of an epoch
      is padded to a whole sample, with `last="drop"` it is left out.
    - "best-fit": whole documents are put together so that little room is left, which is padded.
      Documents that are longer than `length` are split. `fullness` says how much is no padding.

    A sample is a dict with `tokens`, and with `boundaries` more: `True` stands for
    `["position_ids", "loss_mask"]`.

    - `position_ids`: the place of each token in its document, counted from the document's first
      token in this sample; padding counts as a document.
    - `loss_mask`: False for tokens that cannot be predicted from tokens of the same document
      before them: the first of each document in the sample, and padding.
    - `cu_seqlens`: where documents begin in the sample, and `length`. Their number differs, so pass
      `collate_fn=collate_packed` to the loader.

    Options:

    - `by`: the column with the token ids, "tokens" by default; with a tokenizer that of the text,
      "text" by default. Samples that are no dicts are taken as they are.
    - `tokenizer`: called with a text, returns token ids. Documents are tokenised when they are
      read, and once before, to count their tokens.
    - `pad_id`, `end_id`: the id of padding; an id that is added at the end of each document.
    - `lengths`: the number of tokens of each document, if it is known. Otherwise they are counted
      once, with `num_workers`, and kept in `folder`: by default beside the index of the data or in
      the user's cache folder. Data that declares no fingerprint is counted each time.
    - `name`: a name for the code that makes tokens, under which counts are kept; use another one
      whenever that code changes. By default the code itself is looked at.
    """
    check_int("length", length, least=1)
    check_int("num_workers", num_workers, least=0, optional=True)
    ids = TokenIds(by, tokenizer)
    _check(data, ids, kind, last, pad_id, end_id)
    counts = _lengths(data, ids, lengths, name, folder, num_workers)
    if end_id is not None:
        counts = counts + (counts > 0)
    return Packed(
        data,
        ids,
        counts,
        length=length,
        kind=kind,
        boundaries=_checked_boundaries(boundaries),
        pads=last == "pad",
        pad_id=int(pad_id),
        end_id=end_id,
    )


class Layout(Protocol):
    """The samples that documents are packed into."""

    @property
    def count(self) -> int:
        """The number of samples."""
        ...

    @property
    def space(self) -> int:
        """The number that all indices are below."""
        ...

    def pieces(self, indices: NDArray[np.int64]) -> Pieces:
        """Return the documents of samples, and which of their tokens."""
        ...


class Packed:
    """Documents as samples of equal length: see `packed`.

    Its indices are not only those below its length: windows differ from epoch to epoch, and those
    of a shuffled epoch have indices below `index_space`.
    """

    def __init__(
        self,
        data: Any,
        ids: TokenIds,
        lengths: NDArray[np.int32],
        *,
        length: int,
        kind: Kind,
        boundaries: tuple[Boundary, ...],
        pads: bool,
        pad_id: int,
        end_id: int | None,
    ) -> None:
        self._data, self._ids, self._lengths = data, ids, lengths
        self.length, self.kind = length, kind
        self._boundaries, self._pad_id, self._end_id = boundaries, pad_id, end_id
        self.num_tokens = int(lengths.sum(dtype=np.int64))
        if self.num_tokens < length:
            msg = (
                f"length={length:,} is more than all data has: {counted(len(lengths), 'document')} "
                f"with {self.num_tokens:,} tokens. Choose a shorter length."
            )
            raise OptionError(msg)
        rows = data.block_rows if isinstance(data, InBlocks) else None
        self._bounds = None if rows is None else np.append(0, np.cumsum(rows))
        self._flat: FlatTokens | None = None
        is_read_without_code = type(data) in CONTAINERS or has_flat_columns(data)
        self._may_gather = ids.tokenizer is None and is_read_without_code
        if self._bounds is not None and self._may_gather and end_id is None:
            self._flat = FlatTokens(data, ids.column, self._bounds, lengths)
        self._layout: Layout
        if kind == "best-fit":
            bounds = _every(_FITTED, len(lengths)) if self._bounds is None else self._bounds
            self._layout = best_fit(lengths, bounds, length)
        else:
            self._layout = Windows(lengths, self._blocks(), length=length, pads=pads)

    def _blocks(self) -> NDArray[np.int64] | None:
        """Return the bounds of the blocks that windows are laid out in; None: single documents."""
        count = len(self._lengths)
        if self._bounds is None:
            return None if count <= _SHUFFLED else _every(-(-count // _SHUFFLED), count)
        order = self._data.epoch_order(shuffle=True, seed=0, step_size=1, world_size=1)
        return None if isinstance(order, ShuffledOrder) else self._bounds  # small data

    def __repr__(self) -> str:
        samples = "window" if self.kind == "windows" else "bin"
        return (
            f"Packed({counted(len(self), samples)} of {self.length:,} tokens, "
            f"{100 * self.fullness:.1f} % full, of {counted(len(self._lengths), 'document')})"
        )

    @property
    def fullness(self) -> float:
        """The share of tokens that are no padding."""
        return min(self.num_tokens / (len(self) * self.length), 1.0)

    @property
    def index_space(self) -> int:
        """The number that all indices are below."""
        return self._layout.space

    def stats(self) -> dict[str, Any]:
        """Return the counters of the data, if it keeps some."""
        return counters_of(self._data)

    def fingerprint(self) -> str:
        """Return the name of the data, of its lengths and of the way in which it is packed."""
        lengths = np.ascontiguousarray(self._lengths, dtype="<i4").data
        digest = hashlib.blake2b(lengths, digest_size=8).hexdigest()
        name = dataset_fingerprint(self._data) or "documents"
        return f"{name} in {self.kind} of {self.length} {digest}"

    def __len__(self) -> int:
        return self._layout.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Read many samples at once, and each of their documents once."""
        if not len(indices):
            return []
        numbers = np.asarray(indices, dtype=np.int64)
        low, high = int(numbers.min()), int(numbers.max())
        if low < -len(self) or high >= self.index_space:
            wrong = low if low < -len(self) else high
            msg = f"the index {wrong} is out of range: there are {counted(len(self), 'sample')}."
            raise IndexError(msg)
        if low < 0:
            numbers = np.where(numbers < 0, numbers + len(self), numbers)
        columns = self._columns(numbers, None)
        rows = (each if name == "cu_seqlens" else each.unbind(0) for name, each in columns.items())
        return [dict(zip(columns, row, strict=True)) for row in zip(*rows, strict=True)]

    def batch_gather(self) -> Gather | None:
        """Return what makes whole batches; None if documents run through users' code."""
        may_gather = self._may_gather and "cu_seqlens" not in self._boundaries
        return self._columns if may_gather else None

    def _columns(self, indices: NDArray[np.int64], empty: Empty | None) -> dict[str, Any]:
        """Return samples as columns: tensors, but `cu_seqlens`, which is a list of tensors."""
        pieces = padded(self._layout.pieces(indices), self.length)
        flat = self._flat and self._flat.slices(pieces, self.length, self._pad_id)
        if empty is None or not flat:
            whole = torch.from_numpy(np.concatenate(flat[0] if flat else self._read(pieces)))
        else:
            slices, dtype = flat
            whole = empty((len(indices) * self.length,), torch.from_numpy(np.empty(0, dtype)).dtype)
            np.concatenate(slices, out=whole.numpy())
        columns = {"tokens": whole.view(-1, self.length)}
        if self._boundaries:
            columns |= boundaries_of(pieces, self.length, self._boundaries, empty)
        return columns

    def _read(self, pieces: Pieces) -> list[NDArray[Any]]:
        """Read the documents of pieces, each once, and return their tokens."""
        documents, place = np.unique(pieces.numbers, return_inverse=True)
        has_padding = len(documents) > 0 and documents[0] == PADDING
        tokens = self._tokens(documents[1:] if has_padding else documents)
        if has_padding:
            tokens.insert(0, padding(self._pad_id, self.length, tokens[0].dtype))
        bounds = zip(place.tolist(), pieces.starts.tolist(), pieces.stops.tolist(), strict=True)
        return [tokens[number][start:stop] for number, start, stop in bounds]

    def _tokens(self, documents: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Read documents, and compare them with what was counted."""
        numbers = documents.tolist()
        found = list(map(self._ids, numbers, read(self._data, numbers)))
        if self._end_id is not None:
            for dtype in {ids.dtype for ids in found}:
                check_fits("end_id", self._end_id, dtype)
            found = [np.append(ids, np.asarray(self._end_id, ids.dtype)) for ids in found]
        check_lengths(documents, np.array(list(map(len, found)), dtype=np.int64), self._lengths)
        return found

    def epoch_order(self, *, shuffle: bool, seed: int, step_size: int, world_size: int) -> Order:
        """Return the order that a loader reads."""
        asked = Asked(shuffle, seed, step_size, world_size)
        if isinstance(self._layout, Windows):
            return self._order_of_windows(self._layout, asked)
        if self._bounds is not None and isinstance(self._layout, Bins):
            bins, spans = self._layout.per_block(self._bounds), self._layout.spans(self._bounds)
            order: Order = self._data.order_of_view(bins, asked, spans)
            return order
        return plain_order(len(self), asked)

    def _order_of_windows(self, windows: Windows, asked: Asked) -> WindowOrder:
        blocks = windows.bounds
        leaf = self._data.leaf if isinstance(self._data, InBlocks) else None
        tracks = 1
        if blocks is not None and asked.shuffle:
            filled = int(np.count_nonzero(windows.tokens))
            tracks = tracks_for(filled, step_size=asked.step_size, world_size=asked.world_size)
        return WindowOrder(
            windows.tokens,
            self.length,
            len(self),
            tracks=tracks,
            shuffles=asked.shuffle,
            seed=asked.seed,
            leaf=leaf,
            ends=None if self._bounds is None or blocks is not None else self._bounds[1:],
        )

    def leaves(self) -> list[Leaf]:
        """Return the leaves of the data."""
        return leaves_of(self._data)


def collate_packed(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of packed samples, with the `cu_seqlens` of all samples end to end.

    >>> data = packed([[1, 2, 3], [4, 5, 6]], 2, boundaries=["cu_seqlens"])
    >>> collate_packed([data[0], data[1]])["cu_seqlens"]
    tensor([0, 2, 3, 4], dtype=torch.int32)
    """
    length = len(samples[0]["tokens"])
    plain = [{k: v for k, v in each.items() if k != "cu_seqlens"} for each in samples]
    batch: dict[str, Any] = collate(plain)
    if "cu_seqlens" in samples[0]:
        begins = [each["cu_seqlens"][:-1] + row * length for row, each in enumerate(samples)]
        end = torch.tensor([length * len(samples)], dtype=torch.int32)
        batch["cu_seqlens"] = torch.cat([*begins, end])
    return batch


def _every(step: int, length: int) -> NDArray[np.int64]:
    return np.append(np.arange(0, length, step, dtype=np.int64), length)


# Lengths and checks


def _lengths(
    data: Any,
    ids: TokenIds,
    given: ArrayLike | None,
    name: str | None,
    folder: str | PathLike[str] | None,
    num_workers: int | None,
) -> NDArray[np.int32]:
    if given is None:
        what = count_of(data, ids, name)
        return what.open(
            places_of(data, None if folder is None else Path(folder)), num_workers=num_workers
        )
    lengths = np.asarray(given)
    is_right = lengths.ndim == 1 and lengths.dtype.kind in "iu" and len(lengths) == len(data)
    if not is_right or (lengths.size and not 0 <= lengths.min() <= lengths.max() <= MOST):
        msg = (
            f"lengths must have a number of tokens for each of {len(data):,} documents, found "
            f"shape {lengths.shape} of {lengths.dtype}."
        )
        raise OptionError(msg)
    return lengths.astype(np.int32)


def count_of(data: Any, ids: TokenIds, name: str | None = None) -> Counted:
    """Return the count of tokens of documents; `name` stands for all code that makes them."""
    what = f"tokens of {ids.column!r}"
    evidence = evidence_of(data)
    if evidence is None:
        return Counted(data, ids.count, what, None)
    if name is not None:
        return Counted(data, ids.count, what, f"{evidence.data} by {name}")
    try:
        hashes = f"{evidence.code_hash()} {code_hash(ids.tokenizer)}"
    except UnknownCodeError as error:
        warn_user(
            f"the {what} are counted in every process, and their counts are not kept: {error}. "
            'Pass name= a name for the code, such as "bpe-1", and another one whenever it changes.',
            PredicateWarning,
        )
        return Counted(data, ids.count, what, None)
    return Counted(data, ids.count, what, f"{evidence.data} by {hashes}")


def _check(data: Any, ids: TokenIds, kind: Any, last: Any, pad_id: Any, end_id: Any) -> None:
    if isinstance(data, Mixture):
        msg = (
            "a mixture cannot be packed: its shares would be lost. Pack each part, and mix those: "
            'Mixture({"web": (packed(web), 0.7), "code": (packed(code), 0.3)}).'
        )
        raise OptionTypeError(msg)
    if leaves_samples_out(data):
        msg = (
            f"{type(data).__name__} leaves samples out as they are read, so their tokens cannot be "
            "counted ahead. Use where(…) without lazy=True, and pack that."
        )
        raise OptionTypeError(msg)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        msg = f"data must have __len__ and __getitem__, found {type(data).__name__}."
        raise OptionTypeError(msg)
    if ids.by is not None and not isinstance(ids.by, str):
        msg = f"by must be the name of a column, found {type(ids.by).__name__} {ids.by!r}."
        raise OptionTypeError(msg)
    if ids.tokenizer is not None and not callable(ids.tokenizer):
        msg = f"tokenizer must be callable, found {type(ids.tokenizer).__name__}."
        raise OptionTypeError(msg)
    if kind not in get_args(Kind):
        msg = f"kind must be 'windows' or 'best-fit', found {kind!r}."
        raise OptionError(msg)
    if last not in {"pad", "drop"}:
        msg = f"last must be 'pad' or 'drop', found {last!r}."
        raise OptionError(msg)
    for option, value in (("pad_id", pad_id), ("end_id", end_id)):
        is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_int and not (value is None and option == "end_id"):
            msg = f"{option} must be a token id, found {type(value).__name__} {value!r}."
            raise OptionTypeError(msg)


def _checked_boundaries(boundaries: Any) -> tuple[Boundary, ...]:
    if isinstance(boundaries, bool):
        return ("position_ids", "loss_mask") if boundaries else ()
    known = get_args(Boundary)
    is_list = isinstance(boundaries, Sequence) and not isinstance(boundaries, str)
    if not is_list or not all(each in known for each in boundaries):
        msg = f"boundaries must be True, False or some of {list(known)}, found {boundaries!r}."
        raise OptionError(msg)
    return tuple(boundaries)
