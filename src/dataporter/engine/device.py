"""The way to a device: batches are copied ahead, while the step before them computes.

        engine ──▶ page-locked memory ──▶ copies ahead, in a stream of their own ──▶ consumer
                                                     its stream waits for an event ──┘

A batch that was copied ahead counts as delivered when the consumer gets it, not before.

Memory on the device is allocated in the consumer's stream, and a copy begins when the work is done
that this stream had been given by then. So memory that the consumer drops is used again in the
order of that stream, however far the host is ahead of the device. At any time there are at most
`depth` batches copied ahead, the one being delivered, and those that the consumer holds.

Tensors in any container are copied; anything else is handed over as it is. Tensors that are not
plain memory (sparse, quantised, nested, of a class of their own, part of a graph) are moved by
their own `to` when they are delivered. So are all tensors for any device other than CUDA, and
those of a small batch, which takes longer to be handed from stream to stream than to be copied.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from dataporter.engine.cuda_events import note_stream
from dataporter.engine.interface import Results
from dataporter.engine.wire import is_plain
from dataporter.fetch import EMPTY, Failed, Late
from dataporter.fetch.containers import changed, is_plain_list, parts_of

_SMALL = 2**19  # bytes; over the link in 10 µs

Deliver: TypeAlias = Callable[[], Any]  # hands a batch over to the current stream
# Begins to copy a batch; None if nothing is gained by that, and it is moved at its delivery.
Send: TypeAlias = Callable[[Any], Deliver | None]
Move: TypeAlias = Callable[[Any], Any]


def sent_ahead(
    results: Results, send: Send, depth: int, move: Move = lambda batch: batch
) -> Iterator[tuple[Any, Any]]:
    """Copy batches ahead while those before them are used; yield each as it comes in `results`.

    Results are waited for only if no copy is on its way. An error of theirs is raised after the
    batches that were copied before it. Nothing is looked for ahead after a batch that `send` does
    not copy: the next one is of its kind.
    """
    ahead: deque[tuple[Any, Deliver, bool]] = deque()
    end: Exception | None = None
    most = depth
    while True:
        # One in place of the one that is delivered, and one more while there are too few.
        for _ in range(2):
            if end is None and (not ahead or (len(ahead) <= most and results.is_there())):
                try:
                    ahead.append(_next_sent(results, send, move))
                except Exception as error:  # noqa: BLE001  raised when it is its turn
                    end = error
                else:
                    most = depth if ahead[-1][2] else 0
        if not ahead:
            break
        # No batch is held in a variable here: it is the consumer's alone.
        yield ahead[0][0], ahead.popleft()[1]()
    try:
        if end is not None and not isinstance(end, StopIteration):
            raise end
    finally:
        del end  # it holds this frame


def _next_sent(results: Results, send: Send, move: Move) -> tuple[Any, Deliver, bool]:
    """Return the next progress, what delivers its batch, and whether that is copied ahead."""
    delivery, batch = next(results.each)
    deliver = send(batch)
    if deliver is None:
        return delivery, partial(move, batch), False
    return delivery, deliver, True


def ways_to(device: torch.device, convert: Callable[[Any], Any] | None) -> tuple[Send, Move]:
    """Return what brings batches to a device, ahead or at once, and converts them there."""
    if device.type == "cuda":
        device = _with_index(device)
        copies = CudaCopies(device)

    def send(batch: Any) -> Deliver | None:
        if batch is EMPTY or type(batch) in (Failed, Late):
            return lambda: batch
        deliver = copies(batch) if device.type == "cuda" else None
        if deliver is None or convert is None:
            return deliver
        return lambda: convert(deliver())

    def move(batch: Any) -> Any:
        moved = _moved(device, batch)
        return moved if convert is None else convert(moved)

    return send, move


def _with_index(device: torch.device) -> torch.device:
    """Give a device its number: the current one, or LOCAL_RANK if none was made current."""
    if device.index is not None:
        return device
    index, local_rank = torch.cuda.current_device(), os.environ.get("LOCAL_RANK", "")
    if index == 0 and local_rank.isdecimal() and int(local_rank) < torch.cuda.device_count():
        index = int(local_rank)
    return torch.device("cuda", index)


class CudaCopies:
    """Copies batches to a CUDA device, in a stream of its own.

    A small batch is copied in less time than torch takes to make an event, so events are kept and
    recorded again. A stream that waits for an event waits for what was recorded at that time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._before = torch.cuda.Event()  # the work that the consumer's stream had been given
        self._events: list[torch.cuda.Event] = []  # free to be used again

    def __call__(self, batch: Any) -> Deliver | None:
        """Begin to copy a batch, unless it is small."""
        if _bytes_of(batch) <= _SMALL:
            return None
        index = self._device.index
        consumer, current_device = torch.cuda.current_stream(index), torch.cuda.current_device()
        copies = _Copies(self._device)
        on_device = copies.with_room(batch)
        done = self._events.pop() if self._events else torch.cuda.Event()
        copying = _Copying(on_device, copies, consumer, done, self._events)
        self._before.record(consumer)
        self._stream.wait_event(self._before)  # until then the memory may be in use
        # Not by torch's context manager, which takes longer than a small copy.
        try:
            torch.cuda.set_stream(self._stream)
            copies.begin()
        finally:
            done.record(self._stream)
            torch.cuda.set_stream(consumer)
            if current_device != index:
                torch.cuda.set_device(current_device)
        note_stream(self._stream)
        return copying.deliver


