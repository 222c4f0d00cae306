"""The uninterrupted run, which all others are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from dataporter.errors import FactoryError
from dataporter.tools.sandbox import ProcessEndedError, Sandbox, TimeUpError
from dataporter.tools.verify.facts import LoaderFacts
from dataporter.tools.verify.runs import Delivered, Run, run_in

_SHARE = 0.3  # of the seconds of a verification, at most
_PASSES = 2  # at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Batches as they come without an interruption."""

    facts: LoaderFacts
    batches: list[Delivered]
    states: list[bytes]  # before each batch, and after the last

    @property
    def epochs(self) -> list[int]:
        """The epoch of each batch."""
        return [batch.epoch for batch in self.batches]

    def __str__(self) -> str:
        first, last = self.epochs[0], self.epochs[-1]
        per_pass = "" if self.facts.batches is None else f" of {self.facts.batches:,} a pass"
        which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        count = len(self.batches)
        return f"Compared with an uninterrupted run: {count} batches{per_pass}, {which}"


def run_uninterrupted(sandbox: Sandbox, batches: int, seconds: float) -> Reference:
    """Run the loader without an interruption; raise if there is nothing to compare with."""
    try:
        run = Run(batches=batches, seconds=seconds * _SHARE, passes=_PASSES)
        facts, result = run_in(sandbox, run)
    except TimeUpError:
        msg = (
            f"the loader has delivered too little after {seconds:g} seconds. Find out what it "
            "waits for, or give it more time."
        )
        raise FactoryError(msg) from None
    except ProcessEndedError:
        msg = "a process of the verification ended by itself, or was killed. Verify again."
        raise FactoryError(msg) from None
    if result.problem is not None:
        result.problem.fail("the loader failed")
    if not result.delivered:
        msg = f"the loader over {facts.dataset} delivered no batch. Give it some data."
        raise FactoryError(msg)
    if len(result.delivered) == 1:
        msg = (
            f"the loader over {facts.dataset} delivered a single batch"
            f"{' before its time was up' if result.out_of_time else ''}, so there is no resume to "
            "compare. Give it more data, smaller batches or more seconds."
        )
        raise FactoryError(msg)
    return Reference(facts=facts, batches=result.delivered, states=result.states)
