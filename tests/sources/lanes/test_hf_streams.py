"""Hugging Face's IterableDataset in lanes: its epochs, its states, and what these leave out."""

import itertools
import os
import signal

import datasets
import pytest
from support import flat, one_pass, pass_with_states, passes, plain
from watching import worker_pids

from dataporter import ResumableDataLoader
from dataporter.errors import FastForwardWarning, WorkerRestartWarning

LENGTH = 20


def double(row):
    return {"twice": row["id"] * 2}


def rows(*, shuffled: bool = False):
    dataset = datasets.Dataset.from_dict({"id": list(range(LENGTH))})
    stream = dataset.to_iterable_dataset(num_shards=4)
    if shuffled:
        stream = stream.shuffle(seed=7, buffer_size=6)
    return stream.map(double).with_format("torch")


def make(num_workers: int, *, shuffled: bool = False, **options):
    options = {"batch_size": 3, "seed": 1, "num_workers": num_workers, **options}
    return ResumableDataLoader(rows(shuffled=shuffled), **options)


def ids(batches):
    return flat(batch["id"] for batch in batches)


# datasets splits its shards among workers, and warns of a fork beside its threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize(
    ("before", "after", "persistent"),
    [(0, 0, False), (2, 2, False), (2, 2, True), (2, 0, False), (2, 3, False), (0, 2, False)],
)
def test_a_stream_resumes_exactly_under_any_number_of_workers(before, after, persistent):
    loader = make(before, persistent_workers=persistent)
    epochs, states = zip(*(pass_with_states(loader) for _ in range(3)), strict=True)
    assert epochs[2] != epochs[0]  # its shards come in another order
    for epoch in epochs:
        assert sorted(ids(epoch)) == list(range(LENGTH))
        assert all(batch["twice"] == [2 * i for i in batch["id"]] for batch in epoch)
    for epoch, k in [(0, 1), (0, 4), (1, 3), (0, len(epochs[0]))]:
        resumed = make(after)
        resumed.load_state_dict(states[epoch][k])
        assert passes(resumed, 2) == [epochs[epoch][k:], epochs[epoch + 1]]
    ended = make(after)
    ended.load_state_dict(states[1][-1])
    assert one_pass(ended) == epochs[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffle_buffer_is_not_in_its_state_so_it_is_read_again(num_workers):
    loader = make(num_workers, shuffled=True)
    epochs, states = zip(*(pass_with_states(loader) for _ in range(3)), strict=True)
    assert all(sorted(ids(epoch)) == list(range(LENGTH)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    for epoch, k in [(0, 2), (0, 5), (1, 4)]:
        resumed = make(num_workers, shuffled=True)
        with pytest.warns(FastForwardWarning, match="shuffle buffer"):
            resumed.load_state_dict(states[epoch][k])
        assert passes(resumed, 2) == [epochs[epoch][k:], epochs[epoch + 1]]


def test_a_shuffled_stream_is_the_same_in_one_lane_whoever_reads_it():
    loader = make(0, shuffled=True)
    first, states = pass_with_states(loader)
    second = one_pass(loader)
    assert passes(make(1, shuffled=True), 2) == [first, second]
    resumed = make(1, shuffled=True)
    with pytest.warns(FastForwardWarning, match="shuffle buffer"):
        resumed.load_state_dict(states[4])
    assert passes(resumed, 2) == [first[4:], second]


def interleaved():
    sources = [
        datasets.Dataset.from_dict({"id": list(range(start, start + 12))})
        for start in (0, LENGTH, 2 * LENGTH)
    ]
    streams = [source.to_iterable_dataset(num_shards=4) for source in sources]
    return datasets.interleave_datasets(streams, probabilities=[0.5, 0.3, 0.2], seed=3)


STREAMS = {"rows": rows, "interleaved": interleaved}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_one_batch_after_each_resume_comes_to_the_end(stream, lanes):
    def make():
        return ResumableDataLoader(stream(), batch_size=4, seed=1, lanes=lanes)

    expected = passes(make(), 2)
    delivered, state = [[], []], make().state_dict()
    for _ in range(len(expected[0]) + 1 + len(expected[1])):
        loader = make()
        loader.load_state_dict(state)
        for batch in itertools.islice(loader, 1):
            delivered[loader.epoch].append(plain(batch))
        state = loader.state_dict()
    assert delivered == expected


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize(
    "options", [{"lanes": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
def test_an_epoch_that_was_broken_off_or_resumed_can_be_run_again(stream, options):
    def make():
        return ResumableDataLoader(stream(), batch_size=4, seed=1, **options)

    first, second = passes(make(), 2)
    loader = make()
    running = iter(loader)
    next(running)
    next(running)
    state = loader.state_dict()
    loader.set_epoch(0)
    assert passes(loader, 2) == [first, second]
    loader.load_state_dict(state)
    assert one_pass(loader) == first[2:]
    loader.set_epoch(0)
    assert passes(loader, 2) == [first, second]


def test_why_a_shuffle_buffer_is_read_again():
    datasets.logging.set_verbosity_error()
    stream = rows(shuffled=True)
    reading = iter(stream)
    seen = [next(reading)["id"].item() for _ in range(7)]
    again = rows(shuffled=True)
    again.load_state_dict(stream.state_dict())
    # If this fails, datasets keeps its buffers now, and need not be read again.
    assert sorted(seen + [row["id"].item() for row in again]) != list(range(LENGTH))


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_epochs_are_told_by_the_loader_or_taken_from_the_stream(num_workers, persistent):
    loader = make(num_workers, shuffled=True, persistent_workers=persistent)
    epochs = passes(loader, 4)
    loader.set_epoch(2)
    assert one_pass(loader) == epochs[2]
    loader.dataset.set_epoch(1)
    assert passes(loader, 2) == [epochs[1], epochs[2]]
    for _ in range(3):
        for _ in loader:
            break
        assert len(ids(one_pass(loader))) == LENGTH


def test_more_workers_than_shards():
    loader = make(5)
    assert sorted(ids(one_pass(loader))) == list(range(LENGTH))


def test_a_replaced_worker_leaves_the_epoch_of_other_passes_alone():
    stream = rows()
    loader = ResumableDataLoader(stream, 2, num_workers=1, seed=1)
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    stream.set_epoch(9)  # as a pass beside this one does
    os.kill(worker_pids()[0], signal.SIGKILL)
    with pytest.warns(WorkerRestartWarning):
        list(batches)
    assert stream.epoch == 9


@pytest.mark.parametrize("turns", [[0, 1, 0, 1], [1, 1, 0], [1]], ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_passes_of_two_epochs_side_by_side_are_as_each_by_itself(num_workers, turns):
    reference = [ids(epoch) for epoch in passes(make(0, lanes=2), 4)]
    loader = make(num_workers, lanes=2)
    loader.set_epoch(2)
    both = [iter(loader), iter(loader)]
    got: list[list] = [[], []]
    for turn in turns:
        got[turn] += [plain(next(both[turn]))]
    for turn in (0, 1):
        got[turn] += [plain(batch) for batch in both[turn]]
    assert [ids(batches) for batches in got] == reference[2:]
