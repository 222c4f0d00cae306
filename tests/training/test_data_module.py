"""The data module: its split, its loaders, its one state."""

import itertools
import json
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import outputs_of_two_ranks
from small_tokenizer import small_tokenizer
from support import Augmented, Ids, flat, one_pass, plain
from torch.utils.data import Dataset, IterableDataset

from dataporter import (
    OptionError,
    OptionTypeError,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
)
from dataporter.training import (
    CheckpointManager,
    DataModuleProtocol,
    UniversalDataModule,
)


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


def ids_of(loader):
    return flat(one_pass(loader))


# The split


@given(length=st.integers(2, 300), share=st.floats(0.01, 0.99), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_every_sample_is_on_one_side_and_the_split_is_the_same_again(length, share, seed):
    held_out = round(length * share)
    if held_out in (0, length):
        with pytest.raises(OptionError, match=f"of {length} samples leaves none for"):
            UniversalDataModule(Ids(length), val_split=share, seed=seed)
        return
    module = UniversalDataModule(Ids(length), val_split=share, seed=seed)
    train, val = ids_of(module.train_dataloader()), ids_of(module.val_dataloader())
    assert len(val) == held_out
    assert sorted(train + val) == list(range(length))
    torch.rand(3)  # what else is drawn does not matter
    again = UniversalDataModule(list(range(length)), val_split=share, seed=seed)
    assert ids_of(again.val_dataloader()) == val
    assert ids_of(again.train_dataloader()) == train


def test_the_split_is_this_one_in_every_version():
    module = UniversalDataModule(Ids(20), val_split=0.25, seed=42)
    assert list(module.val_data.indices) == [5, 8, 14, 16, 19]


def test_other_seeds_split_differently_and_none_favours_a_part_of_the_data():
    chosen = np.zeros(200, dtype=int)
    for seed in range(200):
        module = UniversalDataModule(Ids(200), val_split=0.2, seed=seed)
        chosen[list(module.val_data.indices)] += 1
    # 40 of 200 each, within five standard deviations of a binomial.
    assert chosen.sum() == 200 * 40
    assert abs(chosen - 40).max() < 5 * np.sqrt(200 * 0.2 * 0.8)


def test_of_500_a_fifth_is_100():
    train_data = [torch.randint(0, 1000, (128,)) for _ in range(500)]
    module = UniversalDataModule(train_data=train_data, batch_size=32, val_split=0.2, seed=42)
    assert (len(module.train_data), len(module.val_data)) == (400, 100)
    assert len(module.train_dataloader()) == 13
    assert len(module.val_dataloader()) == 4
    assert repr(module) == "UniversalDataModule(400 for training, 100 for validation, seed=42)"


def test_val_data_makes_val_split_ignored():
    module = UniversalDataModule(Ids(10), val_data=[100, 101], val_split=0.5)
    assert sorted(ids_of(module.train_dataloader())) == list(range(10))
    assert ids_of(module.val_dataloader()) == [100, 101]


def test_without_a_split_there_is_no_validation():
    module = UniversalDataModule(Ids(10), val_split=0)
    assert module.val_dataloader() is None
    assert sorted(ids_of(module.train_dataloader())) == list(range(10))
    assert repr(module) == "UniversalDataModule(10 for training, seed=42)"


def test_datasets_are_asked_for_ints():
    class Strict(Ids):
        def __getitem__(self, index):
            assert type(index) is int
            return index

    module = UniversalDataModule(Strict(20), batch_size=4)
    assert sorted(ids_of(module.train_dataloader()) + ids_of(module.val_dataloader())) == list(
        range(20)
    )


def test_a_seed_of_none_is_drawn_and_told():
    torch.manual_seed(1)
    modules = [UniversalDataModule(Ids(100), seed=None) for _ in range(2)]
    assert modules[0].seed != modules[1].seed
    same = UniversalDataModule(Ids(100), seed=modules[0].seed)
    assert list(same.val_data.indices) == list(modules[0].val_data.indices)


# The loaders


def test_a_module_satisfies_the_protocol_and_half_of_one_does_not():
    assert isinstance(UniversalDataModule(Ids(10)), DataModuleProtocol)
    assert not isinstance(object(), DataModuleProtocol)

    class OnlyTraining:
        def train_dataloader(self): ...

    assert not isinstance(OnlyTraining(), DataModuleProtocol)


def test_asking_again_gives_the_same_loader_so_that_passes_go_on():
    module = UniversalDataModule(Ids(40), batch_size=8)
    assert module.train_dataloader() is module.train_dataloader()
    assert module.val_dataloader() is module.val_dataloader()
    first, second = (ids_of(module.train_dataloader()) for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)
    assert module.train_dataloader().epoch == 1


def test_validation_is_in_order_and_changes_nothing_in_training():
    plain_run, validated = (UniversalDataModule(Augmented(40), batch_size=8) for _ in range(2))
    for _ in range(3):
        expected = one_pass(plain_run.train_dataloader())
        samples = [i for ids, _ in one_pass(validated.val_dataloader()) for i in ids]
        assert samples == sorted(samples)
        assert one_pass(validated.train_dataloader()) == expected


def test_training_and_validation_draw_different_numbers():
    module = UniversalDataModule(Augmented(20, "torch"), val_split=0.5, batch_size=10)
    (train,), (val,) = one_pass(module.train_dataloader()), one_pass(module.val_dataloader())
    assert set(train[1][0]).isdisjoint(val[1][0])


def test_only_training_leaves_its_last_batch_out():
    module = UniversalDataModule(Ids(50), batch_size=16, drop_last=True)
    assert [len(batch) for batch in module.train_dataloader()] == [16, 16]
    assert [len(batch) for batch in module.val_dataloader()] == [10]


def test_options_reach_the_loaders():
    module = UniversalDataModule(
        Ids(50), num_workers=1, prefetch_factor=3, persistent_workers=False, pin_memory=True
    )
    for loader in (module.train_dataloader(), module.val_dataloader()):
        assert loader.num_workers == 1
        assert loader.prefetch_factor == 3
        assert not loader.persistent_workers
        assert loader.pin_memory


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_an_iterable_is_used_as_it_is_and_cannot_be_split():
    module = UniversalDataModule(Stream(), val_data=Stream(), batch_size=4)
    assert one_pass(module.train_dataloader()) == [[0, 1, 2, 3], [4, 5]]
    assert ids_of(module.val_dataloader()) == list(range(6))
    assert repr(module).startswith("UniversalDataModule(a stream for training, a stream for")
    with pytest.raises(
        OptionError, match=r"Stream cannot be split by val_split=0.2, .*state. Pass val_d"
    ):
        UniversalDataModule(Stream())


# The state


@given(steps=st.integers(0, 12), batch_size=st.integers(1, 6), data=st.data())
@settings(max_examples=30)
def test_a_module_continues_where_another_stood_with_any_batch_size(steps, batch_size, data):
    module = UniversalDataModule(Augmented(31), batch_size=batch_size)
    loader = module.train_dataloader()
    seen = one_pass(itertools.islice(loader, min(steps, len(loader))))
    state = json.loads(json.dumps(module.state_dict()))
    other_size = data.draw(st.integers(1, 6))
    resumed = UniversalDataModule(Augmented(31), batch_size=other_size)
    resumed.load_state_dict(state)
    assert resumed.state_dict()["train"]["samples_processed"] == sum(len(ids) for ids, _ in seen)

    def samples(passed):
        return [
            pair
            for ids, draws in passed
            for pair in zip(ids, zip(*draws, strict=True), strict=True)
        ]

    rest = one_pass(resumed.train_dataloader())
    whole = one_pass(UniversalDataModule(Augmented(31), batch_size=batch_size).train_dataloader())
    assert samples(seen) + samples(rest) == samples(whole)


def test_a_validation_that_was_broken_off_continues_too():
    module = UniversalDataModule(Ids(60), batch_size=4)
    expected = one_pass(module.val_dataloader())[1:]
    fresh = UniversalDataModule(Ids(60), batch_size=4)
    next(iter(fresh.val_dataloader()))
    resumed = UniversalDataModule(Ids(60), batch_size=4, num_workers=1)
    resumed.load_state_dict(fresh.state_dict())
    assert one_pass(resumed.val_dataloader()) == expected


def test_a_state_that_was_loaded_is_the_state():
    module = UniversalDataModule(Ids(60), batch_size=4)
    next(iter(module.train_dataloader()))
    state = module.state_dict()
    other = UniversalDataModule(Ids(60), batch_size=4)
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_a_checkpoint_keeps_the_module_like_a_loader(tmp_path):
    module = UniversalDataModule(Augmented(60), batch_size=4)
    batches = iter(module.train_dataloader())
    next(batches)
    manager = CheckpointManager(tmp_path)
    path = manager.save(epoch=0, dataloader=module, custom_state={"data_module_seed": module.seed})
    seed = manager.load(path)["custom_state"]["data_module_seed"]
    resumed = UniversalDataModule(Augmented(60), batch_size=4, seed=seed)
    manager.load(path, dataloader=resumed)
    assert one_pass(resumed.train_dataloader()) == [plain(batch) for batch in batches]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"seed": 7},
            r"seed changed: the state was saved with 42, this module has 7. Pass seed=42",
        ),
        (
            {"val_split": 0.5},
            "val_split changed: the state was saved with 0.2, this module has 0.5",
        ),
        ({"val_split": 0}, "val_split changed: the state was saved with 0.2, this module has 0"),
        ({"val_data": Ids(12)}, r"without val_data, .* Pass val_split=0.2 and no val_data"),
    ],
)
def test_a_state_of_another_split_is_refused_and_nothing_changes(changed, message):
    state = UniversalDataModule(Ids(60)).state_dict()
    other = UniversalDataModule(Ids(60), **changed)
    before = other.state_dict()
    with pytest.raises(StateMismatchError, match=message):
        other.load_state_dict(state)
    assert other.state_dict() == before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load_state_dict(state, strict=False)
    assert {warning.category for warning in caught} == {StateMismatchWarning}
    assert any(re.search(message, str(warning.message)) for warning in caught)


