"""The site is built strictly, needs no network, and is whole on narrow and wide screens."""

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from chromium import faults_of_pages
from guides import FRAMEWORKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WIDTHS = [400, 1280, 1600]
# A page whose code and table are cut off, so that a look that sees nothing is noticed.
BAD = """<!doctype html><style>
pre { overflow: hidden; width: 300px } div { overflow-x: clip } div td { white-space: nowrap }
.thin { width: 20px; word-break: break-all }
</style><article><pre>{long}</pre><div><table><tr><td>{long}</table></div><p>| a | b |
<table><tr><td><p class="thin"><code>one_name</code></p></table></article>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: then no warning would count.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def public_names() -> set[str]:
    rooms = ("", ".converters", ".datasets", ".testing", ".training", ".stateful_dataloader")
    modules = [importlib.import_module(f"dataporter{room}") for room in rooms]
    return {name for module in modules for name in module.__all__} - {"__version__"}


def test_the_site_has_every_public_name_and_needs_no_network(site):
    for page in DOCS.rglob("*.md"):
        html = (site / page.relative_to(DOCS)).with_suffix(".html").read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", html)
        assert not [tag for tag in loaded if re.search(r"""=["']?(https?:)?//""", tag)], page
    reference = "".join(path.read_text() for path in site.glob("api/*"))
    reference += (site / "errors.html").read_text()
    headings = set(re.findall(r'<h\d id="(?:dataporter[\w.]*\.)?(\w+)"', reference))
    aliases = {"TextCollator", "VisionCollator"}
    missing = {name for name in public_names() if not {name, name.lower()} & headings}
    assert missing == aliases
    assert all(f"<code>{name}</code>" in reference for name in aliases)
    assert "<blockquote>" not in reference  # examples are code, not quotations
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def arguments_shown(page: str, made: str) -> dict[str, str]:
    """The arguments that the reference shows, and their defaults."""
    heading = page.index(f'<h2 id="dataporter.{made}" class="doc doc-heading">')
    signature = re.search(r"<pre>(.*?)</pre>", page[heading:], re.DOTALL)
    text = unescape(re.sub(r"<[^>]*>", "", signature[1])).strip()
    (function,) = ast.parse(f"def {text}: ...").body
    shown = function.args
    defaults = [*shown.defaults, *shown.kw_defaults]
    names = [each.arg for each in (*shown.posonlyargs, *shown.args, *shown.kwonlyargs)]
    required = [""] * (len(names) - len(defaults))
    return dict(zip(names, [*required, *map(ast.unparse, defaults)], strict=True))


@pytest.mark.parametrize(
    "made",
    [
        "resumable_dataloader.ResumableDataLoader",
        "resumable_dataloader.create_resumable_dataloader",
        "stateful_dataloader.StatefulDataLoader",
        "patched_dataloader.PatchedDataLoader",
    ],
)
def test_the_reference_shows_the_arguments_that_a_loader_takes(site, made):
    page = (site / "api" / "loaders.html").read_text()
    taken = inspect.signature(pkgutil.resolve_name(f"dataporter.{made}")).parameters.values()
    assert arguments_shown(page, made) == {
        each.name: "" if each.default is each.empty else repr(each.default) for each in taken
    }


def test_the_guide_of_a_framework_shows_its_whole_script(site):
    for guide, example in FRAMEWORKS.items():
        text = unescape(re.sub(r"<[^>]*>", "", (site / guide).with_suffix(".html").read_text()))
        assert (ROOT / "examples" / example).read_text().strip() in text, guide


def test_no_page_is_cut_off_on_narrow_or_wide_screens(site, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(BAD.replace("{long}", "long " * 400))
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    faults = faults_of_pages([*pages, bad], WIDTHS, tmp_path)
    for width in WIDTHS:
        kinds = [fault.partition(" long")[0] for fault in faults.pop((bad, width))]
        assert kinds == [
            "cut: PRE",
            "cut: TABLE",
            "cut: TD",
            "no table: P | a | b |",
            "broken: one_name",
        ]
    assert {where: found for where, found in faults.items() if found} == {}
