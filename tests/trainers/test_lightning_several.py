"""Several loaders, combined in each of Lightning's ways, resume where each of them stood.

Where one has no length, Lightning looks ahead: into the next pass of a loader that is repeated,
and at the end of an epoch into loaders that have a batch left when another has none.
"""

from itertools import chain

import pytest
import torch
from lightning_training import (
    MOMENTS,
    Module,
    Points,
    SaveAt,
    Stream,
    combine,
    make_loader,
    make_trainer,
    pl,
)
from torch.utils.data import DistributedSampler, RandomSampler

from dataporter import ResumableDataLoader, StateMismatchWarning
from dataporter.trainers.lightning import ResumeCallback

MODES = ("max_size_cycle", "max_size", "min_size")
SHORT, LONG = 5, 12  # samples: 2 batches and 4, the last of which is not known to be it


def points(length=SHORT, **options):
    return make_loader(Points(length), **options)


def stream(length=LONG, **options):
    return make_loader(Stream(length), **options)


def told(length=SHORT):
    return points(length, sampler=DistributedSampler(range(length), 1, 0), shuffle=False)


def short_and_stream():
    return points(), stream()


def stream_and_long():
    return stream(SHORT), points(LONG)


def streams():
    return stream(SHORT), stream()


def long_stream_first():
    return stream(), stream(6)


def fit(folder, mode, make, callbacks=(), path=None, *, seed=5, module=None, **options):
    module = Module() if module is None else module
    torch.manual_seed(seed)  # of loaders and dropout: a resume must not depend on it
    loaders = combine(mode, **dict(zip("abc", make(), strict=False)))
    trainer = make_trainer(folder, [ResumeCallback(), *callbacks], **options)
    trainer.fit(module, loaders, ResumableDataLoader(Points(5), 2), ckpt_path=path)
    return module


def check_resumes(folder, mode, make, moments, *, kind=Module, chained=False, **options):
    saver = SaveAt(folder, moments)
    whole = fit(folder, mode, make, [saver], seed=1, module=kind(), **options)
    for moment, made, path in saver.saved:
        again = SaveAt(folder / path.stem, moments if chained else ())
        resumed = fit(folder, mode, make, [again], path, module=kind(), **options)
        assert resumed.steps == whole.steps[made:], (moment, made)
        for then, further, latest in again.saved[::3]:
            twice = fit(folder, mode, make, [], latest, module=kind(), **options)
            assert twice.steps == whole.steps[made + further :], (moment, made, then, further)
    return whole


PAIRS = [
    ("max_size_cycle", short_and_stream),
    ("max_size_cycle", stream_and_long),
    ("max_size_cycle", streams),
    ("max_size", short_and_stream),
    ("max_size", streams),
    ("min_size", long_stream_first),
]


@pytest.mark.parametrize(("mode", "make"), PAIRS)
def test_a_pause_before_any_step_is_followed_by_the_steps_that_were_left(mode, make, tmp_path):
    check_resumes(tmp_path, mode, make, ["on_train_batch_start"])


class Fetches(Module):
    """Takes its batches from the loaders itself."""

    def training_step(self, dataloader_iter):
        batch, _, _ = next(dataloader_iter)
        return super().training_step(batch)


CASES = {
    "one batch is repeated": ("max_size_cycle", lambda: (points(2), stream()), {}),
    "as long as each other": ("max_size_cycle", lambda: (stream(), stream()), {}),
    "three loaders": ("max_size", lambda: (points(2), stream(), stream(SHORT)), {}),
    "a sampler that is told epochs": ("max_size_cycle", lambda: (told(), stream()), {}),
    "without a stream": ("max_size_cycle", lambda: (told(), points(LONG)), {}),
    "a sampler that is not": (
        "max_size_cycle",
        lambda: (points(sampler=RandomSampler(range(SHORT)), shuffle=False), stream()),
        {},
    ),
    "accumulation": (
        "max_size_cycle",
        short_and_stream,
        {"accumulate_grad_batches": 3, "val_check_interval": 2},
    ),
    "limited length": (
        "max_size_cycle",
        lambda: (points(), points(LONG)),
        {"limit_train_batches": 3},
    ),
    "loaders made anew": (
        "max_size_cycle",
        short_and_stream,
        {"reload_dataloaders_every_n_epochs": 1},
    ),
    "what fetches for itself": ("max_size_cycle", short_and_stream, {"kind": Fetches}),
}


def check_case(folder, name, moments, **options):
    mode, make, others = CASES[name]
    check_resumes(folder, mode, make, moments, **others, **options)


IS_EXPERIMENTAL = "ignore:.*`dataloader_iter`"


@pytest.mark.filterwarnings(IS_EXPERIMENTAL)
@pytest.mark.parametrize("name", ["accumulation", "limited length", "what fetches for itself"])
def test_checkpoints_around_the_end_of_an_epoch_resume_too(name, tmp_path):
    check_case(tmp_path, name, [each for each in MOMENTS if "batch" not in each])


@pytest.mark.parametrize("name", ["a sampler that is told epochs", "without a stream"])
def test_a_sampler_of_the_users_own_goes_on_with_the_epoch_of_its_round(name, tmp_path):
    check_case(tmp_path, name, ["on_train_batch_end"])


