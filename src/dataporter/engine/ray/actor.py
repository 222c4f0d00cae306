"""A worker in a Ray actor: it fetches the batches that it is told to, one after another.

Ray starts a process and makes a `Shell` in it, which imports nothing. So it is known at once that
there was room for the actor, however long torch and the dataset take to be loaded then.

A reply is one piece of memory, laid out as a batch in a slot (`wire`). So Ray copies it into its
object store as it is, and no class of the batch's is pickled by Ray.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dataporter.engine.arena import Slot, create_arena
from dataporter.engine.wire import ERROR, UNREADY, pack_error
from dataporter.engine.worker import Duty, begun, make, write_error
from dataporter.errors import WorkerStartError
from dataporter.fetch.timing import Clock

_LARGE = 2**16  # bytes; smaller buffers are part of the pickle, and the worker's own

# Outcome, as in `wire`; offset and size of the result in the memory; the memory.
Reply: TypeAlias = tuple[int, int, int, NDArray[np.uint8]]


class Parcel(NamedTuple):
    """A duty on its way: its pickle, and its large buffers, which lie in the object store."""

    pickled: NDArray[np.uint8]
    buffers: list[NDArray[np.uint8]]
    clock: Clock  # of the process that sends it


def packed(duty: Duty, cloudpickle: Any) -> Parcel:
    """Pickle a duty. Arrays of a node's actors are one piece of memory, which is read-only."""
    buffers: list[NDArray[np.uint8]] = []

    def keeps_in_pickle(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if len(raw) < _LARGE:
            return True
        buffers.append(np.frombuffer(raw, np.uint8))
        return False

    pickled = cloudpickle.dumps(duty, protocol=5, buffer_callback=keeps_in_pickle)
    return Parcel(np.frombuffer(pickled, np.uint8), buffers, Clock.here())


def _unpacked(parcel: Parcel, worker: int) -> Duty:
    try:
        duty: Duty = pickle.loads(  # noqa: S301  from the process that started this actor
            memoryview(parcel.pickled),  # type: ignore[arg-type]  # an array has one
            buffers=parcel.buffers,
        )
    except Exception as error:
        msg = (
            "a worker on a Ray cluster cannot rebuild the dataset or a function beside it: "
            f"{type(error).__name__}: {error}. Its modules must be installed on every node, or "
            "be sent there: ray_options={'runtime_env': {'working_dir': '.'}}."
        )
        raise WorkerStartError(msg) from error
    if duty.fetch.timing is not None:
        duty.fetch.timing.shift = parcel.clock.distance_from(Clock.here())
    return replace(duty, worker=worker)


def shell() -> type:
    """Make the class of the actors. Ray sends it as code, since it is part of no module."""

    class Shell:
        """An actor. Its calls are run one after another, in their order."""

        def place(self) -> int:
            """Return the id of the process: there was room for it."""
            import os  # noqa: PLC0415  in the actor

            return os.getpid()

        def begin(self, worker: int, parcel: Any) -> str:
            """Get ready to fetch. Returns the reason if dataporter is not there."""
            try:
                from dataporter.engine.ray.actor import Fetching  # noqa: PLC0415  likewise
            except ImportError as error:
                return f"{type(error).__name__}: {error}"
            self._fetching = Fetching(worker, parcel)
            return ""

        def fetch(self, run: int, payload: bytes) -> Any:
            """Make a batch."""
            return self._fetching.fetch(run, payload)

    return Shell


class Fetching:
    """The work of one actor."""

    def __init__(self, worker: int, parcel: Parcel) -> None:
        self._worker = worker
        self._slot = Slot(create_arena(), 0)  # where batches are made; only this process has it
        self._duty = begun(worker, lambda: _unpacked(parcel, worker))
        self._run = -1

    def fetch(self, run: int, payload: bytes) -> Reply:
        """Make the batch of a pickled payload. An error is a reply as well."""
        duty, slot = self._duty, self._slot
        try:
            if isinstance(duty, bytes):
                outcome, (offset, size) = write_error(slot, UNREADY, duty)
            else:
                if run != self._run:
                    self._run = run
                    duty.fetch.begin_pass()
                # Unpickled here: arrays that Ray unpickles are read-only, and torch minds that.
                wanted = pickle.loads(payload)  # noqa: S301  likewise
                outcome, (offset, size) = make(duty, slot, wanted)
        except Exception as error:  # noqa: BLE001  raised where the batch was asked for
            outcome, (offset, size) = write_error(slot, ERROR, pack_error(error, self._worker))
        return outcome, offset, size, slot.fresh(offset + size)
