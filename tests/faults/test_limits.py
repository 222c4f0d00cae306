"""Scarce descriptors, many tensors, long runs, other threads: it completes, or says why not."""

import textwrap

import forked_scripts
import pytest

SETUP = """
import os, resource, sys, threading, time
import numpy as np
import torch
from support import Augmented, Ids, one_pass, passes
from watching import arena_bytes, open_descriptors, resident_bytes, worker_pids, until
from dataporter import ResumableDataLoader

class Many:
    '''Batch i is so many tensors that are i.'''
    def __init__(self, length, tensors):
        self.length, self.tensors = length, tensors
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return [torch.full((3,), index) for _ in range(self.tensors)]

def same(value):
    return value

def check(batches):
    for index, batch in enumerate(batches):
        assert (torch.stack(batch) == index).all(), index
"""


def run(script: str) -> None:
    forked_scripts.run(SETUP + textwrap.dedent(script))


# Scarce


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_few_descriptors_are_enough_for_all_batches_of_many_tensors_held(persistent):
    run(f"""
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        loader = ResumableDataLoader(
            Many(300, 300), None, num_workers=2, collate_fn=same, persistent_workers={persistent})
        kept = list(loader)
        assert len(kept) == 300
        check(kept)
    """)


def test_descriptors_do_not_grow_with_the_batches_that_are_held():
    run("""
        loader = ResumableDataLoader(Many(300, 2), None, num_workers=2, collate_fn=same)
        iterator = iter(loader)
        kept = [next(iterator)]
        before = open_descriptors()
        kept += [next(iterator) for _ in range(200)]
        assert open_descriptors() <= before
        check(kept)
    """)


def test_batches_of_a_thousand_tensors_arrive():
    run("""
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        loader = ResumableDataLoader(Many(60, 1000), None, num_workers=2, collate_fn=same)
        kept = list(loader)
        assert len(kept) == 60
        check(kept)
    """)


def test_no_descriptor_left_is_an_error_at_once_and_the_loader_goes_on_when_there_are_some():
    run("""
        loader = ResumableDataLoader(Ids(40), 4, num_workers=2)
        expected = [batch.tolist() for batch in ResumableDataLoader(Ids(40), 4)]
        taken = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        try:
            iter(loader)
        except OSError as error:
            assert "Too many open files" in str(error)
        else:
            raise AssertionError("no error")
        for descriptor in taken:
            os.close(descriptor)
        loader.set_epoch(0)
        assert [batch.tolist() for batch in loader] == expected
    """)


# Long


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_fifty_epochs_grow_nothing(persistent):
    run(f"""
        import gc
        loader = ResumableDataLoader(
            torch.rand(64, 2000), 8, num_workers=2, persistent_workers={persistent})

        def measure():
            until(lambda: len(worker_pids()) == {2 if persistent else 0})
            gc.collect()  # closes what those that have just left had open
            return (open_descriptors(), threading.active_count(),
                    len(os.listdir("/proc/self/task")), arena_bytes())

        for _ in range(5):
            for batch in loader:
                pass
        del batch
        before, memory = measure(), resident_bytes()
        for epoch in range(50):
            for step, batch in enumerate(loader):
                if epoch % 5 == 4 and step == 3:
                    break
        del batch
        after, grown = measure(), resident_bytes() - memory
        assert all(a <= b for a, b in zip(after[:3], before[:3])), (before, after)
        assert after[3] < 20 * 2**20, after
        assert grown < 8 * 2**20, grown
    """)


def test_many_restarts_grow_nothing():
    run("""
        import signal, warnings
        warnings.simplefilter("ignore")
        loader = ResumableDataLoader(
            torch.rand(64, 2000), 8, num_workers=1, persistent_workers=True, max_restarts=100)

        def lose(count):
            for _ in range(count):
                iterator = iter(loader)
                next(iterator)
                until(worker_pids)
                os.kill(worker_pids()[0], signal.SIGKILL)
                assert len(list(iterator)) == 7
            list(loader)  # one that died when all was fetched is replaced when it is missed
            until(worker_pids)
            return open_descriptors(), threading.active_count(), len(worker_pids())

        before = lose(5)
        after = lose(20)
        # A worker that was forked while batches lived has a pipe that tells of its end.
        assert after[0] <= before[0] + 1 and after[1:] == before[1:], (before, after)
    """)


def test_what_killed_workers_had_in_hand_is_used_again():
    run("""
        import signal, warnings
        warnings.simplefilter("ignore")

        class Stuck(Ids):
            def __getitem__(self, index):
                if index >= 4:
                    time.sleep(1000)
                return torch.full((2**18,), index, dtype=torch.int32)

        loader = ResumableDataLoader(
            Stuck(200), None, num_workers=2, persistent_workers=True, max_restarts=10)
        for _ in range(20):
            iterator = iter(loader)
            for _ in range(4):
                next(iterator)
            del iterator  # while a worker is at the next batches
            for pid in worker_pids():
                os.kill(pid, signal.SIGKILL)
            until(lambda: not worker_pids())
        assert arena_bytes() < 30 * 2**20, arena_bytes()  # one lost a round would make 40
    """)


