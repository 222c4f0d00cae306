"""Ours are callbacks of the package whose trainer they are given to, of either name."""

import pytest
from bounds import least, newest
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.utilities import CombinedLoader
from lightning_training import Module, make_loader, make_trainer, quiet

from dataporter import MissingExtraError
from dataporter.trainers.lightning import LoaderStatsCallback, ResumeCallback, loops
from dataporter.trainers.lightning.framework import TRIED, packages

NAMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
CASES = [
    # versions of both, what the program has imported, whose callbacks ours are
    ("2.6.0", "2.6.0", [], ["lightning"]),
    ("2.6.0", "2.6.0", ["pytorch_lightning"], ["pytorch_lightning"]),
    ("2.5.6", "2.5.6", [], ["lightning", "pytorch_lightning"]),
    ("2.5.6", "2.5.6", ["lightning"], ["lightning", "pytorch_lightning"]),
    ("2.5.6", "2.5.6", ["pytorch_lightning"], ["pytorch_lightning", "lightning"]),
    ("2.6.0", "2.5.6", [], ["lightning", "pytorch_lightning"]),
    ("2.5.6", "2.6.0", [], ["lightning"]),
    ("2.5.2", "2.6.0", [], ["pytorch_lightning"]),
    ("2.6.0", "1.9.5", [], ["lightning"]),
]


@pytest.mark.parametrize(("first", "second", "imported", "expected"), CASES)
def test_old_trainers_of_either_package_take_our_callbacks(
    first, second, imported, expected, tmp_path, monkeypatch
):
    """Before 2.6.0 a trainer raises for a callback that is not of its own package."""
    for name, version in zip(NAMES, (first, second), strict=True):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    found = packages({NAMES[name] for name in imported})
    assert found == [NAMES[name] for name in expected]


def test_the_versions_that_were_tried_are_those_of_the_requirements():
    assert (least("lightning", "lightning"), newest("lightning")) == TRIED


@pytest.mark.parametrize("callback", [ResumeCallback, LoaderStatsCallback])
@pytest.mark.parametrize("name", ["_should_reload_train_dl", "restarted_on_epoch_start"])
def test_a_lightning_without_a_private_name_is_refused_before_training(
    name, callback, tmp_path, monkeypatch
):
    module = Module()
    trainer = make_trainer(tmp_path, [callback()])
    monkeypatch.delattr(_FitLoop, name)
    with pytest.raises(MissingExtraError, match=f"_FitLoop of lightning.* has no '{name}'"):
        trainer.fit(module, make_loader())
    assert module.steps == []


def test_the_loaders_that_have_ended_are_not_guessed():
    quiet()
    combined = CombinedLoader([[1], [2, 3]], "max_size_cycle")
    assert loops.ended(combined) == []
    iter(combined)
    assert loops.ended(combined) == [False, False]
    del combined._iterator._consumed
    with pytest.raises(MissingExtraError, match=r"tried with 2\.5\.3 to"):
        loops.ended(combined)
    assert loops.ended(CombinedLoader([[1]], "min_size")) == []


def test_a_fetcher_of_another_kind_is_not_taken_for_one_that_is_known():
    class Eager(_PrefetchDataFetcher):
        pass

    class Other:
        pass

    assert loops.fetches_by_itself(Eager())
    with pytest.raises(MissingExtraError, match="fetches batches by a Other"):
        loops.fetches_by_itself(Other())
