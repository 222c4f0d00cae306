"""Real gloo groups for tests: a function is run on every rank of a new one."""

import json
import multiprocessing
import os
import queue
import tempfile
from collections.abc import Callable
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
            for _ in ranks:
                rank, answer = answers.get(timeout=120)
                found[rank] = json.loads(answer)
        except queue.Empty:
            codes = [process.exitcode for process in ranks]
            pytest.fail(f"of {world_size} ranks only {sorted(found)} answered; exits {codes}")
        finally:
            for process in ranks:
                process.join(timeout=30)
                process.kill()
    return [found[rank] for rank in range(world_size)]


def _rank(rank, world_size, folder, answers, environment, work, arguments):
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    dist.barrier()  # else a quick rank may leave while another is still connecting to it
    torch.manual_seed(1000 + rank)  # ranks agree on nothing by themselves
    try:
        answers.put((rank, json.dumps(work(rank, *arguments))))
    finally:
        dist.destroy_process_group()
