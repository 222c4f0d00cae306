"""A training in Lightning that was killed or paused goes on where it was, in another process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked_scripts import LIGHTNING, started_to_files
from lightning_training import Module, Points, make_loader, make_trainer, pl
from watching import until

from dataporter import OptionError, OptionTypeError, ResumableDataLoader
from dataporter.trainers.lightning import PauseCallback

CHILD = Path(__file__).with_name("lightning_child.py")
LAST_STEP, WAITS_AFTER, SEED = 11, 6, 1  # of the child
STEPS = 6 * 8


def start(folder, how, **environment):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(CHILD), str(folder), how],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def logged(folder, name="steps.jsonl"):
    log = folder / name
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def fit(folder, pause=None, path=None, *, seed=SEED):
    module = Module()
    torch.manual_seed(seed)
    callbacks = [] if pause is None else [pause]
    make_trainer(folder, callbacks, max_epochs=6, limit_val_batches=0).fit(
        module, make_loader(), ckpt_path=path
    )
    return module.steps


def check_killed(folder, child):
    _, errors = child.communicate(timeout=100)
    assert child.returncode == -signal.SIGKILL, errors
    before = logged(folder)
    assert len(before) == LAST_STEP
    pause = PauseCallback(folder)
    assert pause.newest().name == "epoch=1-step=9.ckpt"
    after = fit(folder, pause, pause.newest(), seed=2)
    whole = fit(folder)
    assert len(whole) == STEPS
    assert before == whole[:LAST_STEP]
    assert after == whole[9:]


def pause_waiting(folder, child):
    """Pause a training that waits for it after some steps."""
    until(lambda: len(logged(folder)) >= WAITS_AFTER or child.poll() is not None, seconds=100)
    os.kill(child.pid, signal.SIGTERM)
    (folder / "signalled").touch()


def check_paused(folder, child):
    pause_waiting(folder, child)
    ended = child.ended(100)
    assert ended.status == 0, ended.err
    assert "Traceback" not in ended.err
    before = logged(folder)
    pause = PauseCallback(folder)
    assert pause.newest() == folder / "pause.ckpt"
    after = fit(folder, pause, pause.newest(), seed=2)
    assert WAITS_AFTER <= len(before) < STEPS
    assert before + after == fit(folder)
    assert pause.newest() is None  # nothing is left to go on with


# The killed process had a ModelCheckpoint, which the next one does without.
without_saver = pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint")


@without_saver
def test_a_killed_and_a_paused_process_go_on_in_another_one_as_if_nothing_had_been(tmp_path):
    """Under the other name of the package the first, so that both are shown."""
    killed = start(tmp_path / "kill", "kill", LIGHTNING_NAME="pytorch_lightning")
    folder = tmp_path / "pause"
    folder.mkdir()
    try:
        with started_to_files(CHILD, folder, "pause", imports=LIGHTNING) as paused:
            check_paused(folder, paused)
        check_killed(tmp_path / "kill", killed)
    finally:
        killed.kill()
        killed.wait()


@without_saver
@pytest.mark.soak
def test_a_trainer_of_one_package_takes_the_callback_of_the_other(tmp_path):
    name = {"LIGHTNING_NAME": "pytorch_lightning", "INTEGRATION_FIRST": "1"}
    child = start(tmp_path / "kill", "kill", **name)
    try:
        check_killed(tmp_path / "kill", child)
    finally:
        child.kill()
        child.wait()


@pytest.mark.soak
def test_lightnings_own_second_process_is_paused_with_the_first_and_goes_on_with_it(tmp_path):
    folder = tmp_path / "share"
    child = start(folder, "share")
    try:
        pause_waiting(folder, child)
        _, errors = child.communicate(timeout=100)
        assert child.returncode == 0, errors
        before = len(logged(folder))
        assert WAITS_AFTER <= before == len(logged(folder, "steps1.jsonl")) < 24
        child = start(folder, "share")
        _, errors = child.communicate(timeout=100)
        assert child.returncode == 0, errors
    finally:
        child.kill()
        child.wait()
    steps = logged(folder) + logged(folder, "steps1.jsonl")
    for epoch in range(6):
        seen = [index for step in steps if step["epoch"] == epoch for index in step["ids"]]
        assert sorted(seen) == list(range(22))


class Signalled(Module):
    """Gets a signal in the middle of a step."""

    def __init__(self, number=None, at=-1):
        super().__init__()
        self.number, self.at = number, at
        self.told = []

    def training_step(self, batch):
        if len(self.steps) == self.at:
            os.kill(os.getpid(), self.number)
        return super().training_step(batch)

    def on_train_batch_end(self, *_):
        self.told.append("batch")

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.told.append("validation")

    def on_train_epoch_end(self):
        self.told.append("epoch")


def run(folder, module, pause, path=None, seed=SEED):
    torch.manual_seed(seed)
    validation = ResumableDataLoader(Points(5), 2)
    trainer = make_trainer(folder, [pause], val_check_interval=4, accumulate_grad_batches=3)
    trainer.fit(module, make_loader(), validation, ckpt_path=path)
    return module


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("at", [0, 3, 4, 7, 8, 14])
def test_a_pause_leaves_nothing_out_and_does_nothing_twice(number, at, tmp_path):
    handler = signal.getsignal(number)
    whole = run(tmp_path, Signalled(), PauseCallback(tmp_path))
    pause = PauseCallback(tmp_path)
    assert pause.newest() is None
    first = Signalled(number, at)
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path, first, pause)
    assert exit_.value.code == 0
    assert signal.getsignal(number) is handler
    assert len(first.steps) == at + 1

    second = run(tmp_path, Signalled(), pause, pause.newest(), seed=2)
    assert first.steps + second.steps == whole.steps
    assert first.told + second.told == whole.told
    assert first.validated + second.validated == whole.validated
    assert pause.newest() is None


def test_a_run_may_be_paused_again_and_again(tmp_path):
    whole = run(tmp_path, Signalled(), PauseCallback(tmp_path))
    pause, parts = PauseCallback(tmp_path), []
    for at in (2, 3, 0, 6):  # steps into each part; the last ends in the second epoch
        module = Signalled(signal.SIGUSR1, at)
        with pytest.raises(SystemExit):
            run(tmp_path, module, pause, pause.newest(), seed=SEED + len(parts))
        parts.append(module)
    parts.append(run(tmp_path, Signalled(), pause, pause.newest()))
    assert sum([part.steps for part in parts], []) == whole.steps  # noqa: RUF017
    assert sum([part.told for part in parts], []) == whole.told  # noqa: RUF017


def test_a_signal_in_the_last_step_lets_training_come_to_its_end(tmp_path):
    pause = PauseCallback(tmp_path)
    module = run(tmp_path, Signalled(signal.SIGUSR1, 15), pause)
    assert len(module.steps) == 16
    assert pause.newest() is None


def test_a_run_that_is_only_stopped_keeps_its_pause(tmp_path):
    pause = PauseCallback(tmp_path)
    with pytest.raises(SystemExit):
        run(tmp_path, Signalled(signal.SIGUSR1, 2), pause)
    paused = pause.newest()

    class Stops(Signalled):
        def on_train_batch_end(self, *_):
            self.trainer.should_stop = True

    stopped = run(tmp_path, Stops(), pause, paused)
    assert 0 < len(stopped.steps) < 13
    assert pause.newest() == paused


def test_signals_are_left_alone_where_that_is_wanted(tmp_path):
    caught = []
    before = signal.signal(signal.SIGUSR1, lambda *_: caught.append("ours"))
    try:
        module = Signalled(signal.SIGUSR1, 3)
        assert len(run(tmp_path, module, PauseCallback(tmp_path, enable_pause=False)).steps) == 16
        module = Signalled(signal.SIGUSR1, 3)
        others = PauseCallback(tmp_path, signals=[signal.SIGUSR2])
        assert len(run(tmp_path, module, others).steps) == 16
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught == ["ours", "ours"]


def test_the_newest_checkpoint_is_the_one_written_last(tmp_path):
    pause = PauseCallback(str(tmp_path / "none"))
    assert pause.newest() is None
    for age, name in enumerate(["b.ckpt", "a.ckpt", "newer.txt"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    assert PauseCallback(tmp_path).newest() == tmp_path / "a.ckpt"


def test_what_cannot_be_paused_by_is_refused():
    with pytest.raises(OptionError, match=r"signals such as signal\.SIGUSR1, found 'TERM'"):
        PauseCallback(signals=["TERM"])
    with pytest.raises(OptionError, match="SIGKILL cannot be caught"):
        PauseCallback(signals=[signal.SIGKILL])
    with pytest.raises(OptionTypeError, match="checkpoint_dir must be a path, found int"):
        PauseCallback(3)


def test_it_is_a_callback_of_the_package_that_the_program_uses():
    assert isinstance(PauseCallback(), pl.Callback)
