"""Lightning's trainer, real: from wherever a checkpoint is taken, a resume makes the same steps."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
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
    pl,
)
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from tracked import Tracked, numbered_lines

from dataporter import MissingCallbackWarning, ResumableDataLoader, create_resumable_dataloader
from dataporter.stateful_dataloader import StatefulDataLoader
from dataporter.trainers.lightning import PauseCallback, ResumeCallback
from dataporter.training import UniversalDataModule

BATCHES = 8


def combined(mode, length):
    return combine(mode, long=make_loader(), short=make_loader(Points(length)))


def validation():
    return ResumableDataLoader(Points(5), 2)


@pytest.fixture(autouse=True, scope="module")
def _files(tmp_path_factory):
    """Write the samples of `in_files` once."""
    in_files.folder = numbered_lines(tmp_path_factory.mktemp("files"), SAMPLES)


def in_files():
    return make_loader(Tracked(in_files.folder, transform=noisy))


def noisy(sample):
    return sample["id"], torch.tensor([sample["id"] / 10, 1.0]) + torch.rand(2)


SCENARIOS = {
    "two epochs": (make_loader, {}),
    "three epochs of limited length": (make_loader, {"max_epochs": 3, "limit_train_batches": 5}),
    "half of each epoch": (make_loader, {"limit_train_batches": 0.5}),
    "so many steps": (make_loader, {"max_epochs": -1, "max_steps": 20}),
    "validation within epochs": (make_loader, {"val_check_interval": 0.25}),
    "validation across epochs": (
        make_loader,
        {"val_check_interval": 3, "check_val_every_n_epoch": None},
    ),
    "accumulation": (make_loader, {"accumulate_grad_batches": 3, "val_check_interval": 0.25}),
    "loaders made anew": (make_loader, {"reload_dataloaders_every_n_epochs": 1}),
    "a stream without a length": (lambda: make_loader(Stream()), {"accumulate_grad_batches": 3}),
    "two loaders, one repeated": (lambda: combined("max_size_cycle", 8), {"max_epochs": 3}),
    "two loaders, as long as the shorter": (lambda: combined("min_size", 14), {}),
    "two loaders, as long as the longer": (lambda: combined("max_size", 14), {}),
    "a loader and a stream": (
        lambda: combine("min_size", loader=make_loader(), stream=make_loader(Stream())),
        {},
    ),
    "a sampler of the user's own": (
        lambda: make_loader(sampler=RandomSampler(range(SAMPLES)), shuffle=False),
        {"max_epochs": 3},
    ),
    "torch's distributed sampler": (
        lambda: make_loader(sampler=DistributedSampler(range(SAMPLES), 1, 0), shuffle=False),
        {},
    ),
    "torchdata's defaults": (lambda: StatefulDataLoader(Points(), BATCH_SIZE, shuffle=True), {}),
    "workers": (lambda: make_loader(num_workers=1, persistent_workers=True), {}),
    "data in files": (in_files, {}),
}


def fit(folder, make, callbacks=(), path=None, *, seed=5, module=None, **options):
    module = Module() if module is None else module
    torch.manual_seed(seed)  # of loaders and dropout: a resume must not depend on it
    trainer = make_trainer(folder, [ResumeCallback(), *callbacks], **options)
    trainer.fit(module, make(), validation(), ckpt_path=path)
    return module


def weights(module):
    return [parameter.tolist() for parameter in module.parameters()]


def check_resumes(folder, name, *, every, chained):
    make, options = SCENARIOS[name]
    saver = SaveAt(folder)
    whole = fit(folder, make, [saver], seed=1, **options)
    assert len(saver.saved) > 20
    for moment, made, path in saver.saved[::every]:
        again = SaveAt(folder / path.stem, SaveAt(folder).moments if chained else ())
        resumed = fit(folder, make, [again], path, **options)
        assert resumed.steps == whole.steps[made:], (moment, made)
        assert weights(resumed) == weights(whole), (moment, made)
        for then, further, latest in again.saved[::every]:
            twice = fit(folder, make, [], latest, **options)
            assert twice.steps == whole.steps[made + further :], (moment, made, then, further)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "repeated" not in name])
def test_a_run_that_is_not_interrupted_is_as_it_is_without_the_callback(name, tmp_path):
    make, options = SCENARIOS[name]
    bare = Module()
    torch.manual_seed(5)
    make_trainer(tmp_path, [], **options).fit(bare, make(), validation())
    assert fit(tmp_path, make, **options).steps == bare.steps


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_resume_makes_the_steps_that_were_left_to_the_last_bit(name, tmp_path):
    check_resumes(tmp_path, name, every=4, chained=False)


def test_what_is_saved_after_a_resume_into_the_middle_of_a_step_resumes_too(tmp_path):
    options = {"limit_train_batches": 5, "max_epochs": 3}
    first = SaveAt(tmp_path / "first", ["on_train_batch_start"])
    whole = fit(tmp_path, make_loader, [first], seed=1, **options)
    _, made, path = first.saved[2]
    second = SaveAt(tmp_path / "second", ["on_train_batch_end"])
    fit(tmp_path, make_loader, [second], path, **options)
    for _, further, latest in second.saved[::3]:
        resumed = fit(tmp_path, make_loader, path=latest, **options)
        assert resumed.steps == whole.steps[made + further :]


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_resume_of_a_resume_makes_the_same_steps_wherever_both_were_saved(name, tmp_path):
    check_resumes(tmp_path, name, every=1 if name == "accumulation" else 3, chained=True)
    check_resumes(tmp_path / "all", name, every=1, chained=False)


@pytest.mark.parametrize("make", [make_loader, in_files])
def test_an_uninterrupted_run_has_every_sample_once_an_epoch_in_another_order(make, tmp_path):
    module = fit(tmp_path, make)
    epochs = [
        [index for step in module.steps if step["epoch"] == epoch for index in step["ids"]]
        for epoch in (0, 1)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 2
    assert epochs[0] != epochs[1]
    # And what a bare loader delivers is what was trained on.
    torch.manual_seed(5)
    loader = make()
    assert [[ids.tolist() for ids, _ in loader] for _ in range(2)] == [
        [step["ids"] for step in module.steps if step["epoch"] == epoch] for epoch in (0, 1)
    ]
    order = "tracks-1, 2 side by side" if make is in_files else "shuffled-1"
    assert loader.state_dict()["order"].startswith(order)


class Hooks(Module):
    """Asks for the number of steps before there is a checkpoint to resume from."""

    def train_dataloader(self):
        return make_loader()

    def configure_optimizers(self):
        self.expected_steps = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return make_loader()

    def val_dataloader(self):
        return validation()


class Universal(Module):
    """The snippet of the collation guide: a module with loaders from a data module."""

    def __init__(self):
        super().__init__()
        self.data_module = UniversalDataModule(Points(), batch_size=BATCH_SIZE, val_split=0.2)

    def train_dataloader(self):
        return self.data_module.train_dataloader()

    def val_dataloader(self):
        return self.data_module.val_dataloader()


@pytest.mark.parametrize("kind", [Hooks, Data, Universal])
def test_loaders_come_from_hooks_and_data_modules_too(kind, tmp_path):
    def run(callbacks, path=None, seed=2):
        module, data = (Module(), Data()) if kind is Data else (kind(), None)
        torch.manual_seed(seed)
        make_trainer(tmp_path, [ResumeCallback(), *callbacks]).fit(
            module, datamodule=data, ckpt_path=path
        )
        return module

    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    whole = run([saver], seed=1)
    for _, made, path in saver.saved[2::5]:
        resumed = run([], path)
        assert resumed.steps == whole.steps[made:]
    if kind is Hooks:
        assert resumed.expected_steps == whole.expected_steps == 2 * BATCHES


def test_a_loader_that_is_repeated_in_an_epoch_has_another_order_each_time(tmp_path):
    """Every time one of its own, in the first epoch as in the others."""
    module = fit(tmp_path, lambda: combined("max_size_cycle", 8), max_epochs=2)
    for epoch in (0, 1):
        seen = [step["ids"]["short"] for step in module.steps if step["epoch"] == epoch]
        assert [len(ids) for ids in seen] == [3, 3, 2, 3, 3, 2, 3, 3]
        orders = [seen[0] + seen[1] + seen[2], seen[3] + seen[4] + seen[5]]
        assert [sorted(order) for order in orders] == [list(range(8))] * 2
        assert orders[0] != orders[1]


class Fails(Module):
    def training_step(self, batch):
        if len(self.steps) == 5:
            raise OSError("the file server is away")
        return super().training_step(batch)


# It looks for a checkpoint to begin with, unasked.
@pytest.mark.filterwarnings("ignore:.*ckpt_path=None.*was called without a model")
@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
@pytest.mark.parametrize("make", [make_loader, lambda: make_loader(Stream())])
def test_a_batch_whose_step_failed_comes_again(make, tmp_path):
    whole = fit(tmp_path, make, seed=1)
    on_failure = pl.callbacks.OnExceptionCheckpoint(tmp_path)
    with pytest.raises(OSError, match="away"):
        fit(tmp_path, make, [on_failure], seed=1, module=Fails(), enable_checkpointing=True)
    resumed = fit(tmp_path, make, path=on_failure.ckpt_path)
    assert resumed.steps == whole.steps[5:]


@pytest.mark.parametrize("now", [1, 2, 5, 7, 100])
def test_with_another_batch_size_the_epoch_ends_where_its_data_does(now, tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    whole = fit(tmp_path, make_loader, [saver], seed=1)
    for _, made, path in saver.saved[2:BATCHES:5]:
        resumed = fit(tmp_path, lambda: make_loader(batch_size=now), path=path)
        consumed = [index for step in whole.steps[:made] for index in step["ids"]]
        steps = [step for step in resumed.steps if step["epoch"] == 0]
        rest = [index for step in steps for index in step["ids"]]
        assert sorted(consumed + rest) == list(range(SAMPLES))
        assert len(resumed.steps) == len(steps) + -(-SAMPLES // now)
        # Lightning leaves out the validation that follows a checkpoint of the last batch.
        assert len(resumed.validated) == 3 * (2 if steps else 1)


def test_the_progress_bar_goes_on_where_the_run_stopped(tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    fit(tmp_path, make_loader, [saver])
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        bar = pl.callbacks.TQDMProgressBar(refresh_rate=1)
        path = saver.saved[4][2]
        fit(tmp_path, make_loader, [bar], path, enable_progress_bar=True, max_epochs=1)
    counts = re.findall(r"Epoch (\d+): +\d+%\|[^|]*\| (\d+)/(\d+) ", shown.getvalue())
    steps = list(dict.fromkeys(counts))
    assert steps == [("0", str(done), "8") for done in (5, 6, 7, 8)]


@pytest.mark.parametrize("shown", [{}, {"leave": True}, {"refresh_rate": 0}], ids=str)
@pytest.mark.parametrize("make", [make_loader, lambda: make_loader(Stream())])
def test_the_progress_bar_of_rich_does_not_disturb_a_resume(make, shown, tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    whole = fit(tmp_path, make, [saver], seed=1)
    bar = pl.callbacks.RichProgressBar(**shown)
    resumed = fit(tmp_path, make, [bar], saver.saved[4][2], enable_progress_bar=True)
    assert resumed.steps == whole.steps[5:]


def test_sanity_validation_and_a_validation_pass_leave_training_alone(tmp_path):
    plain = fit(tmp_path, make_loader, num_sanity_val_steps=0, limit_val_batches=0)
    checked = fit(tmp_path, make_loader, num_sanity_val_steps=2, val_check_interval=2)
    assert checked.steps == plain.steps
    assert len(checked.validated) > len(plain.validated) == 0


class Predicts(Module):
    def predict_step(self, batch):
        return batch[0].tolist()


def test_prediction_and_overfitting_have_their_data_though_lightning_rebuilds_the_loader(
    tmp_path,
):
    loader = make_loader(shuffle=False)
    expected = [ids.tolist() for ids, _ in make_loader(shuffle=False)]
    assert make_trainer(tmp_path, []).predict(Predicts(), loader) == expected
    with pytest.warns(UserWarning, match="requested to overfit"):
        module = fit(tmp_path, make_loader, overfit_batches=2)
    assert [step["ids"] for step in module.steps] == expected[:2] * 2


def test_a_loader_that_lightning_rebuilds_keeps_its_options(tmp_path):
    def shifted(batch):
        return batch[0] + 1000, batch[1]

    options = {"seed": 7, "converter": shifted, "on_error": "skip", "tail": "drop"}
    loader = make_loader(**options)
    expected = [ids.tolist() for ids, _ in make_loader(**options)]
    trainer = make_trainer(tmp_path, [])
    predicted = trainer.predict(Predicts(), loader)
    (rebuilt,) = trainer.predict_loop._combined_loader.flattened
    assert rebuilt is not loader
    assert (rebuilt.seed, rebuilt.on_error) == (7, "skip")
    assert predicted[: len(expected)] == expected


def test_a_run_that_ended_goes_on_for_more_epochs(tmp_path):
    whole = fit(tmp_path, make_loader, seed=1, max_epochs=3)
    module = Module()
    torch.manual_seed(1)
    trainer = make_trainer(tmp_path, [ResumeCallback()], max_epochs=2)
    trainer.fit(module, make_loader(), validation())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    more = fit(tmp_path, make_loader, path=tmp_path / "end.ckpt", max_epochs=3)
    assert module.steps + more.steps == whole.steps


class Snippet(Module):
    """The first document's snippet: states that a module keeps for itself."""

    def train_dataloader(self):
        return create_resumable_dataloader(Points(), batch_size=BATCH_SIZE, shuffle=True)

    def on_save_checkpoint(self, checkpoint):
        if hasattr(self.trainer, "train_dataloader"):
            dataloader = self.trainer.train_dataloader
            if hasattr(dataloader, "state_dict"):
                checkpoint["dataloader_state"] = dataloader.state_dict()


