"""The data of a state: its index, if that is kept, and where in the files the state stands.

An index is found by place or by fingerprint. The place in the files follows from the index and the
state alone: the order is a function of the blocks, the seed, the epoch and the position. Only files
of indexes are read: neither the data nor a network is touched, and nothing is written.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataporter.errors import MissingExtraError, ShardsNotFoundError
from dataporter.law import Order, SequentialOrder, ShuffledOrder, Uses
from dataporter.law.explanation import Explains, Explanation
from dataporter.law.permutation import MAX_LENGTH
from dataporter.law.state import Identity, Progress
from dataporter.law.tracks import BlockAfterBlock, ShuffledBlocks, TracksOrder
from dataporter.layout import Row, counted
from dataporter.shards import shards_extra
from dataporter.shards.files import INDEX_FOLDER, folder_of_glob
from dataporter.shards.index import Index
from dataporter.shards.places import is_index_name, kept_indexes, may_hold
from dataporter.shards.storage.stored import Url, is_url
from dataporter.system.files import user_folder
from dataporter.tools.units import size

_SHOWN = 3  # other indexes, samples and blocks that come next
_LONGEST_STEP = 1 << 20  # samples; a damaged state may have any batch size
_FINGERPRINT = re.compile(r"([0-9a-f]{32})(\[.*\])?")  # of an index, and of a Subset of its data
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBlock:
    """A block that is opened next, and the position that opens it."""

    position: int
    file: str
    block: int  # of the file, from 0
    offset: int  # in its file
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSample(NextBlock):
    """A sample that comes next, and the block in which it lies."""

    index: int  # in the dataset
    row: int  # of the file, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCounts:
    """The blocks of an epoch, as they stand at a position. Each is counted once."""

    in_use: int
    in_use_bytes: int  # decoded
    finished: int
    not_begun: int
    interrupted: int  # read in part, and opened again later in the epoch
    all: int  # blocks with rows


@dataclass(frozen=True, slots=True, kw_only=True)
class InFiles:
    """The position of a state, in terms of files and blocks."""

    epoch: int
    position: int
    next_samples: tuple[NextSample, ...]
    step_samples: int  # of the next step of all ranks
    step_blocks: int
    step_files: int
    blocks: BlockCounts
    next_blocks: tuple[NextBlock, ...]
    is_whole_shuffle: bool  # all blocks are in use, always

    def rows(self) -> list[Row]:
        """Headings, and what there is to say under each."""
        rows = []
        if self.next_samples:
            samples = [
                f"row {one.row:,} of {one.file} (block {one.block:,}, {_range(one)})"
                for one in self.next_samples
            ]
            more = ", ..." if self.step_samples > len(samples) else ""
            step = (
                f"the next step takes {counted(self.step_samples, 'sample')} from "
                f"{counted(self.step_blocks, 'block')} of {counted(self.step_files, 'file')}"
            )
            rows.append(("in files", f"{', '.join(samples)}{more}; {step}"))
        rows.append(("blocks", "; ".join(self._blocks())))
        return rows

    def _blocks(self) -> list[str]:
        blocks = self.blocks
        if self.is_whole_shuffle:
            return [f"all {blocks.all:,} in use, since small data is shuffled as a whole"]
        finished, not_begun = f"{blocks.finished:,} finished", f"{blocks.not_begun:,} not begun"
        texts = [
            f"{blocks.in_use:,} of {blocks.all:,} in use ({size(blocks.in_use_bytes)} decoded)",
            f"{finished} and {not_begun} in epoch {self.epoch:,}",
        ]
        if blocks.interrupted:
            texts.append(f"{blocks.interrupted:,} read in part, to be opened again")
        if self.next_blocks:
            one = self.next_blocks[0]
            texts.append(
                f"the next to be opened is block {one.block:,} of {one.file} ({_range(one)}), at "
                f"position {one.position:,}"
            )
        return texts

    def as_dict(self) -> dict[str, Any]:
        """Return the same as builtins, for JSON."""
        return asdict(self)


def order_of(identity: Identity, index: Index) -> Order | None:
    """Return the order of a state over the data of an index; None if the index cannot tell."""
    seed, length = identity.seed, len(index)
    order: Order
    if identity.order == SequentialOrder.id:
        order = BlockAfterBlock(length, seed, rows=index.rows)
    elif identity.order == ShuffledOrder.id and length <= MAX_LENGTH:
        order = ShuffledBlocks(length, seed, rows=index.rows)
    else:
        order = TracksOrder(index.rows, 1, seed).resumed(identity.order)
    return order if order.id == identity.order else None


def locate(explanation: Explanation, index: Index, order: Order) -> InFiles:
    """Find where in the files of an index a state stands."""
    if not explanation.remaining:
        explanation = replace(explanation, progress=Progress(epoch=explanation.progress.epoch + 1))
    rest = explanation.rest(order.length)
    epoch, start = explanation.progress.epoch, explanation.progress.samples_processed
    step = min(rest.plan.step_size, rest.remaining, _LONGEST_STEP)
    positions = rest.around(rest.start + np.arange(step, dtype=np.int64))
    indices = order.indices(epoch, positions)
    blocks, rows = index.locate(indices)
    uses = order.uses("", epoch)
    return InFiles(
        epoch=epoch,
        position=start,
        next_samples=tuple(
            NextSample(
                position=int(positions[number]),
                index=int(indices[number]),
                row=int(rows[number])
                + int(index.rows[_first_block(index, blocks[number]) : blocks[number]].sum()),
                **_lies(index, int(blocks[number])),
            )
            for number in range(min(step, _SHOWN))
        ),
        step_samples=step,
        step_blocks=len(np.unique(blocks)),
        step_files=len(np.unique(index.file[blocks])),
        blocks=_counts(uses, start, index),
        next_blocks=tuple(
            NextBlock(position=first, **_lies(index, block))
            for block, first in _opened_next(uses, start)
        ),
        is_whole_shuffle=isinstance(order, ShuffledOrder),
    )


def _counts(uses: Uses, position: int, index: Index) -> BlockCounts:
    """Count blocks. One that lies across the border of two tracks is read in two stretches."""
    before, after = uses.last < position, uses.first > position
    every = np.arange(len(index.rows))
    ended, used, later = (
        np.isin(every, uses.blocks[stretches]) for stretches in (before, ~before & ~after, after)
    )
    return BlockCounts(
        in_use=int(used.sum()),
        in_use_bytes=int(index.decoded[used].sum()),
        finished=int((ended & ~used & ~later).sum()),
        not_begun=int((later & ~used & ~ended).sum()),
        interrupted=int((ended & later & ~used).sum()),
        all=int(np.count_nonzero(index.rows)),
    )


def _opened_next(uses: Uses, position: int) -> list[tuple[int, int]]:
    """Return the blocks that are not in use and come first, with the positions they come at."""
    later = np.flatnonzero(uses.first > position)
    now = uses.blocks[(uses.first <= position) & (uses.last >= position)]
    later = later[~np.isin(uses.blocks[later], now)][:_SHOWN]  # they are sorted by position
    return [(int(uses.blocks[each]), int(uses.first[each])) for each in later]


def _lies(index: Index, block: int) -> dict[str, Any]:
    """Return where a block lies."""
    return {
        "file": index.paths[int(index.file[block])],
        "block": block - _first_block(index, block),
        "offset": int(index.offset[block]),
        "size": int(index.size[block]),
    }


def _first_block(index: Index, block: int) -> int:
    """Return the first block of a block's file."""
    return int(np.searchsorted(index.file, index.file[block]))


