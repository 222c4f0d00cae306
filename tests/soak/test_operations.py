"""Random sequences of all that one can do with a loader, against a model, sample by sample.

`make soak` runs it. DATAPORTER_SOAK_SECONDS sets another length, DATAPORTER_SOAK_SEED another run.
A failure names its seed: DATAPORTER_SOAK_SEED=that DATAPORTER_SOAK_SECONDS=0 repeats it.
"""

import contextlib
import copy
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import Augmented, Ids, plain
from torch.utils.data import IterableDataset, Sampler, get_worker_info
from watching import worker_pids

from dataporter import ResumableDataLoader
from dataporter.errors import WorkerTimeoutError

SECONDS = float(os.environ.get("DATAPORTER_SOAK_SECONDS", "600")) / 2
SEED = int(os.environ.get("DATAPORTER_SOAK_SEED", "1"))
# The test takes SIGALRM for itself, by which time limits are kept elsewhere.
pytestmark = pytest.mark.timeout(method="thread")
LENGTH = 61
EPOCHS = 8
LANES = 3


class Tick(BaseException):
    """What the user's timer raises."""


class Slow(Ids):
    """Now and then a sample takes longer than the loader is patient."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.15 if index % 20 == 7 else 0)
        return super().__getitem__(index)


class Damaged(Ids):
    def __getitem__(self, index: int) -> int:
        if index % 10 == 3:
            raise OSError(f"sample {index} is damaged")
        return super().__getitem__(index)


class Stream(IterableDataset):
    """Each lane counts its own samples, with random numbers; it begins anew at its end."""

    def __iter__(self) -> Iterator[tuple[int, float]]:
        info = get_worker_info()
        lane, lanes = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(lane, LENGTH, lanes):
            yield index, random.random()


class StatefulStream(Stream):
    """The same, and it knows where it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[tuple[int, float]]:
        info = get_worker_info()
        lane, lanes = (0, 1) if info is None else (info.id, info.num_workers)
        while (index := lane + self.at * lanes) < LENGTH:
            self.at += 1
            yield index, random.random()
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def hugging_face() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"id": range(LENGTH)}).to_iterable_dataset(LANES)


