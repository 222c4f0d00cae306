"""Pages opened in a real Chromium: what it complains of, and how wide they are drawn."""

import contextlib
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
    *("--enable-logging=stderr", "--allow-file-access-from-files", "--virtual-time-budget=2000"),
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


def opened(page: Path, scratch: Path) -> dict[int, tuple[int, int, dict[str, tuple[int, int]]]]:
    """Open a page 400 and 1600 pixels wide; nothing may be complained of.

    For each width: how wide its contents are, how many shapes there are, the size of each figure.
    """
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("there is no Chromium on PATH")
    frames = scratch / "frames.html"
    frames.write_text(_FRAMES.format(page=page.absolute().as_uri()))
    size = "--window-size=2100,1000"
    with browser_profile() as profile:
        done = subprocess.run(
            [browser, *_OPTIONS, profile, size, "--dump-dom", frames.as_uri()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "CONSOLE" not in done.stderr, done.stderr
    (seen,) = re.findall(r">SEEN (.*?) END<", done.stdout)
    found = {}
    for width, frame in zip((400, 1600), seen.split(";"), strict=True):
        scrolled, drawn, *figures = frame.split(",")
        sizes = {
            name: tuple(map(int, size.split("x")))
            for name, size in (figure.split(" ") for figure in figures)
        }
        found[width] = int(scrolled), int(drawn), sizes
    return found
