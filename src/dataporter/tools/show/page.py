"""A batch as a file: a page with everything, or a PNG with its images in a grid."""

from __future__ import annotations

import base64
import io
import math
from functools import partial
from typing import TYPE_CHECKING

from dataporter.errors import OptionError
from dataporter.tools.pages import render
from dataporter.tools.pages.pictures import Greys, png
from dataporter.tools.show.images import Images
from dataporter.tools.show.report import rows_of, samples_of
from dataporter.tools.show.showing import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL = 130  # pixels of an image in a PNG, with its caption
_WIDEST = 8  # images in a row


def drawn(shown: Shown, suffix: str) -> str | bytes:
    """Draw a batch as the contents of a file .html or .png."""
    if suffix == ".html":
        return page_of(shown)
    if not shown.images:
        msg = (
            "the batch has no images, so there is no PNG to draw. --out batch.html shows all that "
            "it holds. Images are arrays of floats or bytes of 1, 3 or 4 channels, or of none."
        )
        raise OptionError(msg)
    cells = _cells(shown)
    columns = min(len(cells), _WIDEST)
    size = columns * _CELL, math.ceil(len(cells) / columns) * _CELL
    return png(partial(_draw_grid, cells, columns), size)


def page_of(shown: Shown) -> str:
    """Render the page."""
    pictures = [
        (
            images.path,
            images.scale,
            [(_as_png(pixels), caption) for pixels, caption in _captioned(shown, images)],
        )
        for images in shown.images
    ]
    return render(
        "show",
        title=f"Epoch {shown.contents.epoch}, position {shown.contents.position:,}",
        rows=rows_of(shown),
        samples=samples_of(shown),
        parts=[(part.path, part.words(), part.texts) for part in shown.parts],
        pictures=pictures,
        notes=shown.notes,
    )


def _cells(shown: Shown) -> list[tuple[object, str]]:
    return [cell for images in shown.images for cell in _captioned(shown, images)]


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
