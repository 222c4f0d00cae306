"""Pages opened in a real Chromium: complaints, widths, and contents that are cut off."""

import contextlib
import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--allow-file-access-from-files", "--virtual-time-budget=20000"),
)
# Two frames of the widths to be tried, and what is seen in them, left in the page.
_FRAMES = """<!doctype html><title>?</title>
<iframe src="{page}" style="width:400px;height:900px"></iframe>
<iframe src="{page}" style="width:1600px;height:900px"></iframe>
<pre id="seen"></pre><script>
onload = () => {{
  const seen = [...document.querySelectorAll("iframe")].map(frame => {{
    const inside = frame.contentDocument;
    const figures = [...inside.querySelectorAll("figure")].map(figure => {{
      const box = figure.getBoundingClientRect();
      return `${{figure.id}} ${{Math.round(box.width)}}x${{Math.round(box.height)}}`;
    }});
    const drawn = inside.querySelectorAll("svg path, .bars i").length;
    return [inside.documentElement.scrollWidth, drawn, ...figures].join(",");
  }});
  document.getElementById("seen").textContent = "SEEN " + seen.join(";") + " END";
}};
</script>"""


@contextlib.contextmanager
def browser_profile() -> Iterator[str]:
    """Chromium's option for a folder of its own; the name of a socket in it must not be long."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="c-", ignore_cleanup_errors=True) as folder:
        yield f"--user-data-dir={folder}"


# A frame for each page. When all are loaded, each is made as wide as asked and looked at.
_SIGHTS = """<!doctype html><title>?</title>
{frames}
<pre id="seen"></pre><script>
const widths = {widths};
const looked_at = ":is(pre, code, table, td, img, svg, p, li, h1, h2, h3, h4)";
function is_cut(element, width) {{
  const right = element.getBoundingClientRect().right;
  const own = getComputedStyle(element).overflowX;
  if (/hidden|clip/.test(own) && element.scrollWidth > element.clientWidth + 1) return true;
  for (let around = element.parentElement; around; around = around.parentElement) {{
    const overflow = getComputedStyle(around).overflowX;
    if (/auto|scroll/.test(overflow)) return false;
    const edge = around.getBoundingClientRect().right;
    if (/hidden|clip/.test(overflow) && right > edge + 1) return true;
  }}
  return right > width + 1;
}}
function broken_names(element) {{
  const names = [];
  const walker = element.ownerDocument.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {{
    for (const name of walker.currentNode.data.matchAll(/[\\w.]+/g)) {{
      const range = element.ownerDocument.createRange();
      range.setStart(walker.currentNode, name.index);
      range.setEnd(walker.currentNode, name.index + name[0].length);
      const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
      if (lines.size > 1) names.push(name[0]);
    }}
  }}
  return names;
}}
function faults(inside, width) {{
  const found = [];
  const wide = inside.documentElement.scrollWidth;
  if (wide > width) found.push(`scrolls sideways: ${{wide}}`);
  for (const element of inside.querySelectorAll(`article ${{looked_at}}`)) {{
    const what = `${{element.tagName}} ${{element.textContent.trim().slice(0, 60)}}`;
    if (element.getClientRects().length && is_cut(element, width)) found.push(`cut: ${{what}}`);
    if (element.tagName === "P" && /^[|] /m.test(element.textContent))
      found.push(`no table: ${{what}}`);
  }}
  for (const element of inside.querySelectorAll("article td code"))
    for (const name of broken_names(element)) found.push(`broken: ${{name}}`);
  return found;
}}
onload = () => {{
  const seen = [...document.querySelectorAll("iframe")].map(frame => {{
    // A transition would be seen in its middle.
    frame.contentDocument.head.insertAdjacentHTML(
      "beforeend", "<style>* {{ transition: none !important }}</style>");
    return widths.map(width => {{
      frame.style.width = `${{width}}px`;
      return faults(frame.contentDocument, width);
    }});
  }});
  document.getElementById("seen").textContent = "SEEN " + JSON.stringify(seen) + " END";
}};
</script>"""


def faults_of_pages(
    pages: list[Path], widths: list[int], scratch: Path
) -> dict[tuple[Path, int], list[str]]:
    """Look for what is cut off in pages of several widths: all faults of each page and width.

    Code and tables may be wider than a page if they have a scroll bar of their own. In a table, a
    name in code is not broken into two lines.
    """
    style = "border:0;height:900px"
    frames = [
        f'<iframe src="{page.absolute().as_uri()}" style="{style}"></iframe>' for page in pages
    ]
    seen, _ = _seen(_SIGHTS.format(frames="\n".join(frames), widths=widths), scratch)
    return {
        (page, width): faults
        for page, by_width in zip(pages, json.loads(seen), strict=True)
        for width, faults in zip(widths, by_width, strict=True)
    }


def opened(page: Path, scratch: Path) -> dict[int, tuple[int, int, dict[str, tuple[int, int]]]]:
    """Open a page 400 and 1600 pixels wide; nothing may be complained of.

    For each width: how wide its contents are, how many shapes there are, the size of each figure.
    """
    seen, log = _seen(_FRAMES.format(page=page.absolute().as_uri()), scratch)
    assert "CONSOLE" not in log, log
    found = {}
    for width, frame in zip((400, 1600), seen.split(";"), strict=True):
        scrolled, drawn, *figures = frame.split(",")
        sizes = {
            name: tuple(map(int, size.split("x")))
            for name, size in (figure.split(" ") for figure in figures)
        }
        found[width] = int(scrolled), int(drawn), sizes
    return found


def _seen(frames: str, scratch: Path) -> tuple[str, str]:
    """Open frames whose script leaves in the page what it has seen; return that, and the log."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("there is no Chromium on PATH")
    page = scratch / "frames.html"
    page.write_text(frames)
    size = "--window-size=2100,1000"
    with browser_profile() as profile:
        done = subprocess.run(
            [browser, *_OPTIONS, profile, size, "--dump-dom", page.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    (seen,) = re.findall(r">SEEN (.*?) END<", done.stdout)
    return html.unescape(seen), done.stderr
