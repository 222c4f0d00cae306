"""A sample's random numbers, and everybody else's."""

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import Augmented, Ids, one_pass, passes, plain
from torch.utils.data import Dataset, IterableDataset

from dataporter import NoSampleError, ResumableDataLoader, sample_rng
from dataporter.engine.local import attempted
from dataporter.fetch import draws_nothing, generator_memory, randomness
from dataporter.fetch.generator_memory import find_memory
from dataporter.fetch.generators import capture, seed_all
from dataporter.fetch.randomness import EpochKeys, LazySeeding, call_seeded
from dataporter.fetch.tasks import Samples, Task
from dataporter.training import DefaultCollator

GENERATORS = ["python", "gauss", "numpy", "torch", "own", "python numpy torch own gauss"]


def test_the_numbers_of_a_key_are_the_same_in_every_version():
    seed_all(0xDEADBEEF_01234567)
    drawn = random.getrandbits(64), np.random.randint(2**31), torch.randint(2**31, ()).item()
    assert drawn == (3832861220204003579, 956529277, 453914126)


def test_the_keys_of_an_epoch_are_the_same_in_every_version():
    keys = EpochKeys(3, 1)
    found = keys.sample_keys(np.array([5])), keys.batch_key(np.array([5])), keys.lane_key(2, 5)
    assert found == ([17856912853911673527], 2550192723485653207, 14436338412231671708)


def disturb() -> None:
    """Draw an odd number of everything, so that waiting normal numbers wait."""
    random.gauss(0, 1)
    np.random.standard_normal()
    torch.randn(3)


@pytest.mark.parametrize("draws", GENERATORS)
def test_samples_have_their_own_numbers_whatever_the_process_has_drawn(draws):
    reference = one_pass(ResumableDataLoader(Augmented(12, draws), 4, shuffle=True, seed=1))
    seed_all(99)
    loader = ResumableDataLoader(Augmented(12, draws), 4, shuffle=True, seed=1)
    seen = []
    for batch in loader:
        disturb()
        seen.append(plain(batch))
    assert seen == reference


@pytest.mark.parametrize("draws", ["", *GENERATORS])
@pytest.mark.parametrize("collate_fn", [None, list])
def test_the_callers_generators_are_left_exactly_as_they_were(draws, collate_fn):
    loader = ResumableDataLoader(Augmented(12, draws), 4, collate_fn=collate_fn, seed=1)
    disturb()
    before = capture()
    numbers = random.random(), random.gauss(0, 1), np.random.standard_normal(), torch.randn(2)
    before.restore()
    for _ in loader:
        loader.state_dict()
    assert before.still_holds()
    again = random.random(), random.gauss(0, 1), np.random.standard_normal(), torch.randn(2)
    assert numbers[:3] == again[:3]
    assert torch.equal(numbers[3], again[3])


class LateDrawer(Ids):
    """Draws only for some samples, each from its own generators.

    So seeding, or that of one generator, has been given up when it does.
    """

    def __init__(self, length: int, drawing: dict[int, str]) -> None:
        super().__init__(length)
        self.drawing = drawing

    def __getitem__(self, index: int) -> tuple[int, list[float]]:
        _, drawn = Augmented(self.length, self.drawing.get(index, ""))[index]
        return index, (drawn + [0.0] * 5)[:5]


@given(
    st.dictionaries(st.integers(0, 23), st.sampled_from(GENERATORS)),
    st.integers(1, 24),
    st.integers(1, 24),
    st.booleans(),
)
def test_lazy_seeding_equals_seeding_every_sample(drawing, size, other, odd):
    def samples(batch_size: int) -> list:
        loader = ResumableDataLoader(LateDrawer(24, drawing), batch_size, seed=3)
        seen = []
        for ids, columns in loader:
            if odd:
                disturb()
            seen += list(zip(ids.tolist(), *(column.tolist() for column in columns), strict=True))
        return seen

    stream = EpochKeys(seed=3, epoch=0)
    keys = stream.sample_keys(np.arange(24))
    dataset, expected = LateDrawer(24, drawing), []
    always = LazySeeding()
    for index in range(24):
        always._needs = None
        ((number, drawn),) = always.map(dataset.__getitem__, [index], keys=lambda: [keys[index]])
        expected.append((number, *drawn))
    assert samples(size) == samples(other) == expected


class Forking(Ids):
    """Draws from torch's generator so that nobody sees it, and openly from Python's."""

    def __getitem__(self, index: int) -> tuple[float, float]:
        with torch.random.fork_rng(devices=[]):
            hidden = torch.rand(()).item()
        return random.random(), hidden


def test_draws_that_nobody_sees_are_right_beside_draws_that_are_seen():
    def numbers(batch_size: int) -> list:
        torch.manual_seed(batch_size)
        batches = one_pass(ResumableDataLoader(Forking(12), batch_size, seed=1))
        return [number for _, hidden in batches for number in hidden]

    assert numbers(5) == numbers(4)
    assert len(set(numbers(5))) == 12


