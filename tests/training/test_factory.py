"""Loaders from a configuration: what is checked, and what is found out."""

import dataclasses
import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Augmented, Ids, one_pass
from torch.utils.data import IterableDataset, TensorDataset

from dataporter import OptionError, OptionTypeError, ResumableDataLoader
from dataporter.training import DataLoaderConfig, DataLoaderFactory

factory = DataLoaderFactory()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, OptionError, "batch_size must be at least 1, found 0"),
        ({"batch_size": 8.0}, OptionTypeError, "batch_size must be an int or None, found float"),
        ({"shuffle": "yes"}, OptionTypeError, "shuffle must be True or False, found str 'yes'"),
        ({"shuffle": None}, OptionTypeError, "shuffle must be True or False, found None"),
        ({"drop_last": 1}, OptionTypeError, "drop_last must be True or False, found int 1"),
        ({"num_workers": -1}, OptionError, "num_workers must be at least 0, found -1"),
        ({"num_workers": "many"}, OptionTypeError, "num_workers must be an int or None"),
        ({"num_workers": True}, OptionTypeError, "num_workers must be an int or None, found bool"),
        ({"pin_memory": "cuda"}, OptionTypeError, "pin_memory must be True, False or None"),
        ({"prefetch_factor": 0}, OptionError, "prefetch_factor must be at least 1, found 0"),
        ({"persistent_workers": 2}, OptionTypeError, "persistent_workers must be True, False"),
        ({"seed": -1}, OptionError, r"seed must be in \[0, 2\*\*64\), found -1"),
        ({"seed": "42"}, OptionTypeError, "seed must be an int or None, found str"),
        ({"collate_fn": "text"}, OptionTypeError, "collate_fn must be callable or None, found str"),
        (
            {"num_workers": 0, "persistent_workers": True},
            OptionError,
            "persistent_workers=True conflicts with num_workers=0",
        ),
        (
            {"batch_size": None, "drop_last": True},
            OptionError,
            "drop_last=True conflicts with batch_size=None",
        ),
        ({"device": "gpu"}, OptionError, "device must be one that torch has, .* found 'gpu'"),
        ({"device": 0}, OptionTypeError, "device must be a name such as 'cuda'"),
        ({"batchsize": 3}, OptionTypeError, "has no 'batchsize'. Did you mean 'batch_size'"),
        ({"worker": 3}, OptionTypeError, "Did you mean 'num_workers'"),
    ],
)
def test_a_config_that_cannot_work_is_refused_on_construction(options, error, message):
    with pytest.raises(error, match=message):
        DataLoaderConfig(**options)


