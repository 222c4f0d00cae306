"""Checkpoints return what was saved, and damage or invalid arguments raise clear errors."""

import random
import shutil
import socket
import threading
import zlib
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Augmented, one_pass, plain
from torch.utils.data import DataLoader

import dataporter
from dataporter import ResumableDataLoader
from dataporter.errors import (
    CheckpointDamagedError,
    CheckpointDamagedWarning,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointWriteError,
    OptionError,
    OptionTypeError,
    StateMismatchError,
    StateMismatchWarning,
    StateVersionError,
)
from dataporter.training import CheckpointManager
from dataporter.training.checkpoint_file import _SEAL, read_label


def parts(seed: int = 0) -> tuple[torch.nn.Module, Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        inputs = torch.randn(5, 4) * random.random() + np.random.standard_normal()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        scheduler.step()


def fill(manager: CheckpointManager, count: int, **more: Any) -> list[Path]:
    return [manager.save(epoch=epoch, custom_state={"n": epoch}, **more) for epoch in range(count)]


def weights(model: torch.nn.Module) -> list[Any]:
    return [value.tolist() for value in model.parameters()]


# Round trips


def test_the_document_s_snippet_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, optimizer, scheduler = parts()
    data_module, train_loader, epoch, step = SimpleNamespace(seed=42), range(10), 5, 3

    manager = CheckpointManager(checkpoint_dir="./checkpoints")
    path = manager.save(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        epoch=5,
        metrics={"val_loss": 0.38},
        custom_state={
            "data_module_seed": data_module.seed,
            "epoch_step": epoch * len(train_loader) + step,
        },
    )
    state = manager.load(path)
    assert state["custom_state"]["data_module_seed"] == 42
    assert state["custom_state"]["epoch_step"] == 53
    assert (state["epoch"], state["metrics"], state["step"]) == (5, {"val_loss": 0.38}, None)


def test_a_run_that_was_saved_and_restored_goes_on_bit_by_bit(tmp_path):
    random.seed(1)
    np.random.seed(1)
    run = parts()
    train(*run, steps=4)
    np.random.standard_normal()  # NumPy may keep the second of a pair for later
    names = ("model", "optimizer", "scheduler")
    manager = CheckpointManager(tmp_path)
    manager.save(epoch=0, step=4, **dict(zip(names, run, strict=True)))
    train(*run, steps=5)
    other = parts(seed=9)
    CheckpointManager(tmp_path).load(restore_rng=True, **dict(zip(names, other, strict=True)))
    train(*other, steps=5)
    assert weights(other[0]) == weights(run[0])
    assert other[2].get_last_lr() == run[2].get_last_lr()


def test_loading_leaves_the_generators_alone_unless_asked(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(epoch=0)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    manager.save(epoch=0)
    manager.load()
    assert before == (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_and_generators_of_a_device_are_restored(tmp_path):
    model = torch.nn.Linear(3, 3).cuda()
    manager = CheckpointManager(tmp_path)
    manager.save(epoch=0, model=model)
    drawn = torch.rand(5, device="cuda").tolist()
    other = torch.nn.Linear(3, 3).cuda()
    state = manager.load(model=other, restore_rng=True)
    assert torch.rand(5, device="cuda").tolist() == drawn
    assert weights(other) == weights(model)
    assert state["model"]["weight"].device.type == "cpu"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_continues_at_the_exact_sample(tmp_path, workers):
    def make() -> ResumableDataLoader:
        return ResumableDataLoader(Augmented(40), 4, shuffle=True, seed=3, num_workers=workers)

    manager, loader, rest = CheckpointManager(tmp_path), make(), []
    for step, batch in enumerate(loader):
        if step == 3:
            manager.save(epoch=loader.epoch, step=step, dataloader=loader)
        elif step > 3:
            rest.append(plain(batch))
    resumed = make()
    state = manager.load(dataloader=resumed)
    assert one_pass(resumed) == rest
    by_hand = make()
    by_hand.load_state_dict(state["dataloader"])
    assert one_pass(by_hand) == rest


def test_plain_torch_load_reads_a_checkpoint(tmp_path):
    model, optimizer, _ = parts()
    path = CheckpointManager(tmp_path).save(model=model, optimizer=optimizer, epoch=2)
    for mmap in (False, True):
        found = torch.load(path, weights_only=True, mmap=mmap)
        assert found["epoch"] == 2
        model.load_state_dict(found["model"])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=25)
@given(
    custom_state=st.dictionaries(st.text(max_size=5), values, max_size=4),
    metrics=st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False) | st.integers()),
    epoch=st.integers(0, 10**9),
    step=st.none() | st.integers(0),
)
def test_what_was_saved_is_loaded(tmp_path_factory, custom_state, metrics, epoch, step):
    manager = CheckpointManager(tmp_path_factory.mktemp("checkpoints"))
    path = manager.save(epoch=epoch, step=step, metrics=metrics, custom_state=custom_state)
    state = manager.load()
    assert state["custom_state"] == custom_state
    assert (state["epoch"], state["step"], state["path"]) == (epoch, step, path)
    assert state["metrics"] == metrics == read_label(path).metrics


