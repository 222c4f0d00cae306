"""Arguments that cannot work: an error of our own that names them, before anything is built."""

import inspect
import re
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from support import Ids
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

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
from dataporter.converters import KeyBasedDtypeConverter
from dataporter.loader.options import LoaderOptions


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


NOT_DATASETS = {
    "a class": (NoLength, "dataset must be an instance, found the class NoLength. Make one"),
    "a path": ("data/train", "found the path 'data/train'. Open it: ShardedDataset(path)"),
    "a Path": (Path("data"), "found the path 'data'"),
    "a generator": ((each for each in "ab"), "in the __iter__ of an IterableDataset, or pass list"),
    "a set": ({1, 2}, "found set. Iterate over it in the __iter__ of an IterableDataset"),
    "a number": (5, "must have __getitem__ or __getitems__, or be an IterableDataset, found int"),
}


@pytest.mark.parametrize("what", NOT_DATASETS)
def test_what_is_no_dataset_is_refused_with_a_remedy(what):
    dataset, words = NOT_DATASETS[what]
    with pytest.raises(OptionTypeError) as raised:
        ResumableDataLoader(dataset)
    assert words in str(raised.value)


def test_a_str_that_is_there_as_a_file_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(OptionTypeError, match="found the path 'train'"):
        ResumableDataLoader("train")


@pytest.mark.parametrize("text", ["hello", "to be or not / to be"])
def test_a_text_is_a_dataset_of_its_characters_as_with_torchs_loader(text):
    assert list(ResumableDataLoader(text, 3)) == list(DataLoader(text, 3))


class MetaSequence(type):
    def __getitem__(cls, index):
        return index

    def __len__(cls):
        return 2


def test_a_class_that_has_samples_itself_is_a_dataset():
    loader = ResumableDataLoader(MetaSequence("Numbers", (), {}))
    assert [batch.tolist() for batch in loader] == [[0], [1]]


class Collator:
    def __call__(self, samples):
        return samples


CLASSES = {
    "sampler": RandomSampler,
    "batch_sampler": BatchSampler,
    "collate_fn": Collator,
    "converter": KeyBasedDtypeConverter,
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_in_place_of_an_instance_is_refused(name):
    with pytest.raises(OptionTypeError, match=rf"{name} must be an instance, found the class \w+"):
        ResumableDataLoader(Ids(4), **{name: CLASSES[name]})


def test_a_class_that_makes_a_batch_when_it_is_called_is_a_collate_function():
    assert list(ResumableDataLoader(range(4), 2, collate_fn=list)) == [[0, 1], [2, 3]]


FLAGS = ["shuffle", "pin_memory", "drop_last", "persistent_workers", "in_order", "randomness"]


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["yes", "False", 2, []])
def test_a_flag_that_is_neither_true_nor_false_is_refused(name, value):
    with pytest.raises(OptionTypeError, match=f"{name} must be True or False, found"):
        ResumableDataLoader(Ids(4), **{name: value})


@pytest.mark.parametrize("value", [0, np.False_, None])
def test_a_flag_may_be_whatever_torchs_loader_takes_for_false(value):
    loader = ResumableDataLoader(Ids(3), 2, value, drop_last=value, pin_memory=value)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (ResumableDataLoader, (), "ResumableDataLoader(): missing a required argument"),
        (dataporter.StatefulDataLoader, (), "StatefulDataLoader(): missing a required"),
        (dataporter.PatchedDataLoader, (), "PatchedDataLoader(): missing a required argument"),
        (ResumableDataLoader, range(20), "ResumableDataLoader(): too many positional"),
    ],
)
def test_a_call_that_does_not_fit_the_signature_names_the_loader(make, arguments, words):
    with pytest.raises(OptionTypeError, match=re.escape(words)):
        make(*arguments)
    with pytest.raises(OptionTypeError, match="multiple values for argument 'batch_size'"):
        make(Ids(3), 2, batch_size=3)


def test_an_empty_dataset_cannot_be_shuffled_as_with_torchs_loader():
    with pytest.raises(ValueError, match="shuffle=True has nothing to shuffle: list is empty"):
        ResumableDataLoader([], shuffle=True)
    with pytest.raises(ValueError):
        DataLoader([], shuffle=True)


def test_an_empty_dataset_gives_an_empty_loader():
    loader = ResumableDataLoader([], batch_size=3)
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
