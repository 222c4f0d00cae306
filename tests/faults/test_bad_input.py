"""Datasets that cannot work: an error that says so, never a hang."""

import os
import pickle
import resource
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_scripts import run
from support import Ids
from watching import worker_pids

from dataporter import OptionError, ResumableDataLoader
from dataporter.errors import (
    WorkerDiedError,
    WorkerError,
    WorkerRestartWarning,
    WorkerStartError,
)

quiet = pytest.mark.usefixtures("capfd")  # a worker that dies may leave a word on its stderr


class Gives(Ids):
    """Sample 5 is what a function makes; it is named, so that it travels to any worker."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(8)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make() if index == 5 else super().__getitem__(index)


def batches_before_the_error(
    dataset: Any, error: Any, match: str | None, **options: Any
) -> list[Any]:
    """What comes before sample 5; after the error the loader must be of use still."""
    loader = ResumableDataLoader(dataset, 2, collate_fn=list, num_workers=1, **options)
    iterator, found = iter(loader), []
    with pytest.raises(error, match=match):
        found.extend(iterator)
    assert loader.state_dict()["samples_processed"] == 4
    resumed = ResumableDataLoader(dataset, 2, collate_fn=list, num_workers=1, **options)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(error, match=match):
        next(iter(resumed))
    list(iterator)  # what comes after it
    assert loader.state_dict()["finished"]
    return found


# Samples that cannot travel


def a_lambda() -> Any:
    return lambda: None


def a_local_class() -> Any:
    class Local:
        pass

    return Local()


def a_generator() -> Any:
    return (i for i in range(3))


def a_lock() -> Any:
    return threading.Lock()


def an_open_file() -> Any:
    return Path(os.devnull).open()


class Refuses:
    def __reduce__(self) -> Any:
        raise NotImplementedError("I stay where I am")


class ArrivesBroken:
    """Can be pickled, and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def endlessly_nested() -> Any:
    nested: list[Any] = []
    for _ in range(10**5):
        nested = [nested]
    return nested


STAY: dict[Any, tuple[Any, str]] = {
    a_lambda: ((AttributeError, pickle.PicklingError), "lambda"),
    a_local_class: ((AttributeError, pickle.PicklingError), "Local"),
    a_generator: (TypeError, "generator"),
    a_lock: (TypeError, "lock"),
    an_open_file: (TypeError, "TextIOWrapper"),
    Refuses: (NotImplementedError, "I stay where I am"),
    ArrivesBroken: (ValueError, "no number"),
    endlessly_nested: (RecursionError, "recursion|Stack overflow"),
}


@pytest.mark.parametrize("make", STAY, ids=lambda make: make.__name__)
def test_a_sample_that_cannot_be_sent_is_an_error_that_names_it(make):
    error, words = STAY[make]
    assert batches_before_the_error(Gives(make), error, words) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("make", [a_lambda, a_local_class])
def test_so_it_is_in_workers_that_are_not_forked(make):
    error, words = STAY[make]
    loader = ResumableDataLoader(
        Gives(make), 2, collate_fn=list, num_workers=1, multiprocessing_context="forkserver"
    )
    with pytest.raises(error, match=words):
        list(loader)
    assert loader.state_dict()["samples_processed"] == 4


def test_an_index_that_cannot_be_sent_is_an_error_at_once():
    loader = ResumableDataLoader(Ids(8), 2, sampler=[0, 1, lambda: 2], num_workers=1)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        list(loader)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_holds_what_cannot_be_sent_is_an_error_at_once(method):
    for make in (a_lambda, a_local_class, a_generator, a_lock):
        dataset = Gives(int)
        dataset.held = make()  # type: ignore[attr-defined]
        loader = ResumableDataLoader(dataset, 2, num_workers=2, multiprocessing_context=method)
        with pytest.raises(OptionError, match=f"{method}.*multiprocessing_context"):
            iter(loader)
    assert not worker_pids()


@quiet
def test_a_dataset_that_cannot_be_rebuilt_in_a_worker_is_an_error():
    loader = ResumableDataLoader(
        [ArrivesBroken()], num_workers=1, multiprocessing_context="forkserver"
    )
    with pytest.raises(WorkerStartError, match=r"forkserver.*ValueError.*no number") as told:
        list(loader)
    assert "Traceback" in str(told.value.__cause__)