class Shuffling(Sampler):
    """Shuffles by a generator of its own: how far a pass is read does not matter to the next."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(4)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(LENGTH, generator=self.generator).tolist()

    def __len__(self) -> int:
        return LENGTH


# The dataset and the options that stay, made anew for every loader.
KINDS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "own order": lambda: (Augmented(LENGTH), {"shuffle": True}),
    "out of order": lambda: (Augmented(LENGTH), {"shuffle": True, "in_order": False}),
    "a user's sampler": lambda: (Augmented(LENGTH), {"sampler": Shuffling()}),
    "a sampler out of order": lambda: (
        Augmented(LENGTH),
        {"sampler": Shuffling(), "in_order": False},
    ),
    "slow samples": lambda: (Slow(LENGTH), {"shuffle": True, "timeout": 0.05}),
    "damaged samples": lambda: (Damaged(LENGTH), {"shuffle": True, "on_error": "skip"}),
    "a stream": lambda: (Stream(), {"lanes": LANES}),
    "a stream with a state": lambda: (StatefulStream(), {"lanes": LANES}),
    "a stream out of order": lambda: (StatefulStream(), {"lanes": LANES, "in_order": False}),
    "Hugging Face": lambda: (hugging_face(), {"lanes": LANES}),
}


def samples_of(batch: Any) -> list[Any]:
    """A batch, sample by sample."""
    found = plain(batch)
    if isinstance(found, dict):
        return list(found["id"])
    if isinstance(found[0], list):
        columns = found[1] if isinstance(found[1][0], list) else [found[1]]
        return [(sample, *(c[at] for c in columns)) for at, sample in enumerate(found[0])]
    return found


class Session:
    """One loader after another, as a user would have them, and what they must deliver."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.name = self.chance.choice(list(KINDS))
        self.size = self.chance.randint(1, 6)
        self.ordered = "out of order" not in self.name
        self.has_lanes = "lanes" in KINDS[self.name]()[1]
        with_all = self.made(num_workers=0, in_order=True)
        self.reference = [[samples_of(batch) for batch in with_all] for _ in range(EPOCHS)]
        self.children: list[tuple[Any, int, int, int]] = []  # batch, process, its pipes
        self.kept: list[tuple[Any, int, list[Any]]] = []  # states, of which epoch, with what seen
        self.log: list[str] = [self.name, f"batch_size={self.size}"]
        self.loader = self.other()
        self.begin(0)

    def made(self, **options: Any) -> ResumableDataLoader:
        dataset, stays = KINDS[self.name]()
        return ResumableDataLoader(dataset, self.size, seed=7, **{**stays, **options})

    def other(self) -> ResumableDataLoader:
        workers = self.chance.choice([0, 1, 2, 4])
        if not self.has_lanes and not self.name.startswith("slow"):
            self.size = self.chance.choice([self.size, self.chance.randint(1, 6)])
        persistent = workers > 0 and self.chance.random() < 0.5
        self.log.append(f"{workers} workers, batch_size={self.size}")
        return self.made(num_workers=workers, persistent_workers=persistent, max_restarts=10**6)

    def begin(self, epoch: int) -> None:
        self.batches = iter(self.loader)
        self.epoch, self.seen = epoch, []

    def expected(self, epoch: int) -> list[Any]:
        return [sample for batch in self.reference[epoch] for sample in batch]

    def check(self, epoch: int, seen: list[Any], *, ended: bool = False) -> None:
        expected = self.expected(epoch)
        if self.ordered:
            assert seen == expected[: len(seen)]
        else:
            assert len(set(seen)) == len(seen)
            assert set(seen) <= set(expected)
        if ended:
            assert len(seen) == len(expected)

    def patient(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield next(batches)
            except StopIteration:
                return
            except WorkerTimeoutError:
                continue

    def read(self, count: int | None) -> Any:
        """Read so many batches, or the rest; the last one."""
        batch = None
        for batch in self.patient(self.batches):
            self.seen += samples_of(batch)
            count = None if count is None else count - 1
            if count == 0:
                break
        else:
            self.check(self.epoch, self.seen, ended=True)
            self.kept.clear()
            self.begin(self.epoch + 1)
        self.check(self.epoch, self.seen)
        return batch

    def some(self) -> int:
        return self.chance.choice([1, 2, self.chance.randint(1, 12)])

    def step(self) -> None:
        names = ["read", "read", "end", "resume", "reload", "go_back", "break_off"]
        names += ["side_by_side", "interrupt", "fork", "kill", "copy"]
        name = self.chance.choice(names)
        self.log.append(name)
        getattr(self, f"do_{name}")()

    def do_read(self) -> None:
        self.read(self.some())

    def do_end(self) -> None:
        self.read(None)

    def do_resume(self) -> None:
        """Go on in another loader, as a new process would."""
        state = pickle.loads(pickle.dumps(self.loader.state_dict()))
        self.loader = self.other()
        self.loader.load_state_dict(state)
        seen = self.seen
        self.begin(self.epoch)
        self.seen = seen

    def do_reload(self) -> None:
        """Load a state into the loader that it comes from, whose iterator follows."""
        self.loader.load_state_dict(self.loader.state_dict())
        if self.chance.random() < 0.5:
            self.batches = iter(self.loader)
        else:
            self.read(1)

    def do_go_back(self) -> None:
        """Load an earlier state of this epoch, or keep one for later."""
        if not self.kept or self.chance.random() < 0.4:
            self.kept.append((self.loader.state_dict(), self.epoch, list(self.seen)))
            return
        state, self.epoch, seen = self.chance.choice(self.kept)
        self.seen = list(seen)
        self.loader.load_state_dict(state)
        self.batches = iter(self.loader)

    def do_break_off(self) -> None:
        self.kept.clear()
        self.begin(self.epoch + 1)

    def do_side_by_side(self) -> None:
        """Begin the next epoch, and read this one to its end beside it."""
        older, epoch, seen = self.batches, self.epoch, self.seen
        self.kept.clear()
        self.begin(epoch + 1)
        newer = self.batches
        for _ in range(self.chance.randint(0, 3)):
            self.read(1)
            if self.batches is not newer:
                return
        for batch in self.patient(older):
            seen += samples_of(batch)
        self.check(epoch, seen, ended=True)

    def do_interrupt(self) -> None:
        """Read under a timer that interrupts anywhere, and go on."""
        got: list[Any] = []
        signal.setitimer(signal.ITIMER_REAL, self.chance.uniform(1e-5, 0.05))
        with contextlib.suppress(Tick, WorkerTimeoutError):
            try:
                for batch in self.batches:
                    got.append(batch)  # noqa: PERF402  a batch is kept before anything can happen
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        for batch in got:
            self.seen += samples_of(batch)
        self.check(self.epoch, self.seen)
        self.read(self.some())

    def do_fork(self) -> None:
        """Give a batch to a child, which shows it in the end."""
        batch = self.read(1)
        if batch is None or len(self.children) > 4:
            return
        asked, ask = os.pipe()
        answer, answers = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.close(ask)
                os.read(asked, 1)
                with os.fdopen(answers, "wb") as stream:
                    pickle.dump(plain(batch), stream)
            os._exit(0)
        os.close(asked)
        os.close(answers)
        self.children.append((plain(batch), pid, ask, answer))

    def do_kill(self) -> None:
        self.read(1)
        workers = worker_pids()
        if workers:
            os.kill(self.chance.choice(workers), signal.SIGKILL)
        self.read(self.some())

    def do_copy(self) -> None:
        """Copy the loader; the copy begins the next epoch, and this one goes on."""
        copied = copy.deepcopy(self.loader)
        seen = [sample for batch in self.patient(iter(copied)) for sample in samples_of(batch)]
        self.check(self.epoch + 1, seen, ended=True)

    def finish(self) -> None:
        for expected, pid, ask, answer in self.children:
            os.write(ask, b"?")
            with os.fdopen(answer, "rb") as stream:
                assert pickle.load(stream) == expected
            os.close(ask)
            os.waitpid(pid, 0)
        skipped = [(s.epoch, s.position) for s in self.loader.skipped]
        assert len(set(skipped)) == len(skipped)


@pytest.fixture
def ticking():
    def tick(_signal, _frame):
        raise Tick

    before = signal.signal(signal.SIGALRM, tick)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.soak
@pytest.mark.long(SECONDS + 300, reason="it runs for as long as it was asked to")
@pytest.mark.filterwarnings("ignore::dataporter.DataPorterWarning")
# An interrupt that comes while Python cleans up is shown and forgotten, as Python does.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("ticking")
def test_whatever_is_done_every_sample_comes_when_the_model_says():
    deadline, seed = time.monotonic() + SECONDS, SEED
    while seed == SEED or time.monotonic() < deadline:
        session = Session(seed)
        try:
            while session.epoch < EPOCHS - 3 and len(session.log) < 60:
                session.step()
            session.finish()
        except BaseException as error:
            error.add_note(f"DATAPORTER_SOAK_SEED={seed}: {', '.join(session.log)}")
            raise
        seed += 1
