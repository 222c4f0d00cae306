"""Arguments and lengths that cannot work: an error that says so, never a hang."""

import gc
from typing import Any

import pytest
from support import Ids, one_pass, plain
from watching import worker_pids

from dataporter import OptionError, OptionTypeError, ResumableDataLoader


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_workers": -2}, OptionError, "num_workers must be at least 0, found -2"),
        ({"num_workers": 2.0}, OptionTypeError, "num_workers must be an int, found float 2.0"),
        ({"num_workers": True}, OptionTypeError, "num_workers must be an int, found bool True"),
        ({"num_workers": "2"}, OptionTypeError, "num_workers must be an int, found str '2'"),
        ({"num_workers": None}, OptionTypeError, "num_workers must be an int, found NoneType"),
        ({"timeout": -0.5}, OptionError, "timeout must be at least 0 seconds, found -0.5"),
        ({"timeout": float("nan")}, OptionError, "timeout must be at least 0 seconds, found nan"),
        ({"timeout": None}, OptionTypeError, "timeout must be a number of seconds, found None"),
        ({"timeout": True}, OptionTypeError, "timeout must be a number of seconds, found True"),
        ({"prefetch_factor": -1}, OptionError, "prefetch_factor must be at least 1, found -1"),
        ({"prefetch_factor": 2.5}, OptionTypeError, "prefetch_factor must be an int, found float"),
        ({"prefetch_factor": "2"}, OptionTypeError, "prefetch_factor must be an int, found str"),
        ({"max_skipped": 3}, OptionError, "max_skipped= bounds what on_error='skip' omits"),
        ({"max_restarts": -1}, OptionError, "max_restarts must be at least 0, found -1"),
        ({"max_restarts": 1.0}, OptionTypeError, "max_restarts must be an int, found float 1.0"),
        ({"collate_fn": "stack"}, OptionTypeError, "collate_fn must be callable, found str"),
        ({"worker_init_fn": 3}, OptionTypeError, "worker_init_fn must be callable, found int 3"),
        ({"generator": 7}, OptionTypeError, "generator must be a torch.Generator, found int"),
        ({"sampler": 4}, OptionTypeError, "sampler must be iterable, found int 4"),
    ],
    ids=str,
)
def test_an_argument_that_cannot_work_is_refused_before_any_worker_starts(options, error, words):
    with pytest.raises(error) as caught:
        ResumableDataLoader(**{"dataset": Ids(8), "num_workers": 2, **options})
    assert words in str(caught.value)
    assert not worker_pids()


@pytest.mark.parametrize("timeout", [1e7, 1e300, float("inf")])
def test_a_timeout_may_be_as_long_as_one_likes(timeout):
    assert len(one_pass(ResumableDataLoader(Ids(8), 2, num_workers=1, timeout=timeout))) == 4


def test_a_context_that_is_none_is_refused_in_words():
    with pytest.raises(OptionTypeError, match=r"multiprocessing_context.*found int"):
        ResumableDataLoader(Ids(8), num_workers=1, multiprocessing_context=5)


# Lengths


class Says(Ids):
    """Has 8 samples, and says something else."""

    def __init__(self, length: Any) -> None:
        super().__init__(8)
        self.says = length

    def __len__(self) -> int:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_that_has_fewer_samples_than_it_says_is_an_index_error(num_workers):
    loader = ResumableDataLoader(Says(11), 2, num_workers=num_workers)
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for missing in ("8", "10"):
        with pytest.raises(IndexError, match=missing):
            next(iterator)
    assert loader.state_dict()["samples_processed"] == 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_of_a_dataset_that_has_more_samples_than_it_says_so_many_are_delivered(num_workers):
    assert one_pass(ResumableDataLoader(Says(5), 2, num_workers=num_workers)) == [
        [0, 1],
        [2, 3],
        [4],
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_that_shrinks_while_it_is_read_is_an_index_error(num_workers):
    dataset = Says(8)
    loader = ResumableDataLoader(dataset, 2, num_workers=num_workers)
    assert len(one_pass(loader)) == 4
    dataset.length = 4
    with pytest.raises(IndexError):
        list(loader)
    assert loader.state_dict()["samples_processed"] == 4


@pytest.mark.parametrize(
    ("length", "error", "words"),
    [
        (-1, ValueError, ">= 0"),
        (2**63, OverflowError, "index-sized"),
        (OSError("the index is gone"), OSError, "the index is gone"),
        (ZeroDivisionError("in __len__"), ZeroDivisionError, "in __len__"),
        (2.5, TypeError, "Says has no length.*cannot be interpreted"),
        (None, TypeError, "Says has no length.*cannot be interpreted"),
        (TypeError("in __len__"), TypeError, "Says has no length.*in __len__"),
        (NotImplementedError(), TypeError, "Says has no length.*__len__"),
    ],
    ids=repr,
)
def test_a_length_that_is_none_is_an_error_when_the_loader_is_made(length, error, words):
    with pytest.raises(error, match=words):
        ResumableDataLoader(Says(length), 2, num_workers=2)
    gc.collect()
    assert not worker_pids()