def test_the_snippet_of_the_document_and_the_callback_live_together(tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    make_trainer(tmp_path, [ResumeCallback(), saver]).fit(Snippet())
    path = saver.saved[2][2]
    saved = torch.load(path, weights_only=True)
    (state,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert saved["dataloader_state"] == state
    assert state["batches_processed"] == 3


def test_a_checkpoint_of_a_bare_loader_resumes_too(tmp_path):
    """Saved without the callback, and then given to one."""
    saver = SaveAt(tmp_path, ["on_train_batch_end", "on_train_epoch_end"])
    whole = Module()
    make_trainer(tmp_path, [saver]).fit(whole, make_loader(seed=1))
    for _, made, path in saver.saved:
        resumed = fit(tmp_path, make_loader, path=path)
        expected = [step["ids"] for step in whole.steps[made:]]
        assert [step["ids"] for step in resumed.steps] == expected


def test_other_loaders_than_ours_are_left_as_lightning_treats_them(tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    whole = fit(tmp_path, lambda: DataLoader(Points(), BATCH_SIZE), [saver])
    _, made, path = saver.saved[BATCHES - 1]
    assert Path(path).exists()
    resumed = fit(tmp_path, lambda: DataLoader(Points(), BATCH_SIZE), path=path)
    assert [step["ids"] for step in resumed.steps] == [step["ids"] for step in whole.steps[made:]]


def trained_on(module):
    return [step["ids"] for step in module.steps]


@pytest.mark.filterwarnings("ignore::dataporter.MissingCallbackWarning")
def test_what_lightning_does_without_the_callback_as_the_guide_says(tmp_path):
    """Right with a seed, in an epoch and at its end, and wrong in each of the other cases."""

    def run(make=lambda: make_loader(seed=3), kind=Module, path=None, moment="on_train_batch_end"):
        saver = SaveAt(tmp_path / moment, [moment] if path is None else [])
        module = kind()
        make_trainer(tmp_path, [saver]).fit(module, make(), ckpt_path=path)
        return trained_on(module), [path for _, _, path in saver.saved]

    whole, paths = run()
    assert run(path=paths[2])[0] == whole[3:]
    assert run(path=paths[BATCHES - 1])[0] == whole[BATCHES:]
    assert run(kind=Hooks, path=paths[2])[0][0] == whole[0]  # the first batch comes again
    _, ends = run(moment="on_train_epoch_end")
    assert run(path=ends[0])[0] == whole[BATCHES:]
    streamed, paths = run(lambda: make_loader(Stream()))
    assert run(lambda: make_loader(Stream()), path=paths[2])[0][0] == streamed[4]  # one is lost


class Loads(Module):
    """Loads a state into the loader that it hands to the trainer, as some snippets do."""

    def __init__(self, state=None):
        super().__init__()
        self.state = state

    def train_dataloader(self):
        loader = make_loader(seed=3)
        if self.state is not None:
            loader.load_state_dict(self.state)
        return loader

    def on_save_checkpoint(self, checkpoint):
        checkpoint["dataloader_state"] = self.trainer.train_dataloader.state_dict()


def run_that_loads(folder, callbacks, path=None):
    module = Loads(path and torch.load(path, weights_only=True)["dataloader_state"])
    make_trainer(folder, callbacks, max_epochs=3).fit(module, ckpt_path=path)
    return trained_on(module)


def test_a_state_loaded_in_train_dataloader_warns_once_if_the_callback_is_missing(tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end", "on_train_epoch_end"])
    whole = run_that_loads(tmp_path, [saver])  # and this does not warn
    for path in [saver.saved[2][2], *(path for _, made, path in saver.saved if made == BATCHES)]:
        with pytest.warns(
            MissingCallbackWarning, match=r"callbacks=\[ResumeCallback\(\)\]"
        ) as all_:
            rest = run_that_loads(tmp_path, [], path)
        assert len(all_) == 1
        if path != saver.saved[2][2]:
            assert rest == whole[BATCHES:]


@pytest.mark.parametrize("callback", [ResumeCallback, lambda: PauseCallback("none")])
def test_with_the_callback_nothing_is_lost_and_nothing_warns(callback, tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end", "on_train_epoch_end"])
    whole = run_that_loads(tmp_path, [callback(), saver])
    for _, made, path in saver.saved[2:-4:3]:
        assert run_that_loads(tmp_path, [callback()], path) == whole[made:]


def test_a_pass_that_is_not_a_trainers_own_training_does_not_warn(tmp_path):
    """Not one in validation, in a hook of the user's, or without a trainer."""
    state = make_loader(seed=3).state_dict()

    def loaded():
        loader = make_loader(seed=3)
        loader.load_state_dict(state)
        return loader

    class Looks(pl.Callback):
        def on_train_start(self, *_):
            assert len(list(loaded())) == BATCHES

    trainer = make_trainer(tmp_path, [Looks()])
    trainer.fit(Module(), make_loader(), loaded())
    assert len(list(loaded())) == BATCHES


@pytest.mark.parametrize("make", [make_loader, lambda: make_loader(Stream())])
def test_a_resume_by_lightning_alone_warns_though_no_state_reaches_the_loader(make, tmp_path):
    """Lightning loads none at the end of an epoch, nor where a module asks for its steps."""
    saver = SaveAt(tmp_path, ["on_train_batch_end", "on_train_epoch_end"])
    make_trainer(tmp_path, [saver]).fit(Module(), make())
    ends = [path for moment, _, path in saver.saved if moment == "on_train_epoch_end"]
    for kind, path in ((Module, ends[0]), (Hooks, saver.saved[2][2])):
        loader = None if kind is Hooks else make()
        with pytest.warns(MissingCallbackWarning):
            make_trainer(tmp_path, []).fit(kind(), loader, ckpt_path=path)
