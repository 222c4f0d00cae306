"""Datasets that are wrong in one way are found, and the way is named; clean ones pass."""

import ast
import os
import random
import subprocess
import sys
import types

import planted
import planted_files
import planted_rows
import pytest
import torch
from tracked import numbered_rows

from dataporter import ResumableDataLoader
from dataporter.tools.sandbox.sandbox import HASH_SEEDS
from dataporter.tools.verify import verify

QUICK = {"batches": 12, "points": 0, "workers": (2,), "fail_fast": True}

DEFECTS = {
    "OwnGenerator": ("generator", "OwnGenerator.rng, NumPy's Generator"),
    "ModulesGenerator": ("generator", "planted.MODULES, Python's Random"),
    "Clock": ("clock", "depends on the time (in the samples of Clock)"),
    "late": ("clock", "in the samples of LateClock"),
    "ProcessId": ("process", "depends on the process id"),
    "CallCounter": ("call order", "CallCounter.calls"),
    "ClassCounter": ("call order", "ClassCounter.calls"),
    "InPlace": ("mutation", "InPlace.data"),
    "CountsBesides": ("mutation", "CountsBesides.data"),
    "AugmentedCache": ("cache", "AugmentedCache.cache"),
    "CachedAugmentation": ("cache", "CachedAugmentation.cache keeps augmented samples"),
    "ListedAugmentation": ("cache", "ListedAugmentation.kept keeps augmented samples"),
    "LruCached": ("cache", "what an lru_cache keeps of earlier ones: planted.augmented"),
    "LruCachedMethod": ("cache", "an lru_cache keeps of earlier ones: LruCachedMethod.__getitem__"),
    "LazyGenerator": ("generator", "LazyGenerator.rng, NumPy's Generator"),
    "WorkerSeed": ("workers", "get_worker_info().seed (in the samples of WorkerSeed)"),
    "needs worker": ("workers", "depends on get_worker_info().seed"),
    "HashOfStrings": ("hash", "hash() of strings"),
    "OrderOfSet": ("hash", "the order of a set"),
    "OrderOfTwo": ("hash", "the order of a set"),
    "OtherLength": ("length", "another length in another process"),
    "Unseeded": ("entropy", "random numbers that nobody has seeded"),
    "collate": ("workers", "which worker fetches it (in collate_fn or converter)"),
    "init": ("worker_init_fn", "worker_init_fn makes workers differ"),
    "seed": ("arguments", "seed changed"),
    "shuffled in place": ("mutation", "ShuffledInPlace.items"),
    "state": ("state", "is incomplete: it lacks StateWithoutBuffer.waiting"),
    "sampler": ("sampler", "sampler.passes"),
    "randomness": ("randomness=False", "randomness=False"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_and_named(name):
    report = verify(planted.make_wrong(name), **QUICK)
    kind, words = DEFECTS[name]
    assert not report.is_exact
    assert report.cause is not None, str(report)
    assert report.cause.kind == kind, str(report)
    assert words in report.cause.words
    assert report.cause.evidence
    assert report.cause.remedy


@pytest.mark.parametrize(
    "name", ["tensors", "drawing", "texts", "counting", "stateless", "single", "keyed", "ranked"]
)
def test_a_clean_loader_passes_everything_it_can_be_put_through(name):
    report = verify(planted.make_clean(name), batches=12, points=1, workers=(0, 3))
    assert report.is_exact, str(report)
    assert report.cause is None
    outcomes = [check.outcome for check in report.checks]
    assert "not run" not in outcomes
    assert outcomes.count("skipped") == {"counting": 2, "stateless": 2, "single": 2}.get(name, 0)
    assert all(check.batches for check in report.checks if check.outcome == "exact")
    assert any("killed" in check.name for check in report.checks)


def test_a_hugging_face_dataset_passes():
    report = verify(planted_rows.make_loader, batches=6, points=0, workers=(2,), world_sizes=(2,))
    assert report.is_exact, str(report)


def test_data_in_files_passes_with_noise_and_decoded_blocks(tmp_path, monkeypatch):
    numbered_rows(tmp_path / "rows.parquet", 48, rows=2)
    monkeypatch.setenv(planted_files.FOLDER, str(tmp_path))
    others = {"workers": (2,), "batch_sizes": (5,), "world_sizes": (2,)}
    report = verify(planted_files.make_loader, batches=6, points=0, **others)
    assert report.is_exact, str(report)
    assert {check.outcome for check in report.checks} == {"exact"}


def test_a_defect_of_an_iterable_is_named_whatever_its_lanes():
    report = verify(planted.make_wrong("streamed generator"), **QUICK)
    assert report.cause is not None
    assert report.cause.kind == "generator"
    assert "Streamed.rng" in report.cause.words


@pytest.mark.parametrize("name", ["bytes", "bytes in a worker", "bytes in threads"])
def test_a_resume_that_delivers_nothing_is_a_difference(name):
    report = verify(planted.make_wrong(name), batches=6, points=0, workers=(0, 2))
    assert not report.is_exact
    resumes = [check for check in report.checks if check.name.startswith("after")]
    assert {check.outcome for check in resumes} == {"differs"}
    assert resumes[0].words == "expected batch 2 of epoch 0, found none"
    assert report.cause is not None
    assert report.cause.kind == "state"


PAIRS = """
    male/female man/woman boy/girl train/val train/test train/valid real/fake left/right yes/no
    true/false pos/neg positive/negative 0/1 a/b x/y cat/dog spam/ham good/bad image/label
    image/text input/target question/answer chosen/rejected high/low benign/malignant M/F 1/2
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 hashes strings in another way")
def test_interpreters_differ_in_the_order_of_common_pairs_of_strings():
    pairs = [pair.split("/") for pair in PAIRS.split()]
    script = f"print([list(set(pair)) for pair in {pairs}])"
    orders = [
        subprocess.check_output(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, text=True
        )
        for seed in HASH_SEEDS
    ]
    for pair, *found in zip(pairs, *map(ast.literal_eval, orders), strict=True):
        assert any(order != found[0] for order in found), pair


def test_a_hash_seed_that_the_user_has_set_is_part_of_all_runs(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert verify(planted.make_wrong("HashOfStrings"), **QUICK).is_exact


def test_samples_that_cannot_be_read_on_one_rank_are_told_so():
    report = verify(planted.make_wrong("half unreadable"), **QUICK)
    left = [check for check in report.checks if check.outcome == "not run"]
    assert {"on 2 ranks, then on 1", "with batches of 8"} <= {
        check.name.partition(", ")[2] for check in left
    }
    assert {check.words.partition(": ")[2] for check in left} == {"OSError: not this one"}


# Factories that no other process can import


def test_a_function_in_a_function_is_verified_but_for_a_new_interpreter():
    length = 30

    def make_loader():
        return ResumableDataLoader(torch.arange(length), batch_size=4, shuffle=True)

    report = verify(make_loader, batches=5, points=0, workers=(1,), world_sizes=(2,))
    assert report.is_exact
    (skipped,) = [check for check in report.checks if check.outcome == "skipped"]
    assert skipped.name == "a new interpreter"
    assert "top level of a module" in skipped.words


def test_a_function_of_a_module_that_only_this_process_finds_is_verified_as_such(monkeypatch):
    def make_loader():
        return ResumableDataLoader(torch.arange(30), batch_size=4, shuffle=True)

    make_loader.__module__, make_loader.__qualname__ = "nowhere_on_disk", "make_loader"
    module = types.ModuleType("nowhere_on_disk")
    module.make_loader = make_loader
    monkeypatch.setitem(sys.modules, "nowhere_on_disk", module)
    report = verify(make_loader, batches=5, points=0, workers=(1,), world_sizes=(2,))
    assert report.is_exact
    (skipped,) = [check for check in report.checks if check.outcome == "skipped"]
    assert skipped.name == "a new interpreter"
    assert "No module named 'nowhere_on_disk'" in skipped.words
    assert "imported by its name" in skipped.words


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda data, index: data[index] + os.getpid(), "process"),
        (lambda data, index: data[index] + random.SystemRandom().random(), "entropy"),
    ],
)
def test_a_defect_in_a_function_in_a_function_is_named(make, kind):
    class Local(planted.Samples):
        def __getitem__(self, index):
            return make(self.data, index)

    report = verify(lambda: ResumableDataLoader(Local(), 4), **QUICK)
    assert report.cause is not None
    assert report.cause.kind == kind


def test_nothing_in_this_process_is_touched():
    before = ResumableDataLoader.__init__
    state = torch.get_rng_state(), random.getstate()
    verify(planted.make_clean("tensors"), batches=2, points=0, workers=(), world_sizes=())
    assert ResumableDataLoader.__init__ is before
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
