"""Steps are counted and waiting is measured for any loader, and a loader is left as it was."""

import dataclasses
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import Augmented, Ids, one_pass
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, OptionTypeError
from dataporter.utils import dataloader as dataloader_module
from dataporter.utils.dataloader import (
    Batch,
    DataLoaderSetupMixin,
    get_epoch_length,
    get_train_dataloader_steps,
    get_val_dataloader_steps,
    profile_dataloader,
)


class Stream(IterableDataset):
    def __init__(self, batch_size: int | None = None) -> None:
        self.batch_size = batch_size

    def __iter__(self):
        return iter(range(10))


@dataclasses.dataclass
class Parameters:
    train_steps_per_epoch: int | None = None
    val_steps_per_epoch: int | None = None
    train_batch_size: int | None = None


# The document


def test_the_document_s_snippets_run():
    train_dataloader = DataLoader(range(100), batch_size=10)
    assert get_epoch_length(train_dataloader, length=None) == 10
    assert get_epoch_length(train_dataloader, length=1000) == 1000
    batch: Batch = {"input": torch.ones(1), "target": torch.ones(1), "mask": None}
    assert isinstance(batch, dict)
    assert Batch == dict[str, Any]

    train_loader, val_loader = DataLoader(Ids(64), 4), ResumableDataLoader(Ids(20), 4)

    class MyTrainer(DataLoaderSetupMixin):
        config = SimpleNamespace(training_parameters=Parameters(train_batch_size=16))

        def configure_dataloaders(self):
            train_steps = get_train_dataloader_steps(self.config.training_parameters, train_loader)
            val_steps = get_val_dataloader_steps(self.config.training_parameters, val_loader)
            self._num_train_steps = train_steps
            self._num_val_steps = val_steps
            return train_loader, val_loader

    trainer = MyTrainer()
    assert trainer.configure_dataloaders() == (train_loader, val_loader)
    assert (trainer._num_train_steps, trainer._num_val_steps) == (16, 5)
    assert trainer.train_dataloader is train_loader
    assert trainer.val_dataloader is val_loader


# Steps


def test_the_first_argument_decides_what_is_returned():
    loader = DataLoader(Ids(64), 4)
    asked = {"train_steps_per_epoch": 3, "train_batch_size": 8, "val_steps_per_epoch": 2}
    for params in (asked, SimpleNamespace(**asked), Parameters(3, 2, 8)):
        assert get_train_dataloader_steps(params, loader) == 6
        assert get_val_dataloader_steps(params, loader) == 2
    assert get_train_dataloader_steps(loader, 3, 8, 1) == (8, 6, 2)
    assert get_train_dataloader_steps(loader, None, 16, 2) == (16, 16, 2)
    assert get_train_dataloader_steps(loader, steps=3, train_batch_size=8, dp_size=2) == (8, 3, 1)
    assert get_train_dataloader_steps(loader) == (4, 16, 1)
    assert get_val_dataloader_steps(loader, None, 2, 2) == (16, 1)
    assert get_val_dataloader_steps(loader, 5, 0, 2) == (3, 0)
    assert get_val_dataloader_steps(loader) == (16, 0)


def test_parameters_that_say_nothing_leave_it_to_the_loader():
    assert get_train_dataloader_steps(object(), DataLoader(Ids(64), 4)) == 16
    assert get_val_dataloader_steps({}, DataLoader(Ids(64), 4)) == 16


def test_parameters_that_can_be_iterated_over_are_no_loader():
    class Settings(SimpleNamespace):
        def __iter__(self):
            return iter(vars(self).items())

    assert get_train_dataloader_steps(Settings(train_steps_per_epoch=7), [1, 2]) == 7


def test_parameters_may_know_the_number_of_ranks():
    params = {"train_steps_per_epoch": 3, "train_batch_size": 32, "dp_size": 4}
    assert get_train_dataloader_steps(params, DataLoader(Ids(64), 4)) == 6


@given(
    batch_size=st.integers(1, 64),
    dp_size=st.integers(1, 64),
    accumulation=st.integers(1, 64),
    steps=st.integers(1, 1000),
)
def test_an_epoch_s_batches_make_up_its_steps(batch_size, dp_size, accumulation, steps):
    loader = SimpleNamespace(batch_size=batch_size, __iter__=None)
    total = batch_size * dp_size * accumulation
    found = get_train_dataloader_steps(loader, steps, total, dp_size)
    assert found == (total, steps * accumulation, accumulation)
    assert found.num_train_steps * batch_size * dp_size == steps * found.train_batch_size


def test_the_batch_size_is_the_loader_s_its_batch_sampler_s_or_its_dataset_s():
    sampler = BatchSampler(SequentialSampler(range(12)), 3, drop_last=True)
    sampled = DataLoader(Ids(12), batch_sampler=sampler)
    assert get_train_dataloader_steps(sampled, None, 6, 1) == (6, 4, 2)
    stream = DataLoader(Stream(batch_size=5), batch_size=None)
    assert get_train_dataloader_steps(stream, 8, 10, 2) == (10, 8, 1)


