"""What all commands have in common."""

import pytest

import dataporter
from dataporter.cli import main


def test_the_version_is_shown(capsys):
    with pytest.raises(SystemExit) as ended:
        main.run(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"dataporter {dataporter.__version__}\n"
