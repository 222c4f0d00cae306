"""Why a loader does not resume exactly, found by experiment.

The batches that differed are delivered again in pairs of runs that have more and more in
common, down to one process that delivers them twice. The first pair that differs says where
to look. Then what could be the reason is made to stand still, one thing after the other: where
the difference goes away with it, that is the cause. What remains is told by what was changed.
An experiment that the user's code does not survive gives no answer; the others are still made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from dataporter.errors import FactoryError
from dataporter.tools.verify.contents import difference
from dataporter.tools.verify.laboratory import Laboratory, Where
from dataporter.tools.verify.looking import Change
from dataporter.tools.verify.playing import Delivered, Play, Played, Problem
from dataporter.tools.verify.processes import ProcessEndedError, TimeUpError
from dataporter.tools.verify.remaking import Facts
from dataporter.tools.verify.report import Cause
from dataporter.tools.verify.standing_still import Still

_SAMPLE_RNG = (
    "Draw from dataporter.sample_rng(), or from the global generators of Python, NumPy or torch, "
    "which dataporter seeds for each sample."
)
_WHOLE_STATE = (
    "Let state_dict() return all that decides what comes next (position, buffers, generators), and "
    "load_state_dict() put all of it back."
)
_SAMPLER_STATE = (
    "Give the sampler state_dict and load_state_dict, or let it draw from a torch.Generator or the "
    "global generators only."
)
_STILL: dict[Still, tuple[str, str, str, str]] = {
    "clock": (
        "the clock",
        "with the clock stopped they are equal",
        "it depends on the time",
        "Take what depends on the time out of the samples, or fix it when the data is made.",
    ),
    "process": (
        "the process id",
        "with the same process id they are equal",
        "it depends on the id of the process",
        "Take the process id out of the samples; names of files and the like may have it.",
    ),
    "entropy": (
        "entropy",
        "with the system's random numbers made the same they are equal",
        "it draws random numbers that nobody has seeded",
        (
            "Seed what is drawn when the dataset is made, for example by "
            "numpy.random.default_rng(0). For what is drawn in a sample: draw from "
            "dataporter.sample_rng()."
        ),
    ),
}


def cause_of_problem(problem: Problem) -> Cause | None:
    """Tell what is behind an error at a resume, where its words say so."""
    if problem.kind != "StateMismatchError":
        return None
    changed = problem.words.partition(" changed")[0]
    if changed == "num_samples":
        words = "the dataset has another length in another process."
        remedy = (
            "Make its length a matter of the data alone: a list of files that is sorted and "
            "complete, no limit by time, environment or chance."
        )
        return Cause(kind="length", words=words, remedy=remedy, evidence=(problem.words,))
    words = f"the factory makes another loader at each call: {changed} changed."
    remedy = "Make the loader with the same arguments at each call: a seed that is fixed, or none."
    return Cause(kind="arguments", words=words, remedy=remedy, evidence=(problem.words,))


_SUSPECTS = 8  # that are tried
_READ_INLINE = {"num_workers": 0}
_IN_SAMPLER = "in the sampler"


class _NoAnswerError(Exception):
    """The user's code fails where something stands still."""


def find_cause(laboratory: Laboratory, facts: Facts, state: bytes, batches: int) -> Cause:
    """Find out why the batches that follow a state are not the same in every run."""
    try:
        return _Search(laboratory, facts, state, batches).cause()
    except (TimeUpError, ProcessEndedError, FactoryError):
        return Cause(
            kind="unknown",
            words="not found before the time was up, or because a process ended.",
            remedy="Verify again with more seconds, or fewer batches.",
        )


