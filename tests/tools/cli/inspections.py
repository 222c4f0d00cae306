"""`dataporter inspect`, run in this process, and a state to be found."""

import io
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed.checkpoint as dcp
from support import Ids

from dataporter import ResumableDataLoader
from dataporter.tools.cli.main import run as run_command


class Result(NamedTuple):
    exit_code: Any
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run(*arguments: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_command(["inspect", *map(str, arguments)])
    return Result(ended.value.code, out.getvalue(), err.getvalue())


def refused(*arguments: object) -> str:
    """What is said of something that cannot be inspected."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    for line in result.output.splitlines():
        assert len(line) <= 80 or " " not in line.strip()  # a path stays whole
    return " ".join(result.output.split())


def save_dcp(contents: dict, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant to be
        dcp.save(contents, checkpoint_id=folder, no_dist=True)


def saved_state() -> dict:
    loader = ResumableDataLoader(Ids(40), batch_size=4, shuffle=True, seed=7)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return loader.state_dict()
