"""The law, for one rank: a state taken anywhere continues exactly there."""

import itertools
import json
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Augmented, Ids, flat, one_pass, pass_with_states, passes, plain
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from dataporter import ResumableDataLoader, ResumableSampler


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.integers(0, 40))
    return {
        "dataset": Augmented(length) if draw(st.booleans()) else Ids(length),
        "batch_size": draw(st.one_of(st.none(), st.integers(1, 9))),
        "shuffle": length > 0 and draw(st.booleans()),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }


@given(options(), st.integers(0, 3), st.data())
def test_a_state_after_any_batch_of_any_epoch_resumes_at_the_next(options, epoch, data):
    if options["batch_size"] is not None:
        options["drop_last"] = data.draw(st.booleans())
    reference = ResumableDataLoader(**options)
    passes(reference, epoch)
    batches, states = pass_with_states(reference)
    following = one_pass(reference)
    for done, state in enumerate(states[:-1]):
        if done == 0 and epoch > 0:
            continue  # taken before the pass began: that is the end of the epoch before it
        resumed = ResumableDataLoader(**options)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        assert one_pass(resumed) == batches[done:]
        assert one_pass(resumed) == following
        assert len(resumed) == len(batches)


@given(options(), st.integers(0, 3))
def test_a_state_after_the_end_resumes_with_the_next_epoch(options, epoch):
    reference = ResumableDataLoader(**options)
    passes(reference, epoch)
    _, states = pass_with_states(reference)
    resumed = ResumableDataLoader(**options)
    resumed.load_state_dict(states[-1])
    assert passes(resumed, 2) == passes(reference, 2)


@given(options(), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_a_chain_of_resumes_equals_an_uninterrupted_run(options, stretches):
    reference = ResumableDataLoader(**options)
    wanted = [batch for batches in passes(reference, 1 + len(stretches)) for batch in batches]
    seen: list[Any] = []
    state = ResumableDataLoader(**options).state_dict()
    for stretch in stretches:
        loader = ResumableDataLoader(**options)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        batches = iter(loader)
        seen += [plain(batch) for batch in itertools.islice(batches, stretch)]
        state = loader.state_dict()
    assert seen == wanted[: len(seen)]


@given(options(), st.integers(0, 50), st.integers(1, 9))
def test_another_batch_size_continues_with_exactly_the_rest(options, stop, batch_size):
    loader = ResumableDataLoader(**{**options, "dataset": Ids(len(options["dataset"]))})
    seen = []
    for batch in loader:
        seen += [plain(batch)] if options["batch_size"] is None else plain(batch)
        if loader.batches_processed >= stop:
            break
    state = loader.state_dict()
    changed = {**options, "dataset": Ids(len(options["dataset"])), "batch_size": batch_size}
    resumed = ResumableDataLoader(**changed)
    resumed.load_state_dict(state)
    rest = flat(one_pass(resumed)) if not state["finished"] else []
    assert sorted(seen + rest) == list(range(len(options["dataset"])))


SAMPLERS = {
    "random": lambda n: RandomSampler(range(n)),
    "random with its own generator": lambda n: RandomSampler(
        range(n), generator=torch.Generator().manual_seed(5)
    ),
    "random with replacement": lambda n: RandomSampler(range(n), replacement=True, num_samples=n),
    "subset": lambda n: SubsetRandomSampler(list(range(n))),
    "weighted": lambda n: WeightedRandomSampler([1.0] * n, n),
    "sequential": lambda n: SequentialSampler(range(n)),
    "distributed": lambda n: DistributedSampler(range(n), num_replicas=2, rank=1),
    "resumable": lambda n: ResumableSampler(n, shuffle=True, seed=9),
    "list": lambda n: list(reversed(range(n))),
}


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SAMPLERS)),
    st.integers(1, 30),
    st.integers(1, 7),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_samplers_of_the_users_own_resume_exactly(
    name, length, batch_size, epoch, drop_last, batched, noise
):
    def make() -> ResumableDataLoader:
        sampler = SAMPLERS[name](length)
        if batched:
            batches = BatchSampler(sampler, batch_size, drop_last)
            return ResumableDataLoader(Augmented(length), batch_sampler=batches, seed=9)
        return ResumableDataLoader(
            Augmented(length), batch_size, sampler=sampler, drop_last=drop_last, seed=9
        )

    reference = make()
    passes(reference, epoch)
    batches, states = pass_with_states(reference)
    following = one_pass(reference)
    for done, state in enumerate(states[1:-1], start=1):
        torch.manual_seed(noise + done)  # whatever a new process happens to have
        resumed = make()
        resumed.load_state_dict(state)
        assert one_pass(resumed) == batches[done:]
        assert one_pass(resumed) == following
    resumed = make()
    resumed.load_state_dict(states[-1])
    assert one_pass(resumed) == following