def test_a_path_is_a_string_or_a_path_and_folders_are_made(tmp_path):
    folder = tmp_path / "a" / "b"
    manager = CheckpointManager(str(folder))
    path = manager.save(epoch=1)
    assert path.parent == folder
    assert manager.load(str(path))["epoch"] == manager.load(path)["epoch"] == 1


def test_states_are_taken_as_they_are_given_too(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(epoch=0, model={"weight": torch.ones(2)})
    assert manager.load()["model"]["weight"].tolist() == [1, 1]


def test_numbers_of_numpy_and_torch_are_metrics(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(epoch=0, metrics={"a": np.float32(0.5), "b": torch.tensor([2]), "c": 1})
    assert manager.load()["metrics"] == {"a": 0.5, "b": 2, "c": 1}


# Which are kept


def test_nothing_is_removed_unless_asked(tmp_path):
    paths = fill(CheckpointManager(tmp_path), 12)
    assert CheckpointManager(tmp_path).checkpoints() == paths


def test_numbers_go_on_after_a_restart_whatever_the_epoch(tmp_path):
    fill(CheckpointManager(tmp_path, keep_last=1), 3)
    manager = CheckpointManager(tmp_path, keep_last=1)
    manager.save(epoch=0, custom_state={"n": "newer"})
    assert manager.load()["custom_state"] == {"n": "newer"}
    assert [path.name for path in manager.checkpoints()] == ["checkpoint-000004-epoch0.pt"]


@settings(max_examples=25)
@given(
    losses=st.lists(st.none() | st.sampled_from([0.0, 1.0, 2.5, 3.0, -1.0, np.nan]), max_size=7),
    keep_best=st.none() | st.integers(1, 4),
    keep_last=st.none() | st.integers(1, 4),
    mode=st.sampled_from(["min", "max"]),
)
def test_the_best_and_the_last_are_kept(tmp_path_factory, losses, keep_best, keep_last, mode):
    folder = tmp_path_factory.mktemp("checkpoints")
    options = {"keep_best": keep_best, "keep_last": keep_last, "metric": "loss", "mode": mode}
    for epoch, loss in enumerate(losses):  # a new run each time: nothing is only in memory
        metrics = None if loss is None else {"loss": loss}
        CheckpointManager(folder, **options).save(epoch=epoch, metrics=metrics)
    found = [read_label(path).epoch for path in CheckpointManager(folder).checkpoints()]
    everything = list(range(len(losses)))
    if keep_best is None and keep_last is None:
        assert found == everything
        return
    # One after the other, since what was removed cannot come back.
    kept: list[int] = []
    for epoch in everything:
        kept.append(epoch)
        ranked = [e for e in reversed(kept) if losses[e] is not None]
        sign = 1 if mode == "min" else -1
        ranked.sort(key=lambda e: (np.isnan(losses[e]), sign * losses[e]))
        best = ranked[: keep_best or 0]
        kept = [e for e in kept if e in best or e in kept[-(keep_last or 1) :]]
    assert found == kept


def test_the_best_is_named_and_loads(tmp_path):
    manager = CheckpointManager(tmp_path, metric="accuracy", mode="max")
    assert manager.best() is None
    for epoch, accuracy in enumerate([0.1, 0.9, 0.4, float("nan")]):
        manager.save(epoch=epoch, metrics={"accuracy": accuracy})
    assert manager.load(manager.best())["epoch"] == 1


def test_files_of_others_are_neither_counted_nor_removed(tmp_path):
    others = ["checkpoint.pt", "checkpoint-000001.pt", "notes.tmp", "checkpoint-000009-epoch1.pt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    manager = CheckpointManager(tmp_path, keep_last=1)
    fill(manager, 3)
    assert len(list(tmp_path.iterdir())) == len(others) + 1
    assert all((tmp_path / name).read_text() == "mine" for name in others)
    assert manager.load()["custom_state"] == {"n": 2}


# Damage


def damage(path: Path, how: str, at: float) -> None:
    data = bytearray(path.read_bytes())
    place = int(at * (len(data) - 1))
    if how == "a bit":
        data[place] ^= 1 << (place % 8)
    elif how == "cut":
        del data[place:]
    elif how == "zeros":
        data[place:] = bytes(len(data) - place)
    else:
        data += b"x" * (1 + place)
    path.write_bytes(data)


@settings(max_examples=60)
@given(how=st.sampled_from(["a bit", "cut", "zeros", "more"]), at=st.floats(0, 1))
def test_damage_anywhere_is_found_and_an_older_one_loads(tmp_path_factory, how, at):
    folder = tmp_path_factory.getbasetemp() / "to-be-damaged"
    if not folder.exists():
        fill(CheckpointManager(folder), 2, model=parts()[0])
    with_damage = tmp_path_factory.mktemp("damaged")
    shutil.copytree(folder, with_damage, dirs_exist_ok=True)
    manager = CheckpointManager(with_damage)
    older, newer = manager.checkpoints()
    before = newer.read_bytes()
    damage(newer, how, at)
    if newer.read_bytes() == before:  # zeros in the place of zeros
        return
    with pytest.raises(CheckpointDamagedError, match=newer.name):
        manager.load(newer)
    with pytest.warns(CheckpointDamagedWarning, match=newer.name) as caught:
        assert manager.load()["path"] == older
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_several_damaged_ones_are_one_warning_and_only_damaged_ones_an_error(tmp_path):
    manager = CheckpointManager(tmp_path)
    first, second, third = fill(manager, 3)
    second.write_bytes(b"")
    damage(third, "a bit", 0.3)
    with pytest.warns(CheckpointDamagedWarning) as caught:
        assert manager.load()["path"] == first
    (warning,) = caught
    assert second.name in str(warning.message)
    assert third.name in str(warning.message)
    assert "load()" not in str(warning.message)  # which is what was called
    damage(first, "cut", 0.9)
    with pytest.raises(CheckpointDamagedError, match=r"all checkpoints.*are damaged") as raised:
        manager.load()
    assert "load()" not in str(raised.value)
    with pytest.raises(CheckpointDamagedError, match=r"load\(\) without a path takes the newest"):
        manager.load(first)


def test_a_loader_of_other_data_refuses_a_state_unless_strict_is_false(tmp_path):
    manager, model = CheckpointManager(tmp_path), torch.nn.Linear(2, 1)
    loader = ResumableDataLoader(range(10), batch_size=2)
    next(iter(loader))
    manager.save(epoch=0, model=model, dataloader=loader)
    other = ResumableDataLoader(range(12), batch_size=2)
    with pytest.raises(StateMismatchError, match="strict=False"):
        manager.load(model=model, dataloader=other)
    with pytest.warns(StateMismatchWarning, match="10 samples, this dataset has 12"):
        manager.load(model=model, dataloader=other, strict=False)
    assert one_pass(other)[0] == [2, 3]


def test_saving_goes_on_beside_a_damaged_one_which_is_left_for_a_look(tmp_path):
    manager = CheckpointManager(tmp_path, keep_last=1)
    (old,) = fill(manager, 1)
    damage(old, "cut", 0.5)
    new = manager.save(epoch=7)
    assert manager.checkpoints() == [old, new]
    assert manager.load()["epoch"] == 7


def test_a_checkpoint_that_torch_wrote_is_no_checkpoint_of_ours(tmp_path):
    torch.save({"epoch": 1}, tmp_path / "plain.pt")
    with pytest.raises(CheckpointDamagedError, match="does not end with a CheckpointManager label"):
        CheckpointManager(tmp_path).load(tmp_path / "plain.pt")


def test_a_link_to_nothing_is_passed_over_too(tmp_path):
    link = tmp_path / "checkpoint-000005-epoch1.pt"
    link.symlink_to(tmp_path / "moved away")
    manager = CheckpointManager(tmp_path, keep_last=1)
    with pytest.raises(CheckpointDamagedError, match="are damaged"):
        manager.load()
    (path,) = fill(manager, 1)
    path.rename(older := tmp_path / "checkpoint-000004-epoch0.pt")
    with pytest.warns(CheckpointDamagedWarning, match="000005"):
        assert manager.load()["path"] == older
    assert link.is_symlink()


def test_a_newer_format_is_an_error_and_not_passed_over(tmp_path):
    manager = CheckpointManager(tmp_path)
    _, path = fill(manager, 2)
    data = path.read_bytes()
    magic, length, _ = _SEAL.unpack(data[-_SEAL.size :])
    text = data[-_SEAL.size - length : -_SEAL.size].replace(b'"version": 1', b'"version": 2')
    body = data[: -_SEAL.size - length]
    path.write_bytes(body + text + _SEAL.pack(magic, len(text), zlib.crc32(text)))
    with pytest.raises(StateVersionError, match="format 2"):
        manager.load()


def test_no_checkpoint_is_an_error_that_says_what_there_is(tmp_path):
    manager = CheckpointManager(tmp_path / "none yet")
    with pytest.raises(CheckpointNotFoundError, match="there is no checkpoint in"):
        manager.load()
    assert not manager.checkpoint_dir.exists()
    manager.save(epoch=3)
    with pytest.raises(FileNotFoundError, match=r"checkpoint-000001-epoch3\.pt"):
        manager.load(tmp_path / "none yet" / "other.pt")
    with pytest.raises(CheckpointNotFoundError, match="is a folder"):
        manager.load(tmp_path / "none yet")


# Mistakes


class Unloadable:
    pass


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"where": Path("x")}, r"custom_state\['where'\], a pathlib"),
        ({"deep": [{"er": (1, np.float64(2))}]}, r"\['deep'\]\[0\]\['er'\]\[1\], a numpy.float64"),
        ({"array": np.zeros(3)}, r"\['array'\], a numpy.ndarray"),
        ({"lambda": lambda: 0}, r"\['lambda'\], a builtins.function"),
        ({"lock": threading.Lock()}, r"\['lock'\], a _thread.lock"),
        ({"counts": defaultdict(int, a=1)}, r"\['counts'\], a collections.defaultdict"),
        ({"own": Unloadable()}, r"\['own'\], a .*Unloadable"),
    ],
)
def test_what_would_not_load_is_an_error_at_save_that_says_where_it_is(tmp_path, value, named):
    manager = CheckpointManager(tmp_path, keep_last=1)
    (good,) = fill(manager, 1)
    with pytest.raises(OptionTypeError, match=named):
        manager.save(epoch=1, model=parts()[0], custom_state=value)
    assert list(tmp_path.iterdir()) == [good]
    assert manager.load()["custom_state"] == {"n": 0}


