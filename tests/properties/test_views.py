"""Views of views: a run over them, whatever changes at its resumes, delivers what a walk does.

The walk knows nothing of positions: it draws from the parts by their weights, one sample after the
other, and opens a part again when it is through.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataporter import ResumableDataLoader
from dataporter.law.keys import key_as_int
from dataporter.views import Mixture, packed, where
from dataporter.views.segments import as_integers, pattern_of

SEED, PAD = 7, -1


@dataclass(frozen=True)
class Corpus:
    """Documents, filtered if `keeps` says so, and packed into windows or bins of some length."""

    first: int  # the first document; a token is 100 times its document, and its place
    lengths: tuple[int, ...]
    kind: str
    length: int
    keeps: int

    def documents(self) -> list[list[int]]:
        return [
            [100 * (self.first + number) + place for place in range(length)]
            for number, length in enumerate(self.lengths)
        ]

    def view(self) -> Any:
        documents: Any = self.documents()
        if self.keeps:
            name = f"every {self.keeps}"
            documents = where(documents, self.is_kept, name, num_workers=0)
        return packed(documents, self.length, kind=self.kind, pad_id=PAD)

    def is_kept(self, document: list[int]) -> bool:
        return len(document) % self.keeps != 1

    def tokens(self) -> list[int]:
        kept = [each for each in self.documents() if not self.keeps or self.is_kept(each)]
        return sorted(token for each in kept for token in each)

    def samples(self, seed: int) -> Any:
        """Yield the samples of a run over this corpus alone."""
        loader = ResumableDataLoader(self.view(), 1, shuffle=True, seed=seed)
        while True:
            yield from (batch["tokens"][0].tolist() for batch in loader)


@dataclass(frozen=True)
class Mixed:
    """A mixture: corpora and mixtures with their weights, by name."""

    parts: tuple[tuple[str, Any, int], ...]

    def view(self, epoch: int | None = None) -> Any:
        parts = {name: (part.view(), weight) for name, part, weight in self.parts}
        return Mixture(parts, **({} if epoch is None else {"epoch": epoch}))

    def samples(self, seed: int) -> Any:
        """Yield the samples of a run, whose weights can be changed by sending another mixture."""
        return Walk(self, seed)


class Walk:
    """A walk over a mixture, from sample to sample."""

    def __init__(self, mixed: Mixed, seed: int) -> None:
        self._seed = seed
        self._opened: dict[str, Any] = {}
        self._turns: dict[str, int] = {}
        self.change(mixed)

    def change(self, mixed: Mixed) -> None:
        """Go on with other weights or more parts; the same ones change nothing."""
        for name, part, _ in mixed.parts:
            if name not in self._opened:
                self._opened[name] = part.samples(key_as_int("part", self._seed, name))
            elif isinstance(part, Mixed):
                self._opened[name].change(part)
        listed = sorted((name, weight) for name, _, weight in mixed.parts)  # equals take turns so
        weights = as_integers([weight for _, weight in listed])
        turns = {name: weight for (name, _), weight in zip(listed, weights, strict=True)}
        if turns != self._turns:
            self._turns, self._place = turns, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        who = pattern_of(tuple(self._turns.values())).who
        name = list(self._turns)[who[self._place % len(who)]]
        self._place += 1
        return next(self._opened[name])


@st.composite
def corpora(draw: Any) -> Corpus:
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=8).map(tuple))
    keeps = draw(st.sampled_from([0, 0, 2, 3]))
    corpus = Corpus(draw(st.integers(0, 1)) * 1000, (*lengths, 12), "windows", 1, keeps)
    length = draw(st.integers(1, min(len(corpus.tokens()), 20)))
    return replace(corpus, kind=draw(st.sampled_from(["windows", "best-fit"])), length=length)


def mixed_of(parts: Any) -> Any:
    weighted = st.tuples(parts, st.integers(1, 6))
    return st.lists(weighted, min_size=1, max_size=3).map(
        lambda found: Mixed(
            tuple((name, part, weight) for name, (part, weight) in zip("cab", found, strict=False))
        )
    )


mixtures = mixed_of(corpora() | mixed_of(corpora()))


@st.composite
def changed(draw: Any, mixed: Mixed) -> Mixed:
    """The same parts in any sequence, with other weights, and perhaps one more."""
    parts = [
        (
            name,
            draw(changed(part)) if isinstance(part, Mixed) else part,
            draw(st.sampled_from([weight, 1, 5])),
        )
        for name, part, weight in draw(st.permutations(mixed.parts))
    ]
    if draw(st.booleans()):
        parts.insert(0, (f"more {len(parts)}", draw(corpora()), draw(st.integers(1, 6))))
    return Mixed(tuple(parts))


@settings(max_examples=40)
@given(mixed=mixtures, epoch=st.integers(5, 40), data=st.data())
def test_a_run_with_changes_at_its_resumes_is_a_walk_from_sample_to_sample(mixed, epoch, data):
    walk = mixed.samples(SEED)
    state, left = None, epoch
    for number in range(data.draw(st.integers(1, 4))):
        ranks, size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
        if number and data.draw(st.booleans()):
            mixed = data.draw(changed(mixed))
            walk.change(mixed)
        view = mixed.view(epoch)
        options = {"shuffle": True, "seed": SEED, "world_size": ranks, "tail": "uneven"}
        options["collate_fn"] = list  # samples of different lengths
        loaders = [ResumableDataLoader(view, size, rank=rank, **options) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            if left == 0:  # the pass ends, and the next one is an epoch
                assert list(loader) == []
        left = left or epoch
        steps = data.draw(st.integers(1, -(-left // (ranks * size))))
        taken = min(steps * ranks * size, left)
        found = []
        for loader in loaders:
            for _, batch in zip(range(steps), loader, strict=False):
                found += [sample["tokens"].tolist() for sample in batch]
        assert sorted(found) == sorted(next(walk) for _ in range(taken))
        left -= taken
        state = loaders[0].state_dict()


@given(corpus=corpora())
def test_a_filtered_and_packed_corpus_has_its_tokens_once_an_epoch(corpus):
    samples = corpus.samples(SEED)
    for _ in range(2):
        epoch = [next(samples) for _ in range(len(corpus.view()))]
        found = np.concatenate(epoch)
        assert sorted(found[found != PAD].tolist()) == corpus.tokens()
