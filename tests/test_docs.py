"""The documentation's code runs, the names in it exist, and the site needs no network."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

import dataporter.errors
from dataporter import DataPorterError, DataPorterWarning, ResumableDataLoader
from dataporter.tools.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Guides of frameworks: their code is run by tests that start the framework.
FRAMEWORKS = {
    "accelerate.md",
    "lightning.md",
    "ray.md",
    "torch_checkpoint.md",
    "torchrun.md",
    "transformers.md",
}
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.name not in FRAMEWORKS)


class Block(NamedTuple):
    """A piece of code on a page."""

    language: str
    code: str
    line: int
    not_run: str  # why


_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^>]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            found["language"],
            found["code"],
            text.count("\n", 0, found.start("code")),
            found["why"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def section(page: str, heading: str) -> str:
    """Return the text from a third-level heading to the next heading of any level."""
    _, _, rest = (DOCS / page).read_text().partition(f"\n### {heading}\n")
    return re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]


# Code blocks run


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks(page):
        if block.not_run:
            continue
        where = f"{page.name}, line {block.line}"
        if block.language == "python":
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)  # noqa: S102
        elif block.language == "pycon":
            example = doctest.DocTestParser().get_doctest(block.code, names, where, str(page), 0)
            said: list[str] = []
            runner = doctest.DocTestRunner(verbose=False)
            runner.run(example, out=said.append, clear_globs=False)
            names.update(example.globs)
            assert not said, "".join(said)


def test_every_block_says_what_it_is_and_why_it_is_not_run():
    for page in PAGES:
        assert page.read_text().count("```") == 2 * len(blocks(page)), page
        for block in blocks(page):
            assert block.language in {"python", "pycon", "sh", "text"}, (page, block.line)
            assert not block.not_run or len(block.not_run.split()) > 3, (page, block.line)


def test_the_guides_of_frameworks_are_run_elsewhere():
    tests = [path.read_text() for path in ROOT.glob("tests/*/test_*.py")]
    for name in FRAMEWORKS:
        if (DOCS / name).exists():
            assert any(name in text for text in tests), name


# Names exist


def lines_of_shells() -> list[str]:
    """Return the shell commands on all pages, without comments."""
    lines = [
        line.partition("#")[0].strip()
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh"
        for line in block.code.splitlines()
    ]
    inline = [code for page in PAGES for code in re.findall(r"`([^`\n]+)`", page.read_text())]
    lines += [code for code in inline if code.startswith(("dataporter ", "make "))]
    return [line for line in lines if line]


def test_the_commands_that_are_named_exist_with_their_options():
    commands = typer.main.get_command(app).commands
    named = set()
    for line in lines_of_shells():
        program, *words = line.split()
        if program != "dataporter" or words == ["--help"]:
            continue
        name, *arguments = words
        named.add(name)
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= known, line
    assert commands.keys() <= named


def test_the_options_of_commands_that_are_listed_are_theirs():
    text = (DOCS / "command_line.md").read_text()
    for name, command in typer.main.get_command(app).commands.items():
        told = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
        listed = set(re.findall(r"--[a-z][a-z-]*", told))
        options = {opt for parameter in command.params for opt in parameter.opts if "--" in opt}
        options -= {"--help"}
        assert listed == options, name


def test_the_targets_files_and_extras_that_are_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    extras = (ROOT / "pyproject.toml").read_text()
    for line in lines_of_shells():
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE), line
        for script in re.findall(r"\S+\.py\b", line):
            assert (ROOT / script).exists(), line
    for page in PAGES:
        for extra in re.findall(r"torch-dataporter\[(\w+)\]", page.read_text()):
            assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), (page, extra)
        for path in re.findall(r"`((?:examples|benchmarks|tests)/[\w/.]+)`", page.read_text()):
            assert (ROOT / path).exists(), (page, path)


def test_the_files_and_names_of_a_design_note_exist():
    source = ROOT / "src" / "dataporter"
    for page in (DOCS / "design").glob("[0-9]*.md"):
        decisions = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
        for decision in decisions:
            parts = re.findall(r"^\*(What|Why|Measured|Code)\.\*", decision, re.MULTILINE)
            assert [part for part in parts if part != "Measured"] == ["What", "Why", "Code"], (
                decision
            )
            code = decision.partition("*Code.*")[2].partition("tests: ")[0]
            for path in re.findall(r"`([\w/]+(?:\.py|/))`", code):
                assert (source / path).exists() or (ROOT / path).exists(), (page.name, path)
            for names, path in re.findall(r"((?:`[\w.]+`(?: and )?)+) in `([\w/]+\.py)`", code):
                for name in re.findall(r"(\w+)`", names):
                    assert re.search(rf"(def|class) {name}\b", (source / path).read_text()), name


def test_the_architecture_is_short_and_the_tests_it_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert text.count("\n") <= 200
    for path in re.findall(r"`((?:benchmarks|tests|docs)/[\w/.]*)`", text):
        assert (ROOT / path).exists(), path


def test_every_option_of_the_loader_is_documented_with_its_default():
    rows = re.findall(r"^\| (`.*?) \| ?(.*?) \| ", (DOCS / "options.md").read_text(), re.MULTILINE)
    documented = {
        name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)
    }
    parameters = dict(inspect.signature(ResumableDataLoader).parameters)
    # What None stands for.
    resolved = {"tail": "pad", "engine": "processes"}
    for name, parameter in parameters.items():
        assert name in documented, name
        if documented[name].startswith("`"):
            shown = ast.literal_eval(documented[name].strip("`"))
            assert shown == resolved.get(name, parameter.default), name


def test_every_error_has_its_remedy():
    for name, kind in vars(dataporter.errors).items():
        is_ours = inspect.isclass(kind) and issubclass(kind, DataPorterError | DataPorterWarning)
        if not is_ours:
            continue
        text = section("errors.md", name)
        assert text.strip(), name
        if kind not in (DataPorterError, DataPorterWarning):
            assert "emedy" in text or "| remedy |" in text, name
        builtin = {base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"}
        stated = set(re.findall(r"\*Also an? `(\w+)`", text))
        assert stated == builtin - {"Exception"}, name
        assert name in (DOCS / "errors.md").read_text().partition("### ")[0], name


# Pictures and the site


def test_the_picture_of_the_law_shows_the_real_order():
    picture = (DOCS / "pictures" / "law.svg").read_text()
    row = re.search(r'<g class="order">(.*?)</g>', picture, re.DOTALL)[1]
    shown = [int(number) for number in re.findall(r">(\d+)</text>", row)]
    loader = ResumableDataLoader(range(16), batch_size=16, shuffle=True, seed=7)
    assert shown == next(iter(loader)).tolist()


def public_names() -> set[str]:
    rooms = ("", ".converters", ".datasets", ".testing", ".training", ".stateful_dataloader")
    modules = [importlib.import_module(f"dataporter{room}") for room in rooms]
    return {name for module in modules for name in module.__all__} - {"__version__"}


def test_the_site_is_built_strictly_has_every_public_name_and_needs_no_network(tmp_path):
    # Not --quiet: then no warning would count.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    built = subprocess.run(
        [*command, "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    for page in PAGES:
        html = (tmp_path / page.relative_to(DOCS)).with_suffix(".html").read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", html)
        assert not [tag for tag in loaded if re.search(r"""=["']?(https?:)?//""", tag)], page
    reference = "".join(path.read_text() for path in tmp_path.glob("api/*"))
    reference += (tmp_path / "errors.html").read_text()
    headings = set(re.findall(r'<h\d id="(?:dataporter[\w.]*\.)?(\w+)"', reference))
    aliases = {"TextCollator", "VisionCollator"}
    missing = {name for name in public_names() if not {name, name.lower()} & headings}
    assert missing == aliases
    assert all(f"<code>{name}</code>" in reference for name in aliases)
    assert "<blockquote>" not in reference  # examples are code, not quotations
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet
