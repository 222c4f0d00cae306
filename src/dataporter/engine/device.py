"""To the device: batches are copied ahead, while the step before them computes.

        engine ──▶ page-locked memory ──▶ copies ahead, in a stream of their own ──▶ consumer
                                                     its stream waits for an event ──┘

What is sent ahead has its progress with it, so it counts when the consumer gets it, not before.

Memory on the device is taken in the consumer's stream, and a copy begins once all that this
stream had been given to do by then is done. So what the consumer lets go of is used again in
the order of that stream, however far the host is ahead of the device: there are at most
`depth` batches copied ahead, the one being delivered, and those that the consumer holds.

Tensors in any container are copied, anything else is handed over as it is. Those that are
not plain memory (sparse, quantised, nested, of a class of their own, part of a graph) are moved
by their own `to` when they are delivered. For any device but CUDA's, all are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence

from dataporter.containers import changed
from dataporter.engine.marks import note_stream
from dataporter.engine.results import Results
from dataporter.engine.wire import is_plain
from dataporter.fetch import EMPTY, Failed
from dataporter.tasks import Task

Deliver: TypeAlias = Callable[[], Any]  # hands a batch over to the stream that is current
Send: TypeAlias = Callable[[Any], Deliver]  # has a batch set off


def sent_ahead(results: Results, send: Send, depth: int) -> Iterator[tuple[Task, Any]]:
    """Send batches off while those before them are used; yield every task with its batch.

    Results are waited for only if none is on its way. An error of theirs comes after what was
    sent before it.
    """
    ahead: deque[tuple[Task, Deliver]] = deque()
    end: Exception | None = None
    while True:
        # One in place of the one that is delivered, and one more while there are too few.
        for _ in range(2):
            if end is None and (not ahead or (len(ahead) <= depth and results.is_there())):
                try:
                    ahead.append(_next_sent(results, send))
                except Exception as error:  # noqa: BLE001  raised when it is its turn
                    end = error
        if not ahead:
            break
        # No batch is held in a variable here: it is the consumer's alone.
        yield ahead[0][0], ahead.popleft()[1]()
    try:
        if end is not None and not isinstance(end, StopIteration):
            raise end
    finally:
        del end  # it holds this frame


def _next_sent(results: Results, send: Send) -> tuple[Task, Deliver]:
    task, batch = next(results.each)
    return task, send(batch)


def sender(device: torch.device, convert: Callable[[Any], Any] | None) -> Send:
    """Make what brings batches to a device, and converts them there."""
    begin: Send = partial(partial, _moved, device)
    if device.type == "cuda":
        begin = CudaCopies(_with_index(device))

    def send(batch: Any) -> Deliver:
        if batch is EMPTY or type(batch) is Failed:
            return lambda: batch
        deliver = begin(batch)
        return deliver if convert is None else lambda: convert(deliver())

    return send


def _with_index(device: torch.device) -> torch.device:
    """A device with its number: the current one, or by LOCAL_RANK where none was made current."""
    if device.index is not None:
        return device
    index, local_rank = torch.cuda.current_device(), os.environ.get("LOCAL_RANK", "")
    if index == 0 and local_rank.isdecimal() and int(local_rank) < torch.cuda.device_count():
        index = int(local_rank)
    return torch.device("cuda", index)


class CudaCopies:
    """Copies batches to a CUDA device, in a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batch: Any) -> Deliver:
        """Begin to copy a batch."""
        home, device = torch.cuda.current_stream(self._device), torch.cuda.current_device()
        copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: source, copy
        on_device = self._with_room(batch, copies)
        done = torch.cuda.Event()
        copying = _Copying(on_device, [copy for _, copy in copies.values()], home, done)
        if not home.query():
            self._stream.wait_stream(home)  # where the memory may still be in use
        # Not by torch's context manager, which takes longer than a small copy.
        try:
            torch.cuda.set_stream(self._stream)
            for source, copy in copies.values():
                copy.copy_(source, non_blocking=True)
        finally:
            done.record(self._stream)
            torch.cuda.set_stream(home)
            torch.cuda.set_device(device)
        note_stream(self._stream)
        return copying.deliver

    def _with_room(self, part: Any, copies: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """The batch with room on the device in place of its tensors."""
        if type(part) is torch.Tensor:
            if not is_plain(part):
                return part
            if id(part) not in copies:  # what is there twice stays one
                copies[id(part)] = part, torch.empty_like(part, device=self._device)
            return copies[id(part)][1]
        if isinstance(part, torch.Tensor | str | PackedSequence):
            return part
        return changed(part, lambda inner: self._with_room(inner, copies))


class _Copying:
    """A batch that is being copied. It may be dropped at any time."""

    def __init__(
        self,
        batch: Any,
        copies: list[torch.Tensor],
        home: torch.cuda.Stream,
        done: torch.cuda.Event,
    ) -> None:
        self._batch = batch
        self._copies = copies
        self._home = home
        self._done = done
        self._owner: int | None = os.getpid()

    def deliver(self) -> Any:
        current = torch.cuda.current_stream(self._home.device)
        current.wait_event(self._done)
        if current != self._home:
            for copy in self._copies:
                copy.record_stream(current)
        self._owner = None
        return _moved(self._home.device, self._batch)

    def __del__(self) -> None:
        # Never delivered: its memory goes back to its stream, which has to wait for the copy.
        if self._owner == os.getpid():
            self._home.wait_event(self._done)


def _moved(device: torch.device, part: Any) -> Any:
    """The batch with its tensors moved by their own `to`, those that are elsewhere."""
    if isinstance(part, torch.Tensor | PackedSequence):
        return part.to(device)  # type: ignore[arg-type]  # as it does tensors
    return part if isinstance(part, str) else changed(part, partial(_moved, device))
