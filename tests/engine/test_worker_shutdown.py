"""Workers that have ended are collected: no zombie stays, and nobody waits for one."""

import gc
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support import Ids
from watching import until, worker_pids

from dataporter import ResumableDataLoader
from dataporter.engine import processes
from dataporter.engine.worker_shutdown import (
    await_leavers,
    forget,
    kill_at_exit,
    let_leave,
    look_after_leavers,
)


def make(**options: Any) -> ResumableDataLoader:
    return ResumableDataLoader(Ids(32), 4, **{"num_workers": 2, **options})


def state_of(pid: int) -> str:
    """As the system tells it, without collecting an exit status; empty if nothing is left."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    letter, parent = status.rpartition(")")[2].split()[:2]
    return letter if int(parent) == os.getpid() else ""


def pids_of_a_pass(loader: ResumableDataLoader) -> list[int]:
    iterator = iter(loader)
    next(iterator)
    pids = worker_pids()
    for _ in iterator:
        pass
    return pids


def are_gone(pids: list[int]) -> bool:
    return not any(map(state_of, pids))


def test_workers_end_while_the_last_batch_is_used_and_are_collected_by_the_end_of_the_pass():
    iterator = iter(make())
    next(iterator)
    pids = worker_pids()
    for _ in range(7):
        next(iterator)
    until(lambda: all(state_of(pid) in ("Z", "") for pid in pids))
    assert next(iterator, None) is None
    assert are_gone(pids)


def test_any_batch_of_any_loader_collects_what_has_ended():
    pids = pids_of_a_pass(make())
    until(lambda: all(state_of(pid) in ("Z", "") for pid in pids))
    another = iter(make(num_workers=1))
    next(another)
    assert are_gone(pids)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"persistent_workers": True},
        {"persistent_workers": True, "multiprocessing_context": "forkserver"},
    ],
    ids=str,
)
def test_a_loader_that_is_gone_leaves_nothing_behind(options):
    loader = make(**options)
    pids = pids_of_a_pass(loader)
    del loader
    until(lambda: gc.collect() >= 0 and are_gone(pids))


@pytest.mark.parametrize("is_broken_off", [False, True])
@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.soak)]
)
def test_no_worker_is_a_zombie_after_its_pass_though_nothing_follows(
    method, is_broken_off, monkeypatch
):
    monkeypatch.setattr(processes, "_MOMENT", 60)  # however busy the machine is
    loader, pids = make(multiprocessing_context=method, prefetch_factor=4), []
    gc.disable()
    try:
        for _ in loader:
            pids = pids or worker_pids()
            if is_broken_off:
                until(lambda: loader.stats().ready == 7)  # no worker has a batch in hand
                break
        assert pids
        assert are_gone(pids)
    finally:
        gc.enable()


def test_an_interrupt_while_exit_statuses_are_collected_loses_none(monkeypatch):
    collect, interrupted = os.waitpid, []

    def collect_and_interrupt(pid, options):
        collected = collect(pid, options)
        if collected[0]:  # from here on the system knows nothing of the worker
            interrupted.append(pid)
            signal.raise_signal(signal.SIGINT)
        return collected

    process = multiprocessing.Process(target=int)
    process.start()
    pid = process.pid
    kill_at_exit(process)
    let_leave(process, reads=0)
    until(lambda: state_of(pid) == "Z")
    gc.disable()  # it would collect too, and what a handler raises there is lost
    try:
        monkeypatch.setattr(os, "waitpid", collect_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            look_after_leavers()
        look_after_leavers()
    finally:
        gc.enable()
    assert interrupted == [pid]
    assert process not in multiprocessing.active_children()


def test_workers_of_passes_that_are_broken_off_are_collected():
    loader, pids = make(), []
    for _ in range(3):
        for _ in loader:
            pids += worker_pids()
            break
    until(lambda: gc.collect() >= 0 and are_gone(pids))


def test_a_forked_child_leaves_its_parents_workers_alone():
    loader = make()
    for _ in loader:
        break
    pid = os.fork()
    if pid == 0:
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    del loader
    until(lambda: not worker_pids())


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"sampler": range(32)}], ids=str)
def test_workers_that_stay_are_told_to_end_when_their_loader_is_dropped(options):
    """Not when garbage is collected, which may take long."""
    loader = make(persistent_workers=True, **options)
    pids = pids_of_a_pass(loader)
    gc.disable()
    try:
        del loader
        until(lambda: all(state_of(pid) in ("Z", "") for pid in pids))
    finally:
        gc.enable()


def test_a_worker_that_another_thread_has_parted_with_may_leave():
    process = multiprocessing.Process(target=int)
    process.start()
    process.join()
    process.close()
    let_leave(process, reads=0)
    await_leavers([process], seconds=1)
    forget(process)


def test_a_collection_of_garbage_while_leavers_are_looked_after_does_not_disturb():
    processes = [multiprocessing.Process(target=int) for _ in range(5)]
    for process in processes:
        process.start()
        kill_at_exit(process)
    for process in processes:
        process.join()
        let_leave(process, reads=0)
    before = gc.get_threshold()
    gc.set_threshold(1)  # a collection at nearly every allocation
    try:
        look_after_leavers()
    finally:
        gc.set_threshold(*before)
