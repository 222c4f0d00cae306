"""The callbacks that log `loader.stats()`, in real trainers."""

import pytest
from lightning_training import Module, combine, make_loader, make_trainer
from transformers_runs import Rows, make

from dataporter.errors import OptionError, OptionTypeError
from dataporter.trainers.lightning import LoaderStatsCallback
from dataporter.trainers.lightning.framework import packages
from dataporter.trainers.transformers import LoaderStatsCallback as OfTransformers


def logged(folder, callback, loaders, **options):
    """Return what a logger of Lightning's gets of the callback, with the steps."""
    from lightning.pytorch.loggers import Logger

    class Kept(Logger):
        name, version = "kept", 0

        def __init__(self):
            super().__init__()
            self.rows = []

        def log_hyperparams(self, *_, **__):
            pass

        def log_metrics(self, metrics, step=None):
            self.rows.append((step, metrics))

    kept = Kept()
    options = {"log_every_n_steps": 1, **options}
    trainer = make_trainer(folder, [callback], logger=kept, **options)
    trainer.fit(Module(), loaders)
    return [(step, row) for step, row in kept.rows if any("waiting" in name for name in row)]


def test_lightning_logs_every_n_steps_what_came_since(tmp_path):
    rows = logged(tmp_path, LoaderStatsCallback(3), make_loader(), max_epochs=2)
    steps = [step for step, _ in rows]
    assert steps == list(range(3, steps[-1] + 1, 3))
    assert len(steps) == 5  # two epochs of eight batches
    assert all(row["loader/batches"] == 3 for _, row in rows[1:])
    assert rows[-1][1]["loader/total_batches"] == 15
    assert all(0 <= row["loader/waiting"] <= 1 for _, row in rows)


def test_lightning_logs_as_often_as_the_trainer_and_once_a_step(tmp_path):
    callback = LoaderStatsCallback(prefix="data_")
    options = {"log_every_n_steps": 2, "accumulate_grad_batches": 2, "max_epochs": 1}
    rows = logged(tmp_path, callback, make_loader(), **options)
    assert [(step, row["data_total_batches"]) for step, row in rows] == [(2, 4), (4, 8)]


def test_lightning_numbers_several_loaders(tmp_path):
    both = combine("min_size", one=make_loader(), other=make_loader())
    rows = logged(tmp_path, LoaderStatsCallback(4), both, max_epochs=1)
    assert {"loader/0/waiting", "loader/1/waiting"} <= rows[0][1].keys()


def test_without_a_logger_nothing_is_asked(tmp_path):
    make_trainer(tmp_path, [LoaderStatsCallback(1)], max_epochs=1).fit(Module(), make_loader())


def test_it_is_a_callback_of_the_package_in_use():
    import importlib

    first = importlib.import_module(packages(["lightning.pytorch"])[0])
    assert issubclass(LoaderStatsCallback, first.Callback)


@pytest.mark.parametrize(
    "made", [LoaderStatsCallback, lambda *a, **k: OfTransformers(None, *a, **k)]
)
def test_options_are_checked(made):
    with pytest.raises(OptionError, match="every_n_steps"):
        made(0)
    with pytest.raises(OptionTypeError, match="prefix must be a string, found int 3"):
        made(prefix=3)


def test_transformers_logs_by_the_trainers_own_log(tmp_path):
    trainer = make(tmp_path, Rows(20), max_steps=9, save_strategy="no")
    trainer.add_callback(OfTransformers(trainer, every_n_steps=3))
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loader/waiting" in row]
    assert [row["step"] for row in rows] == [3, 6, 9]
    assert rows[-1]["loader/total_batches"] >= 9
    # Times of batches as fast as these are estimates, and may come to none for a few of them.
    assert rows[0]["loader/samples_per_second"] > 0


def test_transformers_logs_every_logging_steps_by_default(tmp_path):
    trainer = make(tmp_path, Rows(20), max_steps=4, logging_steps=2, save_strategy="no")
    trainer.add_callback(OfTransformers(trainer))
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loader/waiting" in row]
    assert [row["step"] for row in rows] == [2, 4]