def test_ordered_dicts_tuples_sets_and_tensors_are_fine(tmp_path):
    manager = CheckpointManager(tmp_path)
    value = {"o": OrderedDict(a=1), "t": (1, 2), "s": {3}, "b": b"4", "x": torch.ones(2)}
    manager.save(epoch=0, custom_state=value)
    found = manager.load()["custom_state"]
    assert found.pop("x").tolist() == value.pop("x").tolist()
    assert found == value


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"epoch": -1}, OptionError, "epoch must be at least 0"),
        ({"epoch": "1"}, OptionTypeError, "epoch must be an int"),
        ({"epoch": 1, "step": 1.5}, OptionTypeError, "step must be an int"),
        ({"epoch": 1, "metrics": {"loss": "low"}}, OptionTypeError, r"metrics\['loss'\].*'low'"),
        ({"epoch": 1, "metrics": {"loss": None}}, OptionTypeError, "must be a number.*None"),
        ({"epoch": 1, "metrics": {"loss": torch.ones(2)}}, OptionTypeError, "must be a number"),
        ({"epoch": 1, "metrics": {3: 1.0}}, OptionTypeError, "names of metrics must be strings"),
        ({"epoch": 1, "metrics": 0.3}, OptionTypeError, "dict of numbers"),
        ({"epoch": 1, "metrics": {"los": 1.0}}, OptionError, "Did you mean 'los'"),
        ({"epoch": 1, "custom_state": 3}, OptionTypeError, "custom_state must be a dict"),
        ({"epoch": 1, "model": 3}, OptionTypeError, "model must have state_dict"),
        ({"epoch": 1, "dataloader": DataLoader([1])}, OptionTypeError, "dataloader must have"),
        (
            {"epoch": 1, "metrics": {"loss": 1} | {str(i) * 9: i for i in range(9999)}},
            OptionError,
            "metrics are too large",
        ),
    ],
)
def test_a_mistake_at_save_is_said_and_harms_nothing(tmp_path, arguments, error, words):
    manager = CheckpointManager(tmp_path, keep_best=1, metric="loss")
    good = manager.save(epoch=0, metrics={"loss": 1.0})
    with pytest.raises(error, match=words):
        manager.save(**arguments)
    assert list(tmp_path.iterdir()) == [good]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"keep_last": 0}, OptionError, "keep_last must be at least 1"),
        ({"keep_best": 1.0, "metric": "x"}, OptionTypeError, "keep_best must be an int"),
        ({"keep_best": 1}, OptionError, "requires metric="),
        ({"mode": "lowest"}, OptionError, "'min' or 'max'"),
        ({"checkpoint_dir": 3}, OptionTypeError, "checkpoint_dir must be a string or a Path"),
        ({"checkpoint_dir": __file__}, OptionError, "must be a folder, found the file"),
    ],
)
def test_a_mistake_at_construction_is_said(tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        CheckpointManager(**{"checkpoint_dir": tmp_path, **options})


def test_asking_for_the_best_without_a_metric_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="metric="):
        CheckpointManager(tmp_path).best()


