"""The search for the reason why a loader does not resume exactly.

The batches that differed are delivered again in the variations of `experiments`. An experiment
that the user's code does not survive gives no answer; the others are still made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dataporter.errors import FactoryError
from dataporter.tools.sandbox import (
    USUAL,
    Conditions,
    Problem,
    ProcessEndedError,
    Sandbox,
    TimeUpError,
)
from dataporter.tools.sandbox.conditions import why_clock_must_run
from dataporter.tools.verify.comparison import runs_differ
from dataporter.tools.verify.experiments import (
    CHANGE_CAUSES,
    EXPERIMENTS,
    HELD_NAMES,
    INTERPRETERS,
    REMAINING_CAUSES,
    SAMPLER_STATE,
    TWICE,
    VARIATIONS,
    Experiment,
    Variation,
)
from dataporter.tools.verify.facts import LoaderFacts
from dataporter.tools.verify.object_changes import Change
from dataporter.tools.verify.report import Cause
from dataporter.tools.verify.runs import Run, RunResult, run_in

_SUSPECTS = 8  # changed objects that are put back, one at a time
_IN_SAMPLER = "in the sampler"


def cause_of_problem(problem: Problem) -> Cause:
    """Name the cause of a state that does not fit the loader of another call."""
    if "num_samples" in problem.mismatched:
        return Cause(
            kind="length",
            words="the dataset has another length in another process.",
            remedy="Compute the length from the data alone: from a complete, sorted list of files, "
            "without limits by time, environment or chance.",
            evidence=(problem.message,),
        )
    changed = " and ".join(problem.mismatched)
    return Cause(
        kind="arguments",
        words=f"the factory makes another loader at each call: {changed} changed.",
        remedy="Make the loader with the same arguments at each call; fix the seed, or give none.",
        evidence=(problem.message,),
    )


def find_cause(
    sandbox: Sandbox, facts: LoaderFacts, state: bytes, batches: int, *, interpreter: int = 1
) -> Cause:
    """Find out why the batches that follow a state are not the same in every run.

    `interpreter` is the number of the one in which they differed.
    """
    try:
        return _Search(sandbox, facts, state, batches, interpreter).cause()
    except (TimeUpError, ProcessEndedError, FactoryError):
        return Cause(
            kind="unknown",
            words="not found before the time was up, or because a process ended.",
            remedy="Verify again with more seconds, or fewer batches.",
        )


class _NoAnswerError(Exception):
    """The user's code fails under the conditions of an experiment."""