# Beside others


LOADERS = """
loader = ResumableDataLoader(Augmented(60), 4, shuffle=True, seed=3, num_workers=2)
expected = passes(ResumableDataLoader(Augmented(60), 4, shuffle=True, seed=3), 2)
"""


def test_openmp_may_be_in_use_before_workers_start():
    run(
        LOADERS
        + """
torch.set_num_threads(4)
x = torch.rand(600, 600)
(x @ x).sum().item()
class Multiplied(Ids):
    def __getitem__(self, index):
        return (x @ x)[index]
assert passes(loader, 2) == expected
found = torch.cat(list(ResumableDataLoader(Multiplied(40), 4, num_workers=2)))
assert torch.allclose(found, (x @ x)[:40])
"""
    )


def test_a_loader_may_be_made_and_used_while_another_runs():
    run(
        LOADERS
        + """
iterator = iter(loader)
first = [next(iterator)]
for _ in range(3):
    inner = ResumableDataLoader(Augmented(60), 4, shuffle=True, seed=3, num_workers=2)
    first.append(next(iterator))
    assert one_pass(inner) == expected[0]
first += iterator
assert one_pass(first) == expected[0]
assert one_pass(loader) == expected[1]
"""
    )


def test_an_inner_loader_that_is_dropped_does_not_disturb_the_outer():
    run(
        LOADERS
        + """
outer, found = iter(loader), []
for batch in outer:
    found.append(batch)
    next(iter(ResumableDataLoader(Ids(40), 4, num_workers=1)))
assert one_pass(found) == expected[0]
"""
    )


def test_loaders_may_run_in_threads_beside_each_other():
    run(
        LOADERS
        + """
results = {}
def use(name):
    mine = ResumableDataLoader(
        Augmented(60, "own"), 4, shuffle=True, seed=3, num_workers=2, persistent_workers=name % 2)
    results[name] = passes(mine, 3)

threads = [threading.Thread(target=use, args=(name,)) for name in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
alone = passes(ResumableDataLoader(Augmented(60, "own"), 4, shuffle=True, seed=3), 3)
assert list(results.values()) == [alone] * 4
"""
    )


def test_kills_in_threads_beside_each_other_hang_nobody():
    run(
        """
import contextlib, random, signal, warnings
warnings.simplefilter("ignore")
class Busy(Ids):
    def __getitem__(self, index):
        time.sleep(0.001)
        return index
results, stop = {}, threading.Event()
def use(name):
    mine = ResumableDataLoader(
        Busy(60), 4, shuffle=True, seed=3, num_workers=2, max_restarts=10**6)
    results[name] = passes(mine, 3)

def kill():
    for _ in range(200):  # not for ever, or none lives to its first batch where starts take long
        if stop.wait(0.02):
            break
        pids = worker_pids()
        with contextlib.suppress(ProcessLookupError):  # of one that has just ended
            if pids:
                os.kill(random.choice(pids), signal.SIGKILL)

threads = [threading.Thread(target=use, args=(name,)) for name in range(3)]
killer = threading.Thread(target=kill)
killer.start()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stop.set()
killer.join()
alone = passes(ResumableDataLoader(Ids(60), 4, shuffle=True, seed=3), 3)
assert list(results.values()) == [alone] * 3
"""
    )


# Datasets that misbehave


@pytest.mark.parametrize("when", ["at a sample", "at the start"])
def test_a_dataset_that_closes_descriptors_is_an_error(when):
    run(f"""
        import warnings
        from dataporter.errors import WorkerError
        warnings.simplefilter("ignore")

        class Closes(Ids):
            def __getitem__(self, index):
                if index == 9:
                    close()
                return index

        def close(_=None):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its last words are not of interest
            os.closerange(3, 256)

        init = close if {when == "at the start"} else None
        loader = ResumableDataLoader(Closes(40), 4, num_workers=2, worker_init_fn=init)
        try:
            list(loader)
        except (WorkerError, OSError):
            pass
        else:
            raise AssertionError("no error")
    """)


def test_a_worker_that_runs_out_of_memory_is_an_error():
    run("""
        class Huge(Ids):
            def __getitem__(self, index):
                resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
                return torch.ones(2**34)

        try:
            next(iter(ResumableDataLoader(Huge(8), 4, num_workers=1)))
        except RuntimeError as error:
            assert "memory" in str(error)
        else:
            raise AssertionError("no error")
    """)
