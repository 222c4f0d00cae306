"""Starting a worker process: a fork inherits what it needs, any other process is sent it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.process import BaseProcess
from typing import Any

from dataporter.engine.connections import open_descriptors
from dataporter.engine.sending import Bulk, Place, check_main_file, load, mapped
from dataporter.engine.worker import Duty, Wiring, work
from dataporter.errors import OptionError, WorkerStartError
from dataporter.system.memory import unnamed_file
from dataporter.system.signals import IGNORED, delayed


def signals_delayed(context: Any) -> AbstractContextManager[None]:
    """Delay signals while a worker is forked and registered.

    Until a fork has set up its own handlers, it would run those of its parent. Other processes
    would inherit the delay, and a fork server would keep it.
    """
    if context.get_start_method() != "fork":
        return contextlib.nullcontext()
    return delayed({*IGNORED, signal.SIGALRM})


def start_worker(context: Any, duty: Duty, wiring: Wiring, bulk: Bulk | None) -> BaseProcess:
    """Start a worker by the method of a multiprocessing context.

    `bulk` is the file for large buffers of the dataset; None if the worker is forked.
    """
    # A parent's death is signalled when the thread dies that forked: only the main thread will do.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
    if bulk is None:
        process = _process(context, duty.worker, _work_forked, (duty, wiring, parent))
        process.start()
        return process
    method = context.get_start_method()
    check_main_file(method)
    if method == "forkserver":
        _preload()
    sent = _SentDuty(duty, method, bulk)
    arguments = (duty.worker, sent, _SentWiring(wiring), parent)
    process = _process(context, duty.worker, _work_sent, arguments)
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        msg = (
            f"the dataset or a function beside it cannot be sent to a worker started by "
            f"{method!r}: {error}. Define it at the top level of a module, or use "
            "multiprocessing_context='fork'."
        )
        raise OptionError(msg) from error
    finally:
        sent.close()
    return process


def _process(context: Any, worker: int, target: Callable[..., None], arguments: Any) -> BaseProcess:
    name = f"dataporter worker {worker}"
    process: BaseProcess = context.Process(target=target, args=arguments, name=name, daemon=True)
    return process


class _SentWiring:
    """Descriptors on their way into a process that does not inherit them."""

    def __init__(self, wiring: Wiring) -> None:
        self._descriptors = tuple(wiring)

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415  Windows has none

        return _received, tuple(DupFd(descriptor) for descriptor in self._descriptors)


def _received(arena: Any, issues: Any, replies: Any) -> Wiring:
    return Wiring(arena=arena.detach(), issues=issues.detach(), replies=replies.detach())


class _SentDuty:
    """A duty on its way into a process that does not inherit it."""

    def __init__(self, duty: Duty, method: str, bulk: Bulk) -> None:
        self._duty = duty
        self._method = method
        self._bulk = bulk
        self._pickled = unnamed_file()

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # noqa: PLC0415  Windows has none

        # Pickled apart, so that the worker rebuilds it when it can already report errors; and
        # here, since descriptors among its parts can be sent only while a process is started.
        with open(self._pickled, "wb", closefd=False) as stream:
            places = self._bulk.dump(self._duty, stream)
        bulk = DupFd(self._bulk.descriptor) if places else None
        return _ReceivedDuty, (DupFd(self._pickled), bulk, places, self._method)

    def close(self) -> None:
        """Close the file of the pickle. The worker has its own descriptor."""
        os.close(self._pickled)


class _ReceivedDuty:
    """A duty as it arrived. Calling it rebuilds the duty."""

    def __init__(self, pickled: Any, bulk: Any, places: list[Place], method: str) -> None:
        self._pickled = pickled.detach()
        self._bulk = None if bulk is None else bulk.detach()
        self._places = places
        self._method = method

    def __call__(self) -> Duty:
        try:
            with mapped(self._pickled) as pickled:
                bulk = None if self._bulk is None else memoryview(mapped(self._bulk))
                duty: Duty = load(pickled, self._places, bulk)
        except Exception as error:
            msg = (
                f"a worker started by {self._method!r} cannot rebuild the dataset or a function "
                f"beside it: {type(error).__name__}: {error}. Define it at the top level of a "
                "module that can be imported, not under `if __name__ == '__main__':`, or use "
                "multiprocessing_context='fork'."
            )
            raise WorkerStartError(msg) from error
        finally:
            for descriptor in (self._pickled, self._bulk):  # mappings have their own
                if descriptor is not None:
                    os.close(descriptor)
        return duty


def _work_forked(duty: Duty, wiring: Wiring, parent: int | None) -> None:
    # A pipe ends when no process holds its other end: close what belongs to other engines.
    for descriptor in open_descriptors() - set(wiring):
        os.close(descriptor)
    # Hugging Face's tokenizers would wait for threads that a fork does not have.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    work(duty.worker, lambda: duty, wiring, parent)


def _work_sent(
    worker: int, receive: Callable[[], Duty], wiring: Wiring, parent: int | None
) -> None:
    # Under a fork server the parent is that server; the end of the pipe tells of the engine's.
    work(worker, receive, wiring, parent if parent == os.getppid() else None)


def _preload() -> None:
    """Let the fork server import what all workers need, unless it runs already.

    Otherwise each worker would import torch anew. Modules that the user preloads stay.
    """
    from multiprocessing import forkserver  # noqa: PLC0415  not on every system

    server = getattr(forkserver, "_forkserver", None)  # which has no public name
    modules = getattr(server, "_preload_modules", None)
    if modules is None or getattr(server, "_forkserver_pid", None) is not None:
        return
    if work.__module__ not in modules:
        multiprocessing.set_forkserver_preload([*modules, work.__module__])
