"""Accelerate with one process: what its loop sees, and what a checkpoint brings back."""

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from support import Augmented, Ids, flat, one_pass, plain
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from tracked import Tracked, numbered_lines

from dataporter import (
    OptionError,
    OptionTypeError,
    ResumableDataLoader,
    StateFormatError,
    StateMismatchError,
    StateMissingError,
)
from dataporter.resumable_dataloader import _OURS
from dataporter.trainers.accelerate import Accelerator, PreparedLoader
from dataporter.trainers.loader_states import FILE


@pytest.fixture(autouse=True)
def _alone():
    """Accelerate keeps its state for the life of a process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Stream(IterableDataset):
    """Numbers with a state; how many there are is not known."""

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def prepared(dataset=None, accelerator=None, **options):
    options = {"batch_size": 3, "seed": 1, **options}
    if not isinstance(dataset, IterableDataset):
        options.setdefault("shuffle", True)
    loader = ResumableDataLoader(Augmented(10) if dataset is None else dataset, **options)
    accelerator = accelerator or Accelerator(cpu=True)
    return accelerator, accelerator.prepare(loader)


def test_prepare_hands_out_the_loader_itself_with_all_that_it_has():
    accelerator, loader = prepared()
    assert isinstance(loader, PreparedLoader)
    assert isinstance(loader.loader, ResumableDataLoader)
    assert accelerator.prepare(loader) is loader
    assert (len(loader), loader.epoch, loader.batch_size) == (4, 0, 3)
    loader.set_epoch(5)
    whole = ResumableDataLoader(Augmented(10), 3, shuffle=True, seed=1)
    whole.set_epoch(5)
    assert one_pass(loader) == one_pass(whole)
    assert loader.state_dict() == whole.state_dict()


# What a prepared loader passes on as it is: the run's place, its contents and options. None of it
# delivers a batch; samples are as the dataset gives them.
PASSED_ON = {
    *("batches_processed", "contents_at", "delivered", "epoch", "exclude", "excluded", "explain"),
    *("load_state_dict", "plan", "samples_at", "samples_processed", "seed", "seek", "set_epoch"),
    *("skipped", "state_dict", "stats"),
    # For trainers and tools
    *("check_worker_number_rationality", "note_times", "sampler"),
    # Torch's
    *("batch_sampler", "batch_size", "collate_fn", "dataset", "drop_last", "generator"),
    *("in_order", "num_workers", "persistent_workers", "pin_memory", "pin_memory_device"),
    *("prefetch_factor", "timeout", "worker_init_fn"),
}
PREPARED = {"batch_at", "device", "multiprocessing_context", "steps"}


def test_each_name_of_a_loader_is_prepared_or_passed_on_as_decided():
    loader = ResumableDataLoader(Ids(4))
    options = set(_OURS) - {"device", "seed"}  # read as they were given
    names = {name for name in dir(loader) if not name.startswith("_")}
    declared = {name for name in DataLoader.__annotations__ if not name.startswith("_")}
    assert (names | declared) - options <= PASSED_ON | PREPARED
    own = {name for name in vars(PreparedLoader) if not name.startswith("_")}
    assert own - {"end_of_dataloader", "remainder"} == PREPARED - {"device"}  # Accelerate's two
    _, prepared_loader = prepared(Ids(4))
    for name in (*PASSED_ON, *options):
        assert getattr(prepared_loader, name) == getattr(prepared_loader.loader, name)
    for name in ("_source", "_get_iterator", "_run"):
        assert not hasattr(prepared_loader, name)


def test_steps_are_prepared_as_batches_are():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    _, loader = prepared(Ids(10), accelerator)
    loader.device = torch.device("meta")  # another one than that on which batches are fetched
    model = accelerator.prepare(nn.Linear(1, 1))
    found = []
    for step, batch in loader.steps():
        with accelerator.accumulate(model):
            found.append((step, accelerator.sync_gradients, batch.device.type))
    assert found == [(0, False, "meta"), (1, False, "meta"), (2, True, "meta"), (3, True, "meta")]
    assert [step for step, _ in loader.steps(progress=True)] == [0, 1, 2, 3]
    assert loader.batch_at(0, 3).device.type == "meta"
    assert loader.delivered is not None


def test_an_attribute_that_is_set_reaches_the_loader():
    _, loader = prepared(Ids(10), shuffle=False)
    loader.collate_fn = lambda samples: torch.tensor(samples) + 100
    assert one_pass(loader)[0] == [100, 101, 102]


def test_a_loader_of_torchs_is_prepared_as_always():
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(Ids(10), 3))
    assert isinstance(loader, accelerate.data_loader.DataLoaderShard)
    skipped = accelerator.skip_first_batches(loader, 1)
    assert one_pass(skipped) == [[3, 4, 5], [6, 7, 8], [9]]


def test_accelerates_own_accelerator_refuses_to_take_the_loader_apart():
    with pytest.raises(OptionTypeError, match=r"dataporter\.trainers.accelerate.Accelerator"):
        accelerate.Accelerator(cpu=True).prepare(ResumableDataLoader(Ids(4)))


@pytest.mark.parametrize("make_dataset", [Augmented, Stream])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=["inline", "workers"])
def test_a_checkpoint_saved_in_the_step_of_a_batch_resumes_after_it(
    make_dataset, options, tmp_path
):
    if options and make_dataset is Stream:
        options = {**options, "lanes": 1}
    accelerator, loader = prepared(make_dataset(10), **options)
    batches = []
    for epoch in range(2):
        for batch in loader:
            batches.append(plain(batch))
            accelerator.save_state(str(tmp_path / f"{epoch}-{loader.batches_processed}"))
    assert len(batches) == 8
    for number, folder in enumerate(sorted(tmp_path.iterdir()), start=1):
        accelerator, loader = prepared(make_dataset(10), Accelerator(cpu=True), **options)
        accelerator.load_state(str(folder))
        rest = [plain(batch) for epoch in range(loader.epoch, 2) for batch in loader]
        assert rest == batches[number:]


def test_data_in_files_keeps_its_order_and_resumes(tmp_path):
    corpus = Tracked(numbered_lines(tmp_path / "data", 24))
    accelerator, loader = prepared(corpus)
    batches = iter(loader)
    seen = flat(next(batches)["id"].tolist() for _ in range(3))
    accelerator.save_state(str(tmp_path / "saved"))
    accelerator, loader = prepared(corpus, batch_size=4)
    accelerator.load_state(str(tmp_path / "saved"))
    rest = flat(batch["id"].tolist() for batch in loader)
    assert sorted(seen + rest) == list(range(24))
    assert loader.state_dict()["order"].startswith("tracks-1, 2 side by side")


@pytest.mark.parametrize("length", [9, 10, 12])
@pytest.mark.parametrize("make_dataset", [Ids, Stream])
def test_gradients_are_applied_when_accelerate_would_and_at_the_end_of_the_loader(
    length, make_dataset
):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)

    def syncs(loader):
        model = accelerator.prepare(nn.Linear(1, 1))
        found = []
        for _ in range(2):
            for _batch in loader:
                with accelerator.accumulate(model):
                    found.append(accelerator.sync_gradients)
        assert not accelerator.gradient_state.in_dataloader
        return found

    ours = syncs(prepared(make_dataset(length), accelerator, batch_size=2)[1])
    torchs = syncs(accelerator.prepare(DataLoader(Ids(length), 2)))
    assert ours == torchs
    assert ours[-1]


def test_a_pass_that_is_broken_off_is_no_longer_the_active_one():
    accelerator, loader = prepared()
    for _batch in loader:
        assert accelerator.gradient_state.active_dataloader is loader
        break
    assert not accelerator.gradient_state.in_dataloader
    assert loader.state_dict()["batches_processed"] == 1


def test_batches_are_placed_on_the_device_unless_told_not_to():
    accelerator = Accelerator(cpu=True)
    loader = ResumableDataLoader(Ids(4))
    assert accelerator.prepare(loader).device == torch.device("cpu")
    assert accelerator.prepare(loader, device_placement=[False]).device is None
    elsewhere = PreparedLoader(loader, torch.device("meta"), non_blocking=False)
    assert {batch.device.type for batch in elsewhere} == {"meta"}


def test_a_checkpoint_without_a_loaders_state_is_refused_or_begins_the_epoch_anew(tmp_path):
    plain_one = accelerate.Accelerator(cpu=True)
    plain_one.prepare(nn.Linear(1, 1))
    plain_one.save_state(str(tmp_path))

    accelerator, loader = prepared()
    model = accelerator.prepare(nn.Linear(1, 1))
    before = model.weight.detach().clone()
    with pytest.raises(StateMissingError, match=f"{FILE} is missing.*restart_epoch=True"):
        accelerator.load_state(str(tmp_path))
    assert torch.equal(model.weight, before)
    accelerator.load_state(str(tmp_path), restart_epoch=True)
    assert not torch.equal(model.weight, before)
    first = one_pass(loader)
    assert len(first) == len(loader)

    accelerator, loader = prepared()
    next(iter(loader))
    accelerator.load_state(str(tmp_path), restart_epoch=True)
    assert one_pass(loader) == first


def test_a_damaged_file_of_states_is_refused_or_begins_the_epoch_anew(tmp_path):
    accelerator, loader = prepared()
    next(iter(loader))
    accelerator.save_state(str(tmp_path))
    whole = (tmp_path / FILE).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"no checkpoint"):
        (tmp_path / FILE).write_bytes(damaged)
        accelerator, loader = prepared()
        with pytest.raises(StateFormatError, match=r"is damaged.*restart_epoch=True"):
            accelerator.load_state(str(tmp_path))
        accelerator.load_state(str(tmp_path), restart_epoch=True)
        assert len(one_pass(loader)) == len(loader)


def test_the_state_of_another_loader_is_refused_or_begins_its_epoch_anew(tmp_path):
    accelerator, loader = prepared()
    loader.set_epoch(3)
    next(iter(loader))
    accelerator.save_state(str(tmp_path))

    accelerator, loader = prepared(Augmented(11))
    with pytest.raises(StateMismatchError, match=r"num_samples changed.*restart_epoch=True"):
        accelerator.load_state(str(tmp_path))
    accelerator.load_state(str(tmp_path), restart_epoch=True)
    whole = ResumableDataLoader(Augmented(11), 3, shuffle=True, seed=1)
    whole.set_epoch(3)
    assert one_pass(loader) == one_pass(whole)


def test_where_one_loader_is_refused_the_others_stay_where_they_were(tmp_path):
    accelerator, first = prepared()
    _, second = prepared(Ids(7), accelerator)
    next(iter(first))
    accelerator.save_state(str(tmp_path))

    accelerator, first = prepared()
    _, second = prepared(Ids(8), accelerator)
    list(first)
    before = [first.state_dict(), second.state_dict()]
    with pytest.raises(StateMismatchError, match="num_samples changed"):
        accelerator.load_state(str(tmp_path))
    assert [first.state_dict(), second.state_dict()] == before
    assert first.epoch == 0
    assert [len(one_pass(first)), first.epoch] == [4, 1]


def test_several_loaders_are_kept_and_their_number_is_checked(tmp_path):
    accelerator, first = prepared()
    _, second = prepared(Ids(7), accelerator)
    next(iter(first))
    list(second)
    states = [first.state_dict(), second.state_dict()]
    accelerator.save_state(str(tmp_path))

    accelerator, first = prepared()
    _, second = prepared(Ids(7), accelerator)
    accelerator.load_state(str(tmp_path))
    assert [first.state_dict(), second.state_dict()] == states

    accelerator.free_memory()
    prepared(None, accelerator)
    with pytest.raises(StateMismatchError, match="states of 2 loaders, but 1 are prepared"):
        accelerator.load_state(str(tmp_path))


def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path):
    class Odd(Stream):
        def state_dict(self):
            return {"at": self.at, "odd": DataLoader}

    accelerator, loader = prepared(Odd(4))
    next(iter(loader))
    with pytest.raises(OptionTypeError, match=r"'odd'.*weights_only=True"):
        accelerator.save_state(str(tmp_path))


@pytest.mark.parametrize("name", ["split_batches", "dispatch_batches"])
def test_sharing_by_accelerate_is_refused(name):
    config = accelerate.DataLoaderConfiguration(**{name: True})
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    with pytest.raises(OptionError, match=f"{name}=True"):
        accelerator.prepare(ResumableDataLoader(Ids(4)))


def test_skipping_what_a_loader_has_skipped_by_itself_is_refused():
    accelerator, loader = prepared()
    for skip in (accelerator.skip_first_batches, accelerate.skip_first_batches):
        for each in (loader, prepared(Stream(4), accelerator)[1]):
            with pytest.raises(OptionError, match="Remove the call"):
                skip(each, 2)