def _range(lies: NextBlock) -> str:
    return f"bytes {lies.offset:,} to {lies.offset + max(lies.size - 1, 0):,}"


class Data(NamedTuple):
    """The data of a state, as rows to be shown and as builtins."""

    rows: list[Row]
    as_dict: dict[str, Any]

    @property
    def matches(self) -> bool:
        """True if the state is of the data that is shown."""
        return bool(self.as_dict["matches"])


def _own_data(index: Index, standing: InFiles | None, unknown: str | None = None) -> Data:
    """Show the index of a state's data, and where the state stands or why nobody knows."""
    bytes_ = size(int(index.size.sum()))
    if (decoded := int(index.decoded.sum())) != int(index.size.sum()):
        bytes_ += f" stored, {size(decoded)} decoded"
    data = (
        f"{counted(len(index.paths), 'file')} of format {index.format} in {index.root}: "
        f"{counted(len(index), 'row')} in {counted(len(index.rows), 'block')}, {bytes_}"
    )
    kept = f"written {_ago(_written(index))}, fingerprint {index.fingerprint}, in {index.place}"
    rows = [("data", data), ("index", kept)]
    rows += [("in files", f"not known: {unknown}")] if standing is None else standing.rows()
    found = {
        "matches": True,
        "index": _figures(index),
        "standing": None if standing is None else standing.as_dict(),
        "unknown": unknown,
    }
    return Data(rows, found)


