"""num_workers="auto": as many as keep up, never more than there are cores, never in the data."""

import time

import pytest
from support import Augmented, one_pass, passes

from dataporter import OptionTypeError, ResumableDataLoader
from dataporter.engine.budget import Pace
from dataporter.system.processes import usable_cores


class Slow(Augmented):
    def __getitem__(self, index: int):
        time.sleep(0.0005)
        return super().__getitem__(index)


def test_the_data_is_that_of_any_other_number_of_workers():
    reference = passes(ResumableDataLoader(Slow(200), 2, shuffle=True, seed=1), 2)
    loader = ResumableDataLoader(
        Slow(200), 2, shuffle=True, seed=1, num_workers="auto", persistent_workers=True
    )
    assert passes(loader, 2) == reference
    assert loader.num_workers == usable_cores()
    assert loader._runner._kept.num_workers <= usable_cores()


def test_workers_come_and_go_without_a_changed_bit(monkeypatch):
    numbers = iter([3, 4, 4, 3, 2, 1, 2, 3, 2, 1] * 100)

    def note(_pace: Pace, waited: float, workers: int) -> int:
        assert waited >= 0
        return _towards(next(numbers), workers)

    monkeypatch.setattr(Pace, "note", note)
    monkeypatch.setattr("dataporter.loader.options.usable_cores", lambda: 4)
    reference = passes(ResumableDataLoader(Augmented(120), 2, shuffle=True, seed=1), 2)
    loader = ResumableDataLoader(Augmented(120), 2, shuffle=True, seed=1, num_workers="auto")
    assert passes(loader, 2) == reference


def _towards(wanted: int, workers: int) -> int:
    """One step at a time, as the engine expects."""
    return workers + (wanted > workers) - (wanted < workers)


def test_one_more_while_the_consumer_waits_one_fewer_after_a_long_rest(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace, workers = Pace(most=3), 1
    for _ in range(100):
        now[0] += 0.01
        workers = pace.note(waited=0.005, workers=workers)
    assert workers == 3
    for _ in range(16 * 8 * 3):
        now[0] += 0.01
        workers = pace.note(waited=0.0, workers=workers)
    assert workers == 1


def test_no_other_word_is_taken_for_a_number():
    with pytest.raises(OptionTypeError, match="num_workers must be an int"):
        ResumableDataLoader(Augmented(4), num_workers="many")
    assert len(one_pass(ResumableDataLoader(Augmented(4), 2, num_workers="auto", seed=1))) == 2
