"""`loader.steps()`: batches with their numbers, which count on over a resume."""

import sys

import pytest
from ranks_in_step import ranks
from support import Ids
from torch.utils.data import IterableDataset

from dataporter import ResumableDataLoader
from dataporter.errors import MissingExtraError


def numbers(loader, **options):
    return [step for step, _ in loader.steps(**options)]


def test_a_resumed_run_counts_on_and_the_next_pass_from_0():
    loader = ResumableDataLoader(Ids(20), 4, shuffle=True, seed=1)
    seen = []
    for step, batch in loader.steps():
        seen.append((step, batch.tolist()))
        if step == 2:
            state = loader.state_dict()
    resumed = ResumableDataLoader(Ids(20), 4, shuffle=True, seed=1)
    resumed.load_state_dict(state)
    assert [(step, batch.tolist()) for step, batch in resumed.steps()] == seen[3:]
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4]
    # enumerate(loader, start=loader.batches_processed) would go on from 5 here.
    assert numbers(loader) == [0, 1, 2, 3, 4]
    assert loader.epoch == 1


def test_a_state_taken_in_the_loop_counts_the_batch_in_hand():
    loader = ResumableDataLoader(Ids(9), 3)
    for step, _ in loader.steps():
        assert loader.state_dict()["batches_processed"] == step + 1


def test_a_load_in_the_middle_of_the_loop_is_followed():
    loader = ResumableDataLoader(Ids(9), 3)
    start = loader.state_dict()
    steps = loader.steps()
    assert [next(steps)[0], next(steps)[0]] == [0, 1]
    loader.load_state_dict(start)
    assert [step for step, _ in steps] == [0, 1, 2]


def test_batches_that_come_as_they_are_ready_are_numbered_as_they_come():
    loader = ResumableDataLoader(Ids(40), 3, num_workers=2, in_order=False)
    assert numbers(loader) == list(range(14))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_a_bar_counts_on_and_only_rank_0_shows_it(capsys):
    loader = ResumableDataLoader(Ids(20), 4)
    loader.seek(2, 8)
    assert numbers(loader, progress=True) == [2, 3, 4]
    shown = capsys.readouterr().err
    assert "epoch 2" in shown
    assert "2/5" in shown
    assert "5/5" in shown
    first, second = ranks(20, 2, 2)
    assert numbers(second, progress=True) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""
    assert numbers(first, progress=True) == [0, 1, 2, 3, 4]
    assert "5/5" in capsys.readouterr().err
    assert numbers(ResumableDataLoader(Stream(), 2), progress=True) == [0, 1, 2]
    assert "3batch" in capsys.readouterr().err


def test_a_bar_ends_with_its_loop(capsys):
    for step, _ in ResumableDataLoader(Ids(20), 4).steps(progress=True):
        if step == 1:
            break
    assert capsys.readouterr().err.endswith("\n")  # closed


def test_without_tqdm_an_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    loader = ResumableDataLoader(Ids(20), 4)
    with pytest.raises(MissingExtraError, match=r'pip install "torch-dataporter\[progress\]"'):
        loader.steps(progress=True)
    assert numbers(loader) == [0, 1, 2, 3, 4]
