"""The place in the files of a dataset at which a state stands.

It follows from the index and the state alone: the order is a function of the blocks, the seed, the
epoch and the position. Nothing of the data is read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dataporter.law import Order, SequentialOrder, ShuffledOrder, Uses
from dataporter.law.explanation import Explanation
from dataporter.law.permutation import MAX_LENGTH
from dataporter.law.state import Identity, Progress
from dataporter.law.tracks import BlockAfterBlock, ShuffledBlocks, TracksOrder
from dataporter.layout import Row, counted
from dataporter.shards.index import Index
from dataporter.tools.units import size

_SHOWN = 3  # samples and blocks that come next
_LONGEST_STEP = 1 << 20  # samples; a damaged state may have any batch size


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