@pytest.mark.parametrize(
    ("saved", "other"),
    list(itertools.permutations([{"val_split": 0}, {"val_split": 0.5}, {"val_data": Ids(12)}], 2)),
)
def test_what_a_mismatch_of_splits_says_to_pass_continues_the_run(saved, other):
    state = UniversalDataModule(Ids(60), **saved).state_dict()
    with pytest.raises(StateMismatchError, match="to continue that run") as raised:
        UniversalDataModule(Ids(60), **other).load_state_dict(state)
    advice = str(raised.value).split("Pass ")[-1]
    told = re.match(r"val_split=([\d.]+)", advice)
    options = {**other, **({"val_split": float(told[1])} if told else {})}
    if "no val_data" in advice:
        del options["val_data"]
    elif "that run's val_data" in advice:
        options["val_data"] = saved["val_data"]
    resumed = UniversalDataModule(Ids(60), **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state


def test_a_state_of_other_data_is_refused_on_both_sides_or_none():
    module = UniversalDataModule(Ids(40), val_data=Ids(10), batch_size=4)
    next(iter(module.train_dataloader()))
    other = UniversalDataModule(Ids(40), val_data=Ids(12), batch_size=4)
    before = other.state_dict()
    with pytest.raises(StateMismatchError, match="10 samples, this dataset has 12"):
        other.load_state_dict(module.state_dict())
    assert other.state_dict() == before


@pytest.mark.parametrize("state", [None, [], {}, {"epoch": 1}, {"seed": 42, "val_split": 0.2}])
def test_what_is_no_state_of_a_module_is_refused(state):
    with pytest.raises(StateFormatError, match=r"not a state of a data module.*without"):
        UniversalDataModule(Ids(60)).load_state_dict(state)


RANK = """
import json
import sys
import torch
import torch.distributed as dist
from dataporter.training import UniversalDataModule

dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
dist.barrier()  # else a quick rank may leave while the other is still connecting to it
torch.manual_seed(dist.get_rank())  # ranks agree on nothing by themselves
module = UniversalDataModule(list(range(80)), batch_size=4, seed=None)
batches = iter(module.train_dataloader())
seen = next(batches).tolist() + next(batches).tolist()
validated = [number for batch in module.val_dataloader() for number in batch.tolist()]
print(json.dumps([seen, validated, module.state_dict()]))
dist.destroy_process_group()
"""


def test_ranks_split_alike_share_both_sides_and_one_process_continues(tmp_path):
    outputs = outputs_of_two_ranks(RANK, tmp_path)
    (first, held, state), (second, held_too, same_state) = map(json.loads, outputs)
    assert state == same_state
    module = UniversalDataModule(Ids(80), batch_size=4, seed=state["seed"])
    assert sorted(held + held_too) == list(module.val_data.indices)
    module.load_state_dict(state)
    rest = ids_of(module.train_dataloader())
    assert sorted(first + second + rest + held + held_too) == list(range(80))


# In Lightning


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning.pytorch"])
@pytest.mark.parametrize("by", ["hooks", "datamodule"])
@pytest.mark.parametrize("val_split", [0, 0.25])
def test_a_module_with_a_validation_step_is_fitted_with_validation_data_or_without(
    package, by, val_split, tmp_path
):
    pl = pytest.importorskip(package)
    data_module = UniversalDataModule(torch.arange(80), batch_size=8, val_split=val_split)

    class Hooks:
        def train_dataloader(self):
            return data_module.train_dataloader()

        def val_dataloader(self):
            data_module.state_dict()  # which asks for the loaders too
            return data_module.val_dataloader()

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained, self.validated = [], []

        def training_step(self, batch):
            self.trained += batch.tolist()
            return self.layer(batch[:, None].float()).mean()

        def validation_step(self, batch):
            self.validated += batch.tolist()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    class ModelWithData(Hooks, Model):
        pass

    class Data(Hooks, pl.LightningDataModule):
        pass

    model, data = (ModelWithData(), None) if by == "hooks" else (Model(), Data())
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, datamodule=data)
    count = round(80 * (1 - val_split))
    assert len(model.trained) == 2 * count
    assert sorted(model.trained[:count] + model.validated[: 80 - count]) == list(range(80))
    if not val_split:
        assert model.validated == []
        assert data_module.val_dataloader() is None  # for everybody else


