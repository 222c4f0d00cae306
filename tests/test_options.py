"""Arguments that cannot work: an error of our own that names them, before anything is built."""

import inspect
import typing

import pytest
import torch
from support import Ids
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

import dataporter
from dataporter import (
    DataPorterError,
    OptionError,
    OptionTypeError,
    ResumableDataLoader,
    ResumableDistributedSampler,
    ResumableSampler,
    TopologyError,
    create_resumable_dataloader,
)
from dataporter.options import LoaderOptions


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


def shuffled() -> RandomSampler:
    return RandomSampler(Ids(10))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 0}, OptionError, "batch_size must be at least 1, found 0"),
        ({"batch_size": -4}, OptionError, "found -4"),
        ({"batch_size": 2.5}, OptionTypeError, "batch_size must be an int, found float 2.5"),
        ({"batch_size": True}, OptionTypeError, "found bool True"),
        ({"num_workers": -1}, OptionError, "num_workers must be at least 0"),
        ({"num_workers": 1.5}, OptionTypeError, "num_workers must be an int"),
        ({"timeout": -1}, OptionError, "timeout must be at least 0"),
        ({"timeout": "5"}, OptionTypeError, "timeout"),
        ({"prefetch_factor": 0}, OptionError, "prefetch_factor must be at least 1"),
        ({"persistent_workers": True}, OptionError, "num_workers=0"),
        ({"multiprocessing_context": "spawn"}, OptionError, "num_workers=0"),
        (
            {"sampler": shuffled(), "shuffle": True},
            OptionError,
            "conflicts with shuffle=True",
        ),
        ({"batch_sampler": [[1]], "shuffle": True}, OptionError, "shuffle=True"),
        ({"batch_sampler": [[1]], "batch_size": 2}, OptionError, "batch_size=2"),
        ({"batch_sampler": [[1]], "sampler": [1]}, OptionError, "sampler"),
        ({"batch_sampler": [[1]], "drop_last": True}, OptionError, "drop_last=True"),
        ({"batch_size": None, "drop_last": True}, OptionError, "batch_size=None"),
        ({"seed": -1}, OptionError, "seed must be in"),
        ({"seed": "1"}, OptionTypeError, "seed must be an int"),
        ({"tail": "wrap"}, OptionError, "tail must be"),
        ({"tail": "pad", "drop_last": True}, OptionError, "drop_last=True"),
        ({"tail": "pad", "sampler": shuffled()}, OptionError, "sampler of your own"),
        ({"engine": "spark"}, OptionError, "'processes', 'threads' or 'ray', found 'spark'"),
        ({"ray_options": {"num_cpus": 1}}, OptionError, "are for engine='ray', found engine=None"),
        ({"engine": "ray", "ray_options": 3}, OptionTypeError, "must be a dict"),
        (
            {"engine": "ray", "ray_options": {"max_restarts": 1, "num_cpus": 2}},
            OptionError,
            "may not contain max_restarts: workers are started, replaced and ended by the loader",
        ),
        ({"strategy": "magic"}, OptionError, "found 'magic'"),
        ({"strategy": 3}, OptionError, "found 3"),
        ({"strategy": "simple", "rank": 0, "world_size": 2}, OptionError, "simple"),
        ({"strategy": "distributed"}, TopologyError, "init_process_group"),
        ({"rank": 0}, OptionError, "rank=0 was given without world_size"),
        ({"world_size": 2}, OptionError, "world_size=2 was given without rank"),
        ({"rank": 2, "world_size": 2}, OptionError, "rank 2 with world_size 2"),
        ({"rank": -1, "world_size": 2}, OptionError, "rank -1"),
        ({"rank": 0, "world_size": 0}, OptionError, "world_size must be at least 1"),
        ({"rank": 0.0, "world_size": 2}, OptionTypeError, "rank must be an int"),
        ({"bach_size": 3}, OptionTypeError, "unknown arguments: bach_size"),
        ({"converter": 5}, OptionTypeError, "convert_batch"),
        ({"dataset": Stream(), "shuffle": True}, OptionError, "Stream is an IterableDataset"),
        ({"dataset": Stream(), "sampler": [0]}, OptionError, "Remove sampler"),
        ({"dataset": Stream(), "batch_sampler": [[0]]}, OptionError, "Remove batch_sampler"),
        ({"dataset": Stream(), "tail": "pad"}, OptionError, "tail='drop'"),
        ({"dataset": Stream(), "on_error": "skip"}, OptionError, "leave samples out itself"),
        ({"dataset": Stream(), "lanes": 0}, OptionError, "lanes"),
        ({"dataset": Stream(), "snapshot_every_n_steps": 0}, OptionError, "snapshot_every_n_steps"),
        ({"prefetch_bytes": -1}, OptionError, "prefetch_bytes must be at least 0, found -1"),
        ({"prefetch_bytes": 1e9}, OptionTypeError, "prefetch_bytes must be an int, found float"),
        ({"lanes": 2}, OptionError, "needs no lanes"),
        ({"dataset": NoLength()}, OptionTypeError, "no length"),
        ({"sampler": ResumableSampler(10, seed=1), "seed": 2}, OptionError, "seed=1"),
        (
            {
                "sampler": ResumableDistributedSampler(10, rank=0, num_replicas=2),
                "rank": 1,
                "world_size": 2,
            },
            OptionError,
            "contradicts",
        ),
    ],
)
@pytest.mark.parametrize("make", [ResumableDataLoader, create_resumable_dataloader])
def test_arguments_that_cannot_work_are_refused_in_words(make, options, error, words):
    generator = torch.get_rng_state()
    with pytest.raises(error) as raised:
        make(**{"dataset": Ids(10), **options})
    assert words in str(raised.value)
    assert isinstance(raised.value, DataPorterError)
    assert isinstance(raised.value, ValueError | TypeError | RuntimeError)
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None, True])
def test_an_epoch_that_is_none_is_refused_and_nothing_changes(epoch):
    loader = ResumableDataLoader(Ids(10), seed=1)
    before = loader.state_dict()
    with pytest.raises((OptionError, OptionTypeError), match="epoch"):
        loader.set_epoch(epoch)
    assert loader.state_dict() == before


