"""A Trainer that resumes: from every checkpoint, in every way of counting, without rereading."""

import inspect
from pathlib import Path

import datasets
import pytest
import torch
from bounds import least, newest
from torch.utils.data import DataLoader
from tracked import Tracked, numbered_lines
from transformers import ProgressCallback, Trainer, TrainingArguments
from transformers_runs import Rows, Stream, make

from dataporter import (
    MissingExtraError,
    OptionError,
    ResumableDataLoader,
    StateMismatchError,
    StateMissingError,
)
from dataporter.trainers.loader_states import FILE
from dataporter.trainers.transformers import TRIED, ResumableTrainer


def test_the_versions_that_were_tried_are_those_of_the_requirements():
    assert (least("transformers", "transformers"), newest("transformers")) == TRIED


@pytest.mark.parametrize("name", ["_save_checkpoint", "_load_rng_state"])
def test_a_trainer_without_a_private_name_is_refused_before_training(name, tmp_path, monkeypatch):
    monkeypatch.delattr(Trainer, name)  # ours overrides one, which would never be called then
    with pytest.raises(MissingExtraError, match=f"transformers.* has no '{name}'.* tried with 4"):
        make(tmp_path, Rows(), max_steps=1)


def hugging_face_rows() -> datasets.Dataset:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = torch.randn(20, 3).tolist()
    columns = {"ids": list(range(20)), "input_ids": noise, "labels": [i / 7 for i in range(20)]}
    return datasets.Dataset.from_dict({**columns, "unused": noise}).with_format("torch")


# Up to 5.0 one of the strategies is an option of its own, and the others do not exist.
STRATEGY = "train_sampling_strategy"
HAS_STRATEGIES = STRATEGY in inspect.signature(TrainingArguments).parameters
BY_LENGTH = {STRATEGY: "group_by_length"} if HAS_STRATEGIES else {"group_by_length": True}
IN_ORDER = {STRATEGY: "sequential"} if HAS_STRATEGIES else {}

# An epoch has seven batches of three, the last one of two.
QUICK = {
    "accumulated epochs": (Rows, {"num_train_epochs": 2, "gradient_accumulation_steps": 3}),
    "steps": (Rows, {"max_steps": 10}),
    "a stream": (Stream, {"max_steps": 9}),
    "Hugging Face": (hugging_face_rows, {"num_train_epochs": 2}),
}
RUNS = {
    **QUICK,
    "epochs": (Rows, {"num_train_epochs": 2}),
    "one and a half epochs": (Rows, {"num_train_epochs": 1.5}),
    "accumulated steps": (Rows, {"max_steps": 6, "gradient_accumulation_steps": 2}),
    "another data seed": (Rows, {"max_steps": 9, "data_seed": 5}),
    "whole batches": (Rows, {"num_train_epochs": 2, "dataloader_drop_last": True}),
    "an accumulated stream": (Stream, {"max_steps": 6, "gradient_accumulation_steps": 2}),
    "by length": (Rows, {"num_train_epochs": 2, **BY_LENGTH}),
    "in order": (Rows, {"num_train_epochs": 2, **IN_ORDER}),
    "workers": (Rows, {"num_train_epochs": 2, "dataloader_num_workers": 2}),
}


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def check(run: str, folder: Path, choose=lambda steps: steps) -> None:
    """Train as a whole, resume from chosen checkpoints, and compare everything after them."""
    make_dataset, options = RUNS[run]
    whole = make(folder, make_dataset(), **options)
    whole.train()
    seen = whole.model.seen
    assert len(seen) > 7
    for step in choose(steps_of(folder)[:-1]):
        resumed = make(folder, make_dataset(), **options, save_strategy="no")
        resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
        rest = resumed.model.seen
        assert 0 < len(rest) < len(seen)
        assert rest == seen[-len(rest) :]
        assert resumed.state.global_step == whole.state.global_step
        if make_dataset is not Stream:  # where a Trainer knows no epochs, it makes some up
            assert resumed.state.epoch == whole.state.epoch
        for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_checkpoint_of_a_streams_end_resumes_with_its_random_generators(tmp_path):
    """Dropout draws at once; the losses are compared."""
    check("a stream", tmp_path, lambda steps: [step for step in steps if step == 7])


@pytest.mark.parametrize("run", QUICK)
def test_a_checkpoint_resumes_to_the_same_samples_and_losses(run, tmp_path):
    check(run, tmp_path, lambda steps: [*steps[1:3], steps[-1]])  # step 3 may end an epoch


@pytest.mark.soak
@pytest.mark.parametrize("run", RUNS)
def test_every_checkpoint_resumes_to_the_same_samples_and_losses(run, tmp_path):
    check(run, tmp_path)