# Mistakes


class WithState(Ids):
    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (Ids(10), {"val_spilt": 0.1}, OptionTypeError, "Did you mean 'val_split'"),
        (Ids(10), {"tokeniser": len}, OptionTypeError, "Did you mean 'tokenizer'"),
        (Ids(10), {"val_split": 1.0}, OptionError, "val_split must be below 1 and at least 0"),
        (Ids(10), {"val_split": -0.1}, OptionError, "val_split must be below 1 and at least 0"),
        (Ids(10), {"val_split": "0.1"}, OptionTypeError, "val_split must be a number, found str"),
        (Ids(10), {"val_split": None}, OptionTypeError, "val_split must be a number, found None"),
        (Ids(3), {"val_split": 0.1}, OptionError, "val_split=0.1 of 3 samples leaves none for val"),
        (Ids(3), {"val_split": 0.9}, OptionError, "leaves none for training"),
        (Ids(1), {}, OptionError, "leaves none for validation"),
        ([], {}, OptionError, "train_data is empty"),
        (torch.tensor(3), {}, OptionError, "train_data is empty or has no length"),
        (Dataset(), {}, OptionTypeError, "__getitem__ and __len__, found Dataset. Give it __l"),
        (Ids(10), {"val_data": []}, OptionError, "val_data is empty"),
        ("wikitext", {}, OptionTypeError, "train_data must be a dataset or a list of rows, found"),
        (None, {}, OptionTypeError, "found NoneType. Load the data first"),
        (iter([1]), {}, OptionTypeError, "found list_iterator. Make a list of it"),
        (
            {"train": [1], "test": [2]},
            {},
            OptionTypeError,
            r"Pass one of its splits, as in dataset\['train'\]",
        ),
        ({"test": [2]}, {}, OptionTypeError, r"Pass one of its splits, as in dataset\['test'\]"),
        (Ids(10), {"batch_size": 0}, OptionError, "batch_size must be at least 1"),
        (Ids(10), {"num_workers": 1.5}, OptionTypeError, "num_workers must be an int or None"),
        (Ids(10), {"seed": "a"}, OptionTypeError, "seed must be an int or None"),
        (Ids(10), {"task_spec": "text"}, OptionTypeError, "task_spec must be a TaskSpec, found st"),
        (Ids(10), {"tokenizer": 3}, OptionTypeError, "tokenizer must be callable or None"),
        (Ids(10), {"collate_fn": 3}, OptionTypeError, "collate_fn must be callable or None"),
        (WithState(10), {}, OptionError, "cannot be split by val_split"),
    ],
)
def test_a_mistake_is_told_on_construction(data, options, error, message):
    with pytest.raises(error, match=message):
        UniversalDataModule(data, **options)
