"""The report of a verification: as values, as JSON, and as text of 80 columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from dataporter.layout import counted, wrapped
from dataporter.tools.report import Part, Table, Words, as_notebook

SHOWN_DIFFERENCES = 2  # the others are much the same
TIME_UP = "the time was up"  # why a check was not run

_SWITCH = (
    "What to do: replace the class by dataporter.ResumableDataLoader, which takes the same "
    "arguments, and keep its state_dict() in your checkpoints."
)

_AS_IT_IS = "As it is, interrupted and started again:"

Outcome: TypeAlias = Literal["exact", "differs", "skipped", "not run"]
Finding: TypeAlias = Literal["exact", "differs", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One interruption, and its outcome.

    A check that is skipped is impossible for the loader. One that was not run is possible, so its
    outcome is unknown.
    """

    name: str
    outcome: Outcome
    batches: int = 0  # that were compared
    words: str = ""  # the difference, or the reason why it was not tried
    kind: str = ""  # the same for checks of the same change

    def text(self) -> str:
        """Return a line for the report."""
        mark = self.outcome.upper() if self.outcome == "differs" else self.outcome
        count = f" ({counted(self.batches, 'batch')})" if self.batches else ""
        text = f"{mark:<8} {self.name}{count}"
        if self.words:
            text += f": {self.words}"
        return wrapped(text, "  ", " " * 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The likely reason why a loader does not resume exactly."""

    kind: str  # one word or two, the same for the same cause
    words: str
    remedy: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The findings on a loader of torch or another library, as it is."""

    loader: str
    checks: tuple[Check, ...] = ()

    @property
    def outcome(self) -> Finding:
        """Exact if nothing would be lost, incomplete if something was not tried."""
        return _found_in(self.checks)

    @property
    def is_exact(self) -> bool:
        """True if nothing would be lost, and everything was tried."""
        return self.outcome == "exact"

    @property
    def losses(self) -> list[Check]:
        """The checks that found a loss."""
        return [check for check in self.checks if check.outcome == "differs"]

    def heading(self) -> str:
        """Describe the loader."""
        return "\n".join((wrapped(self.loader), _AS_IT_IS))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """The findings of a verification; `str(report)` is meant to be read.

    For a loader of torch or another library, `present` has the findings on the loader as it is, and
    `checks` those on a `ResumableDataLoader` with the same arguments.
    """

    loader: str
    reference: str
    checks: tuple[Check, ...]
    cause: Cause | None = None
    seconds: float = 0.0
    time_limit: float = 0.0  # seconds
    present: Present | None = None

    @property
    def outcome(self) -> Finding:
        """Exact if all checks were run and nothing differed, of the loader as it is too."""
        return _found_in(self.checks, () if self.present is None else self.present.checks)

    @property
    def is_exact(self) -> bool:
        """True if nothing differed, nothing would be lost, and everything was tried."""
        return self.outcome == "exact"

    @property
    def would_be_exact(self) -> bool:
        """True if all checks were run with our loader, and nothing differed."""
        return _found_in(self.checks) == "exact"

    def _with(self, outcome: Outcome) -> list[Check]:
        return [check for check in self.checks if check.outcome == outcome]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as builtins, for JSON."""
        found = {"outcome": self.outcome, "exact": self.is_exact}
        return {**found, "would_be_exact": self.would_be_exact, **asdict(self)}

    def heading(self) -> str:
        """Describe the loader and the uninterrupted run."""
        return "\n".join(map(wrapped, self._about()))

    def _about(self) -> list[str]:
        which = "" if self.present is None else "With dataporter and the same arguments: "
        return [f"{which}{self.loader}", self.reference]

    def verdict(self) -> str:
        """Return the outcome, and the likely cause of a difference."""
        return "\n".join(self._verdict())

    def _verdict(self) -> Iterator[str]:
        with_ours = ""
        if self.present is not None:
            yield wrapped(f"As it is, {self._of_present(self.present)}.")
            with_ours = "With dataporter, "
        yield wrapped(f"{with_ours}{self._of_ours()}")
        if self.present is not None and self.present.losses and self.would_be_exact:
            yield wrapped(_SWITCH)
        if self.cause is not None:
            yield ""
            yield wrapped(f"Likely cause: {self.cause.words}")
            for line in self.cause.evidence:
                yield wrapped(line, "  - ", "    ")
            yield wrapped(f"What to do: {self.cause.remedy}")

    @staticmethod
    def _of_present(present: Present) -> str:
        lost, all_of_it = len(present.losses), len(present.checks)
        if lost:
            return f"NOT EXACT: {lost} of {all_of_it} checks differ"
        return "EXACT" if present.is_exact else "INCOMPLETE: some checks were not run"

    def _of_ours(self) -> str:
        differing, unrun = len(self._with("differs")), len(self._with("not run"))
        tried = len(self._with("exact")) + differing
        if differing:
            rest = f" {unrun} more {'was' if unrun == 1 else 'were'} not run." if unrun else ""
            return f"NOT EXACT: {differing} of {tried} checks differ.{rest}"
        if not unrun:
            skipped = ", ".join(check.name for check in self._with("skipped"))
            rest = f" Skipped: {skipped}." if skipped else ""
            return f"EXACT: all {tried} checks, bit by bit.{rest}"
        words = (
            f"INCOMPLETE: {tried} of {tried + unrun} checks ran, all equal. Not tried: "
            f"{self._kinds_of(self._with('not run'))}."
        )
        if any(check.words == TIME_UP for check in self._with("not run")):
            enough = self.time_limit * (tried + unrun) / max(tried, 1)
            seconds = 10 * math.ceil(enough / 10)
            words += f" Use --seconds {seconds}, in Python seconds={seconds}."
        return words

    def _kinds_of(self, checks: Sequence[Check]) -> str:
        """List kinds of checks, with their numbers where others of the kind have another outcome.

        A check that is skipped is none of them.
        """
        these = Counter(check.kind or check.name for check in checks)
        of = Counter(each.kind or each.name for each in self.checks if each.outcome != "skipped")
        return ", ".join(
            kind if count == of[kind] else f"{kind} ({count} of {of[kind]})"
            for kind, count in these.items()
        )

    def lines(self) -> list[str]:
        """Return a line for each check, but one for all differences after the first."""
        hidden = list(map(id, self._with("differs")[SHOWN_DIFFERENCES:]))
        each = [check.text() for check in self.checks if id(check) not in hidden]
        return [*each, *self.more_differences()]

    def more_differences(self) -> list[str]:
        """Return a line for the differences after the first, if there are any."""
        more = self._with("differs")[SHOWN_DIFFERENCES:]
        if not more:
            return []
        return [wrapped(f"DIFFERS  {len(more)} more: {self._kinds_of(more)}", "  ", " " * 11)]

    def __str__(self) -> str:
        before = []
        if self.present is not None:
            lines = [check.text() for check in self.present.checks]
            before = [self.present.heading(), *lines, ""]
        return "\n".join([*before, self.heading(), *self.lines(), "", self.verdict()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts: list[Part] = []
        if self.present is not None:
            parts = [Words([self.present.loader, _AS_IT_IS]), _table(self.present.checks)]
        verdict = Words(list(filter(None, self._verdict())))
        return as_notebook([*parts, Words(self._about()), _table(self.checks), verdict])


def _found_in(*parts: Sequence[Check]) -> Finding:
    outcomes = {check.outcome for checks in parts for check in checks}
    if "differs" in outcomes:
        return "differs"
    return "incomplete" if "not run" in outcomes else "exact"


def _table(checks: Sequence[Check]) -> Table:
    rows = [(each.outcome, each.name, each.batches or "", each.words) for each in checks]
    return Table(("outcome", "check", "batches", ""), rows, ends_with_text=True)
