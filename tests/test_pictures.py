"""Pictures of the documentation show what the law, the commands and the pages say."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
import typer.main

from dataporter import ResumableDataLoader
from dataporter.tools.cli.main import app

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "pictures"
CHARTS = json.loads((PICTURES / "measured.json").read_text())
RECORDINGS = ("demo", "verify", "profile")
LARGEST = 30_000  # bytes


def words_of(picture: str) -> list[str]:
    """The texts in a picture."""
    text = (PICTURES / f"{picture}.svg").read_text().replace("\u00a0", " ")
    return [unescape(found) for found in re.findall(r">([^<>]+)</(?:text|tspan)>", text)]


def cells_of(page: str) -> list[list[str]]:
    """The rows of all tables on a page."""
    rows = re.findall(r"^\| (.*) \|$", (DOCS / page).read_text(), re.MULTILINE)
    return [[cell.strip().strip("*") for cell in row.split(" | ")] for row in rows]


def test_the_picture_of_the_law_shows_the_real_order():
    picture = (PICTURES / "law.svg").read_text()
    row = re.search(r'<g class="order">(.*?)</g>', picture, re.DOTALL)[1]
    shown = [int(number) for number in re.findall(r">(\d+)</text>", row)]
    loader = ResumableDataLoader(range(16), batch_size=16, shuffle=True, seed=7)
    assert shown == next(iter(loader)).tolist()


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_shows_figures_that_a_page_explains(name):
    chart = CHARTS[name]
    rows = cells_of(chart["page"])
    words = words_of(name)
    assert {chart["title"], chart["note"]} <= set(words)
    for bar in chart["bars"]:
        assert any(bar["row"] == row[0] and bar["figure"] in row[1:] for row in rows), bar
        assert {bar["label"], bar["figure"]} <= set(words)


def test_a_chart_is_told_in_words_with_its_figures():
    told = dict(
        re.findall(r"!\[([^\]]*)\]\(pictures/(\w+)\.svg\)", (DOCS / "index.md").read_text())
    )
    words_for = {picture: words for words, picture in told.items()}
    for name, chart in CHARTS.items():
        figures = {re.match(r"[\d,.]+", bar["figure"])[0] for bar in chart["bars"]}
        assert figures <= set(re.findall(r"\d[\d,.]*\d", words_for[name])), name


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_of_a_command_that_exists(name):
    title = re.search("<title>(.*)</title>", (PICTURES / f"{name}.svg").read_text())[1]
    program, command, *arguments = title.split()
    known = typer.main.get_command(app).commands[command].params
    options = {option for parameter in known for option in parameter.opts}
    assert program == "dataporter"
    assert {word for word in arguments if word.startswith("--")} <= options
    verdict = {"demo": "IDENTICAL:", "verify": "NOT EXACT:", "profile": "LOADER-BOUND:"}[name]
    assert any(words.startswith(verdict) for words in words_of(name))


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_small_and_loads_nothing(path):
    text = path.read_text()
    assert len(text) < LARGEST
    assert not re.findall(r"""(?:href=|src=|url\()["']?(?!#)\S+""", text)
