"""What all commands have in common."""

import os
import signal
import subprocess
import sys

import pytest
import typer.main

import dataporter
from dataporter.tools.cli import main, signals


def ran(*arguments):
    """Run the command in this process; its status."""
    with pytest.raises(SystemExit) as ended:
        main.run(arguments)
    return ended.value.code


def test_the_version_is_shown(capsys):
    assert ran("--version") == 0
    assert capsys.readouterr().out == f"dataporter {dataporter.__version__}\n"


def sent_to_itself(*numbers, then):
    """What a command comes to that gets some signals, and fails as it cleans up."""

    def command(*_args, **_named):
        try:
            os.kill(os.getpid(), numbers[0])
        finally:
            for number in numbers[1:]:
                os.kill(os.getpid(), number)
            raise then

    return command


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_command_once_whatever_its_cleaning_up_leads_to(
    number, status, monkeypatch, capsys
):
    again = (number, signal.SIGTERM, signal.SIGHUP)
    closed = OSError(5, "Input/output error")
    monkeypatch.setattr(main, "app", sent_to_itself(*again, then=closed))
    assert ran() == status
    assert capsys.readouterr().err == f"dataporter: ended by {number.name}.\n"
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_was_ignored_before_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals.raised():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


HELP = """
import sys
from dataporter.tools.cli.main import app, run
import typer.main
for words in ([], *([name] for name in typer.main.get_command(app).commands)):
    try:
        run([*words, "--help"])
    except SystemExit as ended:
        assert ended.code == 0
print([name for name in ("torch", "numpy", "matplotlib", "jinja2") if name in sys.modules])
"""


def test_help_imports_neither_torch_nor_what_draws():
    asked = [sys.executable, "-c", HELP]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert shown.count("Usage: dataporter") == len(typer.main.get_command(main.app).commands) + 1
    assert shown.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verifi"], "No such command 'verifi'. Did you mean 'verify'?"),
        (["inspect", "--jsn", "x.pt"], "--json"),
        (["show", "a:b", "--stat", "x.pt"], "--state"),
        (["profile", "a:b", "--bathces", "3"], "--batches"),
    ],
)
def test_a_misspelt_command_or_option_names_the_closest(arguments, words, capsys):
    assert ran(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("dataporter ver", {"verify"}),
        ("dataporter in", {"index", "inspect"}),
        ("dataporter verify --ba", {"--batches", "--batch-size"}),
    ],
)
def test_a_shell_completes_commands_and_options(typed, completed, monkeypatch, capsys):
    monkeypatch.setenv("_DATAPORTER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert ran() == 0
    assert set(capsys.readouterr().out.split()) == completed


def test_the_script_that_a_shell_completes_by_is_shown(monkeypatch, capsys):
    monkeypatch.setenv("_DATAPORTER_COMPLETE", "source_bash")
    assert ran() == 0
    assert "complete -o default -F _dataporter_completion dataporter" in capsys.readouterr().out