def test_every_argument_of_torchs_loader_is_accepted():
    names = set(inspect.signature(ResumableDataLoader).parameters)
    assert set(inspect.signature(DataLoader).parameters) <= names


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True, "timeout": 1.5},
        {"num_workers": 2, "multiprocessing_context": "spawn", "worker_init_fn": print},
        {"prefetch_factor": None, "pin_memory": True, "in_order": False},
        {"shuffle": None, "pin_memory_device": "", "generator": torch.Generator()},
        {"strategy": "auto"},
        {"strategy": "unified", "tail": "uneven"},
        {"strategy": "simple", "tail": "drop"},
    ],
)
def test_what_torchs_loader_takes_is_taken(options):
    loader = ResumableDataLoader(Ids(10), batch_size=5, **options)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_an_empty_dataset_gives_an_empty_loader():
    loader = ResumableDataLoader([], batch_size=3, shuffle=True)
    assert (list(loader), len(loader)) == ([], 0)
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == []


@pytest.mark.parametrize(
    "make",
    [
        ResumableDataLoader,
        create_resumable_dataloader,
        dataporter.StatefulDataLoader,
        dataporter.PatchedDataLoader,
    ],
)
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("bach_size", "batch_size"),
        ("num_worker", "num_workers"),
        ("shufle", "shuffle"),
        ("on_eror", "on_error"),
        ("persistant_workers", "persistent_workers"),
    ],
)
def test_a_misspelt_option_names_the_closest(make, written, meant):
    with pytest.raises(
        OptionTypeError, match=rf"unknown arguments: {written}\. Did you mean '{meant}'"
    ):
        make(Ids(3), **{written: 1})


def test_the_values_of_an_option_are_in_its_type():
    hints = typing.get_type_hints(LoaderOptions)
    values = {
        name: {
            value
            for part in (hints[name], *typing.get_args(hints[name]))
            for value in typing.get_args(part)
            if isinstance(value, str)
        }
        for name in ("engine", "on_error", "strategy", "tail")
    }
    assert values == {
        "engine": {"processes", "threads", "ray"},
        "on_error": {"raise", "skip"},
        "strategy": {"auto", "unified", "simple", "distributed"},
        "tail": {"pad", "drop", "uneven"},
    }
    for name, each in values.items():
        for value in each:
            ranks = {"rank": 0, "world_size": 1} if value == "distributed" else {}
            ResumableDataLoader(Ids(3), **{name: value}, **ranks)


def test_an_editor_sees_the_options_of_every_way_to_make_a_loader():
    shown = inspect.signature(create_resumable_dataloader)
    assert shown == inspect.signature(ResumableDataLoader)
    assert {"engine", "on_error", "device"} <= shown.parameters.keys()
