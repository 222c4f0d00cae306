"""The search for the reason why a loader does not resume exactly.

The batches that differed are delivered again in the variations of `experiments`. An experiment
that the user's code does not survive gives no answer; the others are still made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from dataporter.tools.verify.experiments import (
    CAUSES,
    CHANGES,
    CLOCK,
    EXPERIMENTS,
    FETCHED,
    INTERPRETERS,
    REMAINING,
    TWICE,
    VARIATIONS,
    WORKERS,
    Experiment,
    Variation,
)
from dataporter.tools.verify.interruptions import runs_differ
from dataporter.tools.verify.object_changes import Change
from dataporter.tools.verify.report import Cause
from dataporter.tools.verify.runs import LoaderFacts, Run, RunResult, run_in

_SUSPECTS = 8  # changed objects that are put back, one at a time


def cause_of_problem(problem: Problem) -> Cause:
    """Name the cause of a state that does not fit the loader of another call."""
    name = "length" if "num_samples" in problem.mismatched else "arguments"
    return _cause(name, problem.message, changed=" and ".join(problem.mismatched))


def find_cause(
    sandbox: Sandbox, facts: LoaderFacts, state: bytes, batches: int, *, interpreter: int = 1
) -> Cause:
    """Find out why the batches that follow a state are not the same in every run.

    `interpreter` is the number of the one in which they differed.
    """
    try:
        return _Search(sandbox, facts, state, batches, interpreter).cause()
    except (TimeUpError, ProcessEndedError, FactoryError):
        return _cause("interrupted")


def _cause(name: str, *evidence: str, **details: str) -> Cause:
    finding, remedy, kind = CAUSES[name]
    return Cause(
        kind=kind or name,
        words=finding.format(**details),
        remedy=remedy,
        evidence=tuple(filter(None, evidence)),
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
        self._in_vain: list[str] = []  # outcomes of experiments that found nothing

    def cause(self) -> Cause:
        if self._needs_worker():
            return self._explain(WORKERS)
        for variation in VARIATIONS:
            if variation is INTERPRETERS and self._sandbox.why_not_importable:
                continue
            if variation is FETCHED and not self._facts.knows_indices:
                continue
            if self._differs(variation):
                return self._explain(variation)
        name, evidence, _ = next(each for each in REMAINING if each[2](self._facts))
        return _cause(name, evidence, dataset=self._facts.dataset)

    def _needs_worker(self) -> bool:
        """Tell whether the user's code fails outside of workers, and not in one."""
        run = self._run({})
        if run_in(self._sandbox, run)[1].problem is None:
            return False
        return run_in(self._sandbox, replace(run, worker=WORKERS.worker))[1].problem is None

    def _explain(self, variation: Variation) -> Cause:
        """Find the cause of a variation's difference."""
        # A second that passes between two runs may seem to be a cache.
        for experiment in (CLOCK,) if variation is FETCHED else EXPERIMENTS:
            if self._succeeds(experiment, variation):
                name = experiment.cause
                where = self._where(variation) if "{where}" in CAUSES[name].finding else ""
                if (name, where) == ("entropy", "in the sampler"):
                    name = "entropy in the sampler"
                return _cause(name, variation.evidence, experiment.evidence, where=where)
        if variation is FETCHED:
            return self._cache()
        if variation is TWICE and self._changed:
            change, effect = self._culprit()
            name = next(name for name, applies in CHANGES if applies(change, self._facts))
            evidence = f"meanwhile {change.path} changed ({change.description}){effect}"
            details = {"dataset": self._facts.dataset, **change._asdict()}
            return _cause(name, variation.evidence, evidence, **details)
        where = self._where(variation)
        return _cause("unknown", variation.evidence, *self._in_vain, where=where)

    def _succeeds(self, experiment: Experiment, variation: Variation) -> bool:
        """Tell whether an experiment makes the two runs of a variation equal."""
        if experiment.varied not in (None, variation) or not experiment.applies(self._facts):
            return False
        if not experiment.held and not experiment.options:
            required = experiment.must_differ_too
            return required is None or bool(self._differs(required))
        differs = self._differs(variation, experiment.held, experiment.options)
        if differs is not False:
            self._in_vain.append(_without_effect(experiment, differs))
            return False
        # If little differs, two processes may be equal by chance; one process is not.
        confirmation = experiment.must_differ_too
        if confirmation is None or variation is TWICE:
            return True
        return self._differs(confirmation) is not False

    def _cache(self) -> Cause:
        """Name the object that keeps samples which were fetched before."""
        expected = run_in(self._sandbox, self._run({}))[1]
        # Of a container whose items changed, all of them are put back.
        suspects = {re.sub(r"(\[[^\[]*\])+$", "", each.path): each for each in self._changed}
        for path, change in list(suspects.items())[:_SUSPECTS]:
            run = self._run({}, fetched_before=True, restores=path)
            found = run_in(self._sandbox, run)[1]
            if not runs_differ(expected.delivered, found.delivered):
                name = "lru_cache" if change.kind == "lru_cache" else "augmented cache"
                effect = "with that put back they are equal"
                return _cause(name, FETCHED.evidence, f"{path} changed; {effect}", path=path)
        return _cause("hidden cache", FETCHED.evidence, dataset=self._facts.dataset)

    def _culprit(self) -> tuple[Change, str]:
        """Find the object that makes the second time equal to the first if it is put back."""
        for change in self._changed[:_SUSPECTS]:
            run = self._run({}, twice=True, restores=change.path)
            if not _halves_differ(run_in(self._sandbox, run)[1]):
                return change, "; with that put back they are equal"
        others = [change.path for change in self._changed[1:4]]
        return self._changed[0], f", and so did {', '.join(others)}" if others else ""

    def _where(self, variation: Variation) -> str:
        """Say whether the sampler, the samples or their collation differ."""
        facts = self._facts
        if facts.has_sampler and facts.samples is not None:
            indices = range(facts.samples)  # a dataset in which each index is its own sample
            if self._differs(variation, options={"dataset": indices}, by_sample=True):
                return "in the sampler"
        samples = f"in the samples of {facts.dataset}"
        if not facts.has_collate_fn or facts.batch_size is None:
            return samples
        in_samples = self._differs(variation, by_sample=True)
        return samples if in_samples else "in collate_fn or converter"

    def _differs(
        self,
        variation: Variation,
        held: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
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
            expected = self._result(replace(run, worker=variation.first_worker), first)
            found = self._second(variation, run, second)
        except _NoAnswerError:
            return None
        except (FactoryError, ProcessEndedError):
            if self._sandbox.seconds_left <= 0:
                raise TimeUpError from None
            return None
        return runs_differ(expected.delivered, found.delivered)

    def _second(self, variation: Variation, run: Run, conditions: Conditions) -> RunResult:
        """Run the second of a variation's runs."""
        before = variation.fetched_before
        run = replace(run, worker=variation.worker, fetched_before=before, looks=before)
        result = self._result(run, conditions)
        if before:
            self._changed = result.changed
        return result

    def _differs_twice(self, run: Run, conditions: Conditions) -> bool:
        looks = conditions == USUAL and run == self._run({})
        result = self._result(replace(run, twice=True, looks=looks), conditions)
        if looks:
            self._changed = result.changed
        return _halves_differ(result)

    def _run(self, options: Mapping[str, Any], **more: Any) -> Run:
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


def _without_effect(experiment: Experiment, differs: bool | None) -> str:
    """Describe an experiment that found nothing; `differs` is None if it gave no answer."""
    held = {**experiment.held, **experiment.options}
    named = ", ".join(f"{name}={value!r}" for name, value in held.items())
    if differs:
        return f"they still differ with {named}"
    if "clock" in held and why_clock_must_run():
        return f"not tried with {named}: {why_clock_must_run()}"
    return f"the loader fails with {named}"


def _halves_differ(result: RunResult) -> bool:
    return runs_differ(result.delivered[: result.first], result.delivered[result.first :])