class _Copies:
    """The tensors of a batch that are copied. `others` is True if there are more tensors."""

    __slots__ = ("_device", "_pairs", "made", "others")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: source, copy
        self.made: list[torch.Tensor] = []
        self.others = False

    def with_room(self, part: Any) -> Any:
        """Return the batch with uninitialised tensors on the device in place of its own."""
        if type(part) is torch.Tensor and is_plain(part):
            pair = self._pairs.get(id(part))  # a tensor that occurs twice stays one
            if pair is None:
                pair = self._pairs[id(part)] = part, torch.empty_like(part, device=self._device)
            return pair[1]
        if isinstance(part, torch.Tensor | PackedSequence):
            self.others = True
            return part
        return part if isinstance(part, str) else changed(part, self.with_room)

    def begin(self) -> None:
        """Copy in the current stream, and let go of the sources."""
        for source, copy in self._pairs.values():
            copy.copy_(source, non_blocking=True)
            self.made.append(copy)
        self._pairs.clear()


class _Copying:
    """A batch that is being copied. It may be dropped at any time."""

    def __init__(
        self,
        batch: Any,
        copies: _Copies,
        consumer: torch.cuda.Stream,
        done: torch.cuda.Event,
        events: list[torch.cuda.Event],
    ) -> None:
        self._batch = batch
        self._copies = copies
        self._consumer = consumer
        self._done = done
        self._events = events
        self._owner: int | None = os.getpid()

    def deliver(self) -> Any:
        current = torch.cuda.current_stream(self._consumer.device_index)
        current.wait_event(self._done)
        if current != self._consumer:
            for copy in self._copies.made:
                copy.record_stream(current)
        self._owner = None
        self._events.append(self._done)
        return _moved(self._consumer.device, self._batch) if self._copies.others else self._batch

    def __del__(self) -> None:
        # Never delivered: its memory goes back to a stream that has to wait for the copy.
        if self._owner == os.getpid():
            self._consumer.wait_event(self._done)


def _bytes_of(part: Any) -> int:
    """Count the bytes of a batch's tensors that can be copied ahead."""
    if isinstance(part, torch.Tensor):
        return part.nbytes if type(part) is torch.Tensor and is_plain(part) else 0
    parts = None if is_plain_list(part) else parts_of(part)
    return 0 if parts is None else sum(_bytes_of(inner) for _, _, inner in parts)


def _moved(device: torch.device, batch: Any) -> Any:
    """Move the tensors of a batch by their own `to`."""
    if type(batch) is torch.Tensor:
        return batch.to(device, non_blocking=device.type == "cuda")
    moved: dict[int, Any] = {}  # by id: a tensor that occurs twice stays one

    def move(part: Any) -> Any:
        if isinstance(part, torch.Tensor | PackedSequence):
            if id(part) not in moved:
                # In the consumer's stream, so that nobody uses it before it has arrived.
                moved[id(part)] = part.to(device, non_blocking=device.type == "cuda")  # type: ignore[arg-type]
            return moved[id(part)]
        return part if isinstance(part, str) else changed(part, move)

    return move(batch)
