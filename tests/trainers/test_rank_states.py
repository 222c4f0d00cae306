"""All ranks' states out of one checkpoint, for as many ranks as there were, or for others."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Ids, flat, one_pass, plain
from torch.utils.data import IterableDataset, get_worker_info

from dataporter import ResumableDataLoader
from dataporter.errors import StateMismatchError
from dataporter.law import Topology
from dataporter.trainers.loader_states import load_states

LENGTH = 53


class Lane(IterableDataset):
    """Lane l of L reads every L-th sample."""

    next = 0

    def __iter__(self):
        info = get_worker_info()
        own = range(info.id, LENGTH, info.num_workers)
        while self.next < len(own):
            self.next += 1
            yield own[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


def ranks(world_size: int, *, lanes: bool) -> list[ResumableDataLoader]:
    made = []
    for rank in range(world_size):
        options: Any = {"rank": rank, "world_size": world_size, "tail": "uneven", "seed": 5}
        data: Any = Lane() if lanes else Ids(LENGTH)
        options |= {"lanes": 6} if lanes else {"shuffle": True}
        made.append(ResumableDataLoader(data, 3, **options))
    return made


def resumed(states: list[dict[str, Any]], after: int, *, lanes: bool) -> list[ResumableDataLoader]:
    loaders = ranks(after, lanes=lanes)
    for rank, loader in enumerate(loaders):
        load_states(loader, states, Topology(rank=rank, world_size=after))
    return loaders


@settings(max_examples=40, deadline=None)
@given(
    before=st.integers(1, 4), after=st.integers(1, 5), steps=st.integers(0, 5), lanes=st.booleans()
)
def test_what_some_ranks_began_any_number_finishes(before, after, steps, lanes):
    loaders = ranks(before, lanes=lanes)
    passes = [iter(loader) for loader in loaders]
    seen = [plain(next(batches)) for batches in passes for _ in range(min(steps, 12 // before))]
    states = [loader.state_dict() for loader in loaders]
    rests = [[plain(batch) for batch in batches] for batches in passes]
    found = [one_pass(loader) for loader in resumed(states, after, lanes=lanes)]
    assert Counter(flat(seen) + flat(flat(rest) for rest in found)) == Counter(range(LENGTH))
    if after == before:
        assert found == rests  # each rank its own, in the same order


def on_a_mesh(data: int, peers: int) -> list[ResumableDataLoader]:
    """As many loaders as processes: `peers` of them have the same share of the data."""
    return [
        ResumableDataLoader(
            Lane(), 3, lanes=6, tail="uneven", seed=5, rank=process // peers, world_size=data
        )
        for process in range(data * peers)
    ]


@pytest.mark.parametrize(
    ("before", "after"), [((2, 2), (4, 1)), ((2, 2), (1, 2)), ((1, 2), (2, 2)), ((3, 2), (3, 1))]
)
def test_processes_with_the_same_lanes_may_become_more_or_fewer(before, after):
    loaders = on_a_mesh(*before)
    seen = [[plain(next(batches)) for _ in range(3)] for batches in map(iter, loaders)]
    states = [loader.state_dict() for loader in loaders]
    again = on_a_mesh(*after)
    for rank, loader in enumerate(again):
        load_states(loader, states, Topology(rank=rank, world_size=len(again)))
    rest = [one_pass(loader) for loader in again]
    assert rest[:: after[1]] == rest[after[1] - 1 :: after[1]]
    once = [*seen[:: before[1]], *rest[:: after[1]]]
    assert sorted(flat(flat(part) for part in once)) == list(range(LENGTH))


def test_of_the_states_of_streams_a_rank_takes_its_own_whatever_peers_it_has():
    def made(data: int, peers: int) -> list[ResumableDataLoader]:
        ranks = [process // peers for process in range(data * peers)]
        return [
            ResumableDataLoader(Lane(), 3, seed=5, num_workers=0, rank=rank, world_size=data)
            for rank in ranks
        ]

    loaders = made(2, 2)
    for steps, loader in enumerate(loaders):
        batches = iter(loader)
        [next(batches) for _ in range(1 + steps // 2)]
    states = [loader.state_dict() for loader in loaders]
    for rank, loader in enumerate(made(2, 1)):
        load_states(loader, states, Topology(rank=rank, world_size=2))
        assert loader.state_dict() == states[2 * rank]


def test_a_rank_that_had_come_to_its_end_waits_for_the_others():
    loaders = ranks(2, lanes=True)
    seen = flat(one_pass(loaders[0]))
    batches = iter(loaders[1])
    seen += flat(plain(next(batches)) for _ in range(2))
    states = [loader.state_dict() for loader in loaders]
    assert [state["finished"] for state in states] == [True, False]
    again = resumed(states, 2, lanes=True)
    assert one_pass(again[0]) == []
    assert Counter(seen + flat(one_pass(again[1]))) == Counter(range(LENGTH))


def test_states_of_ranks_that_share_lanes_are_for_as_many_ranks():
    loaders = [ResumableDataLoader(Lane(), 3, lanes=None, rank=r, world_size=2) for r in (0, 1)]
    states = [loader.state_dict() for loader in loaders]
    other = ResumableDataLoader(Lane(), 3, rank=0, world_size=3)
    with pytest.raises(StateMismatchError, match=r"2 ranks, this run has 3.*lanes="):
        load_states(other, states, Topology(rank=0, world_size=3))
