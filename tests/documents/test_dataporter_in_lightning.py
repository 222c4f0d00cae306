"""DataPorter's own document, "Integration with training frameworks": its snippets in Lightning."""

import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import flat
from torch.utils.data import DataLoader

from dataporter import create_resumable_dataloader

pl = pytest.importorskip("pytorch_lightning")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, and the advice of ours
POINTS = torch.stack([torch.arange(320.0), torch.ones(320)], dim=1)  # each begins with its number


class Regression(pl.LightningModule):
    """What the snippets leave out: a model, and the samples that it has seen."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.train_dataset = POINTS
        self.seen = []
        self._dataloader_state = None

    def training_step(self, batch):
        self.seen.append(batch[:, 0].int().tolist())
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def trainer_in(folder, **options):
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        **options,
    )


class YourLightningModule(Regression):
    """The document's module, and the restoring that it announces."""

    def train_dataloader(self):
        dataloader = create_resumable_dataloader(
            self.train_dataset, batch_size=32, shuffle=True, num_workers=4
        )
        if self._dataloader_state is not None:
            dataloader.load_state_dict(self._dataloader_state)
        return dataloader

    def on_save_checkpoint(self, checkpoint):
        # DataPorter state is saved automatically
        if hasattr(self.trainer, "train_dataloader"):
            dataloader = self.trainer.train_dataloader
            if hasattr(dataloader, "state_dict"):
                checkpoint["dataloader_state"] = dataloader.state_dict()

    def on_load_checkpoint(self, checkpoint):
        # Restore will happen when dataloader is created
        self._dataloader_state = checkpoint.get("dataloader_state", None)


def test_pytorch_lightning(tmp_path):
    first, trainer = YourLightningModule(), trainer_in(tmp_path, max_steps=4)
    trainer.fit(first)
    trainer.save_checkpoint(path := tmp_path / "lightning.ckpt")
    saved = torch.load(path, weights_only=False)
    assert saved["dataloader_state"]["batches_processed"] == 4
    second = YourLightningModule()
    trainer_in(tmp_path, max_steps=10).fit(second, ckpt_path=path)
    assert sorted(flat(first.seen + second.seen)) == list(range(320))


class SaveAt(pl.Callback):
    """Saves once, at a hook after an epoch's last batch."""

    def __init__(self, hook, path):
        self.path = path
        setattr(self, hook, self.save)

    def save(self, trainer, *_):
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch and not self.path.exists():
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end", "on_train_epoch_end"])
@pytest.mark.parametrize(("restores", "seed"), [(True, None), (False, None), (False, 3)])
def test_pytorch_lightning_at_the_last_batch_of_an_epoch(tmp_path, hook, restores, seed):
    """The snippet, with and without the restoring that it announces, makes each step once."""

    class AlsoValidated(YourLightningModule):
        def train_dataloader(self):
            dataloader = create_resumable_dataloader(
                self.train_dataset, batch_size=32, shuffle=True, seed=seed
            )
            if restores and self._dataloader_state is not None:
                dataloader.load_state_dict(self._dataloader_state)
            return dataloader

        def val_dataloader(self):
            return DataLoader(POINTS[:4])

        def validation_step(self, batch):
            pass

    path = tmp_path / "last.ckpt"

    def fit(ckpt_path=None):
        module = AlsoValidated()
        trainer_in(tmp_path, max_epochs=2, callbacks=[SaveAt(hook, path)]).fit(
            module, ckpt_path=ckpt_path
        )
        return module.seen

    whole, rest = fit(), fit(path)
    assert len(rest) == 10
    assert sorted(flat(rest)) == list(range(320))
    if restores or seed is not None:
        assert rest == whole[10:]


class ReflowsPauseCallback(pl.Callback):
    """What LightningReflow's `PauseCallback` does in Lightning, where it is not installed.

    A key schedules the pause. After the next validation it saves a checkpoint and stops training.
    """

    def __init__(self, checkpoint_dir="pause_checkpoints", enable_pause=True):
        self.checkpoint_dir = Path(checkpoint_dir)
        self.enable_pause = enable_pause
        self.is_scheduled = False

    def on_validation_end(self, trainer, *_):
        if self.enable_pause and self.is_scheduled:
            trainer.save_checkpoint(self.checkpoint_dir / "pause.ckpt")
            trainer.should_stop = True


class Pauses(pl.Callback):
    """Pauses after a step: by the key of LightningReflow's callback, or the signal of ours."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            if isinstance(trainer.callbacks[0], ReflowsPauseCallback):
                trainer.callbacks[0].is_scheduled = True
            else:
                signal.raise_signal(signal.SIGTERM)


class Validated(Regression):
    def val_dataloader(self):
        return DataLoader(POINTS[:4])

    def validation_step(self, batch):
        pass


@pytest.mark.parametrize("pauses", ["lightning_reflow.callbacks", "dataporter.trainers.lightning"])
@pytest.mark.parametrize("step", [4, 5, 10, 14])  # validated after 5, 10 and 15, of 10 an epoch
@pytest.mark.parametrize("seed", [None, 3])
def test_integration_with_lightning_reflow(tmp_path, monkeypatch, pauses, step, seed):
    """The snippet makes each step once, with LightningReflow's callback and with ours."""
    reflow = ModuleType("lightning_reflow.callbacks")
    reflow.PauseCallback = ReflowsPauseCallback
    monkeypatch.setitem(sys.modules, reflow.__name__, reflow)
    monkeypatch.chdir(tmp_path)
    PauseCallback = import_module(pauses).PauseCallback  # noqa: N806  as the snippet imports it

    def fit(*more, ckpt_path=None):
        # DataPorter works seamlessly with LightningReflow's pause/resume
        trainer = trainer_in(
            tmp_path,
            max_epochs=2,
            val_check_interval=5,
            callbacks=[PauseCallback(checkpoint_dir="checkpoints", enable_pause=True), *more],
        )

        # Your dataloader state is automatically preserved
        dataloader = create_resumable_dataloader(POINTS, batch_size=32, shuffle=True, seed=seed)
        module = Validated()
        with suppress(SystemExit):  # how our callback ends the process
            trainer.fit(module, dataloader, ckpt_path=ckpt_path)
        return module.seen

    first = fit(Pauses(step))
    rest = fit(ckpt_path=tmp_path / "checkpoints" / "pause.ckpt")
    assert step <= len(first) < 20
    assert len(first + rest) == 20
    for epoch in (first + rest)[:10], (first + rest)[10:]:
        assert sorted(flat(epoch)) == list(range(320))
    if seed is not None:
        assert first + rest == fit()
