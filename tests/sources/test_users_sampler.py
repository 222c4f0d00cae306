"""Samplers of the user's own, as people write them: each resumes exactly, or says why not."""

import json
import random

import numpy as np
import pytest
import torch
from support import Augmented, Ids, Stateful, one_pass, pass_with_states, passes, plain
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler

from dataporter import (
    OptionError,
    PositionDroppedWarning,
    ResumableDataLoader,
    ResumableSampler,
    StateFormatError,
    StateMismatchError,
)


class ShufflingBuckets(Sampler):
    """Draws from the global generators at every batch, around a sampler of torch's."""

    def __init__(self) -> None:
        self.sampler = RandomSampler(range(20))

    def __iter__(self):
        left = list(self.sampler)
        while left:
            random.shuffle(left)
            yield [left.pop(), left.pop()]


class SortedBuckets(Sampler):
    """Reads ten indices ahead of a stateful sampler, whose state does not tell of them."""

    def __init__(self) -> None:
        self.sampler = ResumableSampler(20, shuffle=True, seed=2)

    def __iter__(self):
        bucket = []
        for index in self.sampler:
            bucket.append(index)
            if len(bucket) == 10:
                bucket.sort()
                yield from (bucket[at : at + 2] for at in range(0, 10, 2))
                bucket = []


class OwnsGenerators(Sampler):
    """Keeps its random generators under names and of kinds of its own choice."""

    def __init__(self) -> None:
        self.g = torch.Generator().manual_seed(1)
        self.rng = np.random.default_rng(2)
        self.old = np.random.RandomState(3)
        self.py = random.Random(4)

    def __len__(self) -> int:
        return 20

    def __iter__(self):
        order = torch.randperm(20, generator=self.g).numpy()
        self.rng.shuffle(order)
        self.old.shuffle(order)
        listed = order.tolist()
        for _ in range(20):
            yield listed.pop(self.py.randrange(len(listed)))


class Resetting(Sampler):
    """Begins anew by itself at its end, as the samplers of tutorials do."""

    def __init__(self) -> None:
        self.i = 0

    def __len__(self) -> int:
        return 10

    def __iter__(self):
        while self.i < 10:
            self.i += 1
            yield self.i - 1
        self.i = 0

    def state_dict(self) -> dict:
        return {"i": self.i}

    def load_state_dict(self, state: dict) -> None:
        self.i = -1
        self.i = state["i"]


def generated() -> RandomSampler:
    return RandomSampler(range(20), generator=torch.Generator().manual_seed(3))


MAKERS = {
    "a batch sampler that draws": lambda: {"batch_sampler": ShufflingBuckets()},
    "a batch sampler that reads ahead": lambda: {"batch_sampler": SortedBuckets()},
    "torch's batches of a self-resetting sampler": lambda: {
        "batch_sampler": BatchSampler(Resetting(), 4, drop_last=False)
    },
    "a self-resetting sampler": lambda: {"sampler": Resetting(), "batch_size": 4},
    "generators of its own": lambda: {"sampler": OwnsGenerators(), "batch_size": 3},
    "lists of indices as samples": lambda: {
        "sampler": BatchSampler(generated(), 4, drop_last=False),
        "batch_size": None,
        "dataset": torch.arange(20),
    },
    "lists of a sampler with state": lambda: {
        "sampler": BatchSampler(Stateful(20, 17), 4, drop_last=False),
        "batch_size": None,
        "dataset": torch.arange(20),
    },
    "batches as arrays": lambda: {
        "batch_sampler": [np.array([1, 2]), np.array([0]), np.array([3, 19])]
    },
    "batches as tensors": lambda: {"batch_sampler": [torch.tensor([1, 2]), torch.tensor([-1])]},
}


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("epoch", [0, 2])
def test_it_resumes_exactly_after_every_batch(name, epoch):
    def make() -> ResumableDataLoader:
        return ResumableDataLoader(**{"dataset": Ids20(), "seed": 1, **MAKERS[name]()})

    reference = make()
    passes(reference, epoch)
    batches, states = pass_with_states(reference)
    following = passes(reference, 2)
    for done, state in enumerate(states[1:], start=1):
        random.seed(done)
        torch.manual_seed(done)
        np.random.seed(done)
        resumed = make()
        resumed.load_state_dict(state)
        assert json.dumps(resumed.state_dict(), default=plain) == json.dumps(state, default=plain)
        if not state["finished"]:
            assert one_pass(resumed) == batches[done:], done
        assert passes(resumed, 2) == following