def test_a_config_is_a_value():
    config = DataLoaderConfig(batch_size=8, shuffle=True, seed=1)
    assert config == DataLoaderConfig(batch_size=8, shuffle=True, seed=1)
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, batch_size=4).batch_size == 4
    with pytest.raises(OptionError, match="batch_size"):
        dataclasses.replace(config, batch_size=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 4


def test_everything_is_optional():
    loader = factory.create_dataloader(Ids(100))
    assert isinstance(loader, ResumableDataLoader)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (32, 0, False)
    assert one_pass(loader)[0] == list(range(32))


def found_out(has_cuda, monkeypatch, **options):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    loader = factory.create_dataloader(Ids(4), DataLoaderConfig(**options))
    return (
        loader.num_workers,
        loader.pin_memory,
        loader.persistent_workers,
        loader.prefetch_factor,
    )


@pytest.mark.parametrize(
    ("has_cuda", "options", "expected"),
    [
        (False, {}, (0, False, False, None)),
        (True, {}, (2, True, True, 2)),
        (False, {"num_workers": 3}, (3, False, True, 2)),
        (False, {"num_workers": 3, "persistent_workers": False}, (3, False, False, 2)),
        (False, {"num_workers": 1, "prefetch_factor": 4}, (1, False, True, 4)),
        (False, {"prefetch_factor": 4, "persistent_workers": True}, (0, False, False, None)),
        (True, {"persistent_workers": True}, (2, True, True, 2)),
        (True, {"num_workers": 0, "pin_memory": False}, (0, False, False, None)),
        (False, {"num_workers": 2, "prefetch_factor": None}, (2, False, True, 2)),
    ],
)
def test_what_is_left_open_is_found_out(has_cuda, options, expected, monkeypatch):
    # Whether there is CUDA is the machine's; what follows from it must hold on any.
    assert found_out(has_cuda, monkeypatch, **options) == expected


def test_num_workers_may_be_auto():
    loader = factory.create_dataloader(Ids(8), DataLoaderConfig(num_workers="auto"))
    assert loader.num_workers >= 1
    assert loader.persistent_workers


@given(
    seed=st.integers(0, 2**64 - 1),
    batch_size=st.integers(1, 9),
    length=st.integers(1, 40),
    drop_last=st.booleans(),
)
@settings(max_examples=40)
def test_of_one_seed_two_loaders_give_equal_batches(seed, batch_size, length, drop_last):
    config = DataLoaderConfig(batch_size=batch_size, shuffle=True, seed=seed, drop_last=drop_last)
    one, other = (factory.create_dataloader(Augmented(length), config) for _ in range(2))
    first = one_pass(one)
    assert first == one_pass(other)
    assert len(first) == (length // batch_size if drop_last else -(-length // batch_size))


def test_samples_are_augmented_alike_with_and_without_workers():
    config = DataLoaderConfig(batch_size=4, shuffle=True, seed=5, num_workers=2)
    inline = dataclasses.replace(config, num_workers=0)
    with_workers, without = (
        factory.create_dataloader(Augmented(20), each) for each in (config, inline)
    )
    assert one_pass(with_workers) == one_pass(without)


def test_a_seed_nobody_chose_is_in_the_state():
    torch.manual_seed(3)
    config = DataLoaderConfig(batch_size=2, shuffle=True)
    one, other = (factory.create_dataloader(Ids(50), config) for _ in range(2))
    assert one.seed != other.seed
    state = json.loads(json.dumps(one.state_dict()))
    assert state["seed"] == one.seed
    other.load_state_dict(state)
    assert one_pass(other) == one_pass(one)


def test_pinned_memory_may_be_asked_for_where_there_is_no_device_to_copy_to():
    dataset = TensorDataset(torch.arange(10.0))
    loader = factory.create_dataloader(dataset, DataLoaderConfig(batch_size=5, pin_memory=True))
    assert one_pass(loader) == [[[0, 1, 2, 3, 4]], [[5, 6, 7, 8, 9]]]


def test_batches_are_delivered_on_the_device_of_the_config():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = DataLoaderConfig(batch_size=5, device=device)
    loader = factory.create_dataloader(TensorDataset(torch.arange(10.0)), config)
    assert loader.device == device
    assert [batch.device.type for (batch,) in loader] == [device] * 2
    meta = DataLoaderConfig(device=torch.device("meta"))
    with pytest.raises(OptionError, match="device='meta' has no data"):
        factory.create_dataloader(Ids(4), meta)


def test_a_collate_fn_of_ones_own_makes_the_batches():
    config = DataLoaderConfig(batch_size=3, collate_fn=sum)
    assert list(factory.create_dataloader(Ids(6), config)) == [3, 12]


def test_what_is_no_config_is_refused():
    with pytest.raises(OptionTypeError, match="config must be a DataLoaderConfig, found dict"):
        factory.create_dataloader(Ids(6), {"batch_size": 3})


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_an_iterable_has_batches_but_no_shuffle():
    assert one_pass(factory.create_dataloader(Stream(), DataLoaderConfig(batch_size=4))) == [
        [0, 1, 2, 3],
        [4],
    ]
    with pytest.raises(OptionError, match="shuffle=True is for datasets that are read by index"):
        factory.create_dataloader(Stream(), DataLoaderConfig(shuffle=True))
