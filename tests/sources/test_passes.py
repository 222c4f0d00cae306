"""Passes, epochs and states: the rules of DESIGN as a user meets them."""

import contextlib
import copy
import io
import json
import pickle
import threading
from pathlib import Path

import pytest
import torch
from forked_scripts import run
from support import (
    Augmented,
    CountedIds,
    Ids,
    Stateful,
    Stateless,
    flat,
    one_pass,
    pass_with_states,
    passes,
    plain,
)
from torch.utils.data import DataLoader, DistributedSampler

from dataporter import (
    PositionDroppedWarning,
    ResumableDataLoader,
    ResumableDistributedSampler,
    ResumableSampler,
    StaleIteratorError,
    create_resumable_dataloader,
)


def make(length: int = 10, batch_size: int = 3, **options) -> ResumableDataLoader:
    return ResumableDataLoader(Ids(length), batch_size, **{"shuffle": True, "seed": 1, **options})


def test_it_is_a_torch_dataloader():
    loader = make()
    assert isinstance(loader, DataLoader)
    assert loader.batch_size == 3
    assert isinstance(loader.sampler, ResumableSampler)
    assert list(loader.batch_sampler) == one_pass(make())


def test_without_shuffle_it_delivers_what_torchs_loader_delivers():
    for drop_last in (False, True):
        ours = ResumableDataLoader(Ids(10), 3, drop_last=drop_last)
        assert one_pass(ours) == one_pass(DataLoader(Ids(10), 3, drop_last=drop_last))


def test_ranks_get_what_torchs_distributed_sampler_gives_them():
    for rank in range(3):
        torchs = DistributedSampler(Ids(10), num_replicas=3, rank=rank, shuffle=False)
        ours = make(shuffle=False, batch_size=2, rank=rank, world_size=3)
        assert one_pass(ours) == one_pass(DataLoader(Ids(10), 2, sampler=torchs))


def test_a_state_before_any_iteration_is_complete_and_starts_nothing():
    dataset = CountedIds(10)
    threads = threading.active_count()
    loader = ResumableDataLoader(dataset, 3, shuffle=True, seed=1, num_workers=2)
    state = loader.state_dict()
    assert not dataset.fetched
    assert threading.active_count() == threads
    resumed = make()
    resumed.load_state_dict(state)
    assert passes(resumed, 2) == passes(make(), 2)


