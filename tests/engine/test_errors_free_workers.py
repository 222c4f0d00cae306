"""An error that was caught holds no workers: they end with the pass, before garbage is collected.

On a Ray cluster they would keep CPUs that others wait for.
"""

import gc

import pytest
from support import Ids, one_pass
from watching import until, worker_pids

from dataporter import ResumableDataLoader
from dataporter.errors import TooManySkippedError


@pytest.fixture(autouse=True)
def _no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Damaged(Ids):
    def __getitem__(self, index: int) -> int:
        if index in (5, 9):
            raise OSError(5, f"sample {index} is damaged")
        return super().__getitem__(index)


def message_of(error, run, *arguments) -> str:
    """The message of an error that is caught and dropped, as a training does that goes on."""
    try:
        run(*arguments)
    except error as caught:
        return str(caught)
    raise AssertionError("no error")


def test_the_error_of_a_sample():
    loader = ResumableDataLoader(Damaged(16), 4, num_workers=1)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert "sample 5 is damaged" in message_of(OSError, next, batches)
    assert worker_pids()  # who goes on, goes on after it
    del batches, loader
    until(lambda: not worker_pids(), seconds=60)


def test_too_many_samples_that_were_skipped():
    loader = ResumableDataLoader(Damaged(16), 4, num_workers=1, on_error="skip", max_skipped=1)
    assert "max_skipped=1" in message_of(TooManySkippedError, one_pass, loader)
    del loader
    until(lambda: not worker_pids(), seconds=60)
