"""The wire format: messages of fixed size, and tasks, batches and errors laid out in slots.

Tensors lie in the slot as they are, and the consumer uses them there. A batch of tensors, plain
values and bytes in dicts, lists and tuples travels as its outline, in which every tensor is
replaced by its offset, shape and dtype, and large bytes by offset and length. Any other batch is a
pickle whose bulk stays outside of it: tensors, and objects that offer a buffer, such as NumPy
arrays. So a batch of any class arrives, and a batch of tensors is not copied.
"""

from __future__ import annotations

import io
import marshal
import os
import pickle
import struct
import threading
import traceback
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dataporter.engine.arena import Slot, Writer, tensor_over
from dataporter.errors import WorkerError
from dataporter.fetch.randomness import keys_of
from dataporter.fetch.tasks import Payload, Samples
from dataporter.system.processes import pickled_error

# To a worker: number of the issue, slot, size of the task. From a worker: number of the issue,
# slot, outcome, offset and size of the result. Both are so small that a write to a pipe is whole.
ISSUE = struct.Struct("<QIQ")
REPLY = struct.Struct("<QIIQQ")

STOP = 0  # in place of an issue's number: the worker is to end
# Outcomes: a batch; a batch with what was left out of it; an error; an error before any work.
BATCH, PARTIAL, ERROR, UNREADY = range(4)
TIMED = 4  # added to one of the first two: the result is the noted times and where the batch lies

_HEAD = struct.Struct("<QQQqq")  # run, seed, epoch, indices (-1: pickled), positions


def write_task(slot: Slot, run: int, payload: Payload) -> int:
    """Lay out the payload of a task. Returns the bytes used."""
    keys = payload.keys
    if isinstance(payload, Samples) and isinstance(payload.indices, np.ndarray):
        head = _HEAD.pack(run, keys.seed, keys.epoch, len(payload.indices), len(payload.positions))
        body = b"".join((head, payload.positions.tobytes(), payload.indices.tobytes()))
    else:
        body = _HEAD.pack(run, keys.seed, keys.epoch, -1, 0) + pickle.dumps(payload)
    slot.reach(len(body))[: len(body)] = body
    return len(body)


def read_task(slot: Slot, size: int) -> tuple[int, Payload]:
    """Read what `write_task` wrote: the run and the payload."""
    # A copy, since the batch will be written over it; one that tensors may be made of.
    body = bytearray(slot.reach(size)[:size])
    run, seed, epoch, count, length = _HEAD.unpack_from(body)
    if count < 0:
        payload: Payload = pickle.loads(body[_HEAD.size :])  # noqa: S301  from the parent process
        return run, payload
    positions = np.frombuffer(body, np.int64, length, _HEAD.size)
    indices = np.frombuffer(body, np.int64, count, _HEAD.size + 8 * length)
    return run, Samples(indices, positions, keys_of(seed, epoch))


def write_batch(writer: Writer, batch: Any) -> tuple[int, int]:
    """Lay out a batch. Returns offset and size of its outline or pickle."""
    seen: dict[int, Any] = {}
    outline = _outline(batch, writer, seen)
    if outline is not _NONE:
        body = _IS_OUTLINE + marshal.dumps(outline)
        return writer.write(body), len(body)
    stream = io.BytesIO(bytes(_TABLE.size))
    stream.seek(_TABLE.size)
    pickler = _Pickler(stream, writer, seen)
    pickler.dump(batch)
    table = np.array(pickler.placed, np.int64).tobytes()
    stream.write(table)
    # Views, here and where it is read: copies of a large batch cost more than all else.
    whole = stream.getbuffer()
    _TABLE.pack_into(whole, 0, len(table))
    return writer.write(whole), len(whole)