class DrawsInBatches(Ids):
    """Draws in `__getitems__`, where no sample can be told from another."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [self[index] for index in indices]


class AsksInBatches(DrawsInBatches):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(sample_rng().random())


@pytest.mark.parametrize("dataset", [DrawsInBatches(12), AsksInBatches(12)])
def test_a_dataset_that_draws_in_getitems_is_fetched_one_by_one(dataset):
    def numbers(batch_size: int) -> list[float]:
        batches = one_pass(ResumableDataLoader(dataset, batch_size, seed=1))
        return [number for _, numbers in batches for number in numbers]

    assert numbers(12) == numbers(5) == numbers(1)
    assert len(set(numbers(12))) == 12


def test_a_sample_that_fails_on_strangers_numbers_is_judged_by_its_own():
    class Picky(Ids):
        def __getitem__(self, index: int) -> float:
            if index < 4:
                return 0.0
            number = random.random()
            if number > 0.999:
                raise ArithmeticError(number)
            return number

    loader = ResumableDataLoader(Picky(8), 4, seed=1)
    batches = iter(loader)
    next(batches)  # nothing drawn: the next batch is first tried without seeding
    random.seed(next(s for s in range(10**6) if random.Random(s).random() > 0.999))
    before = capture()
    expected = one_pass(ResumableDataLoader(Picky(8), 8, seed=1))[0][4:]
    assert next(batches).tolist() == expected
    assert before.still_holds()


def test_an_error_in_the_dataset_arrives_and_leaves_the_generators_alone():
    class Failing(Ids):
        def __getitem__(self, index: int) -> int:
            random.random()
            if index == 5:
                raise LookupError("sample 5 is damaged")
            return index

    batches = iter(ResumableDataLoader(Failing(8), 4, seed=1))
    next(batches)
    before = capture()
    with pytest.raises(LookupError, match="sample 5 is damaged"):
        next(batches)
    assert before.still_holds()
    with pytest.raises(NoSampleError):
        sample_rng()


def test_sample_rng_goes_on_within_a_sample_and_starts_anew_for_the_next():
    class Twice(Ids):
        def __getitem__(self, index: int) -> list[float]:
            return [float(sample_rng().random()), float(sample_rng().random())]

    ((first, second),) = one_pass(ResumableDataLoader(Twice(6), 6, seed=1))
    assert len({*first, *second}) == 12


def test_sample_rng_outside_of_a_fetch_says_where_to_call_it():
    with pytest.raises(NoSampleError, match="__getitem__"):
        sample_rng()


def test_a_collate_function_that_draws_is_reproducible_and_keeps_to_itself():
    def noisy(samples: list[int]) -> list[float]:
        return [sample + random.random() + float(sample_rng().random()) for sample in samples]

    def make() -> ResumableDataLoader:
        return ResumableDataLoader(Ids(12), 4, shuffle=True, seed=1, collate_fn=noisy)

    loader = make()
    before = capture()
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    rest = list(batches)
    assert before.still_holds()
    random.seed(0)
    resumed = make()
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert next(iter(make())) == first


def test_randomness_can_be_switched_off_and_sample_rng_stays():
    random.seed(7)
    expected = [random.random() for _ in range(6)]
    random.seed(7)
    loader = ResumableDataLoader(Augmented(6, "python own"), 3, seed=1, randomness=False)
    batches = one_pass(loader)
    assert [number for _, columns in batches for number in columns[0]] == expected
    keyed = one_pass(ResumableDataLoader(Augmented(6, "own"), 3, seed=1))
    assert [columns[1] for _, columns in batches] == [columns[0] for _, columns in keyed]


def test_no_two_positions_epochs_or_seeds_share_a_key():
    positions = np.arange(2000)
    keys = [
        key
        for seed in (0, 1, 2)
        for epoch in (0, 1, 2)
        for key in EpochKeys(seed, epoch).sample_keys(positions)
    ]
    assert len(set(keys)) == len(keys)


def test_ranks_with_samplers_of_their_own_do_not_share_numbers():
    def numbers(rank: int) -> set[float]:
        loader = ResumableDataLoader(
            Augmented(10, "torch"), 5, sampler=range(10), seed=1, rank=rank, world_size=2
        )
        return {number for _, (column,) in one_pass(loader) for number in column}

    assert not numbers(0) & numbers(1)


def test_every_epoch_augments_differently():
    first, second = passes(ResumableDataLoader(Augmented(6, "torch"), 6, seed=1), 2)
    assert first[0][0] == second[0][0]
    assert first[0][1] != second[0][1]


@pytest.mark.parametrize("disturbed", [False, True])
def test_captured_generators_come_back_exactly(disturbed):
    if disturbed:
        disturb()
    before = capture()
    assert before.still_holds()
    expected = [random.gauss(0, 1), np.random.standard_normal(), torch.randn(1).item()]
    for draw in (random.random, np.random.random, lambda: torch.rand(1)):
        before.restore()
        draw()
        assert not before.still_holds()
    before.restore()
    assert [random.gauss(0, 1), np.random.standard_normal(), torch.randn(1).item()] == expected


def test_a_waiting_normal_number_that_is_taken_counts_as_drawn():
    np.random.seed(1)
    np.random.standard_normal()
    before = capture()
    np.random.standard_normal()
    assert not before.still_holds()
    random.seed(1)
    random.gauss(0, 1)
    before = capture()
    random.gauss(0, 1)
    assert not before.still_holds()
    torch.manual_seed(1)
    torch.randn(1)
    before = capture()
    torch.randn(1)
    assert not before.still_holds()


def test_as_many_draws_as_a_generator_has_words_are_seen():
    draws = (
        lambda: random.getrandbits(624 * 32),
        lambda: np.random.get_bit_generator().random_raw(624),
        lambda: torch.empty(624, dtype=torch.int32).random_(),
    )
    for draw in draws:
        before = capture()
        draw()
        assert not before.still_holds()


def test_memory_of_torchs_generator_that_means_nothing_counts_as_no_draw():
    torch.manual_seed(1)
    torch.randn(2)  # none waits
    before, waiting = capture(), find_memory()._torch_waiting
    waiting.raw = b"some\0any" + b"whatever\0padding"
    assert before.still_holds()
    assert before.moved() == 0
    torch.randn(1)  # the second one waits
    before = capture()
    waiting[:4] = b"else"
    assert before.still_holds()
    torch.randn(1)
    assert not before.still_holds()


def test_seeds_of_torch_that_draw_the_same_are_told_apart():
    torch.manual_seed(5)
    before = capture()
    torch.manual_seed(5 + 2**32)
    assert not before.still_holds()
    before.restore()
    assert torch.initial_seed() == 5


def test_the_generators_are_read_in_their_memory_here():
    assert find_memory() is not None


def test_the_generators_are_found_under_any_default_device_and_dtype():
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float16)
    try:
        assert find_memory() is not None
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_generators_whose_methods_somebody_has_replaced_are_not_found(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(random, "random", lambda: 0.5)
        assert find_memory() is None
    monkeypatch.setattr(np.random, "random", lambda: 0.5)
    assert find_memory() is None


def test_a_generator_is_searched_in_its_own_allocation_only():
    words, room = bytes(range(1, 101)), generator_memory._TORCH_SIZE
    own = ctypes.CDLL(None)
    own.malloc.restype, own.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    own.free.argtypes = [ctypes.c_void_p]
    address = own.malloc(40 + room)
    try:
        ctypes.memset(address, 0, 40 + room)
        assert generator_memory._found(words, address) is None
        ctypes.memmove(address + 40, words, len(words))
        assert generator_memory._found(words, address) == 40
        # Here the rest of a generator would lie behind the allocation.
        ctypes.memset(address, 0, 40 + room)
        ctypes.memmove(address + 40 + room - len(words), words, len(words))
        assert generator_memory._found(words, address) is None
    finally:
        own.free(address)


def test_the_public_calls_do_the_work_where_memory_is_laid_out_otherwise(monkeypatch):
    monkeypatch.setattr("dataporter.fetch.generators._memory", None)
    test_captured_generators_come_back_exactly(disturbed=True)
    test_a_waiting_normal_number_that_is_taken_counts_as_drawn()


def test_another_bit_generator_in_numpys_place_is_kept():
    kept = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        before = capture()
        expected = np.random.random()
        assert not before.still_holds()
        before.restore()
        assert np.random.random() == expected
    finally:
        np.random.set_bit_generator(kept)


class DrawsNothing(Dataset):
    """Notes of each sample whether generators were seeded for it."""

    def __init__(self) -> None:
        self.seeded = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.seeded.append(random.getstate() != self.outside)
        return index


def test_a_dataset_that_draws_nothing_is_seeded_for_its_first_batch_only():
    dataset = DrawsNothing()
    dataset.outside = random.getstate()
    one_pass(ResumableDataLoader(dataset, 8, seed=1))
    assert dataset.seeded == [True] * 8 + [False] * 32
    assert random.getstate() == dataset.outside


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_dataset_draws_once_and_keeps_is_right_from_the_first_sample_on(num_workers):
    class Keeps(Ids):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.kept: dict[int, float] = {}

        def __getitem__(self, index: int) -> float:
            return self.kept.setdefault(index, random.random())

    found = []
    for outside in (1, 2):
        random.seed(outside)
        options = {"seed": 1, "num_workers": num_workers, "shuffle": True}
        found.append(one_pass(ResumableDataLoader(Keeps(8), 4, **options)))
    assert found[0] == found[1]


def test_a_dataset_that_draws_is_read_once():
    class Counted(Augmented):
        read: ClassVar[list[int]] = []

        def __getitem__(self, index: int) -> Any:
            self.read.append(index)
            return super().__getitem__(index)

    one_pass(ResumableDataLoader(Counted(20), 5, seed=1))
    assert Counted.read == [*range(20)]


def test_a_collate_function_is_applied_to_its_samples_once_also_if_it_first_draws_late():
    def doubling(samples: list[torch.Tensor]) -> torch.Tensor:
        for sample in samples:
            sample.mul_(2)
        if samples[0] >= 8:
            torch.rand(1)
        return torch.stack(samples)

    dataset = [torch.tensor(float(index)) for index in range(8)]
    batches = one_pass(ResumableDataLoader(dataset, 2, seed=1, collate_fn=doubling))
    assert batches == [[0, 2], [4, 6], [8, 10], [12, 14]]


class Numbers(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


@given(
    st.dictionaries(st.integers(0, 11), st.sampled_from(GENERATORS)),
    st.integers(1, 6),
    st.sampled_from(["lists", "own rows", "stream"]),
    st.booleans(),
)
def test_what_is_called_seeded_has_the_numbers_of_a_function_that_is_seeded_as_a_whole(
    drawing, batch_size, kind, randomness
):
    def drawn(samples: list[int]) -> list[Any]:
        return [Augmented(12, drawing.get(index, ""))[index] for index in samples]

    def batches(collate_fn: Callable[..., Any]) -> list[Any]:
        dataset: Any = {"lists": [*range(12)], "own rows": Ids(12), "stream": Numbers()}[kind]
        loader = ResumableDataLoader(
            dataset, batch_size, seed=1, collate_fn=collate_fn, randomness=randomness
        )
        seed_all(7)
        seen = []
        for batch in loader:
            seen.append(batch)
            if randomness:
                disturb()
        return [*seen, random.random(), np.random.random(), torch.rand(()).item()]

    marked = draws_nothing(lambda samples: call_seeded(drawn, samples))
    assert batches(marked) == batches(drawn)


def test_a_method_that_overrides_one_that_draws_nothing_is_seeded():
    class Noisy(DefaultCollator):
        def __call__(self, rows: Any) -> Any:
            return super().__call__(rows) + torch.rand(())

    def batches() -> list[Any]:
        disturb()
        return one_pass(ResumableDataLoader(range(8), 2, seed=1, collate_fn=Noisy()))

    assert batches() == batches()


class Nested(Ids):
    """Iterates a loader of its own while it is itself fetched."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.inner = ResumableDataLoader(Augmented(4), 2, seed=3)

    def __getitem__(self, index: int) -> tuple[float, float]:
        before = float(sample_rng().random())
        one_pass(self.inner)
        return before, float(sample_rng().random())


