"""The documentation's code runs, and the names in it exist."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main
from guides import FRAMEWORKS, is_in_example

import dataporter.errors
from dataporter import DataPorterError, DataPorterWarning, ResumableDataLoader
from dataporter.tools.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.name not in FRAMEWORKS)
# Its code talks to the loggers of others: tests/trainers/test_monitoring.py runs it.
RUN_HERE = [page for page in PAGES if page.name != "monitoring.md"]


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
@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.relative_to(DOCS).as_posix())
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
            assert block.language in {"diff", "python", "pycon", "sh", "text"}, (page, block.line)
            assert not block.not_run or len(block.not_run.split()) > 3, (page, block.line)


def test_the_guides_of_frameworks_are_run_elsewhere():
    tests = [path.read_text() for path in ROOT.glob("tests/*/test_*.py")]
    for guide, example in FRAMEWORKS.items():
        assert any(guide in text for text in tests), guide
        assert any(example in text for text in tests), example


@pytest.mark.parametrize("guide", FRAMEWORKS)
def test_the_guide_of_a_framework_ends_with_a_whole_script_and_its_commands(guide):
    example = FRAMEWORKS[guide]
    _, _, told = (DOCS / guide).read_text().partition("\n## The whole script\n")
    assert told.endswith(f"\n\n[examples/{example}](../examples/{example})\n")
    commands = [block.code for block in blocks(DOCS / guide) if block.language == "sh"]
    assert commands
    for command in "".join(commands).splitlines():
        assert is_in_example(example, command), command


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
    group = typer.main.get_command(app)
    commands, common = group.commands, {opt for each in group.params for opt in each.opts}
    named = set()
    for line in lines_of_shells():
        program, *words = line.split()
        if program != "dataporter" or words == ["--help"]:
            continue
        name, *arguments = words
        if name in common:
            continue
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
    assert text.count("\n") <= 180
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