@pytest.mark.soak
@pytest.mark.filterwarnings(IS_EXPERIMENTAL)
@pytest.mark.parametrize("name", CASES)
def test_a_resume_of_a_resume_makes_the_same_steps(name, tmp_path):
    check_case(tmp_path, name, MOMENTS, chained=True)


@pytest.mark.soak
@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_loaders_with_workers_resume_too(mode, persistent_workers, tmp_path):
    options = {"num_workers": 1, "persistent_workers": persistent_workers}
    check_resumes(tmp_path, mode, lambda: (points(**options), stream(**options)), MOMENTS)


@pytest.mark.parametrize(
    ("mode", "make"),
    [
        ("max_size_cycle", streams),  # a loader's rounds would be as in the next test
        ("max_size", short_and_stream),
        ("min_size", streams),
    ],
)
def test_a_run_that_is_not_interrupted_is_as_it_is_without_the_callback(mode, make, tmp_path):
    bare = Module()
    torch.manual_seed(5)
    loaders = combine(mode, **dict(zip("ab", make(), strict=True)))
    make_trainer(tmp_path, []).fit(bare, loaders, ResumableDataLoader(Points(5), 2))
    assert fit(tmp_path, mode, make).steps == bare.steps


def test_beside_a_stream_a_loader_that_is_repeated_has_another_order_each_time(tmp_path):
    module = fit(tmp_path, "max_size_cycle", lambda: (points(8), stream(16)))
    for epoch in (0, 1):
        seen = [step["ids"]["a"] for step in module.steps if step["epoch"] == epoch]
        assert [len(ids) for ids in seen] == [3, 3, 2, 3, 3, 2]
        orders = [list(chain(*seen[:3])), list(chain(*seen[3:]))]
        assert [sorted(order) for order in orders] == [list(range(8))] * 2
        assert orders[0] != orders[1]


def test_a_run_that_ended_goes_on_for_more_epochs(tmp_path):
    whole = fit(tmp_path, "max_size_cycle", streams, seed=1, max_epochs=3)
    module = Module()
    torch.manual_seed(1)
    trainer = make_trainer(tmp_path, [ResumeCallback()])
    loaders = combine("max_size_cycle", **dict(zip("ab", streams(), strict=True)))
    trainer.fit(module, loaders, ResumableDataLoader(Points(5), 2))
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    more = fit(tmp_path, "max_size_cycle", streams, path=tmp_path / "end.ckpt", max_epochs=3)
    assert module.steps + more.steps == whole.steps


class Fails(Stream):
    """Cannot be read beyond its eighth sample while the server is away."""

    is_away = False

    def __iter__(self):
        for index, features in super().__iter__():
            if index == 7 and Fails.is_away:
                raise OSError("the file server is away")
            yield index, features


# It looks for a checkpoint to begin with, unasked.
@pytest.mark.filterwarnings("ignore:.*ckpt_path=None.*was called without a model")
@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available")
def test_a_batch_that_was_held_when_the_look_ahead_failed_comes_again(tmp_path, monkeypatch):
    def make():
        return points(), make_loader(Fails(LONG))

    whole = fit(tmp_path, "max_size_cycle", make, seed=1)
    on_failure = pl.callbacks.OnExceptionCheckpoint(tmp_path)
    module = Module()
    options = {"seed": 1, "module": module, "enable_checkpointing": True}
    with monkeypatch.context() as patch:
        patch.setattr(Fails, "is_away", True)
        with pytest.raises(OSError, match="away"):
            fit(tmp_path, "max_size_cycle", make, [on_failure], **options)
    assert len(module.steps) == 1  # the second is held, the third cannot be read
    resumed = fit(tmp_path, "max_size_cycle", make, path=on_failure.ckpt_path)
    assert module.steps + resumed.steps == whole.steps


def test_with_another_batch_size_what_remains_of_an_epoch_comes_once(tmp_path):
    def make(batch_size):
        return lambda: (points(LONG, batch_size=batch_size), stream())

    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    whole = fit(tmp_path, "max_size", make(3), [saver], seed=1)
    _, made, path = saver.saved[1]
    resumed = fit(tmp_path, "max_size", make(2), path=path)
    steps = whole.steps[:made] + [step for step in resumed.steps if step["epoch"] == 0]
    for name in "ab":
        ids = [index for step in steps for index in step["ids"].get(name, ())]
        assert sorted(ids) == list(range(LONG))


def test_where_one_loader_is_refused_the_epoch_begins_anew_for_all(tmp_path):
    saver = SaveAt(tmp_path, ["on_train_batch_end"])
    fit(tmp_path, "max_size_cycle", short_and_stream, [saver])
    module = Module()
    loaders = combine("max_size_cycle", a=points(SHORT + 1), b=stream())
    trainer = make_trainer(tmp_path, [ResumeCallback(on_mismatch="restart_epoch")], max_epochs=1)
    with pytest.warns(StateMismatchWarning, match="epoch 0 restarts"):
        trainer.fit(module, loaders, ckpt_path=saver.saved[2][2])
    seen = [step["ids"] for step in module.steps]
    assert list(chain(*(ids["b"] for ids in seen))) == list(range(LONG))
    assert sorted(seen[0]["a"] + seen[1]["a"]) == list(range(SHORT + 1))