@pytest.mark.parametrize(
    ("count", "error", "words"),
    [
        (lambda: get_epoch_length(DataLoader(Stream())), OptionError, "has no length"),
        (lambda: get_epoch_length(iter([])), OptionError, "has no length.*length="),
        (lambda: get_epoch_length([], length=0), OptionError, "length must be at least 1"),
        (lambda: get_epoch_length([], length=2.5), OptionTypeError, "length must be an int"),
        (
            lambda: get_train_dataloader_steps({}, DataLoader(Stream())),
            OptionError,
            "train_steps_per_epoch",
        ),
        (
            lambda: get_val_dataloader_steps({}, DataLoader(Stream())),
            OptionError,
            "val_steps_per_epoch",
        ),
        (
            lambda: get_train_dataloader_steps(DataLoader(Stream(), batch_size=None), 5, 8, 1),
            OptionError,
            "batch size of DataLoader is unknown",
        ),
        (
            lambda: get_train_dataloader_steps(DataLoader(Ids(8), 4), None, 10, 2),
            OptionError,
            "multiple of 8, found 10: 2 ranks take 4 samples each",
        ),
        (
            lambda: get_train_dataloader_steps(DataLoader(Ids(8), 4), None, 4, 2),
            OptionError,
            "multiple",
        ),
        (
            lambda: get_train_dataloader_steps(DataLoader(Ids(8), 4), None, 4, 0),
            OptionError,
            "dp_size must be at least 1",
        ),
        (lambda: get_train_dataloader_steps({}, 3), OptionTypeError, "second argument must be"),
        (lambda: get_val_dataloader_steps({}), OptionTypeError, "second argument must be"),
        (lambda: get_train_dataloader_steps([1], 2.5), OptionTypeError, "^steps must be an int"),
        (lambda: get_val_dataloader_steps([1], 0), OptionError, "^steps must be at least 1"),
        (
            lambda: get_train_dataloader_steps({"train_steps_per_epoch": "3"}, [1]),
            OptionTypeError,
            "^train_steps_per_epoch must be an int",
        ),
        (
            lambda: get_val_dataloader_steps({"val_steps_per_epoch": 0}, [1]),
            OptionError,
            "^val_steps_per_epoch must be at least 1",
        ),
        (lambda: get_val_dataloader_steps([1], 1, -1), OptionError, "num_sanity_val_steps"),
    ],
)
def test_what_cannot_be_counted_is_said(count, error, words):
    with pytest.raises(error, match=words):
        count()


@pytest.mark.parametrize("steps_of", [get_train_dataloader_steps, get_val_dataloader_steps])
@pytest.mark.parametrize(
    "params",
    [{}, Parameters(train_batch_size=8), object()],
    ids=["dict", "dataclass", "object"],
)
def test_parameters_behind_the_loader_are_told_and_the_call_that_is_named_works(steps_of, params):
    loader = DataLoader(Ids(64), 4)
    with pytest.raises(
        OptionTypeError, match=r"must come before the loader.*Call (\w+)\(params,"
    ) as e:
        steps_of(loader, params)
    assert f"Call {steps_of.__name__}(params, loader)." in str(e.value)
    assert steps_of(params, loader) == 16


@pytest.mark.parametrize(
    ("steps_of", "name", "first"),
    [
        (get_epoch_length, "length", []),
        (get_train_dataloader_steps, "steps", []),
        (get_val_dataloader_steps, "steps", []),
        (get_train_dataloader_steps, "train_steps_per_epoch", [{}]),
        (get_val_dataloader_steps, "val_steps_per_epoch", [{}]),
    ],
)
def test_a_loader_without_a_length_needs_the_argument_that_its_error_names(steps_of, name, first):
    loader = DataLoader(Stream(), batch_size=2)
    with pytest.raises(OptionError, match=rf"DataLoader has no length.* Pass {name}=, the number"):
        steps_of(*first, loader)
    told = [steps_of({name: 7}, loader)] if first else [steps_of(loader, **{name: 7})]
    assert 7 in (told[0] if isinstance(told[0], tuple) else told)


# The mixin


def test_loaders_are_configured_once_and_must_be_two():
    class Trainer(DataLoaderSetupMixin):
        calls = 0

        def configure_dataloaders(self):
            self.calls += 1
            return [1], None

    trainer = Trainer()
    assert (trainer.train_dataloader, trainer.val_dataloader, trainer.calls) == ([1], None, 1)

    class One(DataLoaderSetupMixin):
        def configure_dataloaders(self):
            return DataLoader([1])

    with pytest.raises(OptionTypeError, match=r"One.*two loaders.*found DataLoader"):
        _ = One().train_dataloader
    with pytest.raises(NotImplementedError, match="DataLoaderSetupMixin must define"):
        _ = DataLoaderSetupMixin().val_dataloader


# Profiling