def test_a_loader_inside_a_dataset_leaves_the_outer_samples_numbers_alone():
    nested = one_pass(ResumableDataLoader(Nested(5), 1, seed=1))
    plain_ones = one_pass(ResumableDataLoader(Augmented(5, "own own"), 1, seed=1))
    assert nested == [columns for _, columns in plain_ones]


def test_sample_rng_stays_for_getitems_when_randomness_is_off():
    on = one_pass(ResumableDataLoader(AsksInBatches(8), 4, seed=1))
    off = one_pass(ResumableDataLoader(AsksInBatches(8), 4, seed=1, randomness=False))
    assert on == off


def test_an_interrupt_leaves_the_callers_generators_alone():
    class Interrupted(Ids):
        def __getitems__(self, indices: list[int]) -> list[int]:
            if indices[0]:
                torch.rand(3)
                raise KeyboardInterrupt
            return indices

    batches = iter(ResumableDataLoader(Interrupted(8), 4, seed=1))
    before = capture()
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert before.still_holds()


class SaysItsSeed(Ids):
    def __getitem__(self, index):
        return torch.initial_seed()


@given(st.integers(0, 2**63 - 1))
def test_a_samples_seed_can_be_collated_as_torchs_seeds_can(seed):
    loader = ResumableDataLoader(SaysItsSeed(4), 4, seed=seed)
    assert all(batch.min() >= 0 for batch in loader)


def test_an_interrupt_while_a_sample_is_left_leaves_it_nevertheless():
    def fetch(payload, empty):
        randomness._threads.current.enter(5)
        raise KeyboardInterrupt

    fetch.timing = None
    task = Task(1, Samples([0], np.array([0]), EpochKeys(1, 0)))
    with pytest.raises(KeyboardInterrupt):
        attempted(fetch, task, pins=False)
    with pytest.raises(NoSampleError):
        sample_rng()
