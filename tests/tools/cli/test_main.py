"""What all commands have in common."""

import os
import signal

import pytest

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
