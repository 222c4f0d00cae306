"""Checkpoints that Lightning cannot resume are an error, or restart the epoch."""

import importlib.metadata
import os
import site
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bounds import least
from lightning_training import (
    BATCH_SIZE,
    SAMPLES,
    Module,
    Points,
    SaveAt,
    Stream,
    combine,
    make_loader,
    make_trainer,
)
from support import flat
from torch.utils.data import DataLoader

import dataporter
from dataporter import (
    OptionError,
    StateMismatchError,
    StateMismatchWarning,
    StateMissingError,
)
from dataporter.trainers.lightning import ResumeCallback

BATCHES = 8


def saved(folder, loader, callbacks=()):
    """Checkpoints of every batch of a run."""
    saver = SaveAt(folder, ["on_train_batch_end"])
    make_trainer(folder, [*callbacks, saver]).fit(Module(), loader)
    return [path for _, _, path in saver.saved]


def resume(folder, loader, path, **options):
    module = Module()
    make_trainer(folder, [ResumeCallback(**options)]).fit(module, loader, ckpt_path=path)
    return module.steps


def without_state(folder):
    return saved(folder, DataLoader(Points(), BATCH_SIZE))


def of_other_data(folder):
    return saved(folder, make_loader(Points(SAMPLES - 2)), [ResumeCallback()])


def of_two_loaders(folder):
    return saved(
        folder, combine("min_size", one=make_loader(), other=make_loader()), [ResumeCallback()]
    )


CASES = [
    (without_state, StateMissingError, "has no state for the 1 training loaders"),
    (of_other_data, StateMismatchError, "saved over 20 samples, this dataset has 22 samples"),
    (of_two_loaders, StateMismatchError, "states of 2 training loaders, this run has 1"),
]


@pytest.mark.parametrize(("make", "error", "message"), CASES)
def test_a_checkpoint_of_something_else_is_refused_with_the_way_out(make, error, message, tmp_path):
    path = make(tmp_path)[3]
    loader = make_loader(seed=3)
    with pytest.raises(error, match=message) as raised:
        resume(tmp_path, loader, path)
    assert "on_mismatch='restart_epoch'" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("at", [3, 7, 11])
@pytest.mark.parametrize("make", [without_state, of_other_data, of_two_loaders])
def test_the_epoch_begins_anew_where_that_is_wanted(make, at, tmp_path):
    path = make(tmp_path)[at]
    epoch = (at + 1) // (7 if make is of_other_data else BATCHES)
    loader, expected = make_loader(seed=3), make_loader(seed=3)
    with pytest.warns(StateMismatchWarning, match=f"epoch {epoch} restarts, since the"):
        steps = resume(tmp_path, loader, path, on_mismatch="restart_epoch")
    epochs = [[ids.tolist() for ids, _ in expected] for _ in range(2)]
    assert [step["ids"] for step in steps] == flat(epochs[epoch:])


def test_a_stream_begins_anew_too(tmp_path):
    path = without_state(tmp_path)[3]
    with pytest.warns(StateMismatchWarning, match="epoch 0 restarts"):
        steps = resume(tmp_path, make_loader(Stream()), path, on_mismatch="restart_epoch")
    assert [index for step in steps for index in step["ids"]] == [*range(SAMPLES)] * 2


def test_testing_a_model_needs_no_state_of_a_loader(tmp_path):
    class Tested(Module):
        def test_step(self, batch):
            self.validation_step(batch)

    path = without_state(tmp_path)[0]
    trainer = make_trainer(tmp_path, [ResumeCallback()])
    trainer.test(Tested(), make_loader(shuffle=False), ckpt_path=path, verbose=False)
    trainer.fit(Module(), make_loader())  # and what was read then is forgotten


def test_a_checkpoint_with_nothing_left_to_do_is_forgotten_too(tmp_path):
    path = saved(tmp_path, make_loader(), [ResumeCallback()])[-1]
    callback = ResumeCallback()
    make_trainer(tmp_path, [callback]).fit(Module(), make_loader(), ckpt_path=path)
    module = Module()
    make_trainer(tmp_path, [callback]).fit(module, make_loader(Points(6)))
    assert len(module.steps) == 4


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="must be 'raise' or 'restart_epoch', found 'ignore'"):
        ResumeCallback(on_mismatch="ignore")


PROGRAM = """
import sys
from dataporter.errors import MissingExtraError
def attempt():
    try:
        import dataporter.trainers.lightning
    except MissingExtraError as error:
        print(error)
attempt()
sys.path.append(sys.argv[1])
attempt()
assert not any(name.startswith(("lightning", "pytorch_lightning")) for name in sys.modules)
"""


def test_lightning_missing_or_too_old_is_an_error_that_names_the_extra(tmp_path):
    """In an interpreter that has every installed package but Lightning, then with an old one."""
    packages, old = tmp_path / "packages", tmp_path / "old" / "lightning-2.5.2.dist-info"
    packages.mkdir()
    for place in map(Path, site.getsitepackages()):
        for part in place.iterdir() if place.is_dir() else ():
            if not part.name.startswith(("lightning", "pytorch_lightning")):
                (packages / part.name).symlink_to(part)
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: lightning\nVersion: 2.5.2\n")
    source = Path(dataporter.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, str(old.parent)],
        env={**os.environ, "PYTHONPATH": f"{source}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    bound = least("lightning", "lightning")
    wanted = (
        f"lightning or pytorch-lightning {bound} or newer is needed, found {{}}. "
        'Install it: pip install "torch-dataporter[lightning]".'
    )
    assert done.stdout.splitlines() == [wanted.format("none"), wanted.format("lightning 2.5.2")]
    assert importlib.metadata.version("lightning")  # here it is there


def test_what_is_saved_loads_as_weights_only(tmp_path):
    path = saved(tmp_path, make_loader(), [ResumeCallback()])[0]
    assert torch.load(path, weights_only=True)["dataporter"]["epoch"] == 0