class _Search:
    def __init__(
        self, sandbox: Sandbox, facts: LoaderFacts, state: bytes, batches: int, interpreter: int
    ) -> None:
        self._sandbox = sandbox
        self._facts = facts
        # Lanes are read from the start, in one lane.
        self._state = None if facts.has_lanes else state
        self._batches = batches
        self._interpreter = interpreter
        self._changed: list[Change] = []
        self._unanswered: list[str] = []  # kinds of experiments

    def cause(self) -> Cause:
        for variation in VARIATIONS:
            if variation is INTERPRETERS and self._sandbox.why_not_importable:
                continue
            if self._differs(variation):
                return self._explain(variation)
        return self._remaining()

    def _explain(self, variation: Variation) -> Cause:
        """Find the cause of a variation's difference."""
        for experiment in EXPERIMENTS:
            if self._succeeds(experiment, variation):
                return self._cause_of(experiment, variation)
        if variation is TWICE and self._changed:
            return self._cause_of_change()
        return Cause(
            kind="unknown",
            words=f"not found ({self._where(variation)}). The data depends on something besides "
            "dataset, epoch and position.",
            remedy="Look for inputs of a sample that are not in its files: addresses (id()), the "
            "order of directories, other processes, the network.",
            evidence=(variation.evidence, *self._in_vain()),
        )

    def _succeeds(self, experiment: Experiment, variation: Variation) -> bool:
        """Tell whether an experiment makes the two runs of a variation equal."""
        if experiment.varied not in (None, variation) or not experiment.applies(self._facts):
            return False
        if not experiment.held and not experiment.options:
            return True
        differs = self._differs(variation, experiment.held, experiment.options)
        if differs is None:
            self._unanswered.append(experiment.kind)
        if differs is not False:
            return False
        # If little differs, two processes may be equal by chance; one process is not.
        confirmation = experiment.must_differ_too
        if confirmation is None or variation is TWICE:
            return True
        return self._differs(confirmation) is not False

    def _cause_of(self, experiment: Experiment, variation: Variation) -> Cause:
        where = self._where(variation) if "{where}" in experiment.finding else ""
        unseeded_sampler = experiment.kind == "entropy" and where == _IN_SAMPLER
        return Cause(
            kind=experiment.kind,
            words=experiment.finding.format(where=where),
            remedy=SAMPLER_STATE if unseeded_sampler else experiment.remedy,
            evidence=tuple(filter(None, (variation.evidence, experiment.evidence))),
        )

    def _in_vain(self) -> Iterator[str]:
        """Name what was held still without an effect, and what could not be."""
        tried = [name for kind, name in HELD_NAMES.items() if kind not in self._unanswered]
        failed = [name for kind, name in HELD_NAMES.items() if kind in self._unanswered]
        if tried:
            yield f"they still differ with {_listed(tried)} held still"
        if failed:
            yield f"the loader does not work with {_listed(failed)} held still"

    def _cause_of_change(self) -> Cause:
        """Name the cause by the object that changes while batches are delivered."""
        change, effect = self._culprit()
        cause = next(each for each in CHANGE_CAUSES if each.applies(change, self._facts))
        finding = cause.finding.format(dataset=self._facts.dataset, **change._asdict())
        changed = f"meanwhile {change.path} changed ({change.description}){effect}"
        evidence = (TWICE.evidence, changed)
        return Cause(kind=cause.kind, words=finding, remedy=cause.remedy, evidence=evidence)

    def _culprit(self) -> tuple[Change, str]:
        """Find the object that makes the second time equal to the first if it is put back."""
        for change in self._changed[:_SUSPECTS]:
            run = self._run({}, twice=True, restores=change.path)
            if not _halves_differ(run_in(self._sandbox, run)[1]):
                return change, "; with that put back they are equal"
        others = [change.path for change in self._changed[1:4]]
        return self._changed[0], f", and so did {', '.join(others)}" if others else ""

    def _remaining(self) -> Cause:
        cause = next(each for each in REMAINING_CAUSES if each.applies(self._facts))
        finding = cause.finding.format(dataset=self._facts.dataset)
        evidence = (cause.evidence,)
        return Cause(kind=cause.kind, words=finding, remedy=cause.remedy, evidence=evidence)

    def _where(self, variation: Variation) -> str:
        """Say whether the sampler, the samples or their collation differ."""
        facts = self._facts
        if facts.has_sampler and facts.samples is not None:
            indices = range(facts.samples)  # a dataset in which each index is its own sample
            if self._differs(variation, options={"dataset": indices}, by_sample=True):
                return _IN_SAMPLER
        samples = f"in the samples of {facts.dataset}"
        if not facts.has_collate_fn or facts.batch_size is None:
            return samples
        in_samples = self._differs(variation, by_sample=True)
        return samples if in_samples else "in collate_fn or converter"

    def _differs(
        self,
        variation: Variation,
        held: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        *,
        by_sample: bool = False,
    ) -> bool | None:
        """Tell whether the two runs of a variation differ; None if the user's code fails there."""
        varied = dict(variation.conditions)
        if "interpreter" in varied:
            varied["interpreter"] = self._interpreter
        first = Conditions(**(held or {}))
        second = Conditions(**{**varied, **(held or {})})
        if {first.clock, second.clock} != {"running"} and why_clock_must_run():
            return None
        run = self._run(options or {}, by_sample=by_sample)
        try:
            if variation.twice:
                return self._differs_twice(run, first)
            expected = self._result(run, first)
            found = self._result(replace(run, worker=variation.worker), second)
        except _NoAnswerError:
            return None
        except (FactoryError, ProcessEndedError):
            if self._sandbox.seconds_left <= 0:
                raise TimeUpError from None
            return None
        return runs_differ(expected.delivered, found.delivered)

    def _differs_twice(self, run: Run, conditions: Conditions) -> bool:
        looks = conditions == USUAL and run == self._run({})
        result = self._result(replace(run, twice=True, looks=looks), conditions)
        if looks:
            self._changed = result.changed
        return _halves_differ(result)

    def _run(self, options: dict[str, Any], **more: Any) -> Run:
        return Run(
            options={"num_workers": 0, **options},
            state=None if "dataset" in options else self._state,
            batches=self._batches,
            **more,
        )

    def _result(self, run: Run, conditions: Conditions) -> RunResult:
        _, result = run_in(self._sandbox, run, conditions)
        is_usual = replace(conditions, interpreter=0, copy=0) == USUAL
        if result.problem is not None and not is_usual:
            raise _NoAnswerError
        return result


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _halves_differ(result: RunResult) -> bool:
    return runs_differ(result.delivered[: result.first], result.delivered[result.first :])