class Ids20(Ids):
    def __init__(self) -> None:
        super().__init__(20)

    def __getitem__(self, index: int) -> int:
        return range(20)[index]


def test_a_generator_seeded_after_the_loader_was_built_counts():
    def make(seed: int) -> ResumableDataLoader:
        generator = torch.Generator()
        loader = ResumableDataLoader(
            range(12), 3, sampler=RandomSampler(range(12), generator=generator), seed=1
        )
        generator.manual_seed(seed)
        return loader

    loader = make(42)
    batches = iter(loader)
    next(batches)
    resumed = make(7)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert one_pass(resumed) == [plain(batch) for batch in batches]


def test_ranks_of_torchs_distributed_sampler_share_no_numbers_and_no_other_number_resumes():
    def make(rank: int, ranks: int) -> ResumableDataLoader:
        sampler = DistributedSampler(Ids(16), num_replicas=ranks, rank=rank, shuffle=False)
        return ResumableDataLoader(Augmented(16, "python"), 2, sampler=sampler, seed=1)

    def numbers(rank: int) -> set[float]:
        return {number for _, (column,) in one_pass(make(rank, 2)) for number in column}

    assert not numbers(0) & numbers(1)
    loader = make(0, 2)
    next(iter(loader))
    make(1, 2).load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match="2 ranks, this run has 4"):
        make(0, 4).load_state_dict(loader.state_dict())


