"""A training script that saves in its SIGINT handler, interrupted for real and run again."""

import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from forked_scripts import Script, run_to_end, started_to_files
from interrupting import Tick, interrupted, raise_tick
from support import Ids, one_pass, passes, plain
from torch.utils.data import IterableDataset, RandomSampler, Sampler
from watching import until

from dataporter import NoSampleError, ResumableDataLoader, sample_rng
from dataporter.fetch.generators import capture

# The tests take SIGALRM for themselves, by which time limits are kept elsewhere.
pytestmark = pytest.mark.timeout(method="thread")

SCRIPT = """
import json, os, signal, sys, time
import torch
from support import Ids
from dataporter import create_resumable_dataloader

folder = sys.argv[1]
checkpoint_path = folder + "/interrupt_checkpoint.pt"
dataloader = create_resumable_dataloader(Ids(200), batch_size=4, shuffle=True, seed=3)
start_epoch, seen = 0, open(folder + "/seen.jsonl", "a", buffering=1)

def save_checkpoint(signum, frame):
    torch.save({"dataloader": dataloader.state_dict(), "epoch": epoch}, checkpoint_path)
    sys.exit(0)

signal.signal(signal.SIGINT, save_checkpoint)
if os.path.exists(checkpoint_path):
    checkpoint = torch.load(checkpoint_path)
    dataloader.load_state_dict(checkpoint["dataloader"])
    start_epoch = checkpoint["epoch"]

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
for epoch in range(start_epoch, 2):
    dataloader.set_epoch(epoch)
    for batch in dataloader:
        seen.write(json.dumps([epoch, batch.tolist()]) + chr(10))
        # A step is made whole, and the batch after it is not begun before this is done.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        time.sleep(0.005)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
"""


def test_a_script_that_saves_on_sigint_goes_on_with_the_next_batch(tmp_path: Path):
    log = tmp_path / "seen.jsonl"
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    for interrupt_after in (7, 60, None):
        with started_to_files(path, tmp_path) as child:

            def is_time(child: Script = child, lines: int | None = interrupt_after) -> bool:
                assert child.poll() is None
                return log.exists() and len(log.read_text().splitlines()) >= lines

            if interrupt_after is not None:
                until(is_time)
                os.kill(child.pid, signal.SIGINT)
            ended = child.ended()
            assert (ended.status, ended.err) == (0, "")
    seen = [json.loads(line) for line in log.read_text().splitlines()]
    reference = passes(ResumableDataLoader(Ids(200), 4, shuffle=True, seed=3), 2)
    expected = [[epoch, batch] for epoch in range(2) for batch in reference[epoch]]
    assert seen == expected


class Interrupted:
    """A consumer that a timer interrupts at random moments, and that goes on each time.

    A round without a batch doubles the time to the next interrupt. So every pass ends, however long
    this machine takes to start workers.
    """

    def __init__(self, seed: int, longest: float) -> None:
        self._rng, self._longest = random.Random(seed), longest
        self.times = 0

    def all_of(self, batches) -> list:
        got: list = []
        longest = self._longest
        while True:
            delivered = len(got)
            try:
                signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(1e-5, longest))
                for batch in batches:
                    got.append(batch)  # noqa: PERF402  a batch is kept before anything can happen
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Tick:
                self.times += 1
                longest = self._longest if len(got) > delivered else 2 * longest
            else:
                return [plain(batch) for batch in got]


@pytest.fixture
def ticking():
    before = signal.signal(signal.SIGALRM, raise_tick)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Stream(IterableDataset):
    """Counts up, with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        while self.at < 60:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict:
        return {"at": self.at}

    def load_state_dict(self, state: dict) -> None:
        self.at = state["at"]


SOURCES = {
    "own order": lambda: (Ids(60), {"shuffle": True}),
    "a sampler": lambda: (
        Ids(60),
        {"sampler": RandomSampler(Ids(60), generator=torch.Generator().manual_seed(1))},
    ),
    "a stream": lambda: (Stream(), {}),
}


# One that comes while Python cleans up is shown and forgotten, as Python does with those.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(
    ("options", "epochs", "longest"),
    [
        ({}, 150, 0.002),
        # Not threads: the locks of Python's own thread pools do not survive it.
        ({"num_workers": 2, "persistent_workers": True}, 20, 0.02),
        ({"num_workers": 2}, 10, 0.05),
    ],
    ids=["inline", "persistent workers", "workers"],
)
@pytest.mark.parametrize("source", SOURCES)
def test_who_catches_interrupts_and_goes_on_gets_every_batch_once(source, options, epochs, longest):
    def make() -> ResumableDataLoader:
        dataset, more = SOURCES[source]()
        return ResumableDataLoader(dataset, 4, seed=3, **more, **options)

    reference = passes(make(), epochs)
    loader, consumer = make(), Interrupted(1, longest)
    for epoch in range(epochs):
        assert consumer.all_of(iter(loader)) == reference[epoch]
    assert consumer.times


# In a process of its own: others' threads and garbage would count too.
TICKED = """
import gc, signal
from support import Ids
from interrupting import raise_tick
from test_interrupt import Interrupted
from watching import open_descriptors, until, worker_pids
from dataporter import ResumableDataLoader

def read(epochs):
    loader, consumer = ResumableDataLoader(Ids(60), 4, num_workers=2), Interrupted(2, 0.05)
    for _ in range(epochs):
        consumer.all_of(iter(loader))
    signal.setitimer(signal.ITIMER_REAL, 0)

