"""Objects that are sent to workers which are not forked: large buffers are copied once."""

import io
import os
from typing import Any

import numpy as np
import pytest
import torch

from dataporter import ResumableDataLoader
from dataporter.engine.connections import open_descriptors
from dataporter.engine.sending import Bulk, load, mapped

LARGE = 2**16


@pytest.fixture
def bulk():
    bulk = Bulk()
    yield bulk
    bulk.close()


def sent(bulk: Bulk, thing: Any) -> tuple[Any, list[tuple[int, int]]]:
    """Send an object as to a worker: what arrives, and the places of its large buffers."""
    stream = io.BytesIO()
    places = bulk.dump(thing, stream)
    memory = memoryview(mapped(bulk.descriptor)) if places else None
    return load(stream.getvalue(), places, memory), places


def test_what_is_sent_arrives_as_it_was(bulk):
    large = np.arange(2 * LARGE).reshape(2, -1)
    frozen = np.ones(LARGE)
    frozen.flags.writeable = False
    thing = {"large": large, "small": np.arange(3), "frozen": frozen, "columns": large.T, "n": 1}
    arrived, places = sent(bulk, thing)
    for name, array in thing.items():
        np.testing.assert_array_equal(arrived[name], array)
    assert arrived["large"].flags.writeable
    assert not arrived["frozen"].flags.writeable
    assert len(places) == 3  # the small array stays in the pickle


def test_what_is_sent_twice_is_copied_once(bulk):
    thing = [np.arange(LARGE), np.ones(LARGE)]
    _, first = sent(bulk, thing)
    size = os.fstat(bulk.descriptor).st_size
    _, second = sent(bulk, thing)
    assert first == second
    assert os.fstat(bulk.descriptor).st_size == size


def test_an_array_that_has_changed_since_is_sent_as_it_is_now(bulk):
    thing = [np.zeros(LARGE), np.ones(LARGE)]
    before, _ = sent(bulk, thing)
    thing[1][-1] = 7
    after, _ = sent(bulk, thing)
    assert (after[1] == thing[1]).all()
    assert before[1][-1] == 1  # whoever has the earlier one keeps it
    shorter, _ = sent(bulk, [thing[1][: LARGE // 2]])
    assert (shorter[0] == 1).all()


def test_who_receives_an_array_may_change_it_for_himself(bulk):
    array = np.zeros(LARGE)
    (one, _), (other, _) = sent(bulk, array), sent(bulk, array)
    one[:] = 1
    assert not other.any()
    assert not array.any()
    assert not sent(bulk, array)[0].any()


class Rows:
    """Rows of a large array. Reading one changes it where it is read."""

    def __init__(self, length: int) -> None:
        self._rows = np.arange(length * 1024).reshape(length, 1024)
        self._tensor = torch.arange(length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> list[int]:
        self._rows[index, 1:] = 0
        return [int(self._rows[index, 0]) // 1024, int(self._tensor[index])]


@pytest.mark.parametrize(("method", "workers"), [("forkserver", 2), ("spawn", 1)])
def test_workers_read_an_array_that_they_share(method, workers):
    dataset = Rows(64)
    loader = ResumableDataLoader(dataset, 4, num_workers=workers, multiprocessing_context=method)
    batches = [[column.tolist() for column in batch] for batch in loader]
    assert batches == [[[*range(n, n + 4)]] * 2 for n in range(0, 64, 4)]
    assert (dataset._rows == np.arange(64 * 1024).reshape(64, 1024)).all()


def test_no_other_engine_keeps_the_file_of_a_dataset():
    loader = ResumableDataLoader(
        Rows(64), 4, num_workers=1, multiprocessing_context="forkserver", persistent_workers=True
    )
    next(iter(loader))
    descriptor = loader._runner._kept._transport._crew._bulk.descriptor
    assert descriptor in open_descriptors()  # which a forked worker of another engine closes
    loader._runner.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