def test_a_sampler_that_gained_a_state_is_not_the_one_that_was_saved():
    class Plain(Sampler):
        i = 0

        def __iter__(self):
            return iter(range(8))

    saved = ResumableDataLoader(range(8), 2, sampler=Plain(), seed=1)
    next(iter(saved))
    Plain.state_dict = Resetting.state_dict
    Plain.load_state_dict = Resetting.load_state_dict
    with pytest.raises(StateMismatchError, match=r"by replay.*by state"):
        ResumableDataLoader(range(8), 2, sampler=Plain(), seed=1).load_state_dict(
            saved.state_dict()
        )


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("set_epoch", [False, True])
def test_breaking_off_forgets_what_workers_were_asked_for_ahead(num_workers, set_epoch):
    loader = ResumableDataLoader(
        range(10), 2, sampler=Resetting(), seed=1, num_workers=num_workers, prefetch_factor=4
    )
    for batch in loader:
        assert plain(batch) == [0, 1]
        break
    if set_epoch:
        loader.set_epoch(5)
    # This sampler goes on where it was left: at the delivered batch, however many workers.
    assert one_pass(loader) == [[2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("left", ["at its end", "early"])
def test_a_state_loaded_into_the_sampler_after_a_pass_is_followed(num_workers, left):
    loader = ResumableDataLoader(
        Ids(20), 4, sampler=Stateful(20, 20), num_workers=num_workers, prefetch_factor=9
    )
    state = loader.sampler.state_dict()
    batches = one_pass(loader)
    iterator = iter(loader)
    for _ in range(2 if left == "early" else 5):
        next(iterator)
    del iterator
    loader.sampler.load_state_dict(state)
    assert one_pass(loader) == batches


def test_a_failed_load_leaves_a_stateful_sampler_where_it_was():
    loader = ResumableDataLoader(range(10), 2, sampler=Resetting(), seed=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    state["sampler"]["state"] = {"wrong": 1}
    with pytest.raises(StateFormatError, match="refused"):
        loader.load_state_dict(state)
    assert plain(next(batches)) == [2, 3]


def test_damaged_generator_states_are_refused():
    def make() -> ResumableDataLoader:
        return ResumableDataLoader(range(20), 2, sampler=generated(), seed=1)

    loader = make()
    next(iter(loader))
    for damaged in ("garbage!", '{"0.generator": "AAAA"}', '{"0.generator": "?"}', "{}"):
        with pytest.raises(StateFormatError, match="refused"):
            make().load_state_dict({**loader.state_dict(), "rng_state": damaged})


def test_another_epoch_after_a_load_begins_a_stateful_sampler_where_it_was_before():
    loader = ResumableDataLoader(range(10), 2, sampler=Resetting(), seed=1)
    next(iter(loader))
    resumed = ResumableDataLoader(range(10), 2, sampler=Resetting(), seed=1)
    resumed.load_state_dict(loader.state_dict())
    with pytest.warns(PositionDroppedWarning):
        resumed.set_epoch(3)
    assert one_pass(resumed)[0] == [0, 1]


class DrawsAtOnce(Sampler):
    """Draws a whole epoch as soon as it is iterated, from its own or the global generator."""

    def __init__(self, *, owns: bool) -> None:
        self.g = torch.Generator().manual_seed(1) if owns else None

    def __len__(self) -> int:
        return 10

    def __iter__(self):
        return iter(torch.randperm(10, generator=self.g).tolist())


@pytest.mark.parametrize("owns", [True, False])
def test_a_load_draws_nothing_from_a_sampler_that_draws_at_once(owns):
    def make():
        return ResumableDataLoader(range(10), 2, sampler=DrawsAtOnce(owns=owns), seed=1)

    first = passes(make(), 2)
    loader = make()
    next(iter(loader))
    resumed = make()
    before = torch.get_rng_state()
    resumed.load_state_dict(loader.state_dict())
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.warns(PositionDroppedWarning):
        resumed.set_epoch(1)
    resumed.seek(0)
    assert passes(resumed, 2) == first


def test_a_sampler_that_can_be_iterated_only_once_cannot_be_resumed():
    loader = ResumableDataLoader(range(10), 2, sampler=iter(range(10)), seed=1)
    batches = iter(loader)
    assert plain(next(batches)) == [0, 1]
    with pytest.raises(StateMismatchError, match="only once"):
        loader.load_state_dict(loader.state_dict())
    assert plain(next(batches)) == [2, 3]


def test_a_subclass_that_draws_otherwise_is_respected():
    class Odd(ResumableSampler):
        def __iter__(self):
            return (index for index in super().__iter__() if index % 2)

    assert one_pass(ResumableDataLoader(range(8), 4, sampler=Odd(8, seed=1))) == [[1, 3, 5, 7]]


def test_a_batch_sampler_that_draws_otherwise_is_respected():
    class Backwards(BatchSampler):
        def __iter__(self):
            return reversed([*super().__iter__()])

    batches = Backwards(range(5), 2, drop_last=False)
    loader = ResumableDataLoader(range(5), batch_sampler=batches)
    assert one_pass(loader) == [[4], [2, 3], [0, 1]]


def test_a_position_loaded_into_a_sampler_is_taken_over():
    sampler = ResumableSampler(8, seed=1)
    drawing = iter(sampler)
    for _ in range(4):
        next(drawing)
    fresh = ResumableSampler(8, seed=1)
    fresh.load_state_dict(sampler.state_dict())
    assert one_pass(ResumableDataLoader(range(8), 2, sampler=fresh)) == [[4, 5], [6, 7]]


def test_an_epoch_set_again_on_the_sampler_is_run_again():
    loader = ResumableDataLoader(range(8), 8, shuffle=True, seed=1)
    orders = []
    for _ in range(3):
        loader.sampler.set_epoch(np.int64(0))
        orders.append(one_pass(loader))
    assert orders[0] == orders[1] == orders[2]


class Rewinding:
    """A batch sampler that is its own iterator, and begins anew at every `iter`."""

    def __iter__(self):
        self.batches = iter([[0, 1], [2, 3], [4]])
        return self

    def __next__(self):
        return next(self.batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_that_begins_anew_at_every_iter_is_drawn_to_its_end(num_workers):
    loader = ResumableDataLoader(range(5), batch_sampler=Rewinding(), num_workers=num_workers)
    assert passes(loader, 2) == [[[0, 1], [2, 3], [4]]] * 2
    by_one = ResumableDataLoader(range(5), 2, sampler=map(int, "01234"), num_workers=num_workers)
    assert one_pass(by_one) == [[0, 1], [2, 3], [4]]


def side_by_side(turns: list[int], **options) -> tuple[list, dict]:
    """Read two passes that are under way at once, in these turns, then each to its end.

    What each delivered, and the state of the newer one halfway.
    """
    loader = ResumableDataLoader(options.pop("dataset", range(20)), **options)
    both = [iter(loader), iter(loader)]
    got: list[list] = [[], []]
    for turn in turns:
        got[turn] += [plain(batch) for batch in [next(both[turn], None)] if batch is not None]
    halfway = len(got[1]), loader.state_dict()
    for turn in (0, 1):
        got[turn] += [plain(batch) for batch in both[turn]]
    got.append(one_pass(loader))  # the next epoch
    return got, halfway


TURNS = [[], [0, 1, 0, 1], [0, 0, 0, 1], [1, 1, 0], [1, 0, 1, 0]]
SIDE_BY_SIDE = {
    **{name: MAKERS[name] for name in MAKERS if "reads ahead" not in name},
    "torch's random sampler": lambda: {"sampler": generated(), "batch_size": 3},
    "a sampler with a state": lambda: {"sampler": Stateful(20, 17), "batch_size": 3},
}


@pytest.mark.parametrize("turns", TURNS, ids=str)
@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_passes_side_by_side_do_not_depend_on_who_fetches(name, turns):
    make = SIDE_BY_SIDE[name]
    got, (delivered, state) = side_by_side(turns, seed=1, num_workers=0, **make())
    # A process asks as far ahead as the threads do; another one would be forked for nothing.
    for workers in (
        {"num_workers": 1, "prefetch_factor": 4},
        {"num_workers": 2, "engine": "threads"},
    ):
        assert side_by_side(turns, seed=1, **workers, **make())[0] == got, workers
    options = make()
    resumed = ResumableDataLoader(options.pop("dataset", range(20)), seed=1, **options)
    resumed.load_state_dict(state)
    assert [*one_pass(resumed), one_pass(resumed)] == [*got[1][delivered:], got[2]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_passes_over_torchs_random_sampler_differ_as_they_do_in_torch(num_workers):
    def pairs(loader_class, **options) -> list:
        loader = loader_class(range(20), 5, sampler=generated(), num_workers=num_workers, **options)
        return [[plain(one), plain(other)] for one, other in zip(loader, loader, strict=True)]

    assert pairs(ResumableDataLoader) == pairs(DataLoader)


class Ragged(Sampler):
    """Rank r of 2: batches of its own sizes, equally many on each rank, drawn by a generator."""

    def __init__(self, rank: int, size: int = 4) -> None:
        self.rank, self.size = rank, size
        self.generator = torch.Generator().manual_seed(7)

    def __iter__(self):
        sizes = torch.randint(1, self.size, (2, 8), generator=self.generator).tolist()[self.rank]
        indices = iter(range(self.rank, 80, 2))
        for size in sizes:
            yield [next(indices) for _ in range(size)]


def ragged(rank: int, **options) -> ResumableDataLoader:
    sampler = Ragged(rank, **options)
    return ResumableDataLoader(
        Augmented(80), batch_sampler=sampler, rank=rank, world_size=2, seed=1
    )


@pytest.mark.parametrize("epoch", [0, 1])
def test_one_ranks_state_serves_all_whose_batches_have_other_sizes(epoch):
    states, rests, following = [], [], []
    for rank in (0, 1):
        loader = ragged(rank)
        passes(loader, epoch)
        batches, taken = pass_with_states(loader)
        states.append(taken[3])
        rests.append(batches[3:])
        following.append(one_pass(loader))
    assert states[0]["samples_processed"] != states[1]["samples_processed"]
    for saved in (0, 1):
        for rank in (0, 1):
            resumed = ragged(rank)
            resumed.load_state_dict(states[saved])
            assert passes(resumed, 2) == [rests[rank], following[rank]]
            resumed.load_state_dict(states[saved])
            batches = iter(resumed)
            next(batches)
            again = ragged(rank)
            again.load_state_dict(resumed.state_dict())  # one more load, in the same epoch
            assert one_pass(again) == rests[rank][1:]


def test_batches_of_other_sizes_than_a_rank_has_saved_are_refused():
    loader = ragged(0)
    batches = iter(loader)
    [next(batches) for _ in range(3)]
    other = ragged(0, size=9)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match="first 3 batches had"):
        next(iter(other))
    with pytest.raises(OptionError, match="cannot be sought"):
        loader.seek(0, 4)


def test_the_state_of_a_batch_sampler_is_of_its_rank_alone():
    class Counted(Ragged):
        done = 0

        def state_dict(self) -> dict:
            return {"done": self.done}

        def load_state_dict(self, state: dict) -> None:
            self.done = state["done"]

    first, second = (
        ResumableDataLoader(range(80), batch_sampler=Counted(rank), rank=rank, world_size=2)
        for rank in (0, 1)
    )
    first.load_state_dict(first.state_dict())
    with pytest.raises(StateMismatchError, match="rank 0 alone, this is rank 1"):
        second.load_state_dict(first.state_dict())


class Strided(Sampler):
    """Every second index from `first` on, and how many have been drawn as a state."""

    def __init__(self, first: int):
        self.first, self.drawn = first, 0

    def __len__(self):
        return 12

    def __iter__(self):
        while self.drawn < len(self):
            self.drawn += 1
            yield 2 * (self.drawn - 1) + self.first
        self.drawn = 0

    def state_dict(self) -> dict:
        return {"drawn": self.drawn, "first": self.first}

    def load_state_dict(self, state: dict) -> None:
        self.drawn, self.first = state["drawn"], state["first"]


class StridedByRank(Strided):
    num_replicas = 2

    def __init__(self, first: int):
        super().__init__(first)
        self.rank = first

    def load_state_dict(self, state: dict) -> None:
        self.drawn = state["drawn"]


def test_the_state_of_a_sampler_that_names_no_rank_is_of_its_rank_alone():
    def begun(kind, rank: int) -> ResumableDataLoader:
        loader = ResumableDataLoader(range(24), 2, sampler=kind(rank), rank=rank, world_size=2)
        next(iter(loader))
        return loader

    state = begun(Strided, 0).state_dict()
    second = begun(Strided, 1)
    with pytest.raises(StateMismatchError, match="rank 0 alone, this is rank 1"):
        second.load_state_dict(state)
    second = begun(StridedByRank, 1)
    second.load_state_dict(begun(StridedByRank, 0).state_dict())
    assert plain(next(iter(second))) == [5, 7]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_empty_batches_of_a_batch_sampler_come_once(num_workers):
    def make() -> ResumableDataLoader:
        batches = [[], [0, 1], [], [], [2], []]
        return ResumableDataLoader(
            range(3), batch_sampler=batches, collate_fn=list, num_workers=num_workers
        )

    loader = make()
    batches, states = pass_with_states(loader)
    assert batches == [[], [0, 1], [], [], [2], []]
    for done, state in enumerate(states[:-1]):
        resumed = make()
        resumed.load_state_dict(state)
        assert one_pass(resumed) == batches[done:]
    assert loader.delivered.positions.tolist() == []
    assert loader.delivered.position == 3


def test_a_batch_sampler_of_other_batch_sizes_goes_on_at_the_exact_sample():
    def make(size: int) -> ResumableDataLoader:
        class Batches(Sampler):
            def __iter__(self):
                return iter([list(range(at, min(at + size, 20))) for at in range(0, 20, size)])

        return ResumableDataLoader(range(20), batch_sampler=Batches())

    loader = make(6)
    batches = iter(loader)
    seen = [plain(next(batches)), plain(next(batches))]
    resumed = make(5)
    resumed.load_state_dict(loader.state_dict())
    assert [*seen, *one_pass(resumed)] == [
        *([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]),
        *([12, 13, 14], [15, 16, 17, 18, 19]),
    ]
