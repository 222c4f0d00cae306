"""A batch in words: where it is from, its samples, its parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dataporter.layout import Row, counted, laid_out, wrapped
from dataporter.tools.show.showing import Shown

_SAMPLES, _TEXTS = 16, 4  # that are printed; the page and JSON have all


def rows_of(shown: Shown) -> list[Row]:
    """Headings, and what there is to say about the batch as a whole."""
    contents = shown.contents
    padding = int(contents.padding.sum())
    size = counted(len(contents.positions), "sample")
    rows = [
        ("epoch", f"{contents.epoch:,}"),
        ("position", f"{contents.position:,} of {shown.length:,}"),
        ("batch", f"{size} of {shown.dataset}, rank {shown.rank} of {shown.world_size}"),
    ]
    if padding:
        verb = "comes" if padding == 1 else "come"
        rows.append(("padding", f"{counted(padding, 'sample')} {verb} a second time, to fill up"))
    if shown.excluded:
        spans = ", ".join(f"{start:,} to {stop - 1:,}" for start, stop in shown.excluded)
        rows.append(("excluded", f"positions {spans} of this epoch are left out from now on"))
    return rows


def samples_of(shown: Shown) -> list[tuple[str, str, str, str]]:
    """Each sample: its number in the batch, its position, its index, and what is special."""
    contents = shown.contents
    rows = []
    for number, (position, index) in enumerate(
        zip(contents.positions.tolist(), _indices(shown), strict=True)
    ):
        marks = [("padding", contents.padding[number]), ("excluded", shown.left_out[number])]
        said = ", ".join(name for name, is_so in marks if is_so)
        rows.append((str(number), f"{position:,}", str(index), said))
    return rows


def text_of(shown: Shown) -> str:
    """All of it in 80 columns."""
    samples = samples_of(shown)
    listed = [
        f"  {number:>5}  {position:>14}  {index:>14}  {said}".rstrip()
        for number, position, index, said in samples[:_SAMPLES]
    ]
    if more := len(samples) - _SAMPLES:
        listed += [f"  and {more:,} more"] if more > 0 else []
    heading = f"  {'row':>5}  {'position':>14}  {'dataset index':>14}"
    blocks = [laid_out(rows_of(shown)), "\n".join([heading, *listed]), _parts(shown)]
    blocks += [wrapped(f"Note: {note}", "", "") for note in shown.notes]
    return "\n\n".join(blocks)


def _parts(shown: Shown) -> str:
    edge = max((len(part.path) for part in shown.parts), default=0)
    lines = []
    for part in shown.parts:
        lines.append(laid_out([(part.path.ljust(edge), part.words())]))
        lines += [wrapped(repr(text), "    ", "    ") for text in part.texts[:_TEXTS]]
        if (more := len(part.texts) - _TEXTS) > 0:
            lines.append(f"    and {more:,} more")
    return "\n".join(lines)


def as_dict(shown: Shown) -> dict[str, Any]:
    """All of it as builtins, for JSON; images by their paths only."""
    contents = shown.contents
    return {
        "dataset": shown.dataset,
        "epoch": contents.epoch,
        "position": contents.position,
        "length": shown.length,
        "rank": shown.rank,
        "world_size": shown.world_size,
        "positions": contents.positions.tolist(),
        "indices": _indices(shown),
        "padding": contents.padding.tolist(),
        "left_out": shown.left_out,
        "excluded": [list(span) for span in shown.excluded],
        "parts": [asdict(part) for part in shown.parts],
        "images": [images.path for images in shown.images],
        "notes": shown.notes,
    }


def _indices(shown: Shown) -> list[Any]:
    return [getattr(index, "item", lambda index=index: index)() for index in shown.contents.indices]