def _other_data(places: Sequence[str], fingerprint: str | None, indexes: Sequence[Index]) -> Data:
    """Show the indexes of data that was given, none of which is the state's."""
    saved = "no fingerprint" if fingerprint is None else f"fingerprint {fingerprint}"
    there = [f"{index.fingerprint} (index {index.place})" for index in indexes[:_SHOWN]]
    if (more := len(indexes) - _SHOWN) > 0:
        there.append(f"{more:,} more")
    words = (
        f"not that in {', '.join(places)}: the state has {saved}, the data there has "
        f"{', '.join(there)}"
    )
    found = {
        "matches": False,
        "places": list(places),
        "state_fingerprint": fingerprint,
        "indexes": [_figures(index) for index in indexes],
    }
    return Data([("data", words)], found)


def _no_index(why: str) -> Data:
    """Say that the index of a state's data was not found, or cannot be read here."""
    found = {"matches": None, "index": None, "standing": None, "unknown": why}
    return Data([("data", why)], found)


class KnownData:
    """The data that a user named, else the indexes in the user's cache folder."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = [shown_place(place) for place in places]
        self._given = [index for place in places for index in indexes_of(place)]
        self._kept: dict[str, Index | None] = {}  # found so far, by fingerprint

    def explained(self, words: Explains) -> tuple[Explains, Data | None]:
        """Find the data of a state. If the index tells the state's order, explain that too."""
        saved = words.identity.fingerprint if isinstance(words, Explanation) else None
        try:
            index, part = self._find(saved)
        except MissingExtraError as error:
            return words, _no_index(f"its index is kept, but cannot be read: {error}")
        if index is None or not isinstance(words, Explanation):
            return words, self._not_found(words, saved)
        if part:
            return words, _own_data(index, None, "the state is of a Subset of this data")
        order = order_of(words.identity, index)
        if order is None:
            unknown = f"the index alone does not tell the order {words.identity.order!r}"
            return words, _own_data(index, None, unknown)
        if words.length != len(index) or any(end > len(index) for _, end in words.progress.ahead):
            unknown = f"the state is damaged, since it does not fit {counted(len(index), 'row')}"
            return words, _own_data(index, None, unknown)
        words = replace(words, order=order)
        return words, _own_data(index, locate(words, index, order))

    def _not_found(self, words: Explains, saved: str | None) -> Data | None:
        if self._places:
            return _other_data(self._places, saved, self._given)
        if isinstance(words, Explanation) and words.identity.order.startswith("tracks-"):
            return _no_index("its index was not found: name the data, or the index, by --data")
        return None  # it need not be data in files

    def _find(self, saved: str | None) -> tuple[Index | None, str | None]:
        """Return the index of a fingerprint, and the part of its data that a Subset has."""
        match = _FINGERPRINT.fullmatch(saved or "")
        if match is None:
            return None, None
        fingerprint, part = match.groups()
        if not self._places:
            if fingerprint not in self._kept:
                self._kept[fingerprint] = index_with(fingerprint)
            return self._kept[fingerprint], part
        given = (index for index in self._given if index.fingerprint == fingerprint)
        return next(given, None), part