def test_data_in_files_keeps_its_order_and_resumes(tmp_path):
    def prepare(sample):
        return {"ids": sample["id"], "input_ids": torch.rand(3), "labels": sample["id"] / 7}

    corpus = Tracked(numbered_lines(tmp_path / "data", 20), transform=prepare)
    whole = make(tmp_path, corpus, num_train_epochs=2)
    whole.train()
    resumed = make(tmp_path, corpus, num_train_epochs=2, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.model.seen == whole.model.seen[4:]  # losses included, hence noise and dropout
    epoch = [index for ids, _ in whole.model.seen[:7] for index in ids]
    assert sorted(epoch) == list(range(20))
    for trainer in (whole, resumed):
        assert trainer.train_loader.state_dict()["order"].startswith("tracks-1, 2 side by side")


def test_what_was_trained_on_is_not_read_again(tmp_path):
    make(tmp_path, Rows(), max_steps=5).train()
    rows = Rows()
    resumed = make(tmp_path, rows, max_steps=7)
    resumed.train(resume_from_checkpoint=True)
    rest = [index for ids, _ in resumed.model.seen for index in ids]
    assert len(rest) == 5
    assert set(rows.read) == set(rest)


def test_an_evaluation_in_mid_epoch_does_not_change_what_is_trained_on(tmp_path):
    alone, evaluated = (
        make(tmp_path / "a", Rows(), max_steps=9),
        make(
            tmp_path / "b",
            Rows(),
            max_steps=9,
            eval_strategy="steps",
            eval_steps=2,
            eval_dataset=Rows(5),
        ),
    )
    alone.train()
    evaluated.train()
    assert [ids for ids, _ in evaluated.model.seen] == [ids for ids, _ in alone.model.seen]
    assert any("eval_loss" in logs for logs in evaluated.state.log_history)


def test_the_order_is_that_of_a_loader_with_the_data_seed(tmp_path):
    trainer = make(tmp_path, Rows(), max_steps=14, data_seed=5)
    trainer.train()
    loader = ResumableDataLoader(range(20), 3, shuffle=True, seed=5)
    batches = [batch.tolist() for _ in range(2) for batch in loader]
    assert [ids for ids, _ in trainer.model.seen] == batches
    assert trainer.train_loader.epoch == 1


def test_a_checkpoint_without_a_loaders_state_is_refused_or_begins_the_epoch_anew(tmp_path):
    make(tmp_path, Rows(), max_steps=9).train()
    (tmp_path / "checkpoint-9" / FILE).unlink()
    refused = make(tmp_path, Rows(), max_steps=20)
    with pytest.raises(StateMissingError, match=f"{FILE} is missing.*ignore_data_skip=True"):
        refused.train(resume_from_checkpoint=True)
    anew = make(tmp_path, Rows(), max_steps=16, ignore_data_skip=True)
    anew.train(resume_from_checkpoint=True)
    epoch = ResumableDataLoader(range(20), 3, shuffle=True, seed=42)
    epoch.set_epoch(1)
    assert [ids for ids, _ in anew.model.seen] == [batch.tolist() for batch in epoch]


def test_a_checkpoint_may_be_given_as_a_path(tmp_path):
    whole = make(tmp_path, Rows(), max_steps=9)
    whole.train()
    resumed = make(tmp_path, Rows(), max_steps=9, save_strategy="no")
    resumed.train(resume_from_checkpoint=tmp_path / "checkpoint-4")
    assert resumed.model.seen == whole.model.seen[4:]


def test_a_loader_of_the_users_own_is_refused_before_training(tmp_path):
    class Hides(ResumableTrainer):
        def get_train_dataloader(self):
            return DataLoader(Rows(), 3)

    trainer = make(tmp_path, Rows(), max_steps=2)
    trainer.__class__ = Hides
    with pytest.raises(OptionError, match=r"Hides.get_train_dataloader\(\) returns its own"):
        trainer.train()
    assert trainer.model.seen == []


def test_the_state_of_other_data_is_refused(tmp_path):
    make(tmp_path, Rows(), max_steps=2).train()
    with pytest.raises(StateMismatchError, match=r"num_samples changed.*ignore_data_skip=True"):
        make(tmp_path, Rows(21), max_steps=4).train(resume_from_checkpoint=True)


def test_an_accumulation_that_the_trainer_would_count_differently_is_refused(tmp_path):
    make(tmp_path, Rows(), max_steps=3).train()
    with pytest.raises(StateMismatchError, match=r"at batch 3 of epoch 0.*ignore_data_skip=True"):
        make(tmp_path, Rows(), max_steps=9, gradient_accumulation_steps=2).train(
            resume_from_checkpoint=True
        )


@pytest.mark.parametrize("order", [{}, BY_LENGTH], ids=str)
def test_another_batch_size_is_refused_where_a_trainer_counts_batches(order, tmp_path):
    """Of batches that a sampler makes, too, of which the loader does not know the size."""
    make(tmp_path, Rows(), max_steps=3, **order).train()
    changed = {"per_device_train_batch_size": 2, **order}
    with pytest.raises(
        StateMismatchError, match=r"saved with 3, now it is 2.*ignore_data_skip=True"
    ):
        make(tmp_path, Rows(), max_steps=9, **changed).train(resume_from_checkpoint=True)


def test_the_progress_bar_begins_where_the_run_stopped(tmp_path, capfd):
    make(tmp_path, Rows(), max_steps=4).train()
    resumed = make(tmp_path, Rows(), max_steps=8, disable_tqdm=False)
    shown = []

    class Looks(ProgressCallback):
        def on_step_begin(self, *_args, **_named):
            shown.append((self.training_bar.n, self.training_bar.initial))

    resumed.pop_callback(ProgressCallback)
    resumed.callback_handler.callbacks.insert(0, Looks())
    resumed.train(resume_from_checkpoint=True)
    assert shown == [(4, 4), (5, 4), (6, 4), (7, 4)]
    assert "| 4/8 [" in capfd.readouterr().err


def test_options_of_the_loader_can_be_given(tmp_path):
    trainer = make(tmp_path, Rows(), max_steps=1, loader_options={"seed": 3, "randomness": False})
    trainer.train()
    assert trainer.train_loader.state_dict()["seed"] == 3
