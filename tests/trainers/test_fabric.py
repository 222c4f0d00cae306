"""Fabric, real: its wrapper counts its own passes, and our loaders go on where they stand."""

import pytest
from lightning.fabric import Fabric
from support import Ids, flat, one_pass, passes, plain
from torch.utils.data import DataLoader, DistributedSampler

from dataporter import ResumableDataLoader, ResumableSampler

SAMPLES = 20


def own():
    return ResumableDataLoader(Ids(SAMPLES), 3, shuffle=True, seed=1)


def with_a_sampler_of_torch():
    sampler = DistributedSampler(Ids(SAMPLES), num_replicas=2, rank=0, seed=1)
    return ResumableDataLoader(Ids(SAMPLES), 2, sampler=sampler)


def wrapped(loader, fabric=None):
    return (fabric or Fabric(accelerator="cpu", devices=1)).setup_dataloaders(loader)


@pytest.mark.parametrize("make", [own, with_a_sampler_of_torch])
@pytest.mark.parametrize("epoch", [0, 1, 3])
@pytest.mark.parametrize("stop", [0, 2, "all", "end"])
def test_a_resume_under_fabric_goes_on_in_its_epoch(make, epoch, stop):
    reference = passes(make(), 6)
    loader = make()
    batches = wrapped(loader)
    for _ in range(epoch):
        one_pass(batches)
    running = iter(loader)  # the wrapper's iterator looks at nothing ahead either
    seen = [plain(next(running)) for _ in range(len(loader) if stop in ("all", "end") else stop)]
    if stop == "end":
        assert next(running, None) is None
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    batches = wrapped(resumed)
    if stop != "end":
        seen += one_pass(batches)
    assert seen == reference[epoch]
    assert passes(batches, 2) == reference[epoch + 1 : epoch + 3]


def test_the_loop_of_the_documentation_resumes_under_fabric():
    reference = passes(own(), 4)
    loader = own()
    loader.seek(2, 6)
    resumed = own()
    resumed.load_state_dict(loader.state_dict())
    batches = wrapped(resumed)
    seen = []
    for epoch in range(resumed.epoch, 4):
        resumed.set_epoch(epoch)
        seen += [(epoch, resumed.batches_processed - 1, plain(batch)) for batch in batches]
    expected = [(2, step, batch) for step, batch in enumerate(reference[2])][2:]
    assert seen == expected + [(3, step, batch) for step, batch in enumerate(reference[3])]


def test_fabric_saves_and_loads_the_wrapper_as_the_loader(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1)
    batches = wrapped(own(), fabric)
    one_pass(batches)
    running = iter(batches)
    next(running)
    fabric.save(tmp_path / "checkpoint.ckpt", {"loader": batches})
    again = wrapped(own(), fabric)
    fabric.load(tmp_path / "checkpoint.ckpt", {"loader": again})
    assert one_pass(again) == [plain(batch) for batch in running]


def test_a_sampler_in_torchs_loader_goes_on_in_its_epoch_under_fabric():
    def sampler():
        return ResumableSampler(SAMPLES, shuffle=True, seed=1)

    reference = [list(epoch) for epoch in [sampler()] * 4]
    saved = sampler()
    saved.set_epoch(2)
    drawing = iter(saved)
    first = [next(drawing) for _ in range(8)]
    resumed = sampler()
    resumed.load_state_dict(saved.state_dict())
    batches = wrapped(DataLoader(Ids(SAMPLES), 4, sampler=resumed))
    assert first + flat(one_pass(batches)) == reference[2]
    assert flat(one_pass(batches)) == reference[3]