def test_resume_fetches_no_skipped_sample():
    loader = make()
    batches = iter(loader)
    next(batches)
    next(batches)
    dataset = CountedIds(10)
    resumed = ResumableDataLoader(dataset, 3, shuffle=True, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert not dataset.fetched
    rest = one_pass(resumed)
    assert dataset.fetched == flat(rest)


def test_every_pass_is_the_next_epoch_in_another_order():
    epochs = passes(make(), 4)
    assert len({json.dumps(epoch) for epoch in epochs}) == 4
    chosen = make()
    chosen.set_epoch(2)
    assert one_pass(chosen) == epochs[2]
    assert one_pass(chosen) == epochs[3]


def test_break_and_a_new_for_is_the_next_epoch_every_time():
    loader, reference = make(), passes(make(), 4)
    for epoch in range(3):
        for batch in loader:
            assert plain(batch) == reference[epoch][0]
            break
    assert one_pass(loader) == reference[3]


def test_epochs_after_a_resume_in_mid_epoch_are_full_also_after_a_break():
    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    for _ in resumed:
        break
    reference = passes(make(), 3)
    assert [one_pass(resumed), one_pass(resumed)] == reference[1:]


def test_set_epoch_after_a_load_keeps_the_position_of_that_epoch_only():
    reference = passes(make(), 3)
    loader = make()
    loader.set_epoch(1)
    next(iter(loader))
    state = loader.state_dict()
    for epoch, expected in ((1, reference[1][1:]), (2, reference[2]), (0, reference[0])):
        resumed = make()
        resumed.load_state_dict(state)
        with pytest.warns(PositionDroppedWarning) if epoch != 1 else contextlib.nullcontext():
            resumed.set_epoch(epoch)
        assert one_pass(resumed) == expected


@pytest.mark.parametrize("tell", [lambda one: one.set_epoch, lambda one: one.sampler.set_epoch])
def test_a_loop_that_counts_from_0_is_told_what_it_drops_and_what_to_write(tell):
    loader = make()
    loader.set_epoch(2)
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    words = r"epoch 2 after 3 samples.*for epoch in range\(loader\.epoch, .*loader\.seek\(0\)"
    with pytest.warns(PositionDroppedWarning, match=words) as caught:
        for epoch in range(3):
            tell(resumed)(epoch)
            assert one_pass(resumed) == passes(make(), 3)[epoch]
    assert len(caught) == 1
    assert "src" not in Path(caught[0].filename).parts  # but the line of the loop


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_epoch_after_one_that_was_delivered_whole_drops_nothing(drop_last):
    reference = passes(make(drop_last=drop_last), 2)
    loader = make(drop_last=drop_last)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    at_last_batch = loader.state_dict()
    assert next(batches, None) is None
    states = [loader.state_dict()] if drop_last else [at_last_batch, loader.state_dict()]
    for state in states:
        resumed = make(drop_last=drop_last)
        resumed.load_state_dict(state)
        resumed.set_epoch(1)
        assert one_pass(resumed) == reference[1]


def test_a_seek_drops_a_loaded_position_on_purpose():
    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    resumed.seek(0)
    assert one_pass(resumed) == one_pass(make())


def test_the_epoch_of_a_users_sampler_is_told_what_it_drops():
    def loader() -> ResumableDataLoader:
        sampler = DistributedSampler(Ids(20), num_replicas=2, rank=0, seed=1)
        return ResumableDataLoader(Ids(20), 4, sampler=sampler)

    saved = loader()
    saved.set_epoch(1)
    next(iter(saved))
    resumed = loader()
    resumed.load_state_dict(saved.state_dict())
    resumed.sampler.set_epoch(0)
    with pytest.warns(PositionDroppedWarning):
        assert one_pass(resumed) == one_pass(loader())


def test_set_epoch_before_a_load_is_overruled_by_it():
    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.set_epoch(5)
    resumed.load_state_dict(loader.state_dict())
    assert one_pass(resumed) == one_pass(make())[1:]


def test_set_epoch_without_a_load_starts_that_epoch_again():
    loader = make()
    first = one_pass(loader)
    loader.set_epoch(0)
    assert one_pass(loader) == first


def test_the_resume_loop_of_the_readme_skips_nothing_and_repeats_nothing():
    reference = passes(make(), 3)
    loader = make()
    loader.set_epoch(0)
    one_pass(loader)
    for stop in (0, 2, 4):  # after so many batches of epoch 1; 4 is all of them
        loader.set_epoch(1)
        batches = iter(loader)
        seen = [plain(next(batches)) for _ in range(stop)]
        state, resumed = loader.state_dict(), make()
        resumed.load_state_dict(state)
        for epoch in range(state["epoch"], 3):
            resumed.set_epoch(epoch)
            seen += one_pass(resumed)
        assert seen == reference[1] + reference[2]


def test_an_epoch_that_was_finished_is_not_run_again_by_the_resume_loop():
    loader = make()
    one_pass(loader)
    state, resumed = loader.state_dict(), make()
    resumed.load_state_dict(state)
    seen = []
    for epoch in range(state["epoch"], 2):
        resumed.set_epoch(epoch)
        seen += one_pass(resumed)
    assert seen == passes(make(), 2)[1]


def test_a_state_on_the_last_batch_resumes_to_nothing_then_a_full_epoch():
    loader = ResumableDataLoader(list(range(15)), batch_size=5, shuffle=True, seed=1)
    for number, _ in enumerate(loader):
        if number == 2:
            state = loader.state_dict()
            break
    loader.load_state_dict(state)
    assert one_pass(loader) == []
    assert sorted(flat(one_pass(loader))) == list(range(15))


def test_loading_into_a_live_iterator_moves_it():
    reference = passes(make(), 2)
    loader = make()
    _, states = pass_with_states(make())
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(states[2])
    assert plain(next(batches)) == reference[0][2]
    assert loader.samples_processed == 9
    assert [plain(batch) for batch in batches] == reference[0][3:]
    assert one_pass(loader) == reference[1]


def test_an_old_iterator_is_refused_once_another_took_over_the_loaded_position():
    loader = make()
    old = iter(loader)
    next(old)
    loader.load_state_dict(make().state_dict())
    new = iter(loader)
    assert plain(next(new)) == one_pass(make())[0]
    with pytest.raises(StaleIteratorError, match="iter"):
        next(old)
    assert plain(next(new)) == one_pass(make())[1]


def test_an_exhausted_iterator_stays_exhausted_after_a_load():
    loader = make()
    batches = iter(loader)
    list(batches)
    loader.load_state_dict(make().state_dict())
    assert list(batches) == []
    assert one_pass(loader) == one_pass(make())


def test_two_live_iterators_are_two_epochs_and_the_state_follows_the_newer():
    reference = passes(make(), 3)
    loader = make()
    older, newer = iter(loader), iter(loader)
    assert plain(next(newer)) == reference[1][0]
    assert plain(next(older)) == reference[0][0]
    assert plain(next(older)) == reference[0][1]
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert one_pass(resumed) == reference[1][1:]
    assert one_pass(resumed) == reference[2]


def test_loading_twice_and_loading_back_are_exact():
    reference, states = pass_with_states(make())
    loader = make()
    for done in (3, 1, 1, 2):
        loader.load_state_dict(states[done])
        assert loader.state_dict() == states[done]
        assert plain(next(iter(loader))) == reference[done]


def test_a_state_is_a_snapshot():
    loader = ResumableDataLoader(Ids(10), 2, sampler=Stateful(10, 8), seed=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    list(batches)
    assert json.dumps(state, default=plain) == json.dumps(kept, default=plain)
    resumed = ResumableDataLoader(Ids(10), 2, sampler=Stateful(10, 8), seed=1)
    resumed.load_state_dict(state)
    one_pass(resumed)
    assert json.dumps(state, default=plain) == json.dumps(kept, default=plain)


def test_a_state_goes_through_json_and_torch_load_and_is_small_at_any_size():
    class Huge(Ids):
        def __len__(self) -> int:
            return 10**9

    loader = ResumableDataLoader(Huge(10**9), 512, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1000
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save({"dataloader": state}, file)
    file.seek(0)
    assert torch.load(file)["dataloader"] == state


def test_taking_states_changes_neither_data_nor_generators():
    watched, unwatched = make(), make()
    seen = []
    before = torch.get_rng_state()
    for batch in watched:
        watched.state_dict()
        watched.state_dict()
        seen.append(plain(batch))
    assert seen == one_pass(unwatched)
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_is_readable_and_counts_the_batch_in_hand():
    loader = make()
    assert (loader.epoch, loader.batches_processed, loader.samples_processed) == (0, 0, 0)
    for number, _ in enumerate(loader, start=1):
        assert loader.batches_processed == number
        assert loader.samples_processed == min(3 * number, 10)
    next(iter(loader))
    assert (loader.epoch, loader.batches_processed, loader.samples_processed) == (1, 1, 3)


def test_a_slow_consumer_is_not_charged_for_what_was_only_fetched_ahead():
    loader = make(num_workers=2)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["batches_processed"] == 1


def test_drop_last_delivers_the_partial_batch_never_also_after_a_resume():
    loader = make(drop_last=True)
    _, states = pass_with_states(loader)
    for state in states[:-1]:
        resumed = make(drop_last=True)
        resumed.load_state_dict(state)
        assert all(len(batch) == 3 for batch in one_pass(resumed))
        assert len(one_pass(resumed)) == 3 == len(resumed)


def test_a_dropped_tail_stays_dropped_when_a_finished_epoch_is_chosen_again():
    loader = make(drop_last=True)
    one_pass(loader)
    resumed = make(batch_size=1)
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(0)
    assert one_pass(resumed) == []


def test_seeds_come_from_torchs_global_generator_and_are_kept_in_the_state():
    def order(seed: int) -> list:
        torch.manual_seed(seed)
        return one_pass(ResumableDataLoader(Ids(50), 50, shuffle=True))

    assert order(1) == order(1) != order(2)
    torch.manual_seed(1)
    loader = ResumableDataLoader(Ids(50), 10, shuffle=True)
    next(iter(loader))
    torch.manual_seed(2)
    resumed = ResumableDataLoader(Ids(50), 10, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(flat(one_pass(resumed)) + one_pass(_again(loader))[0]) == list(range(50))
    assert one_pass(resumed) == one_pass(loader)


def _again(loader: ResumableDataLoader) -> ResumableDataLoader:
    return ResumableDataLoader(loader.dataset, loader.batch_size, shuffle=True, seed=loader.seed)


def test_a_generator_that_is_passed_gives_the_seed_and_is_not_reseeded():
    def order(seed: int) -> list:
        generator = torch.Generator().manual_seed(seed)
        loader = ResumableDataLoader(Ids(50), 50, shuffle=True, generator=generator)
        assert generator.initial_seed() == seed
        return one_pass(loader)

    assert order(1) == order(1) != order(2)


def test_a_validation_pass_does_not_change_the_training_order():
    reference = passes(make(), 2)
    loader, validation = make(), ResumableDataLoader(Augmented(7), 2, shuffle=True)
    seen = []
    for _ in range(2):
        epoch = []
        for batch in loader:
            epoch.append(plain(batch))
            one_pass(validation)
        seen.append(epoch)
    assert seen == reference


def test_single_samples_without_batching_resume_too():
    loader = ResumableDataLoader(Ids(6), batch_size=None, shuffle=True, seed=1)
    reference, states = pass_with_states(loader)
    resumed = ResumableDataLoader(Ids(6), batch_size=None, shuffle=True, seed=1)
    resumed.load_state_dict(states[4])
    assert one_pass(resumed) == reference[4:]
    assert len(resumed) == 6


def test_a_samplers_draws_leave_the_callers_generators_alone():
    loader = ResumableDataLoader(Ids(10), 3, sampler=Stateless(10), seed=3)
    before = torch.get_rng_state()
    passes(loader, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_weighted_samplers_resume_elastically():
    weights = [float(i % 3) for i in range(30)]

    def rank(rank: int, world_size: int, batch_size: int) -> ResumableDataLoader:
        sampler = ResumableDistributedSampler(
            30, num_replicas=world_size, rank=rank, seed=2, weights=weights
        )
        return ResumableDataLoader(Ids(30), batch_size, sampler=sampler)

    alone = rank(0, 1, 30)
    (reference,) = one_pass(alone)
    ranks = [rank(r, 2, 3) for r in range(2)]
    begun = [plain(next(iter(loader))) for loader in ranks]
    resumed = rank(0, 1, 24)
    resumed.load_state_dict(ranks[0].state_dict())
    assert [sample for pair in zip(*begun, strict=True) for sample in pair] == reference[:6]
    assert one_pass(resumed) == [reference[6:]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_goes_through_pickle(num_workers):
    loader = make(num_workers=num_workers, persistent_workers=num_workers > 0)
    next(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    assert again.state_dict() == loader.state_dict()
    assert one_pass(again) == passes(make(), 2)[1]


def test_the_factory_makes_the_same_loader():
    made = create_resumable_dataloader(Ids(10), batch_size=3, shuffle=True, seed=1)
    assert type(made) is ResumableDataLoader
    assert made.state_dict() == make().state_dict()
    assert one_pass(made) == one_pass(make())


def test_the_order_is_the_same_in_every_process_and_version():
    # A change here breaks every state that users have saved: raise the order's id with it.
    loader = ResumableDataLoader(Ids(10_000), 8, shuffle=True, seed=7)
    loader.set_epoch(3)
    assert one_pass(ResumableDataLoader(Ids(10), 10, shuffle=True, seed=7)) == PINNED_SMALL
    assert plain(next(iter(loader))) == PINNED_LARGE


PINNED_SMALL = [[7, 9, 1, 2, 8, 6, 0, 4, 5, 3]]
PINNED_LARGE = [5066, 830, 5767, 3662, 74, 6027, 5158, 7093]

RESUME = """
import json, sys
from support import Augmented, one_pass
from dataporter import ResumableDataLoader

for state in json.loads(sys.argv[1]):
    loader = ResumableDataLoader(Augmented(11), 3, shuffle=True)
    loader.load_state_dict(state)
    print(json.dumps([one_pass(loader), one_pass(loader)]))
"""


def test_a_new_process_continues_bit_by_bit():
    loader = ResumableDataLoader(Augmented(11), 3, shuffle=True)
    one_pass(loader)
    batches, states = pass_with_states(loader)
    following = one_pass(loader)
    lines = map(json.loads, run(RESUME, json.dumps(states[1:-1])).splitlines())
    assert list(lines) == [[batches[done:], following] for done in range(1, len(batches) + 1)]