def _figures(index: Index) -> dict[str, Any]:
    return {
        "path": str(index.place),
        "written": datetime.fromtimestamp(_written(index), timezone.utc).isoformat(),
        "root": str(index.root),
        "format": index.format,
        "files": len(index.paths),
        "blocks": len(index.rows),
        "rows": len(index),
        "stored_bytes": int(index.size.sum()),
        "decoded_bytes": int(index.decoded.sum()),
        "fingerprint": index.fingerprint,
    }


def _written(index: Index) -> float:
    try:
        return os.path.getmtime(index.place or "")  # noqa: PTH204  an index need not have a place
    except OSError:  # replaced by another one just now
        return time.time()


def _ago(moment: float) -> str:
    seconds = time.time() - moment
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "less than a minute ago"


def index_with(fingerprint: str) -> Index | None:
    """Find the index with this fingerprint in the user's cache folder."""
    may_match = (path for path in _of_user() if may_hold(path, fingerprint))
    return next((each for each in _read(may_match) if each.fingerprint == fingerprint), None)


def indexes_of(place: str) -> list[Index]:
    """Find the indexes of a folder, glob, file or URL, or those in a folder of indexes.

    Several globs over one folder have an index each. Raise if there is none.
    """
    found = _in_storage(Url.of(place)) if is_url(place) else _on_this_machine(place)
    if not found:
        shown = shown_place(place)
        if not is_url(place) and not glob.has_magic(place) and not os.path.lexists(_whole(place)):
            msg = f"there is no file or folder {shown}. Name the data or its index by --data."
        else:
            msg = (
                f"there is no index of {shown} that can be read. Build it with `dataporter index "
                f"{shown}` and the options of the training script, or name the folder of the index."
            )
        raise ShardsNotFoundError(msg)
    return found


def shown_place(place: str) -> str:
    """Return a place as it may be shown: a URL without secrets."""
    return str(Url.of(place)) if is_url(place) else place


def _on_this_machine(place: str) -> list[Index]:
    whole = Path(_whole(place))
    if is_index_name(whole.name):
        return list(_read([whole]))
    if whole.is_dir():
        return list(_read(kept_indexes(whole))) or _of_root(whole)
    if glob.has_magic(place) and not os.path.lexists(whole):
        return _of_root(Path(folder_of_glob(str(whole))))
    return [each for each in _of_root(whole.parent) if whole.name in each.paths]


def _in_storage(url: Url) -> list[Index]:
    folder = Url(url.scheme, folder_of_glob(url.place))
    found = _of_root(folder)
    if found or folder != url:
        return found
    above, _, name = url.place.rpartition("/")  # it may be a file
    return [each for each in _of_root(Url(url.scheme, above)) if name in each.paths]


def _of_root(root: Path | Url) -> list[Index]:
    """Return the indexes of files below a root: those beside them, and those of the user."""
    beside = kept_indexes(root / INDEX_FOLDER) if isinstance(root, Path) else []
    may_match = (path for path in _of_user() if may_hold(path, str(root)))
    return [*_read(beside), *(each for each in _read(may_match) if each.root == root)]


def _of_user() -> list[Path]:
    folder = user_folder()
    return [] if folder is None else kept_indexes(folder)


def _read(paths: Iterable[Path]) -> Iterator[Index]:
    for path in paths:
        with shards_extra():  # the other states are shown without it
            from dataporter.shards.index_file import read_index  # noqa: PLC0415

        # Data that was moved takes the index beside it along.
        is_beside = path.parent.name == INDEX_FOLDER
        index = read_index(path, path.parent.parent if is_beside else None)
        if index is not None:
            yield index


def _whole(place: str) -> str:
    return os.path.abspath(os.path.expanduser(place))  # noqa: PTH100, PTH111  a glob is no path
