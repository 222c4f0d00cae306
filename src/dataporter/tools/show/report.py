"""A batch as it is shown: where it is from, its samples, its parts, its images."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from dataporter.errors import OptionError
from dataporter.layout import Row, counted
from dataporter.tools import report
from dataporter.tools.pictures import Greys, png
from dataporter.tools.show.parts import Images
from dataporter.tools.show.showing import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAMPLES = 16  # on a terminal; the page and JSON have all
_CELL = 130  # pixels of an image in a PNG, with its caption
_WIDEST = 8  # images in a row


def parts_of(shown: Shown) -> list[report.Part]:
    """Return what the command shows."""
    parts = [(part.path, part.words()) for part in shown.parts]
    texts = {part.path: part.texts for part in shown.parts}
    columns = ("row", "position", "dataset index", "")
    return [
        report.Rows(_rows(shown)),
        report.Words([f"Note: {note}" for note in shown.notes], "warning"),
        *(_images(shown, images) for images in shown.images),
        report.Table(columns, samples_of(shown), "Samples", ends_with_text=True, most=_SAMPLES),
        report.Rows(parts, "Parts", texts),
    ]


def drawn(shown: Shown, suffix: str) -> str | bytes:
    """Draw a batch as the contents of a file: a page .html, or its images in a grid .png."""
    if suffix == ".html":
        title = f"Epoch {shown.contents.epoch}, position {shown.contents.position:,}"
        return report.as_page("show", title, [report.Headline(title, ""), *parts_of(shown)])
    if not shown.images:
        msg = (
            "the batch has no images, so there is no PNG to draw. --out batch.html shows all that "
            "it holds. Images are arrays of floats or bytes of 1, 3 or 4 channels, or of none."
        )
        raise OptionError(msg)
    cells = [cell for images in shown.images for cell in _captioned(shown, images)]
    columns = min(len(cells), _WIDEST)
    size = columns * _CELL, math.ceil(len(cells) / columns) * _CELL
    return png(partial(_draw_grid, cells, columns), size)


def _rows(shown: Shown) -> list[Row]:
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


def _images(shown: Shown, images: Images) -> report.Images:
    caption = f"Under each image its index in the dataset; {images.scale}."
    shown_images = [(_as_png(pixels), words) for pixels, words in _captioned(shown, images)]
    return report.Images(images.path, caption, shown_images)


def _captioned(shown: Shown, images: Images) -> list[tuple[object, str]]:
    """Put the sample's index under each image, if there is one image for each sample."""
    samples = samples_of(shown)
    if len(images.pixels) == 1 and len(samples) > 1:
        captions = [images.path]
    elif len(images.pixels) <= len(samples):
        captions = [f"{index} {said}".strip() for _, _, index, said in samples]
    else:
        captions = [f"{images.path}[{number}]" for number in range(len(images.pixels))]
    return list(zip(images.pixels, captions, strict=False))


def _as_png(pixels: object) -> str:
    """Return an image as the address of an `img`."""
    from PIL import Image  # noqa: PLC0415  it comes with matplotlib

    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")  # type: ignore[arg-type]  # an array of bytes
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"


def _draw_grid(cells: list[tuple[object, str]], columns: int, figure: Figure, greys: Greys) -> None:
    rows = math.ceil(len(cells) / columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (pixels, caption) in zip(grid.flat, cells, strict=False):
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_title(caption, fontsize=9, loc="center", color=greys.soft)


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
