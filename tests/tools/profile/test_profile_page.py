"""The page, opened in a real browser: narrow and wide, without a complaint on its console."""

import functools
import json
import re
import shutil
import subprocess

import pytest
from chromium import browser_profile
from invented import measured

from dataporter.tools.profile.figures import figures_of, judge
from dataporter.tools.profile.profiles import Profile
from dataporter.tools.profile.tuning import Settings, Trial, Tuning

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=3000", "--hide-scrollbars"),
]

# Frames of several widths; what is found in each goes into the title, which Chromium prints.
FRAMES = """<!doctype html><title></title><body><script>
const pages = PAGES, widths = [400, 1600], found = [];
let left = pages.length * widths.length;
for (const [number, page] of pages.entries()) for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 4000px; border: 0`;
  frame.onload = () => {
    const inner = frame.contentDocument, boxes = {};
    for (const figure of inner.querySelectorAll("figure")) {
      const shown = [...figure.querySelectorAll("svg path")].map(e => e.getBoundingClientRect());
      boxes[figure.id] = [shown.filter(box => box.width > 0 && box.height > 0).length,
        Math.max(...shown.map(box => box.right)), Math.min(...shown.map(box => box.left))];
    }
    const small = [...inner.querySelectorAll("body *")].filter(e => e.textContent.trim() &&
      parseFloat(getComputedStyle(e).fontSize) < 12).length;
    found.push({page: number, width, boxes, small, scripts: inner.scripts.length,
      scroll: inner.documentElement.scrollWidth, heading: inner.querySelector("h1").textContent,
      rows: inner.querySelectorAll("tr").length});
    if (--left === 0) document.title = JSON.stringify(found);
  };
  frame.srcdoc = page;
  document.body.append(frame);
}
</script></body>"""


def profile_of(tuned=False, **run):
    found = measured(**run)
    figures = figures_of(found)
    now = Trial(settings=Settings(num_workers=2, engine="processes", prefetch_factor=2))
    best = Trial(settings=Settings(num_workers=5, engine="threads", prefetch_factor=8))
    now, best = now.with_figures(figures), best.with_figures(figures)
    tuning = Tuning(now=now, best=best, trials=(now, best), stopped=False) if tuned else None
    verdict = judge(found.subject, figures)
    return Profile(measured=found, figures=figures, verdict=verdict, tuning=tuning)


PROFILES = {
    "workers": lambda: profile_of(
        num_workers=4, steps=400, slowest=[(7, 100.0), (8, 90.0)], usual=1, tuned=True, queued=0.5
    ),
    "inline": lambda: profile_of(num_workers=0, stages=[("fetch", 9.0)], wait=9),
    "torch": lambda: profile_of(is_ours=False, loader="torch's DataLoader"),
    "hostile": lambda: profile_of(
        dataset="<script>document.title='broken'</script>" + "Wide" * 40,
        slowest=[("<img src=x onerror=alert(1)>", 100.0)],
        steps=1,
        step=0,
    ),
}


@functools.cache
def page_named(name):
    return PROFILES[name]().page()


def shown_by_chromium(*arguments):
    with browser_profile() as profile:
        ran = subprocess.run(
            [CHROMIUM, *FLAGS, profile, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert "CONSOLE" not in ran.stderr, ran.stderr
    return ran.stdout


@needs_chromium
def test_pages_fit_400_and_1600_pixels_and_show_their_figures(tmp_path):
    pages = json.dumps([page_named(name) for name in PROFILES]).replace("</", "<\\/")
    frames = tmp_path / "frames.html"
    frames.write_text(FRAMES.replace("PAGES", pages))
    shown = shown_by_chromium("--window-size=1700,1000", "--dump-dom", frames.as_uri())
    title = re.search(r"<title>(.*?)</title>", shown, re.DOTALL)[1]
    found = json.loads(title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert len(found) == 2 * len(PROFILES)
    for each in found:
        assert each["scroll"] <= each["width"]
        assert each["scripts"] == 0
        assert each["small"] == 0
        assert each["heading"].startswith("LOADER-BOUND")
        assert set(each["boxes"]) == {"timeline", "waits"}
        for name, (count, right, left) in each["boxes"].items():
            assert count >= 1, (name, each)
            assert 0 <= left <= right <= each["width"] + 1
    names = list(PROFILES)
    by_name = {names[each["page"]]: each for each in found}  # frames load in any order
    assert by_name["workers"]["boxes"]["timeline"][0] >= 2 * 24  # waits and steps, and workers
    assert by_name["workers"]["boxes"]["waits"][0] >= 200


@needs_chromium
def test_the_file_itself_opens_without_a_complaint_and_is_not_blank(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    page, shot = tmp_path / "page.html", tmp_path / "shot.png"
    page.write_text(page_named("workers"), encoding="utf-8")
    shown_by_chromium(f"--screenshot={shot}", "--window-size=1600,1800", page.as_uri())
    with pillow.open(shot) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(2**20)}
    assert {(0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x00, 0x9E, 0x73)} <= colours


@pytest.mark.parametrize("name", PROFILES)
def test_a_page_stands_alone_and_is_whole(name):
    page = page_named(name)
    assert "http" not in page
    assert "<script" not in page
    assert "<img" not in page
    assert page.startswith("<!doctype html>")
    for tag in ("section", "figure", "svg", "table", "div", "ol", "g", "text", "p", "title"):
        assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag


def test_the_verdict_and_each_advice_are_on_the_page():
    profile, page = PROFILES["workers"](), page_named("workers")
    assert profile.verdict.words in page
    for advice in profile.verdict.advice:
        assert f"<b>{advice.change}</b>" in page
    assert "waiting for a CPU core" in page
    assert "num_workers=5, engine=&#34;threads&#34;, prefetch_factor=8" in page
