"""Real gloo groups for tests: a function is run on every rank of a new one."""

import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist


def on_ranks(
    world_size: int, work: Callable[..., Any], *arguments: Any, imports: Iterable[str] = ()
) -> list[Any]:
    """Run `work(rank, *arguments)` on every rank of a new gloo group; what each returned.

    Frameworks that `work` imports are named, so that they are imported once for all ranks.
    """
    # A fork server imports torch once, for the ranks of all tests; it has not heard of what the
    # environment has become since.
    multiprocessing.set_forkserver_preload(["torch.distributed", "dataporter"])
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        group = context.Process(
            target=_fork_ranks,
            args=(world_size, folder, answers, dict(os.environ), imports, work, arguments),
        )
        group.start()
        found = {}
        try:
            while len(found) < world_size:
                with suppress(queue.Empty):
                    rank, answer = answers.get(timeout=1)
                    found[rank] = json.loads(answer)
                    continue
                if group.exitcode is not None and answers.empty():
                    pytest.fail(f"not all ranks have answered; exit code: {group.exitcode}")
        finally:
            group.join(timeout=30 if len(found) == world_size else 0)
            if group.exitcode is None:
                with suppress(ProcessLookupError):  # it has not begun
                    os.killpg(group.pid, signal.SIGKILL)
                group.kill()
    return [found[rank] for rank in range(world_size)]


def _fork_ranks(world_size, folder, answers, environment, imports, *task):
    """Import what the ranks need, fork them, and end all of them as soon as one fails."""
    os.setpgrp()
    os.environ.clear()
    os.environ.update(environment)
    for module in imports:
        importlib.import_module(module)
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(rank, world_size, folder, answers, *task))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    running = {process.sentinel: process for process in ranks}
    while running:
        for ended in multiprocessing.connection.wait(running):
            process = running.pop(ended)
            process.join()
            if process.exitcode:
                os.killpg(0, signal.SIGKILL)


def _rank(rank, world_size, folder, answers, work, arguments):
    torch.set_num_threads(1)
    _join(Path(folder) / "store", rank, world_size)
    torch.manual_seed(1000 + rank)  # ranks agree on nothing by themselves
    try:
        answers.put((rank, json.dumps(work(rank, *arguments))))
    finally:
        dist.destroy_process_group()


@contextmanager
def without_a_group(store: Path) -> Iterator[None]:
    """Leave the process group, and join a new one afterwards."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    yield
    _join(store, rank, world_size)


def _join(file: Path, rank: int, world_size: int) -> None:
    store = dist.FileStore(str(file), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    dist.barrier()  # else a quick rank may leave while another is still connecting to it
