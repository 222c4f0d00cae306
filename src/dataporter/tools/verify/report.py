"""What a verification has found, as values, as JSON and in words for 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from dataporter.law.explanation import WIDTH, printable

_SHOWN_DIFFERENCES = 2  # the others are much the same

Outcome: TypeAlias = Literal["exact", "differs", "skipped", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One interruption, and whether what followed was exact."""

    name: str
    outcome: Outcome
    batches: int = 0  # that were compared
    words: str = ""  # what differs and where, or why it was not tried

    def text(self, *, with_words: bool = True) -> str:
        """The outcome in words, with or without what differs."""
        mark = self.outcome.upper() if self.outcome == "differs" else self.outcome
        count = f" ({self.batches} batch{'es' if self.batches != 1 else ''})"
        text = f"{mark:<8} {self.name}{count if self.batches else ''}"
        if self.words and with_words:
            text += f": {self.words}"
        return _wrapped(text, "  ", " " * 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a loader is likely not to resume exactly."""

    kind: str  # one word or two, the same for the same cause
    words: str
    remedy: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that a verification has found; `str()` of it is meant to be read."""

    loader: str
    reference: str
    checks: tuple[Check, ...]
    cause: Cause | None = None
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether nothing differed."""
        return not self._with("differs")

    def _with(self, outcome: Outcome) -> list[Check]:
        return [check for check in self.checks if check.outcome == outcome]

    def as_dict(self) -> dict[str, Any]:
        """The same as builtins, for JSON."""
        found = asdict(self)
        found["checks"] = list(found["checks"])
        return {"exact": self.is_exact, **found}

    def heading(self) -> str:
        """What was verified."""
        return "\n".join(_wrapped(line, "", "  ") for line in (self.loader, self.reference))

    def verdict(self) -> str:
        """The outcome, and the likely cause where there is one to look for."""
        return "\n".join(self._verdict())

    def _verdict(self) -> Iterator[str]:
        tried = len(self._with("exact")) + len(self._with("differs"))
        unrun = len(self._with("not run"))
        rest = f" {unrun} more {'was' if unrun == 1 else 'were'} not run." if unrun else ""
        if self.is_exact:
            yield _wrapped(f"EXACT: all {tried} checks, bit by bit.{rest}", "", "  ")
            return
        count = len(self._with("differs"))
        yield _wrapped(f"NOT EXACT: {count} of {tried} checks differ.{rest}", "", "  ")
        if self.cause is not None:
            yield ""
            yield _wrapped(f"Likely cause: {self.cause.words}", "", "  ")
            for line in self.cause.evidence:
                yield _wrapped(line, "  - ", "    ")
            yield _wrapped(f"What to do: {self.cause.remedy}", "", "  ")

    def lines(self) -> list[str]:
        """Each check in words; of those that differ, only the first few say where."""
        shown = [id(check) for check in self._with("differs")[:_SHOWN_DIFFERENCES]]
        return [
            check.text(with_words=check.outcome != "differs" or id(check) in shown)
            for check in self.checks
        ]

    def __str__(self) -> str:
        lines = self.lines()
        return "\n".join([self.heading(), *lines, "", self.verdict()])


def _wrapped(text: str, first: str, others: str) -> str:
    # An error of the user's code may have anything in it, in lines of its own too.
    line = printable(" ".join(text.splitlines()))
    return textwrap.fill(
        line, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