UNDER_THE_GUARD = """
import sys, warnings
from dataporter import ResumableDataLoader
from dataporter.errors import WorkerStartError
warnings.simplefilter("error")  # nobody is replaced

class Here:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index

class Stream(__import__("torch").utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(8))

method, times = sys.argv[1], int(sys.argv[2])
for dataset in (Here(),) if method == "spawn" else (Stream(),):
    loader = ResumableDataLoader(
        dataset, 2, num_workers=1, multiprocessing_context=method, persistent_workers=True)
    iterator = iter(loader)
    for _ in range(times):
        try:
            next(iterator)
        except WorkerStartError as error:
            assert f"Can't get attribute '{type(dataset).__name__}'" in str(error), error
            assert repr(method) in str(error) and "multiprocessing_context='fork'" in str(error)
            assert "Traceback" in str(error.__cause__)
            print("told")
    assert loader.state_dict()["samples_processed"] == 0
    del iterator, loader
"""


# Each time that it is told, a worker starts, which takes a spawned one over a second.
@pytest.mark.parametrize(("method", "times"), [("spawn", 1), ("forkserver", 2)])
def test_a_class_under_the_main_guard_that_a_worker_cannot_import_is_an_error_at_once(
    method, times, tmp_path
):
    script = tmp_path / "guarded.py"
    script.write_text("if __name__ == '__main__':" + textwrap.indent(UNDER_THE_GUARD, "    "))
    main = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert run(main, method, times) == "told\n" * times


@quiet
def test_a_function_of_a_script_that_has_no_main_guard_is_an_error(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("""
from dataporter import ResumableDataLoader
list(ResumableDataLoader(range(4), num_workers=1, multiprocessing_context="spawn"))
""")
    with pytest.raises(AssertionError, match=r"(?s)bootstrapping.*WorkerStartError.*__name__"):
        run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")


# Errors that cannot travel, or hardly


class Several(Exception):  # noqa: N818
    def __init__(self, path: str, line: int, *, column: int = 0) -> None:
        super().__init__(f"{path}:{line}:{column}")
        self.line, self.column = line, column


class Mute(Exception):  # noqa: N818
    """Its message cannot be read."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Chained(Exception):  # noqa: N818
    pass


class Raises(Ids):
    def __init__(self, fail: Callable[[], Any]) -> None:
        super().__init__(8)
        self.fail = fail

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.fail()
        return index


def fail_with_several_arguments() -> None:
    raise Several("a.jsonl", 7, column=3)


def fail_with_a_local_class() -> None:
    class Local(Exception):  # noqa: N818
        pass

    raise Local("made on the spot")


def fail_with_a_lock_in_hand() -> None:
    error = OSError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def fail_without_words() -> None:
    raise Mute


def fail_for_a_reason() -> None:
    try:
        raise KeyError("the reason")
    except KeyError as error:
        raise Chained("the outcome") from error


def stop() -> None:
    raise StopIteration("not the end of the epoch")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_error_made_of_several_arguments_arrives_whole(method):
    loader = ResumableDataLoader(
        Raises(fail_with_several_arguments), 2, num_workers=1, multiprocessing_context=method
    )
    with pytest.raises(Several, match=r"a\.jsonl:7:3") as caught:
        list(loader)
    assert (caught.value.line, caught.value.column) == (7, 3)


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (fail_with_a_local_class, "Local.*made on the spot"),
        (fail_with_a_lock_in_hand, "OSError.*holds a lock"),
        (fail_without_words, "Mute"),
    ],
)
def test_an_error_that_cannot_be_pickled_is_told_in_words(fail, words):
    with pytest.raises(WorkerError, match=f"(?s){words}") as caught:
        list(ResumableDataLoader(Raises(fail), 2, num_workers=1))
    assert not isinstance(caught.value, WorkerDiedError)
    assert fail.__name__ in str(caught.value)


def test_what_led_to_an_error_is_told():
    with pytest.raises(Chained, match="the outcome") as caught:
        list(ResumableDataLoader(Raises(fail_for_a_reason), 2, num_workers=1))
    assert "KeyError: 'the reason'" in str(caught.value.__cause__)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stop_iteration_of_the_dataset_does_not_end_the_epoch_silently(num_workers):
    loader = ResumableDataLoader(Raises(stop), 2, num_workers=num_workers)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)
    assert loader.state_dict()["samples_processed"] == 4


# Memory


SLACK = 2**26  # bytes that a worker may still take


def limit_memory(_worker: int) -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + SLACK, taken + SLACK))


def large_array() -> Any:
    return np.ones(2 * SLACK, np.uint8)


def large_tensor() -> Any:
    return torch.ones(2 * SLACK, dtype=torch.uint8)


def hoarding() -> Any:
    return [bytearray(2**20) for _ in range(2 * SLACK // 2**20)]


def raised_by_hand() -> Any:
    raise MemoryError("said the dataset")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit is not kept")
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (large_array, MemoryError),
        (large_tensor, RuntimeError),
        (hoarding, MemoryError),
        (raised_by_hand, MemoryError),
    ],
)
def test_a_worker_out_of_memory_is_an_error_that_leaves_the_state_before_it(make, error):
    found = batches_before_the_error(Gives(make), error, None, worker_init_fn=limit_memory)
    assert found == [[0, 1], [2, 3]]


class Wide(Ids):
    """Sample i is a little memory that looks like much: only a batch of them is."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.uint8).expand(SLACK)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit is not kept")