def read_batch(memory: NDArray[np.uint8], offset: int, size: int) -> Any:
    """Rebuild a batch over the slot's memory. Its tensors keep that alive."""
    body = memoryview(memory)[offset : offset + size]  # type: ignore[arg-type]  # an array has one
    (length,) = _TABLE.unpack_from(body)
    if length < 0:
        return _filled(marshal.loads(body[_TABLE.size :]), memory)  # noqa: S302  from a worker
    end = size - length
    table = np.frombuffer(body, np.int64, length // 8, end).reshape(-1, 2).tolist()
    buffers = [memory[start : start + count] for start, count in table]
    _reading.memory = memory
    try:
        return pickle.loads(body[_TABLE.size : end], buffers=buffers)  # noqa: S301  from a worker of ours
    finally:
        _reading.memory = None


_TABLE = struct.Struct("<q")  # before a pickle: bytes of the table of buffers, which follows it
_IS_OUTLINE = _TABLE.pack(-1)
_NONE = object()


def _outline(part: Any, writer: Writer, seen: dict[int, Any]) -> Any:
    """Make the outline of a batch; `_NONE` if the batch needs a pickle.

    In an outline, a tuple of one item is a tuple, of two items bytes in the slot, of more items a
    tensor in the slot; bytes are a pickled column. `seen` has the parts met so far by identity,
    with a tensor's description.
    """
    kind = type(part)
    if kind in _SCALARS:
        return part
    if kind is bytes:
        return writer.write(part), len(part)
    if id(part) in seen:
        return _NONE  # a pickle keeps a part that occurs twice one object
    if kind is torch.Tensor:
        if not is_plain(part):
            return _NONE
        seen[id(part)] = description = _description(part, writer)
        return description
    seen[id(part)] = None
    if kind is dict:
        found = [_outline(value, writer, seen) for value in part.values()]
        if any(type(key) is not str for key in part):
            return _NONE
        return _NONE if _NONE in found else dict(zip(part, found, strict=True))
    return _outline_of_items(part, writer, seen) if kind is list or kind is tuple else _NONE


def _outline_of_items(part: list[Any] | tuple[Any, ...], writer: Writer, seen: Any) -> Any:
    if not part:
        return _NONE
    if _is_column(part[0]):
        return pickle.dumps(part, 5) if _PLAIN.issuperset(map(type, part)) else _NONE
    found = [_outline(item, writer, seen) for item in part]
    if _NONE in found:
        return _NONE
    return found if type(part) is list else (found,)


_SCALARS = (str, int, float, bool, type(None))
_PLAIN = {*_SCALARS, bytes}
_LARGE = 4096  # bytes


def _is_column(first: Any) -> bool:
    """Return True if a list that begins so is pickled as a column: faster than item by item."""
    kind = type(first)
    return kind is str or kind is int or kind is float or (kind is bytes and len(first) < _LARGE)


def _filled(outline: Any, memory: NDArray[np.uint8]) -> Any:
    """Make the batch of an outline, over the slot's memory."""
    kind = type(outline)
    if kind is tuple:
        if len(outline) == 1:
            return tuple(_filled(part, memory) for part in outline[0])
        if len(outline) == 2:  # noqa: PLR2004  as `_outline` says
            return memory[outline[0] : outline[0] + outline[1]].tobytes()
        return _placed_tensor(memory, *outline)
    if kind is dict:
        return {name: _filled(part, memory) for name, part in outline.items()}
    if kind is list:
        return [_filled(part, memory) for part in outline]
    return pickle.loads(outline) if kind is bytes else outline  # noqa: S301  from a worker of ours


class _Pickler(pickle.Pickler):
    """Pickles a batch; its tensors and buffers lie in the slot, outside of the pickle."""

    def __init__(self, stream: io.BytesIO, writer: Writer, described: dict[int, Any]) -> None:
        super().__init__(stream, 5, buffer_callback=self._place)
        self._writer = writer
        self._described = described
        self.placed: list[tuple[int, int]] = []  # offset and size of each buffer

    def _place(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        self.placed.append((self._writer.write(raw), len(raw)))
        return False

    def reducer_override(self, thing: Any) -> Any:
        """Describe a plain tensor by its place in the slot; pickle anything else as usual."""
        if type(thing) is torch.Tensor and is_plain(thing):
            known = self._described.get(id(thing))
            return _tensor_being_read, known or _description(thing, self._writer)
        return NotImplemented


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether shape, strides, dtype and bytes say all about a tensor."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _description(tensor: torch.Tensor, writer: Writer) -> tuple[Any, ...]:
    """Describe a tensor by its place in the slot. Copies it there if need be."""
    order: tuple[int, ...] | None = None
    expanded: tuple[int, ...] | None = None
    if not tensor.is_contiguous():
        if 0 in tensor.stride():  # elements that are repeated in place travel once
            expanded = tuple(tensor.shape)
            steps = (slice(None) if step else slice(0, 1) for step in tensor.stride())
            tensor = tensor[tuple(steps)]
        # Keeps memory formats such as channels-last: a permutation makes them contiguous.
        order = tuple(np.argsort([-step for step in tensor.stride()], kind="stable").tolist())
        tensor = tensor.permute(order)
    shape = tuple(tensor.shape)
    offset = writer.offset_of(tensor) if tensor.is_contiguous() else None
    if offset is None:
        offset = writer.copy(tensor) if tensor.numel() else 0
    return offset, shape, _NAMES[tensor.dtype], order, expanded


class _Reading(threading.local):
    """The memory that the pickle being read lies in."""

    memory: NDArray[np.uint8] | None = None


_reading = _Reading()


def _tensor_being_read(*description: Any) -> torch.Tensor:
    if _reading.memory is None:
        msg = "a batch can only be unpickled by read_batch(), over its slot"
        raise RuntimeError(msg)
    return _placed_tensor(_reading.memory, *description)


def _placed_tensor(
    memory: NDArray[np.uint8],
    offset: int,
    shape: tuple[int, ...],
    name: str,
    order: tuple[int, ...] | None,
    expanded: tuple[int, ...] | None,
) -> torch.Tensor:
    tensor = tensor_over(memory, offset, shape, _DTYPES[name])
    if order is not None:
        tensor = tensor.permute(tuple(np.argsort(order).tolist()))
    return tensor if expanded is None else tensor.expand(expanded)


_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class WorkerTraceback(Exception):  # noqa: N818  never raised: the cause of what is raised
    """The worker and the traceback of an error; the cause of the error that arrives."""

    def __str__(self) -> str:
        return "\n" + "".join(self.args)


def pack_error(error: Exception, worker: int, what: str = "") -> bytes:
    """Pack an error of this worker, with its traceback as text."""
    where = f"In worker {worker} (pid {os.getpid()}):\n"
    text = what + where + "".join(traceback.format_exception(error))
    return pickle.dumps((pickled_error(error), type(error).__qualname__, text))


def unpack_error(packed: bytes) -> Exception:
    """Rebuild an error that a worker packed, with the worker's traceback as its cause."""
    pickled, name, text = pickle.loads(packed)  # noqa: S301  from a worker of ours
    if pickled is None:
        msg = f"{name} in a worker; the error itself cannot be pickled. {text}"
        return WorkerError(msg)
    error: Exception = pickle.loads(pickled)  # noqa: S301  likewise
    error.__cause__ = WorkerTraceback(text)
    return error