def test_restoring_what_was_not_saved_is_an_error_before_anything_is_touched(tmp_path):
    model, optimizer, _ = parts()
    manager = CheckpointManager(tmp_path)
    manager.save(epoch=0, model=model)
    other = parts(seed=5)[0]
    before = weights(other)
    with pytest.raises(CheckpointError, match="has no state for optimizer="):
        manager.load(model=other, optimizer=optimizer)
    with pytest.raises(OptionTypeError, match="scheduler must have load_state_dict"):
        manager.load(model=other, scheduler=3)
    assert weights(other) == before


def test_a_loader_of_other_data_is_refused_before_the_model_is_touched(tmp_path):
    model = parts()[0]
    manager = CheckpointManager(tmp_path)
    manager.save(epoch=0, model=model, dataloader=ResumableDataLoader(range(10)))
    other = parts(seed=5)[0]
    before = weights(other)
    with pytest.raises(StateMismatchError, match="num_samples changed"):
        manager.load(model=other, dataloader=ResumableDataLoader(range(11)))
    assert weights(other) == before


class Interrupts:
    def __reduce__(self):
        raise KeyboardInterrupt


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    manager = CheckpointManager(tmp_path)
    (good,) = fill(manager, 1)
    with pytest.raises(KeyboardInterrupt):
        manager.save(epoch=1, model={"x": torch.ones(9)}, custom_state={"x": Interrupts()})
    assert list(tmp_path.iterdir()) == [good]


