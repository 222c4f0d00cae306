"""A report of the bytes that a conversion saves, key by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dataporter.layout import table


class ReportRow(NamedTuple):
    """One tensor, array or number, before and after."""

    key: str
    dtype_before: str
    dtype_after: str
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """Dtypes and bytes of a batch before and after its conversion.

    >>> report = ConversionReport(rows=(ReportRow("mask", "int64", "uint8", 4096, 512),))
    >>> report.bytes_before, report.bytes_after, report.saved
    (4096, 512, 0.875)
    >>> print(report)
    key    before  after  bytes before  bytes after   saved
    mask   int64   uint8         4,096          512  87.5 %
    total                        4,096          512  87.5 %
    """

    rows: tuple[ReportRow, ...]

    @property
    def bytes_before(self) -> int:
        """Bytes of all tensors, arrays and numbers before."""
        return sum(row.bytes_before for row in self.rows)

    @property
    def bytes_after(self) -> int:
        """Bytes of all tensors, arrays and numbers after."""
        return sum(row.bytes_after for row in self.rows)

    @property
    def saved(self) -> float:
        """The saved share of the bytes, from 0 to 1."""
        return saved(self.bytes_before, self.bytes_after)

    def _lines(self) -> list[tuple[str, ...]]:
        total = ReportRow("total", "", "", self.bytes_before, self.bytes_after)
        return [_cells(row) for row in (*self.rows, total)]

    def _repr_html_(self) -> str:
        return table(self._lines(), columns=_COLUMNS)

    def __str__(self) -> str:
        lines = [_COLUMNS, *self._lines()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if number < _TEXTS else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )


_COLUMNS = ("key", "before", "after", "bytes before", "bytes after", "saved")
_TEXTS = 3  # the first columns, aligned to the left


def saved(before: int, after: int) -> float:
    """Return the saved share of the bytes, from 0 to 1."""
    return 1 - after / before if before else 0.0


def _cells(row: ReportRow) -> tuple[str, ...]:
    share = f"{saved(row.bytes_before, row.bytes_after):.1%}".replace("%", " %")
    sizes = f"{row.bytes_before:,}", f"{row.bytes_after:,}"
    return row.key or "(batch)", row.dtype_before, row.dtype_after, *sizes, share
