"""What goes over the wire: small messages of fixed size, and batches laid out in slots.

A batch is a pickle of which the bulk stays outside: tensors and whatever offers its buffer
(NumPy arrays, above all) lie in the slot as they are, and are used there by the consumer.
So a batch of any class arrives, and a batch of tensors is not copied.
"""

from __future__ import annotations

import io
import pickle
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.engine.arena import Slot, Writer, tensor_bytes, tensor_over
from dataporter.randomness import Stream

# To a worker: number of the issue, slot, size of what to do. From a worker: number of the
# issue, slot, outcome, offset and size of the result. Both are far below the size up to
# which a write to a pipe is whole or not at all.
ISSUE = struct.Struct("<QIQ")
REPLY = struct.Struct("<QIIQQ")

STOP = 0  # in place of an issue's number: the worker is to end
# Outcomes: a batch; one with samples left out, and which; an error; one before any work.
BATCH, PARTIAL, ERROR, UNREADY = range(4)

_HEAD = struct.Struct("<QQQqq")  # pass, seed, epoch, indices (-1: pickled), positions


def write_task(
    slot: Slot, number_of_pass: int, indices: Any, positions: NDArray[np.int64], stream: Stream
) -> int:
    """Lay out what a worker needs for a task; the bytes used."""
    if isinstance(indices, np.ndarray):
        count, listed = len(indices), indices.tobytes()
    else:
        count, listed = -1, pickle.dumps(indices)
    head = _HEAD.pack(number_of_pass, stream.seed, stream.epoch, count, len(positions))
    body = b"".join((head, positions.tobytes(), listed))
    slot.reach(len(body))[: len(body)] = np.frombuffer(body, np.uint8)
    return len(body)


def read_task(
    slot: Slot, size: int
) -> tuple[int, Sequence[Any] | NDArray[np.int64], NDArray[np.int64], tuple[int, int]]:
    """Read what `write_task` wrote: pass, indices, positions, (seed, epoch)."""
    # A copy, since the batch will be written over it; one that tensors may be made of.
    body = bytearray(slot.reach(size)[:size])
    number_of_pass, seed, epoch, count, length = _HEAD.unpack_from(body)
    end = _HEAD.size + 8 * length
    positions = np.frombuffer(body, np.int64, length, _HEAD.size)
    if count < 0:
        listed = pickle.loads(body[end:])  # noqa: S301  written by the parent process
        return number_of_pass, listed, positions, (seed, epoch)
    return number_of_pass, np.frombuffer(body, np.int64, count, end), positions, (seed, epoch)


def write_batch(writer: Writer, batch: Any) -> tuple[int, int]:
    """Lay a batch out; offset and size of its pickle."""
    stream = io.BytesIO()
    pickler = _Pickler(stream, writer)
    pickler.dump(batch)
    table = np.array(pickler.placed, np.int64).tobytes()
    body = struct.pack("<q", len(table)) + table + stream.getvalue()
    offset, memory = writer.reserve(len(body))
    memory[:] = np.frombuffer(body, np.uint8)
    return offset, len(body)


def read_batch(memory: NDArray[np.uint8], offset: int, size: int) -> Any:
    """Rebuild a batch over the slot's memory, which its tensors keep alive."""
    body = memory[offset : offset + size].tobytes()
    (length,) = struct.unpack_from("<q", body)
    table = np.frombuffer(body, np.int64, length // 8, 8).reshape(-1, 2).tolist()
    buffers = [memory[start : start + count] for start, count in table]
    _reading.memory = memory
    try:
        return pickle.loads(body[8 + length :], buffers=buffers)  # noqa: S301  from a worker of ours
    finally:
        _reading.memory = None


class _Pickler(pickle.Pickler):
    """Leaves tensors and buffers in the slot."""

    def __init__(self, stream: io.BytesIO, writer: Writer) -> None:
        super().__init__(stream, 5, buffer_callback=self._place)
        self._writer = writer
        self.placed: list[tuple[int, int]] = []  # offset and size of each buffer

    def _place(self, buffer: pickle.PickleBuffer) -> bool:
        raw = np.frombuffer(buffer.raw(), np.uint8)
        offset, memory = self._writer.reserve(len(raw))
        memory[:] = raw
        self.placed.append((offset, len(raw)))
        return False

    def reducer_override(self, thing: Any) -> Any:
        """Describe a plain tensor by where it lies; anything else is pickled as usual."""
        if type(thing) is not torch.Tensor or thing.layout is not torch.strided:
            return NotImplemented
        if thing.device.type != "cpu" or thing.requires_grad or thing.is_nested:
            return NotImplemented
        if thing.is_quantized or thing.is_conj() or thing.is_neg():
            return NotImplemented
        return _placed_tensor, self._describe(thing)

    def _describe(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        order: tuple[int, ...] | None = None
        expanded: tuple[int, ...] | None = None
        if not tensor.is_contiguous():
            if 0 in tensor.stride():  # what is repeated in place travels once
                expanded = tuple(tensor.shape)
                steps = (slice(None) if step else slice(0, 1) for step in tensor.stride())
                tensor = tensor[tuple(steps)]
            # Memory formats such as channels-last are kept: a permutation makes them dense.
            order = tuple(np.argsort([-step for step in tensor.stride()], kind="stable").tolist())
            tensor = tensor.permute(order)
        offset = self._writer.offset_of(tensor) if tensor.is_contiguous() else None
        if offset is None:
            placed = self._writer.empty(tuple(tensor.shape), tensor.dtype)
            placed.copy_(tensor)
            offset = self._writer.offset_of(placed) if tensor.numel() else 0
        return offset, tuple(tensor.shape), _NAMES[tensor.dtype], order, expanded


class _Reading(threading.local):
    """The memory that the pickle being read lies in."""

    memory: NDArray[np.uint8] | None = None


_reading = _Reading()


def _placed_tensor(
    offset: int,
    shape: tuple[int, ...],
    name: str,
    order: tuple[int, ...] | None,
    expanded: tuple[int, ...] | None,
) -> torch.Tensor:
    memory, dtype = _reading.memory, _DTYPES[name]
    if memory is None:
        msg = "a batch can be read where it lies only"
        raise RuntimeError(msg)
    tensor = tensor_over(memory[offset : offset + tensor_bytes(shape, dtype)], shape, dtype)
    if order is not None:
        tensor = tensor.permute(tuple(np.argsort(order).tolist()))
    return tensor if expanded is None else tensor.expand(expanded)


_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