def test_the_errors_are_exported():
    assert dataporter.CheckpointWriteError is CheckpointWriteError


def test_one_that_the_system_does_not_let_read_is_passed_over_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # since the name of a socket must be short
    manager = CheckpointManager(tmp_path, keep_last=1, keep_best=1, metric="loss")
    first = manager.save(epoch=0, metrics={"loss": 0.5})
    unreadable = tmp_path / "checkpoint-000007-epoch1.pt"
    with socket.socket(socket.AF_UNIX) as opened_by_nobody:
        opened_by_nobody.bind(unreadable.name)
    with pytest.warns(
        CheckpointDamagedWarning, match=f"{unreadable.name} cannot be read"
    ) as caught:
        second = manager.save(epoch=2, metrics={"loss": 0.75})
    assert len(caught) == 1
    assert manager.checkpoints() == [first, unreadable, second]
    assert manager.best() == first  # a second warning would be an error
    with pytest.warns(CheckpointDamagedWarning, match="cannot be read"):
        assert CheckpointManager(tmp_path, metric="loss").best() == first
    second.unlink()
    with pytest.warns(CheckpointDamagedWarning, match=f"{unreadable.name} cannot be read"):
        assert manager.load()["path"] == first
    with pytest.raises(CheckpointDamagedError, match=r"cannot be read: .* Load another one"):
        manager.load(unreadable)
