"""A state in words: true to what a resume delivers, for every kind of loader."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamed import Shards, StatefulShards
from support import Ids, Stateful, Stateless, flat, one_pass
from tracked import Tracked, numbered_lines

from dataporter import ResumableDataLoader, ResumableDistributedSampler, ResumableSampler
from dataporter.errors import OptionError, StateFormatError, StateMismatchError, StateVersionError
from dataporter.law.explanation import Explanation, explain, is_state
from dataporter.law.state import Identity, Progress, build_state
from dataporter.layout import counted


def advanced(loader: ResumableDataLoader, batches: int) -> ResumableDataLoader:
    passing = iter(loader)
    for _ in range(batches):
        next(passing, None)
    return loader


def words(loader: ResumableDataLoader) -> dict[str, str]:
    return dict(loader.explain().rows())


def test_a_state_in_the_middle_of_an_epoch_is_explained_in_full():
    loader = ResumableDataLoader(
        Ids(50_000), batch_size=32, shuffle=True, seed=7, rank=0, world_size=2
    )
    assert words(advanced(loader, 100)) == {
        "epoch": "0",
        "position": "6,400 of 50,000 samples (12.8 %), after 100 batches on each rank",
        "next": "position 6,400: samples 22599, 13940, 20487, 41458, ... of the dataset; "
        "43,600 samples remain, 681 full steps and a rest of 16",
        "order": "shuffled by seed 7",
        "saved on": "2 ranks, batches of 32",
        "to resume": "the same 50,000 samples, shuffle=True, seed=7 or none given; "
        "batch size, ranks and workers may differ",
    }


@pytest.mark.parametrize(
    ("batches", "where", "then"),
    [
        (0, "epoch 0, at its start", "position 0: samples 0, 1, 2, 3, ... of the dataset; "),
        (3, "epoch 0, 9 of 10 samples (90.0 %)", "position 9: sample 9 of the dataset; "),
        (4, "epoch 0, 10 of 10 samples (100.0 %)", "nothing of epoch 0, whose last batch was"),
        (5, "epoch 0 finished", "epoch 1, from its start"),
    ],
)
def test_start_middle_last_batch_and_end_are_told_apart(batches, where, then):
    loader = advanced(ResumableDataLoader(Ids(10), batch_size=3), batches)
    assert loader.explain().where == where
    assert words(loader)["next"].startswith(then)


@given(
    length=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    batches=st.integers(0, 45),
)
def test_the_samples_said_to_come_next_are_those_that_a_resume_delivers(
    length, batch_size, shuffle, seed, batches
):
    loader = ResumableDataLoader(Ids(length), batch_size=batch_size, shuffle=shuffle, seed=seed)
    said = advanced(loader, batches).explain()
    resumed = ResumableDataLoader(Ids(length), batch_size=5, shuffle=shuffle, seed=seed)
    resumed.load_state_dict(loader.state_dict())
    if not said.progress.finished:  # else a resume goes on with the next epoch
        rest = flat(one_pass(resumed))
        assert said.next_indices == rest[:4]
        assert said.remaining == len(rest)
    else:
        assert said.next_indices == []


@pytest.mark.parametrize("how", ["drop_last", "tail", "sampler"])
def test_what_a_loader_leaves_out_is_not_said_to_come(how):
    options = {
        "drop_last": {"drop_last": True, "rank": 0, "world_size": 2},
        "tail": {"tail": "drop", "rank": 0, "world_size": 2},
        "sampler": {
            "sampler": ResumableDistributedSampler(Ids(26), tail="drop", rank=0, num_replicas=2)
        },
    }
    loader = ResumableDataLoader(Ids(26), batch_size=4, **options[how])
    said = advanced(loader, 2).explain()
    assert said.remaining == 8
    assert words(loader)["next"].endswith(
        "8 samples remain, 1 full step; 2 more fill no step and are left out"
    )
    said = advanced(loader, 3).explain()
    assert (said.remaining, said.next_indices) == (0, [])
    assert words(loader)["next"].startswith("nothing of epoch 1, whose last batch was delivered")


def test_samples_delivered_ahead_of_their_turn_are_counted_and_gone_around():
    identity = Identity(
        seed=1,
        shuffle=False,
        order="sequential",
        num_samples=20,
        fingerprint=None,
        batch_size=2,
        world_size=1,
    )
    progress = Progress(samples_processed=4, batches_processed=5, ahead=((6, 10), (12, 14)))
    said = Explanation(identity=identity, progress=progress)
    assert said.next_indices == [4, 5, 10, 11]
    assert (said.delivered, said.remaining) == (10, 10)
    assert said.where == "epoch 0, 4 of 20 samples and 6 ahead of their turn (50.0 %)"
    resumed = ResumableDataLoader(Ids(20), batch_size=2, seed=1)
    resumed.load_state_dict(build_state(identity, progress))
    assert flat(one_pass(resumed))[:4] == said.next_indices


def test_a_share_is_rounded_down_so_that_only_a_whole_epoch_is_100_percent():
    loader = ResumableDataLoader(Ids(100_000), batch_size=99_999)
    assert "(99.9 %)" in words(advanced(loader, 1))["position"]


def test_a_samplers_length_is_its_own_affair():
    said = words(advanced(ResumableDataLoader(Ids(10), 2, sampler=Stateless(10)), 2))
    assert said["position"] == "4 samples delivered, after 2 batches"
    assert said["next"] == "the sampler's batch 3 of this epoch"
    assert "the same 10 samples and sampler" in said["to resume"]
    assert said["to resume"].endswith("on 1 rank; batch size and workers may differ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 3}, "1 rank, batches of 3"),
        ({"batch_sampler": [[0, 1], [2]]}, "1 rank, batches of the batch sampler"),
        ({"batch_size": None}, "1 rank, no batches"),
    ],
)
def test_who_makes_the_batches_is_said(options, said):
    assert words(ResumableDataLoader(Ids(4), **options))["saved on"] == said


def test_a_sampler_that_ended_leaves_nothing_of_its_epoch():
    loader = ResumableDataLoader(Ids(10), 4, sampler=Stateful(10, 10))
    assert words(advanced(loader, 3))["next"].startswith("nothing of epoch 0")


def test_an_order_of_the_datasets_own_is_named_and_a_live_loader_knows_what_comes_next(tmp_path):
    loader = ResumableDataLoader(
        Tracked(numbered_lines(tmp_path, 16)), batch_size=3, shuffle=True, seed=7
    )
    batches = iter(loader)
    next(batches)
    said, of_state = loader.explain(), explain(loader.state_dict())
    order = loader.state_dict()["order"]
    assert order.startswith("tracks-1, 2 side by side")
    assert dict(said.rows())["order"] == f"shuffled by seed 7 ({order})"
    assert dict(of_state.rows()) == {
        **dict(said.rows()),
        "next": "position 3; 13 samples remain, 4 full steps and a rest of 1",
    }
    assert "shuffle=True, seed=7" in dict(said.rows())["to resume"]
    assert said.next_indices == flat(batch["id"].tolist() for batch in batches)[:4]


def test_an_epoch_of_weighted_draws_is_as_long_as_its_draws():
    sampler = ResumableSampler(4, weights=[1, 2, 3, 4], num_samples=100, seed=3)
    loader = advanced(ResumableDataLoader(Ids(4), 10, sampler=sampler), 2)
    assert loader.explain().length == 100
    assert words(loader)["position"].startswith("20 of 100 samples (20.0 %)")
    assert "the same 4 samples, the same weights, seed=3" in words(loader)["to resume"]


def test_lanes_are_told_one_by_one_with_those_that_ended():
    said = words(advanced(ResumableDataLoader(StatefulShards([3, 4, 5]), 2, lanes=3), 4))
    assert said["lanes"] == "3; batches delivered of each: 2 (ended), 1, 1"
    assert said["next"] == "the lanes' batch 5 of this epoch"
    assert "it stays in 3 lanes; batch size and workers may differ" in said["to resume"]


@pytest.mark.parametrize(("count", "shown"), [(8, "0, 2, 4, 6, 8, 10, 12, 14;"), (9, "14, ...;")])
def test_many_lanes_are_cut_short(count, shown):
    lanes = {"lanes": 2 * count, "rank": 0, "world_size": 2}
    loader = ResumableDataLoader(StatefulShards([1] * 2 * count), 2, **lanes)
    assert shown in words(loader)["lanes"]


def test_a_stream_of_several_ranks_has_an_unknown_length():
    class Sized(StatefulShards):
        def __len__(self):
            return 6

    for ranks, length in ((1, 6), (2, None)):
        loader = ResumableDataLoader(Sized([3, 3]), 2, lanes=2, rank=0, world_size=ranks)
        assert loader.explain().length == length


def test_lanes_that_have_all_ended_leave_nothing_of_their_epoch():
    loader = advanced(ResumableDataLoader(StatefulShards([3, 1]), 2, lanes=2), 3)
    assert words(loader)["next"].startswith("nothing of epoch 0, whose last batch was delivered")


def test_lanes_without_a_state_must_be_read_again_in_the_same_batches():
    loader = ResumableDataLoader(Shards([3, 4, 5]), 2, lanes=3, rank=0, world_size=2)
    said = words(advanced(loader, 2))
    assert said["position"] == "4 samples delivered, after 2 batches on this rank"
    assert said["lanes"].startswith("3, of which this state has 0, 2;")
    assert "the states of all ranks as a list" in said["to resume"]
    assert "batches of 2, since 2 batches must be read again and dropped" in said["to resume"]


FREE_BATCH_SIZE = "batch size and workers may differ"


@pytest.mark.parametrize(
    ("make", "said", "other", "fits"),
    [
        ({"sampler": Stateless(12)}, FREE_BATCH_SIZE, {"batch_size": 3}, True),
        ({"sampler": Stateless(12)}, "on 1 rank", {"rank": 0, "world_size": 2}, False),
        ({}, "batch size, ranks and workers", {"rank": 0, "world_size": 2, "batch_size": 3}, True),
        ({}, "shuffle=False", {"shuffle": True}, False),
        ({"seed": 5}, "seed=5 or none given", {"seed": None}, True),
        ({"seed": 5}, "seed=5 or none given", {"seed": 6}, False),
        ({"dataset": StatefulShards([5, 7])}, FREE_BATCH_SIZE, {"batch_size": 3}, True),
        ({"dataset": StatefulShards([5, 7])}, "on 1 rank", {"rank": 0, "world_size": 2}, False),
        ({"dataset": Shards([5, 7])}, "batches of 2, since", {"batch_size": 3}, False),
    ],
)
def test_a_resume_needs_what_is_said_and_nothing_more(make, said, other, fits):
    options = {"dataset": Ids(12), "batch_size": 2} | make
    loader = advanced(ResumableDataLoader(**options), 2)
    assert said in words(loader)["to resume"]
    resumed = ResumableDataLoader(**(options | other))
    if fits:
        resumed.load_state_dict(loader.state_dict())
    else:
        with pytest.raises(StateMismatchError):
            resumed.load_state_dict(loader.state_dict())


def test_a_loader_and_its_saved_state_explain_the_same():
    loader = advanced(ResumableDataLoader(StatefulShards([3, 4, 5]), 2), 2)
    assert repr(loader.explain()) == repr(explain(json.loads(json.dumps(loader.state_dict()))))


NUMBERS = st.integers(0, 2**63 - 1)


@given(
    identity=st.builds(
        Identity,
        seed=st.integers(0, 2**64 - 1),
        shuffle=st.booleans(),
        order=st.sampled_from(["sequential", "shuffled-1", "lanes of X", "sampler X, by state"])
        | st.text(),
        num_samples=st.none() | NUMBERS,
        fingerprint=st.none() | st.text(),
        batch_size=st.none() | st.integers(1, 2**63 - 1),
        world_size=st.integers(1, 2**63 - 1),
    ),
    progress=st.builds(
        Progress,
        epoch=NUMBERS,
        samples_processed=NUMBERS,
        batches_processed=NUMBERS,
        finished=st.booleans(),
        rng_state=st.none(),
        sampler=st.none(),
        ahead=st.just(()) | st.just(((3, 5), (7, 2**62))),
        lanes=st.none(),
    ),
)
def test_every_state_that_can_be_parsed_is_explained_in_80_columns_and_as_json(identity, progress):
    said = explain(build_state(identity, progress))
    lines = repr(said).split("\n")
    assert all(len(line) <= 80 and line.isprintable() for line in lines)
    assert json.loads(json.dumps(said.as_dict()))["epoch"] == progress.epoch


@pytest.mark.parametrize(
    ("finished", "where", "then"),
    [
        (False, "7 batches", "batch 8"),
        (True, "7 batches, finished", "the next epoch, from its start"),
    ],
)
def test_a_state_of_torchdata_in_the_middle_and_at_the_end_of_an_epoch(finished, where, then):
    nothing = ("_sampler_iter_state", "_index_sampler_state", "fetcher_state", "dataset_state")
    state = {"_num_yielded": 7, "_iterator_finished": finished, **dict.fromkeys(nothing)}
    said = dict(explain(state).rows())
    assert (said["position"], said["next"]) == (where, then)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 99}, StateVersionError),
        ({"epoch": -1}, StateFormatError),
        ({"finished": "yes"}, StateFormatError),
    ],
)
def test_a_damaged_state_is_known_as_one_and_refused_in_words(change, error):
    state = ResumableDataLoader(Ids(10)).state_dict() | change
    assert is_state(state)
    with pytest.raises(error):
        explain(state)


def test_other_dicts_are_no_states():
    others = [{}, {"epoch": 1, "version": 1}, {"samples_processed": 1}, [], None, "state"]
    assert not any(map(is_state, others))


def test_a_loader_shows_what_it_is_and_where_it_stands_in_one_line():
    loader = ResumableDataLoader(Ids(1000), 8, shuffle=True, seed=7, num_workers=2)
    assert repr(loader) == (
        "<ResumableDataLoader: Ids of 1,000 samples, batch_size=8, shuffle=True, seed=7, "
        "rank 0 of 1, num_workers=2; epoch 0, at its start>"
    )
    state = advanced(ResumableDataLoader(Ids(1000), 8, shuffle=True, seed=7), 60).state_dict()
    loader.load_state_dict(state)
    assert repr(loader).endswith("; epoch 0, 480 of 1,000 samples (48.0 %)>")


def test_a_loader_over_an_iterable_or_a_sampler_shows_that():
    assert "lanes of Shards, seed=1," in repr(ResumableDataLoader(Shards([3]), 2, seed=1))
    sampled = repr(ResumableDataLoader(Ids(4), 2, sampler=Stateless(4), seed=1))
    assert "Ids of 4 samples, batch_size=2, sampler Stateless, by replay, seed=1," in sampled


def test_a_loader_whose_arguments_were_refused_can_still_be_shown():
    halves = []

    class Kept(ResumableDataLoader):
        def __init__(self, *args, **options):
            halves.append(self)
            super().__init__(*args, **options)

    with pytest.raises(OptionError):
        Kept(Ids(4), batch_size=-1)
    assert "Kept object" in repr(halves[0])


def test_reading_a_loader_changes_nothing():
    loader = advanced(ResumableDataLoader(Ids(10), 2, shuffle=True, seed=1), 2)
    before = loader.state_dict()
    assert repr(loader)
    assert loader.explain()
    assert loader.state_dict() == before


def test_things_are_counted_in_english():
    assert [counted(1, "rank"), counted(0, "batch"), counted(1234, "sample")] == [
        "1 rank",
        "0 batches",
        "1,234 samples",
    ]
