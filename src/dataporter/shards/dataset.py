"""`ShardedDataset`: data in many files as a map-style dataset with an order of its own."""

from __future__ import annotations

import operator
import pickle
import secrets
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dataporter.arguments import check_flag, check_int, check_number
from dataporter.errors import OptionError, OptionTypeError, ShardWarning
from dataporter.law import Order, Plan
from dataporter.law.datasets import Asked
from dataporter.law.tracks import BlockAfterBlock, ShuffledBlocks, Spans, TracksOrder, tracks_for
from dataporter.layout import counted
from dataporter.shards.building import warn_of
from dataporter.shards.formats.format import ReadOptions, Sample
from dataporter.shards.index import Index
from dataporter.shards.listing import Files, as_sequence, is_remote, out_of_order
from dataporter.shards.opening import Wanted, surveyed
from dataporter.shards.porter import Porter
from dataporter.shards.reading import Reader
from dataporter.shards.schemas import check_schemas
from dataporter.shards.storage.stored import StorageOptions, Url, is_url, urls_with_secrets
from dataporter.user_warnings import warn_user

# Files of up to so many bytes are shuffled as a whole: all of their blocks are in use at a time.
SMALL = 128 * 2**20


class ShardedDataset:
    r"""Samples that lie in many files, in Parquet, JSON lines, tar, MDS, Arrow, LitData or tokens.

    `files` is a folder, a glob, a file, or a list of these, on this machine or in a storage, such
    as "s3://bucket/corpus/". Samples are numbered by the names of files, with numbers in names by
    their value, whatever the order of a list. A sample is a dict. The index of the
    files is built when it is needed first, and kept. Give the dataset to a `ResumableDataLoader`:
    its order reads few files at a time and mixes them well, and a resume is a seek.

    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for number in range(3):
    ...     lines = [json.dumps({"text": f"{number}-{line}"}) for line in range(4)]
    ...     _ = (folder / f"{number}.jsonl").write_text("\n".join(lines))
    >>> corpus = ShardedDataset(folder, columns=["text"])
    >>> len(corpus), corpus[5]
    (12, {'text': '1-1'})

    - `columns`: the names of the columns to read; all of them by default.
    - `transform`: called with each sample; its random numbers are the sample's own.
    - `format`: the format of the files, where their names do not tell.
    - `dtype`, `window`: of files of tokens: the type of a token, and the tokens in a sample.
    - `allow_pickle`: True unpickles values of MDS and LitData, which runs code from the data.
    - `index`: a folder for the index. By default it lies beside the data, or in the user's cache
      folder if that is read-only.
    - `cache`: a folder for blocks that have to be decoded, by default in the user's cache folder;
      `cache_bytes` is the most that they may take there.
    - `progress`: True shows a progress bar while the index is built.
    - `storage_options`: credentials, end points and regions of a storage, as obstore takes them,
      or fsspec for schemes that obstore does not have. No state, index, cache or log has them.
    - `max_requests`: the most requests to a storage at a time.
    - `storage_timeout`: the seconds for which a request that fails is tried again.
    """

    def __init__(
        self,
        files: Files,
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[Sample], Any] | None = None,
        format: str | None = None,  # noqa: A002  what it is
        dtype: DTypeLike | None = None,
        window: int | None = None,
        allow_pickle: bool = False,
        index: str | PathLike[str] | None = None,
        cache: str | PathLike[str] | None = None,
        cache_bytes: int | None = None,
        progress: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        max_requests: int = 32,
        storage_timeout: float = 300.0,
    ) -> None:
        options = ReadOptions(
            columns=_checked_columns(columns),
            dtype=_dtype_name(dtype),
            window=window,
            allow_pickle=allow_pickle,
        )
        index_folder, cache_folder = _folder("index", index), _folder("cache", cache)
        check_int("cache_bytes", cache_bytes, least=1, optional=True)
        check_flag("progress", progress)
        if transform is not None and not callable(transform):
            msg = f"transform must be callable, found {type(transform).__name__} {transform!r}."
            raise OptionTypeError(msg)
        storage = _storage(files, storage_options, max_requests, storage_timeout)
        self.transform = transform
        self._out_of_order = out_of_order(files)
        self._porter: Porter | None = None
        self.leaf = secrets.token_hex(8)
        wanted = Wanted(
            files=files,
            options=options,
            format=format,
            folder=index_folder,
            progress=progress,
            storage=storage,
        )
        with surveyed(wanted) as (opened, reads, survey):
            warn_of(opened, reads)
            self.index = opened.index
            check_schemas(self.index, reads)
            if storage is not None or not all(map(reads.is_mapped, self.index.schemas)):
                self._porter = Porter(
                    self.index,
                    reads,
                    folder=cache_folder,
                    cache_bytes=cache_bytes,
                    storage=storage,
                    leaf=self.leaf,
                )
                if survey is not None:
                    self._porter.start_from(survey)
        self._reader = Reader(self.index, reads, self._porter)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: SupportsIndex) -> Any:
        length = len(self)
        try:
            number = operator.index(index)
        except TypeError as error:
            msg = f"a sample's index must be an int, found {type(index).__name__} {index!r}."
            raise OptionTypeError(msg) from error
        if not -length <= number < length:
            msg = f"the index {number} is out of range: the dataset has {length:,} samples."
            raise IndexError(msg)
        sample = self._reader.sample(number % length)
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read many samples at once, those of one block together."""
        numbers = np.asarray(indices)
        is_plain = numbers.size and numbers.dtype.kind in "iu" and numbers.min() >= 0
        is_plain = is_plain and numbers.max() < len(self)
        if not is_plain:  # none, counted from the end, or wrong
            return [self[each] for each in indices]
        samples = self._reader.samples(numbers.astype(np.int64, copy=False))
        return samples if self.transform is None else [self.transform(each) for each in samples]

    @property
    def has_flat_columns(self) -> bool:
        """False if a transform makes the samples."""
        return self.transform is None

    def flat_lists(self, block: int, column: str) -> Any:
        """Return a column of lists of numbers in a block as it lies in the file.

        That is a list of tuples, one after the other: offsets of lists, and all their numbers. None
        if the column has other values, or the format keeps them otherwise. Copy what is to be kept.
        """
        return None if self.transform is not None else self._reader.flat_lists(block, column)

    def __repr__(self) -> str:
        return (
            f"ShardedDataset({counted(len(self), 'sample')} in "
            f"{counted(len(self.index.rows), 'block')} of "
            f"{counted(len(self.index.paths), f'{self.index.format} file')})"
        )

    def fingerprint(self) -> str:
        """Return the hash of the index: the same for the same files, wherever they lie."""
        return self.index.fingerprint

    @property
    def results_folder(self) -> Path | None:
        """The folder of the index."""
        place = self.index.place
        return place.parent if isinstance(place, Path) else None

    def made_from(self) -> tuple[str, tuple[Any, ...]]:
        """Return a name of the data, by size and time of all files, and what makes samples of it.

        Results on the samples are kept under it.
        """
        own = (
            "index",
            "leaf",
            "_porter",
            "_reader",
        )  # others are the transform, and those of subclasses
        makes_samples = {name: each for name, each in vars(self).items() if name not in own}
        return self._reader.name_of_contents(), (type(self), makes_samples)

    def stats(self) -> dict[str, int]:
        """Return counters of this rank's porter since it started; none if there is no porter.

        None starts as long as files are only mapped, or nothing was read.

        - `decoded`, `bytes`: blocks written to the cache, and their bytes; `ahead`: those of them
          that nobody had asked for yet.
        - `hits`, `waits`, `waited_ms`: blocks that were found in the cache, and waited for.
        - `evicted`, `budget`: blocks removed from the cache, and the bytes that it may take.
        - `requests`, `fetched`: requests to a storage, and the bytes that they brought.
        - `retries`, `hedges`, `throttled`, `failed`: requests sent again after a fault, sent a
          second time because they were late, refused as too many, and given up.
        """
        return {} if self._porter is None else self._porter.stats()

    def where(
        self, predicate: Callable[[Any], Any], name: str | None = None, **options: Any
    ) -> Any:
        """Return the samples that pass a predicate, as a view: see `dataporter.views.where`."""
        from dataporter.views import where  # noqa: PLC0415  a higher floor, for this shortcut alone

        return where(self, predicate, name, **options)

    def packed(self, length: int = 2048, **options: Any) -> Any:
        """Return the documents in samples of `length` tokens: see `dataporter.views.packed`."""
        from dataporter.views import packed  # noqa: PLC0415  likewise

        return packed(self, length, **options)

    @property
    def block_rows(self) -> NDArray[np.int64]:
        """The rows of each block; shape (blocks,)."""
        return self.index.rows

    def announce(self, order: Order, epoch: int, start: int, stop: int, plan: Plan) -> None:
        """Fetch the blocks ahead that an order reads next: see `dataporter.law.datasets.Leaf`."""
        if self._porter is not None:
            self._porter.announce(order, epoch, start, stop, plan)

    def epoch_order(self, *, shuffle: bool, seed: int, step_size: int, world_size: int) -> Order:
        """Return the order that a loader reads: well mixed, from few blocks at a time."""
        asked = Asked(shuffle, seed, step_size, world_size)
        return self.order_of_view(self.index.rows, asked)

    def order_of_view(
        self, rows: NDArray[np.int64], asked: Asked, spans: Spans | None = None
    ) -> Order:
        """Return the order of a view: see `dataporter.law.datasets.InBlocks`."""
        if self._out_of_order is not None and not asked.shuffle:
            first, then = self._out_of_order
            warn_user(
                f"shuffle=False reads files by the order of their names: {then} comes before "
                f"{first}, which the list of files has first. Sort the list, with numbers in names "
                "by their value, or name the folder.",
                ShardWarning,
            )
        return order_over(self.index, rows, asked, self.leaf, spans)


def order_over(
    index: Index,
    rows: NDArray[np.int64],
    asked: Asked,
    leaf: str = "",
    spans: Spans | None = None,
) -> Order:
    """Choose the order of data in files, of which `rows` samples are made of each block."""
    if not asked.shuffle:
        return BlockAfterBlock(int(rows.sum()), asked.seed, rows=rows, leaf=leaf, spans=spans)
    if int(index.size.sum()) <= SMALL:  # not `decoded`, which depends on columns
        return ShuffledBlocks(int(rows.sum()), asked.seed, rows=rows, leaf=leaf, spans=spans)
    blocks = int(np.count_nonzero(rows))
    tracks = tracks_for(blocks, step_size=asked.step_size, world_size=asked.world_size)
    return TracksOrder(rows, tracks, asked.seed, leaf=leaf, spans=spans)


def _storage(
    files: Files, options: Mapping[str, Any] | None, max_requests: int, timeout: float
) -> StorageOptions | None:
    """Check how a storage is to be reached. None if the files lie on this machine."""
    check_int("max_requests", max_requests, least=1)
    check_number("storage_timeout", timeout)
    if options is not None and not isinstance(options, Mapping):
        msg = f"storage_options must be a dict, found {type(options).__name__}."  # it has secrets
        raise OptionTypeError(msg)
    if is_remote(files):
        _require_sendable(options or {})
        return StorageOptions(
            given=dict(options or {}),
            full_urls=urls_with_secrets(as_sequence(files)),
            max_requests=max_requests,
            patience=float(timeout),
        )
    if options is not None:
        msg = (
            "storage_options= is for files that are named by URLs, found "
            f"{as_sequence(files)[0]!r}. "
            'Leave it out, or pass a URL as a str, such as "s3://bucket/folder/".'
        )
        raise OptionError(msg)
    return None


def _require_sendable(options: Mapping[str, Any]) -> None:
    """Storages are reached by other processes."""
    for name, value in options.items():
        try:
            pickle.dumps(value)
        except Exception as error:  # whatever its class raises
            msg = (
                f"storage_options[{name!r}] must be an object that can be pickled, found "
                f"{type(value).__name__}: files are fetched by other processes. Define its class "
                "or function in a module."
            )
            raise OptionTypeError(msg) from error


def _folder(name: str, value: str | PathLike[str] | None) -> Path | None:
    if value is not None and not isinstance(value, str | PathLike):
        msg = f"{name} must be a folder, found {type(value).__name__} {value!r}."
        raise OptionTypeError(msg)
    if isinstance(value, str) and is_url(value):
        msg = f"{name} must be a folder of this machine, found {str(Url.of(value))!r}."
        raise OptionError(msg)
    return None if value is None else Path(value).expanduser()


def _dtype_name(dtype: DTypeLike | None) -> str | None:
    """Return the name of a dtype, so that "uint16" and np.uint16 are the same option."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        msg = f"dtype must be a NumPy dtype, such as 'uint16', found {dtype!r}."
        raise OptionTypeError(msg) from error
    return found.name if found.isnative else found.str


def _checked_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    is_list = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not is_list or not all(isinstance(name, str) for name in columns):
        msg = f'columns must be a list of names, such as ["text"], found {columns!r}.'
        raise OptionTypeError(msg)
    if len(set(columns)) < len(columns) or not columns:
        msg = f"columns must name at least one column, each once, found {list(columns)!r}."
        raise OptionError(msg)
    return tuple(columns)
