"""Loaders of torch and torchdata: their losses are measured, and ours is shown in comparison."""

import contextlib
import json
import re
from dataclasses import replace

import planted_others
import pytest
import torch
from lightning import LightningDataModule
from planted import Samples
from torch.utils.data import DataLoader

from dataporter import FactoryError, NotExactError
from dataporter.tools.sandbox import Sandbox
from dataporter.tools.sandbox.factories import make_loader
from dataporter.tools.verify import Check, Present, Report, assert_resumes_exactly
from dataporter.tools.verify.other_loaders import Restart, describe, find_losses

TEN = "Started again after 5 batches of 10, it begins the epoch anew: 20 samples of 40"


def found(factory, workers=None):
    """The checks of a loader as it is, by name: outcome and words."""
    with contextlib.closing(Sandbox(factory, Restart, seconds=900)) as sandbox:
        loader = describe(sandbox)
        checks = list(find_losses(sandbox, loader, 8, workers))
    return {check.name: (check.outcome, check.words) for check in checks}


def outcomes(checks):
    return [outcome for outcome, _ in checks.values()]


# torch's


def test_a_shuffled_torch_loader_loses_place_order_and_random_numbers():
    checks = found(planted_others.maker("shuffled"))
    state, order, samples, time = checks.values()
    assert outcomes(checks) == ["differs"] * 4
    assert TEN in state[1]
    twice, of, never = map(
        int, re.search(r"(\d+) samples? of (\d+) .* (\d+) never", order[1]).groups()
    )
    assert (twice, of) == (never, 40)
    assert 0 < twice <= 20
    assert samples[1].startswith("4 of 4 batches differ, the first is batch 5, at x: expected ")
    assert samples[1].endswith("The samples are the right ones, but their random numbers differ")
    assert re.match(r"4 batches were read for nothing in .*half an epoch \(5 batches\)", time[1])


def test_a_seeded_one_keeps_its_order_but_not_with_other_workers():
    checks = found(planted_others.maker("seeded"))
    assert outcomes(checks) == ["differs", "exact", "exact", "differs", "differs"]
    assert (
        "random numbers differ" in checks["the samples after 4 skipped batches, with 1 worker"][1]
    )


def test_a_sequential_one_without_random_numbers_loses_its_place_alone():
    checks = found(planted_others.maker("sequential"))
    assert outcomes(checks) == ["differs", "exact", "exact", "exact", "differs"]


def test_an_iterable_without_a_state_is_read_from_the_beginning():
    checks = found(planted_others.maker("streamed"))
    assert outcomes(checks) == ["differs", "exact", "exact", "differs"]
    assert "it reads its data from the beginning" in checks["a state to resume from"][1]


# torchdata's


def test_torchdatas_loader_keeps_the_order_but_not_augmentation_in_workers():
    checks = found(planted_others.maker("stateful"), workers=(1, 2))
    assert list(checks) == [
        "after 1 batch, with 1 worker",
        "after 4 batches, with 1 worker",
        "after 4 batches, with 2 workers",
        "the way to its state after 4 batches",
    ]
    assert outcomes(checks) == ["differs", "differs", "differs", "exact"]
    assert "random numbers differ" in checks["after 4 batches, with 1 worker"][1]
    assert "it fails with AssertionError" in checks["after 4 batches, with 2 workers"][1]


def test_torchdatas_loader_without_workers_and_random_numbers_is_exact():
    checks = found(planted_others.maker("stateful, plain"), workers=())
    assert outcomes(checks) == ["exact"] * 3


def test_samples_that_are_read_again_on_the_way_to_a_state_are_counted():
    checks = found(planted_others.maker("stateful, streamed"), workers=())
    assert outcomes(checks) == ["exact", "exact", "differs"]
    words = checks["the way to its state after 4 batches"][1]
    assert words.startswith("16 samples are read again to get there, since Numbers has no state")


def test_other_samples_after_a_resume_are_told_from_other_random_numbers():
    checks = found(planted_others.maker("stateful, new order"), workers=())
    assert "Other samples come" in checks["after 4 batches, with 0 workers"][1]


# Whatever is given


def test_indices_in_tensors_are_told_apart_by_their_numbers():
    batches = [[torch.tensor(2 * at), torch.tensor(2 * at + 1)] for at in range(4)]
    checks = found(DataLoader(torch.arange(8), batch_sampler=batches))
    assert outcomes(checks) == ["differs", "exact", "exact", "exact", "differs"]
    assert "4 samples of 8 come a second time" in checks["a state to resume from"][1]


def test_fetches_of_spawned_workers_are_counted_too():
    loader = DataLoader(range(8), 4, num_workers=1, multiprocessing_context="spawn")
    with contextlib.closing(Sandbox(loader, Restart, seconds=300)) as sandbox:
        _, restarted = sandbox.run(Restart(order=True, batches=3))
    assert (restarted.problem, restarted.fetched) == (None, 8)


def test_a_loader_of_one_batch_is_refused():
    with pytest.raises(FactoryError, match="delivered a single batch, so there is no resume"):
        found(lambda: DataLoader(range(4), 4))


def test_the_report_for_machines_has_both_loaders():
    lost = Check(name="a state to resume from", outcome="differs", words="it has none")
    kept = Check(name="after 1 batch", outcome="exact", batches=3)
    present = Present(loader="torch's DataLoader", checks=(lost,))
    report = Report(loader="ours", reference="a run", checks=(kept,), present=present)
    told = json.loads(json.dumps(report.as_dict()))
    assert (told["exact"], told["would_be_exact"]) == (False, True)
    assert told["present"]["checks"][0]["words"] == "it has none"
    assert replace(report, present=None).is_exact


@pytest.mark.parametrize(("seed", "outcome"), [(None, "differs"), (3, "exact")])
def test_a_loader_itself_is_tried_as_in_a_new_run_of_its_script(seed, outcome):
    with torch.random.fork_rng():
        torch.seed() if seed is None else torch.manual_seed(seed)
        checks = found(DataLoader(Samples(), 4, shuffle=True))
    assert checks["the order, if 5 batches are skipped"][0] == outcome


def test_a_lightning_data_module_is_set_up_for_its_loader():
    class Photos(LightningDataModule):
        def prepare_data(self):
            self.steps = ["prepared"]

        def setup(self, stage):
            self.steps.append(stage)

        def train_dataloader(self):
            return DataLoader(self.steps)

    for given in (Photos, Photos()):
        loader, options = make_loader(given, {})
        assert (loader.dataset, options) == (["prepared", "fit"], None)


def test_the_report_tells_the_loader_as_it_is_from_ours_and_names_the_cause():
    quick = {"batches": 6, "points": 0, "workers": (), "batch_sizes": (), "world_sizes": ()}
    with pytest.raises(NotExactError) as failed:
        assert_resumes_exactly(planted_others.maker("own generator"), **quick, fail_fast=True)
    text = " ".join(str(failed.value).split())
    assert "torch's DataLoader over OwnGenerator" in text
    assert re.search(r"As it is, NOT EXACT: \d of \d checks differ", text)
    assert "With dataporter, NOT EXACT" in text
    assert "a generator of its own: OwnGenerator.rng" in text
    assert max(map(len, str(failed.value).splitlines())) <= 80
