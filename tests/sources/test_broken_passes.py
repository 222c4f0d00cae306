"""Errors and interrupts in a pass, and looks ahead: nothing is lost and nothing comes twice."""

from collections.abc import Iterator
from typing import Any

import pytest
from support import (
    Ids,
    Stateless,
    one_pass,
    pass_with_states,
    plain,
)

from dataporter import (
    ResumableDataLoader,
)


def make(length: int = 10, batch_size: int = 3, **options) -> ResumableDataLoader:
    return ResumableDataLoader(Ids(length), batch_size, **{"shuffle": True, "seed": 1, **options})


class FailsOnce(Ids):
    """Raises for a sample the first time it is asked for."""

    def __init__(self, length: int, error: BaseException, failing: int) -> None:
        super().__init__(length)
        self.error, self.failing = error, {failing}

    def __getitem__(self, index: int) -> int:
        if index in self.failing:
            self.failing.discard(index)
            raise self.error
        return super().__getitem__(index)


def failing_at_4(error: BaseException) -> tuple[ResumableDataLoader, Iterator[Any]]:
    """A loader and its pass, after batches [0, 1], [2, 3] and an error."""
    loader = ResumableDataLoader(FailsOnce(10, error, failing=4), 2, seed=1)
    batches, seen = iter(loader), []
    with pytest.raises((OSError, KeyboardInterrupt, RuntimeError)):
        seen.extend(plain(batch) for batch in batches)
    assert seen == [[0, 1], [2, 3]]
    assert loader.state_dict()["samples_processed"] == 4
    assert not loader.state_dict()["finished"]
    return loader, batches


def test_after_an_interrupt_the_same_batch_is_tried_again_and_nothing_is_lost():
    loader, batches = failing_at_4(KeyboardInterrupt())
    assert [plain(batch) for batch in batches] == [[4, 5], [6, 7], [8, 9]]
    assert loader.state_dict()["finished"]


@pytest.mark.parametrize("error", [OSError("gone"), StopIteration()])
def test_after_an_error_a_pass_goes_on_after_it_as_torchs_does_and_a_resume_tries_again(error):
    loader, batches = failing_at_4(error)
    resumed = ResumableDataLoader(Ids(10), 2, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert one_pass(resumed) == [[4, 5], [6, 7], [8, 9]]
    assert [plain(batch) for batch in batches] == [[6, 7], [8, 9]]
    assert loader.state_dict()["finished"]
    assert loader.state_dict()["batches_processed"] == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_that_goes_on_whatever_happens_comes_to_an_end(num_workers):
    class Hopeless(Ids):
        def __getitem__(self, index: int) -> int:
            raise NotImplementedError

    batches = iter(ResumableDataLoader(Hopeless(10), 2, num_workers=num_workers))
    errors = 0
    with pytest.raises(StopIteration):
        while True:
            try:
                next(batches)
            except NotImplementedError:
                errors += 1
    assert errors == 5


def test_after_an_error_in_a_sampler_it_is_drawn_again():
    class Failing(Stateless):
        fails = True

        def __iter__(self):
            for index in range(self.length):
                if index == 4 and self.fails:
                    Failing.fails = False
                    raise OSError("gone")
                yield index

    loader = ResumableDataLoader(Ids(8), 2, sampler=Failing(8), seed=1)
    batches = iter(loader)
    assert [plain(next(batches)) for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="gone"):
        next(batches)
    assert [plain(batch) for batch in batches] == [[4, 5], [6, 7]]


def test_a_pass_knows_its_last_batch_and_looking_ahead_delivers_nothing():
    loader, plain_loader = make(), make()
    batches, seen, states = iter(loader), [], []
    for batch in batches:
        seen.append((plain(batch), batches.is_last(), batches.is_last()))
        states.append(loader.state_dict())
    expected, expected_states = pass_with_states(plain_loader)
    assert [batch for batch, *_ in seen] == expected
    assert [last for _, last, _ in seen] == [False, False, False, True]
    assert [last for *_, last in seen] == [False, False, False, True]
    assert states == expected_states[1:-1]
    assert batches.is_last()
    assert loader.state_dict() == expected_states[-1]


def test_looking_ahead_at_every_batch_leaves_nothing_behind():
    batches = iter(make())
    results = batches._results
    for _ in batches:
        batches.is_last()
        assert len(batches._coming) <= 1
        assert batches._results is results  # not wrapped anew at each look


def test_what_was_looked_at_is_forgotten_when_a_state_is_loaded():
    loader = make()
    state = loader.state_dict()
    batches = iter(loader)
    first = plain(next(batches))
    assert not batches.is_last()
    loader.load_state_dict(state)
    assert not batches.is_last()
    assert plain(next(batches)) == first


def test_after_a_load_the_batch_handed_over_last_is_not_the_last():
    loader = make()
    state = loader.state_dict()
    batches = iter(loader)
    seen = [plain(next(batches)) for _ in range(4)]
    loader.load_state_dict(state)
    assert not batches.is_last()
    assert one_pass(batches) == seen


class Breaks(Ids):
    """Raises at one sample, as long as there is an error to raise."""

    def __init__(self, length: int, at: int, error: BaseException) -> None:
        super().__init__(length)
        self.at, self.error = at, error

    def __getitem__(self, index: int) -> int:
        if index == self.at and self.error is not None:
            raise self.error
        return super().__getitem__(index)


def test_an_error_ahead_is_raised_by_the_call_that_would_deliver_it():
    loader = ResumableDataLoader(Breaks(6, at=3, error=ValueError("damaged")), 2)
    batches = iter(loader)
    assert plain(next(batches)) == [0, 1]
    assert not batches.is_last()
    with pytest.raises(ValueError, match="damaged"):
        next(batches)
    assert loader.samples_processed == 2
    assert one_pass(batches) == [[4, 5]]


def test_an_interrupt_while_looking_ahead_loses_nothing():
    dataset = Breaks(6, at=3, error=KeyboardInterrupt())
    batches = iter(ResumableDataLoader(dataset, 2))
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        batches.is_last()
    dataset.error = None
    assert not batches.is_last()
    assert one_pass(batches) == [[2, 3], [4, 5]]


def test_batches_that_were_left_out_whole_do_not_hide_the_last_one():
    dataset = Breaks(5, at=4, error=ValueError("damaged"))
    batches = iter(ResumableDataLoader(dataset, 2, on_error="skip"))
    assert [(plain(batch), batches.is_last()) for batch in batches] == [
        ([0, 1], False),
        ([2, 3], True),
    ]
