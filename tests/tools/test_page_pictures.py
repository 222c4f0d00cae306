"""Pictures of pages and files: self-contained, escaped, readable on light and dark paper."""

import io
import re
from xml.etree import ElementTree  # noqa: ICN001  its usual alias is ET

from PIL import Image

from dataporter.tools.pictures import add_tip, picture, png, svg


def draw(figure, greys):
    axes = figure.subplots()
    axes.plot([0, 1], [0, 47], color=greys.pale, label="a < b & c")
    (bar,) = axes.bar([0.5], [20], color="#d55e00")
    add_tip(bar, '<b>20</b> of "47"')
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()


def test_a_picture_is_drawn_for_narrow_and_for_wide_screens():
    drawn = picture("curves", draw, 200)
    boxes = re.findall(r'class="(\w+)"><svg [^>]*viewBox="0 0 (\d+)(?:\.\d+)? 200', drawn)
    assert boxes == [("narrow", "350"), ("wide", "1100")]
    assert drawn.count('role="img" aria-label="curves"') == 2


def test_axes_ticks_labels_and_legends_stay_text():
    drawn = picture("curves", draw, 200)
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", drawn)
    assert {"step", "loss", "20", "40", "a &lt; b &amp; c"} <= set(texts)
    assert all(float(size) >= 12 for size in re.findall(r"font: ([\d.]+)px", drawn))


def test_greys_follow_the_page_and_colours_do_not():
    drawn = picture("curves", draw, 200)
    assert {"var(--ink)", "var(--soft)", "var(--pale)", "var(--line)"} <= set(
        re.findall(r"var\(--\w+\)", drawn)
    )
    assert not re.search(r"#0[1-4]0[1-4]0[1-4]", drawn)
    assert "#d55e00" in drawn


def test_a_tip_is_escaped_and_names_of_groups_are_left_out():
    drawn = picture("curves", draw, 200)
    assert drawn.count("<title>&lt;b&gt;20&lt;/b&gt; of '47'</title>") == 2
    assert "<g id=" not in drawn
    assert "http" not in drawn


def test_a_png_is_drawn_on_white_paper():
    with Image.open(io.BytesIO(png(draw, (400, 200)))) as image:
        assert image.format == "PNG"
        assert image.size == (600, 300)
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_an_svg_file_stands_by_itself():
    drawn = svg(draw, (400, 200)).decode()
    assert drawn.startswith("<?xml")
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314
    assert "var(--" not in drawn
    assert drawn.count("<title>&lt;b&gt;20&lt;/b&gt; of '47'</title>") == 1