def test_a_batch_for_which_there_is_no_memory_is_an_error():
    loader = ResumableDataLoader(Wide(8), 4, num_workers=1, worker_init_fn=limit_memory)
    with pytest.raises((MemoryError, OSError, RuntimeError), match="memory"):
        list(loader)


class Killed(Ids):
    """Whoever fetches a sample is killed, as the system does when memory runs out."""

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def killed_at_once(_worker: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("num_workers", [1, 4])
@pytest.mark.parametrize("max_restarts", [0, 5])
@pytest.mark.parametrize(
    "options",
    [{"dataset": Killed(40)}, {"dataset": Ids(40), "worker_init_fn": killed_at_once}],
    ids=["at every sample", "at the start"],
)
def test_workers_that_are_killed_every_time_are_an_error_that_speaks_of_memory(
    options, max_restarts, num_workers
):
    loader = ResumableDataLoader(
        batch_size=4, num_workers=num_workers, max_restarts=max_restarts, **options
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", WorkerRestartWarning)
        with pytest.raises(WorkerDiedError, match=r"SIGKILL.*ran out of memory"):
            list(loader)
    assert len(caught) == max_restarts
    assert loader.state_dict()["samples_processed"] == 0


def test_so_they_are_under_a_fork_server():
    loader = ResumableDataLoader(
        Killed(8), num_workers=1, max_restarts=0, multiprocessing_context="forkserver"
    )
    with pytest.raises(WorkerDiedError, match=r"SIGKILL.*ran out of memory"):
        list(loader)


# Descriptors


CLOSING = """
import os, resource, signal, sys, tempfile, time, warnings
from dataporter import ResumableDataLoader
from dataporter.errors import WorkerError
from support import Ids
warnings.simplefilter("ignore")

def engines():
    '''Descriptors of the engine's, as a worker finds them: of the arena and of pipes.'''
    found = {int(name): os.readlink(f"/proc/self/fd/{name}")
             for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
    arena = [fd for fd, path in found.items() if "memfd:dataporter" in path]
    return arena, [fd for fd, path in found.items() if path.startswith("pipe:") and fd > 2]

class Closes(Ids):
    def __getitem__(self, index):
        if index == 9:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its last words are not of interest
            close()
        return index

def outcome():
    loader = ResumableDataLoader(Closes(200), 2, num_workers=2)
    try:
        found = [batch.tolist() for batch in loader]
        assert found == [[index, index + 1] for index in range(0, 200, 2)]
        return "right"
    except (WorkerError, OSError):
        return "an error"
"""


def test_a_dataset_that_closes_the_engines_descriptors_hangs_nobody():
    run(
        CLOSING
        + textwrap.dedent("""
        files = []
        def replaced():
            os.closerange(3, 64)
            files.extend(tempfile.TemporaryFile() for _ in range(64))

        # What lies in slots that are mapped already can be used without the arena, and one of
        # the pipes is multiprocessing's own and not needed.
        for close in (
            lambda: [os.close(descriptor) for descriptor in engines()[0]],
            lambda: os.close(engines()[1][0]),
            lambda: os.close(engines()[1][1]),
            lambda: os.close(engines()[1][2]),
        ):
            assert outcome() in ("right", "an error")
        for close in (lambda: [os.close(fd) for fd in engines()[1]], replaced):
            assert outcome() == "an error"
        """),
    )


def test_a_dataset_that_closes_its_own_inherited_descriptors_does_no_harm():
    run(
        CLOSING
        + textwrap.dedent("""
        mine = [tempfile.TemporaryFile() for _ in range(5)]
        def close():
            for file in mine:
                file.close()
            os.close(0)
        assert [b.tolist() for b in ResumableDataLoader(Closes(20), 5, num_workers=2)] == [
            list(range(first, first + 5)) for first in range(0, 20, 5)]
        assert not any(file.closed for file in mine)
        """),
    )