class Clock:
    """A clock in the place of the module `time`: it goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self._now = 0  # nanoseconds

    def monotonic_ns(self) -> int:
        return self._now

    def perf_counter(self) -> float:
        return self._now / 1e9

    def sleep(self, seconds: float) -> None:
        self._now += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch):
    """The clock of profiles. What else the machine does takes no time by it."""
    monkeypatch.setattr(dataloader_module, "time", clock := Clock())
    return clock


def slow(clock: Clock, count: int) -> Iterator[int]:
    """Make each batch in 10 ms, when it is asked for."""
    for number in range(count):
        clock.sleep(0.01)
        yield number


def made_ahead(clock: Clock, count: int) -> Iterator[int]:
    """Make each batch in 20 ms while the one before is used, as a worker does."""
    begun = clock.perf_counter()
    for number in range(count):
        clock.sleep(max(0.0, begun + 0.02 - clock.perf_counter()))
        begun = clock.perf_counter()
        yield number


def test_batches_really_seen_are_counted(capsys):
    short = profile_dataloader(DataLoader(Ids(10), 4))
    assert short.batches == 3
    assert short.batches_per_second == 3 / short.total
    assert profile_dataloader(DataLoader(Ids(1000), 4), num_batches=7).batches == 7
    assert capsys.readouterr() == ("", "")


def test_times_are_those_that_passed(clock):
    profile = profile_dataloader(slow(clock, 12), num_batches=10)
    times = (profile.first, profile.p50, profile.p90, profile.p99, profile.longest, profile.mean)
    assert times == pytest.approx([0.01] * 6)
    assert profile.total == pytest.approx(0.1)
    assert profile.waiting_share is None


def test_times_of_a_real_loader_are_in_order():
    profile = profile_dataloader(DataLoader(Ids(12)), num_batches=10)
    assert 0 < profile.p50 <= profile.p90 <= profile.p99 <= profile.longest <= profile.total
    assert profile.mean * 10 <= profile.total


def test_the_share_of_waiting_is_that_of_the_time_in_which_no_batch_was_there(clock):
    alone = profile_dataloader(slow(clock, 12), step_time=0.03)
    assert alone.waiting_share == pytest.approx(0.01 / 0.04)
    ahead = profile_dataloader(made_ahead(clock, 12), step_time=0.03)
    assert ahead.waiting_share == pytest.approx(0.02 / (0.02 + 12 * 0.03))  # for the first one
    assert (ahead.first, ahead.p50) == pytest.approx((0.02, 0.0))


def test_without_a_step_all_the_time_is_waiting():
    assert profile_dataloader([1, 2], step_time=0).waiting_share == 1


def test_an_empty_loader_has_no_times():
    profile = profile_dataloader([], step_time=0.1)
    assert (profile.batches, profile.batches_per_second) == (0, 0)
    assert math.isnan(profile.p50)
    assert profile.waiting_share is None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_a_state_is_left_where_it_stood(workers):
    def make() -> ResumableDataLoader:
        return ResumableDataLoader(Augmented(20), 2, shuffle=True, seed=1, num_workers=workers)

    fresh, reference = make(), make()
    profile_dataloader(fresh, 3)
    assert [one_pass(fresh), one_pass(fresh)] == [one_pass(reference), one_pass(reference)]
    profile_dataloader(fresh, 30)  # between two epochs
    assert one_pass(fresh) == one_pass(reference)
    mine, other = iter(fresh), iter(reference)  # in the middle of one
    assert one_pass([next(mine)]) == one_pass([next(other)])
    profile_dataloader(fresh, 3)
    assert one_pass(mine) == one_pass(other)


def test_a_loader_that_fails_is_put_back_too():
    class Broken(Ids):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise RuntimeError("broken")
            return index

    loader = ResumableDataLoader(Broken(6))
    with pytest.raises(RuntimeError, match="broken"):
        profile_dataloader(loader)
    assert loader.state_dict() == ResumableDataLoader(Broken(6), seed=loader.seed).state_dict()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"num_batches": 0}, OptionError),
        ({"num_batches": 1.5}, OptionTypeError),
        ({"step_time": -1}, OptionError),
        ({"step_time": "long"}, OptionError),
    ],
)
def test_a_profile_of_nothing_is_refused(arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        profile_dataloader([1], **arguments)


def test_a_profile_reads_as_its_mean_and_its_throughput(clock):
    profile = profile_dataloader(slow(clock, 12), num_batches=10)
    assert str(profile) == "Average batch time: 0.010000s\nThroughput: 100.0 batches/s"
    with_steps = profile_dataloader(slow(clock, 12), step_time=0.03)
    assert str(with_steps).endswith("\nWaiting: 25.0% of the time")


def test_an_attribute_that_is_missing_while_loaders_are_made_is_the_one_that_is_named():
    class Trainer(DataLoaderSetupMixin):
        def configure_dataloaders(self):
            return self.dataset_of_mine, None

    class Model(DataLoaderSetupMixin, torch.nn.Module):
        configure_dataloaders = Trainer.configure_dataloaders

    with pytest.raises(AttributeError, match="no attribute 'dataset_of_mine'"):
        _ = Trainer().train_dataloader
    for name in ("train_dataloader", "val_dataloader"):
        with pytest.raises(OptionError, match=r"raised AttributeError: .*'dataset_of_mine'"):
            getattr(Model(), name)