class _Search:
    """One search. A pair is two runs of the same batches, and whether they differ."""

    def __init__(self, laboratory: Laboratory, facts: Facts, state: bytes, batches: int) -> None:
        self._laboratory = laboratory
        self._facts = facts
        # What is read in lanes is read from the start, in one lane.
        self._state = None if facts.has_lanes else state
        self._batches = batches
        self._changed: list[Change] = []
        self._untried: list[Still] = []

    def cause(self) -> Cause:
        pairs: dict[str, _Pair] = {
            "the same batches, delivered twice by one process, differ": self._twice,
            "the same batches differ from process to process": self._twins,
            "the same batches differ from worker to worker": self._told,
            "the same batches differ from interpreter to interpreter": self._strangers,
            "the same batches differ at another time": self._at_another_time,
            "the same batches differ where objects lie elsewhere in memory": self._moved,
        }
        for words, pair in pairs.items():
            if pair == self._strangers and not self._laboratory.is_importable:
                continue
            if self._tried(pair):
                return self._by_experiment(words, pair) or self._by_pair(words, pair)
        return self._by_elimination()

    def _by_experiment(self, words: str, pair: _Pair) -> Cause | None:
        return (
            self._by_randomness(words, pair)
            # First, since what changes by the second may seem to be anything.
            or self._by_clock(words, pair)
            or self._by_interpreter(words, pair)
            or self._by_standing_still(words, pair, "process")
            or self._by_standing_still(words, pair, "entropy")
        )

    def _by_randomness(self, words: str, pair: _Pair) -> Cause | None:
        if self._facts.has_randomness or self._tried(pair, {"randomness": True}) is not False:
            return None
        return Cause(
            kind="randomness=False",
            words="the loader was made with randomness=False, and its samples are drawn.",
            remedy="Drop randomness=False.",
            evidence=(words, "with randomness=True they are equal"),
        )

    def _by_clock(self, words: str, pair: _Pair) -> Cause | None:
        found = self._by_standing_still(words, pair, "clock")
        # Where little differs, a pair may be equal by chance.
        may_be_chance = found is not None and pair != self._twice
        if may_be_chance and self._tried(self._at_another_time) is False:
            return None
        return found

    def _by_standing_still(self, words: str, pair: _Pair, still: Still) -> Cause | None:
        differs = self._tried(pair, still=still)
        if differs is not False:
            self._untried += [] if differs else [still]
            return None
        _, effect, what, remedy = _STILL[still]
        where = self._where(pair)
        if still == "entropy" and where == _IN_SAMPLER:
            remedy = _SAMPLER_STATE
        found = f"{what} ({where})."
        return Cause(kind=still, words=found, remedy=remedy, evidence=(words, effect))

    def _by_interpreter(self, words: str, pair: _Pair) -> Cause | None:
        if pair == self._moved:
            return _address(words)
        if pair != self._strangers or self._tried(self._kin) is not False:
            return None
        if self._tried(self._moved):
            return _address(words, "where objects lie elsewhere in memory, they differ too")
        return Cause(
            kind="hash",
            words="it depends on hash() of strings, or on the order of a set of them, which "
            "every interpreter makes anew.",
            remedy="Use hashlib in place of hash(), and sorted(...) around sets; or set the "
            "same PYTHONHASHSEED for all runs.",
            evidence=(words, "with the same PYTHONHASHSEED they are equal"),
        )

    def _by_pair(self, words: str, pair: _Pair) -> Cause:
        if pair == self._told:
            without: dict[str, Any] = {"worker_init_fn": None}
            if self._facts.has_worker_init_fn and self._tried(pair, without) is False:
                return Cause(
                    kind="worker_init_fn",
                    words="worker_init_fn makes workers differ from each other.",
                    remedy="Let worker_init_fn do the same in each worker: dataporter seeds the "
                    "samples, and which worker fetches a batch is chance.",
                    evidence=(words, "without worker_init_fn they are equal"),
                )
            return Cause(
                kind="workers",
                words=f"it depends on which worker it is in ({self._where(pair)}).",
                remedy="Do not use get_worker_info() where samples or batches are made: which "
                "worker fetches a batch is chance.",
                evidence=(words,),
            )
        if pair == self._twice and self._changed:
            return self._by_change(words)
        return Cause(
            kind="unknown",
            words=f"not found ({self._where(pair)}); the samples depend on something outside of "
            "dataset, epoch and position.",
            remedy="Look for what a sample is made of that is not in its files: addresses (id()), "
            "the order of directories, other processes, the network.",
            evidence=(words, *self._in_vain()),
        )

    def _in_vain(self) -> Iterator[str]:
        """What has stood still without an effect, and what could not."""
        tried = [name for still, (name, *_) in _STILL.items() if still not in self._untried]
        if tried:
            yield f"stopping {_listed(tried)} makes no difference"
        if self._untried:
            names = [_STILL[still][0] for still in self._untried]
            yield f"{_listed(names)} could not be stopped: the loader fails then"

    def _by_change(self, words: str) -> Cause:
        """Tell by what delivering the batches has changed."""
        culprit, effect = self._culprit()
        evidence = [words, f"meanwhile {culprit.path} changed ({culprit.words}){effect}"]
        if culprit.path.startswith("sampler"):
            kind = "sampler"
            found = f"the sampler depends on what it has drawn before: {culprit.path}."
            remedy = _SAMPLER_STATE
        elif self._facts.has_state:
            kind = "state"
            found = f"the state of {self._facts.dataset} leaves something out: {culprit.path}."
            remedy = _WHOLE_STATE
        elif culprit.kind == "generator":
            kind = "generator"
            found = f"it draws from a generator of its own: {culprit.path}, {culprit.words}."
            remedy = _SAMPLE_RNG
        elif culprit.kind == "size":
            kind = "cache"
            found = f"it keeps what it has made, and makes the next of that: {culprit.path}."
            remedy = "Keep only what was read, and augment a copy of it each time."
        elif culprit.kind == "number" and not culprit.path.endswith("]"):
            kind = "call order"
            found = f"it depends on what was fetched before: {culprit.path} goes along with it."
            remedy = "Make a sample of its index alone, and of dataporter.sample_rng()."
        else:
            kind = "mutation"
            found = f"it changes its own data in place: {culprit.path}."
            remedy = "Copy before changing: sample = self.data[index].clone(), for example."
        return Cause(kind=kind, words=found, remedy=remedy, evidence=tuple(evidence))

    def _culprit(self) -> tuple[Change, str]:
        """What, put back in between, makes the second time equal to the first."""
        for change in self._changed[:_SUSPECTS]:
            request = self._request({}, twice=True, puts_back=change.path)
            if not _halves_differ(self._laboratory.play(request)[1]):
                return change, "; with that put back they are equal"
        others = [change.path for change in self._changed[1:4]]
        return self._changed[0], f", and so did {', '.join(others)}" if others else ""

    def _by_elimination(self) -> Cause:
        facts = self._facts
        evidence = ("delivered again from one state, the same batches are equal",)
        if facts.has_lanes:
            return Cause(
                kind="state",
                words=f"the state of {facts.dataset}, or of its iterator, leaves something out.",
                remedy=_WHOLE_STATE,
                evidence=("read from the start, every run is equal",),
            )
        if facts.has_sampler:
            return Cause(
                kind="sampler",
                words="the sampler does not draw the same indices again.",
                remedy=_SAMPLER_STATE,
                evidence=evidence,
            )
        return Cause(
            kind="history",
            words=f"{facts.dataset} depends on what was fetched before, or on other processes.",
            remedy="Make a sample of its index alone, and of dataporter.sample_rng().",
            evidence=evidence,
        )

    def _where(self, pair: _Pair) -> str:
        """Say whether it is the sampler, the dataset, or what makes batches of its samples."""
        facts = self._facts
        if facts.has_sampler and facts.samples is not None:
            indices = range(facts.samples)  # of which each is its own sample
            if self._tried(pair, {_BY_SAMPLE: True, "dataset": indices}):
                return _IN_SAMPLER
        samples = f"in the samples of {facts.dataset}"
        if not facts.has_collate_fn or facts.batch_size is None:
            return samples
        return samples if self._tried(pair, {_BY_SAMPLE: True}) else "in collate_fn or converter"

    def _tried(
        self, pair: _Pair, options: dict[str, Any] | None = None, still: Still | None = None
    ) -> bool | None:
        """Whether a pair differs; None where the user's code does not survive that."""
        try:
            return pair(options or {}, still)
        except _NoAnswerError:
            return None
        except (FactoryError, ProcessEndedError):
            if self._laboratory.seconds_left <= 0:
                raise TimeUpError from None
            return None

    def _twice(self, options: dict[str, Any], still: Still | None) -> bool:
        looks = not options and still is None
        request = self._request(options, twice=True, looks=looks)
        played = self._played(request, Where(0, still))
        if looks:
            self._changed = played.changed
        return _halves_differ(played)

    def _twins(self, options: dict[str, Any], still: Still | None) -> bool:
        request = self._request(options)
        return self._differ(request, request, Where(0, still), Where(0, still))

    def _told(self, options: dict[str, Any], still: Still | None) -> bool:
        alone, second = self._request(options), self._request(options, worker=(1, 2))
        return self._differ(alone, second, Where(0, still), Where(0, still))

    def _kin(self, options: dict[str, Any], still: Still | None) -> bool:
        request = self._request(options)
        return self._differ(request, request, Where(0, still), Where(0, still, again=1))

    def _moved(self, options: dict[str, Any], still: Still | None) -> bool:
        request = self._request(options)
        return self._differ(request, request, Where(0, still), Where(0, "other addresses"))

    def _strangers(self, options: dict[str, Any], still: Still | None) -> bool:
        request = self._request(options)
        return self._differ(request, request, Where(0, still), Where(1, still))

    def _at_another_time(self, options: dict[str, Any], still: Still | None) -> bool:
        if still is not None:  # then it is the same time for all
            return self._kin(options, still)
        request = self._request(options)
        return self._differ(request, request, Where(0, "this time"), Where(0, "another time"))

    def _request(self, options: dict[str, Any], **more: Any) -> Play:
        options = dict(options)
        return Play(
            as_samples=options.pop(_BY_SAMPLE, False),
            options={**_READ_INLINE, **options},
            state=None if "dataset" in options else self._state,
            batches=self._batches,
            **more,
        )

    def _differ(self, one: Play, other: Play, first: Where, second: Where) -> bool:
        expected, found = self._played(one, first), self._played(other, second)
        return _differ(expected.delivered, found.delivered)

    def _played(self, request: Play, where: Where) -> Played:
        _, played = self._laboratory.play(request, where)
        if played.problem is not None and where.still is not None:
            raise _NoAnswerError
        return played


# Whether two runs differ, made with other options, and with something standing still.
_Pair: TypeAlias = Callable[[dict[str, Any], "Still | None"], bool]

_BY_SAMPLE = "by sample"  # among a pair's options: compare samples, not batches


def _address(*evidence: str) -> Cause:
    return Cause(
        kind="address",
        words="it depends on where objects are in memory: on id(), or on the order of a set of "
        "objects that have no hash of their own.",
        remedy="Tell objects apart by something of their own, a name or a number, and put "
        "sorted(..., key=...) around sets.",
        evidence=evidence,
    )


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _halves_differ(played: Played) -> bool:
    return _differ(played.delivered[: played.first], played.delivered[played.first :])


def _differ(expected: list[Delivered], found: list[Delivered]) -> bool:
    if len(expected) != len(found):
        return True
    pairs = [
        (one, other)
        for mine, its in zip(expected, found, strict=True)
        for one, other in zip(mine.contents, its.contents, strict=False)
    ]
    return any(difference(one, other) is not None for one, other in pairs)