signal.signal(signal.SIGALRM, raise_tick)
read(1)
gc.collect()
before = open_descriptors()
read(12)
# Workers that have ended are collected at the next batch of any loader, or with the garbage.
until(lambda: gc.collect() >= 0 and open_descriptors() <= before and not worker_pids())
"""


def test_interrupts_leave_no_descriptors_and_no_children_behind():
    done = run_to_end(TICKED, timeout=90)
    assert done.status == 0, done.err


class Counting(Ids):
    """Read by index; its samples count how many were read, which is its state."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.read = 0

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return 1000 * self.read + index

    def state_dict(self) -> dict:
        return {"read": self.read}

    def load_state_dict(self, state: dict) -> None:
        self.read = state["read"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(
    ("options", "stride"),
    [({}, 1), ({"num_workers": 2, "persistent_workers": True}, 2), ({"num_workers": 2}, 17)],
    ids=["inline", "persistent workers", "workers"],
)
@pytest.mark.parametrize("source", [*SOURCES, "a dataset with a state"])
def test_an_iter_that_is_interrupted_and_tried_again_equals_one_that_is_not(
    source, options, stride
):
    def make(options: dict[str, Any]) -> ResumableDataLoader:
        dataset, more = {**SOURCES, "a dataset with a state": lambda: (Counting(60), {})}[source]()
        return ResumableDataLoader(dataset, 4, seed=3, **more, **options)

    # Samples by index are the same without workers, which take long to start.
    by_index = source in ("own order", "a sampler")
    loader, other = make(options), make({} if by_index else options)
    times = itertools.count(0, stride)
    loader.load_state_dict(other.state_dict())
    while interrupted(loader.__iter__, next(times)):
        assert one_pass(loader) == one_pass(other), times
        batches, others = iter(loader), iter(other)
        assert [plain(next(batches)) for _ in range(3)] == [plain(next(others)) for _ in range(3)]
        state = other.state_dict()
        del batches, others
        loader.load_state_dict(state)  # where a pass is to begin that is interrupted next
        other.load_state_dict(state)
    assert next(times) > 20


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("file", ["passes.py", "epochs.py"])
@pytest.mark.parametrize("source", [*SOURCES, "a dataset with a state"])
def test_an_iter_is_undone_that_is_interrupted_between_its_beginning_and_its_return(source, file):
    def make() -> ResumableDataLoader:
        dataset, more = {**SOURCES, "a dataset with a state": lambda: (Counting(60), {})}[source]()
        return ResumableDataLoader(dataset, 4, seed=3, **more)

    loader, other, times = make(), make(), itertools.count()
    while interrupted(loader.__iter__, next(times), after_calls_in=file):
        assert one_pass(loader) == one_pass(other), times
    assert next(times) > 3


class Drawer(Ids):
    def __getitem__(self, index: int) -> float:
        return index + random.random()


def jittered(samples: list[int]) -> torch.Tensor:
    return torch.tensor(samples) + torch.rand(len(samples))


class DrawingStream(IterableDataset):
    def __iter__(self) -> Iterator[float]:
        start = random.random()
        for index in range(40):
            yield index + start + random.random()


def interrupt_everywhere(begin: Callable[[], Callable[[], object]]) -> Iterator[int]:
    """Run what `begin` returns again and again, with `Tick` raised as it enters a function.

    That is one of the moments at which Python runs handlers of signals. Each run has it at the
    next function of dataporter.
    """
    for chosen in itertools.count():
        run, entered, before = begin(), itertools.count(), sys.gettrace()

        def trace(
            frame: FrameType, event: str, _: Any, chosen: int = chosen, entered: Any = entered
        ) -> None:
            if "dataporter" in frame.f_code.co_filename and next(entered) == chosen:
                raise Tick

        sys.settrace(trace)
        try:
            run()
        except Tick:
            pass
        finally:
            sys.settrace(before)
        if next(entered) <= chosen:
            return
        yield chosen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("dataset", "collate_fn"),
    [(Drawer(40), None), (Ids(40), jittered), (DrawingStream(), None)],
    ids=["samples", "collation", "stream"],
)
@pytest.mark.parametrize("batches_before", [None, 0, 1])
def test_an_interrupt_at_any_moment_leaves_generators_and_sample_alone(
    dataset, collate_fn, batches_before
):
    def begin() -> Callable[[], object]:
        loader = ResumableDataLoader(dataset, 4, collate_fn=collate_fn, seed=1)
        if batches_before is None:
            return loader.__iter__
        batches = iter(loader)
        for _ in range(batches_before):
            next(batches)
        return batches.__next__

    before = capture()
    for moment in interrupt_everywhere(begin):
        assert before.still_holds(), moment
        with pytest.raises(NoSampleError):
            sample_rng()
    assert moment > 10


class DrawingSampler(Sampler):
    """Draws each index from the global generators."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(12):
            yield int(torch.randint(12, ()).item()) + random.randrange(12) + np.random.randint(12)

    def __len__(self) -> int:
        return 12


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "sampler", [DrawingSampler(), RandomSampler(Ids(40))], ids=["own", "torch"]
)
@pytest.mark.parametrize("batches_before", [None, 0, 1])
def test_an_interrupt_while_a_sampler_draws_leaves_generators_alone(sampler, batches_before):
    def begin() -> Callable[[], object]:
        loader = ResumableDataLoader(Ids(40), 4, sampler=sampler, seed=1)
        if batches_before is None:
            return loader.__iter__
        batches = iter(loader)
        for _ in range(batches_before):
            next(batches)
        return batches.__next__

    before = capture()
    for moment in interrupt_everywhere(begin):
        assert before.still_holds(), moment
    assert moment > 10
