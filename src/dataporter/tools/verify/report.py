"""The report of a verification: as values, as JSON, and as text of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from dataporter.notebook_html import paragraphs, table
from dataporter.tools.wrapping import wrapped

_SHOWN_DIFFERENCES = 2  # the others are much the same

_SWITCH = (
    "What to do: replace the class by dataporter.ResumableDataLoader, which takes the same "
    "arguments, and keep its state_dict() in your checkpoints."
)

_AS_IT_IS = "As it is, interrupted and started again:"

Outcome: TypeAlias = Literal["exact", "differs", "skipped", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One interruption, and its outcome."""

    name: str
    outcome: Outcome
    batches: int = 0  # that were compared
    words: str = ""  # the difference, or the reason why it was not tried

    def text(self, *, with_words: bool = True) -> str:
        """Return a line for the report, with or without the difference."""
        mark = self.outcome.upper() if self.outcome == "differs" else self.outcome
        count = f" ({self.batches} batch{'es' if self.batches != 1 else ''})"
        text = f"{mark:<8} {self.name}{count if self.batches else ''}"
        if self.words and with_words:
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
    def is_exact(self) -> bool:
        """True if nothing would be lost."""
        return not self.losses

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
    present: Present | None = None

    @property
    def is_exact(self) -> bool:
        """True if nothing differed, and the loader as it is would lose nothing."""
        return self.would_be_exact and (self.present is None or self.present.is_exact)

    @property
    def would_be_exact(self) -> bool:
        """True if nothing differed with our loader."""
        return not self._with("differs")

    def _with(self, outcome: Outcome) -> list[Check]:
        return [check for check in self.checks if check.outcome == outcome]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as builtins, for JSON."""
        found = asdict(self)
        found["checks"] = list(found["checks"])
        if self.present is not None:
            found["present"]["checks"] = list(found["present"]["checks"])
        return {"exact": self.is_exact, "would_be_exact": self.would_be_exact, **found}

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
        differing, unrun = len(self._with("differs")), len(self._with("not run"))
        tried = len(self._with("exact")) + differing
        rest = f" {unrun} more {'was' if unrun == 1 else 'were'} not run." if unrun else ""
        with_ours = ""
        if self.present is not None:
            lost, all_of_it = len(self.present.losses), len(self.present.checks)
            outcome = f"NOT EXACT: {lost} of {all_of_it} checks differ" if lost else "EXACT"
            yield wrapped(f"As it is, {outcome}.")
            with_ours = "With dataporter, "
        if self.would_be_exact:
            yield wrapped(f"{with_ours}EXACT: all {tried} checks, bit by bit.{rest}")
            if self.present is not None and not self.present.is_exact:
                yield wrapped(_SWITCH)
            return
        yield wrapped(f"{with_ours}NOT EXACT: {differing} of {tried} checks differ.{rest}")
        if self.cause is not None:
            yield ""
            yield wrapped(f"Likely cause: {self.cause.words}")
            for line in self.cause.evidence:
                yield wrapped(line, "  - ", "    ")
            yield wrapped(f"What to do: {self.cause.remedy}")

    def lines(self) -> list[str]:
        """Return a line for each check; only the first differences are shown in full."""
        shown = [id(check) for check in self._with("differs")[:_SHOWN_DIFFERENCES]]
        return [
            check.text(with_words=check.outcome != "differs" or id(check) in shown)
            for check in self.checks
        ]

    def __str__(self) -> str:
        before = []
        if self.present is not None:
            lines = [check.text() for check in self.present.checks]
            before = [self.present.heading(), *lines, ""]
        return "\n".join([*before, self.heading(), *self.lines(), "", self.verdict()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        before = []
        if self.present is not None:
            about = paragraphs(self.present.loader, _AS_IT_IS)
            before = [about, _html_of(self.present.checks)]
        return "\n".join(
            [
                *before,
                paragraphs(*self._about()),
                _html_of(self.checks),
                paragraphs(*self._verdict()),
            ]
        )


def _html_of(checks: Sequence[Check]) -> str:
    rows = [(each.outcome, each.name, each.batches or "", each.words) for each in checks]
    return table(rows, columns=["outcome", "check", "batches", ""])
