"""States for a trainer that looks ahead: what it holds and has not used comes again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Ids, Stateful, Stateless, plain
from torch.utils.data import IterableDataset

from dataporter import OptionError, OptionTypeError, ResumableDataLoader


class Counting(IterableDataset):
    """Counts to 11, and knows how far it has come."""

    at = 0

    def __iter__(self):
        while self.at < 11:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def make(kind: str) -> ResumableDataLoader:
    if kind == "stream":
        return ResumableDataLoader(Counting(), 3, seed=1)
    sampler = {"own": None, "stateful": Stateful(11, 11), "stateless": Stateless(11)}[kind]
    return ResumableDataLoader(Ids(11), 3, shuffle=kind == "own", sampler=sampler, seed=1)


@pytest.mark.parametrize("kind", ["own", "stateful", "stateless", "stream"])
@given(taken=st.integers(0, 4), unused=st.integers(0, 2), ended=st.booleans())
def test_batches_that_were_not_used_come_again(kind, taken, unused, ended):
    expected = [plain(batch) for batch in make(kind)]
    loader = make(kind)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    if ended and taken == len(expected):
        assert next(batches, None) is None
    state = loader.state_dict(unused=unused)
    resumed = make(kind)
    resumed.load_state_dict(state)
    rest = expected[max(taken - unused, 0) :]
    if rest or not ended:  # an epoch that ran to its end is followed by the next
        assert [plain(batch) for batch in resumed] == rest


def test_a_pass_goes_back_to_where_it_began_and_no_further():
    loader = make("own")
    for _ in loader:
        pass
    second = [plain(batch) for batch in loader]
    loader.set_epoch(1)
    next(iter(loader))
    state = loader.state_dict(unused=2)
    assert (state["epoch"], state["samples_processed"]) == (1, 0)
    resumed = make("own")
    resumed.load_state_dict(state)
    assert [plain(batch) for batch in resumed] == second


def test_a_loaded_position_is_what_nothing_is_before():
    loader = make("own")
    batches = iter(loader)
    next(batches)
    next(batches)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert loader.state_dict(unused=1) == state


def test_more_than_a_trainer_holds_is_refused():
    loader = make("own")
    with pytest.raises(OptionError, match="at most 2, found 3"):
        loader.state_dict(unused=3)
    with pytest.raises(OptionError, match="at least 0, found -1"):
        loader.state_dict(unused=-1)
    with pytest.raises(OptionTypeError, match="must be an int"):
        loader.state_dict(unused=None)
