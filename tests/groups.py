"""Real gloo groups for tests: a function is run on every rank of a new one."""

import json
import multiprocessing
import os
import queue
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist


def on_ranks(world_size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `work(rank, *arguments)` on every rank of a new gloo group; what each returned."""
    # A fork server imports torch once, for the ranks of all tests; it has not heard of what the
    # environment has become since.
    multiprocessing.set_forkserver_preload(["torch.distributed", "dataporter"])
    context = multiprocessing.get_context("forkserver")
    environment = dict(os.environ)
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_rank,
                args=(rank, world_size, folder, answers, environment, work, arguments),
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        found = {}
        try:
            while len(found) < world_size:
                with suppress(queue.Empty):
                    rank, answer = answers.get(timeout=1)
                    found[rank] = json.loads(answer)
                    continue
                codes = {rank: process.exitcode for rank, process in enumerate(ranks)}
                if any(codes[rank] for rank in codes.keys() - found.keys()):
                    pytest.fail(f"ranks ended without an answer; exit codes: {codes}")
        finally:
            for process in ranks:
                process.join(timeout=30 if len(found) == world_size else 0)
                process.kill()
    return [found[rank] for rank in range(world_size)]


def _rank(rank, world_size, folder, answers, environment, work, arguments):
    os.environ.clear()
    os.environ.update(environment)
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
