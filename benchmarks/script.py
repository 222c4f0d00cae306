"""The command line, the notes and the stored run that scripts with races have in common."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import machine
import torch
from contenders import installed
from measure import QUIET, Quartiles, Row, Run

NOTE = (
    "Medians of turns, with quartiles in brackets. Compare ratios and shares with those of other "
    "runs, not times."
)


def parser(description: str, seconds: float) -> argparse.ArgumentParser:
    """Make a parser with the options of every script."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rows", default="", help="a regular expression for the rows' names")
    made.add_argument("--seconds", type=float, default=seconds, help="for each row")
    made.add_argument("--out", type=Path, help="a file for the run, as JSON")
    return made


def begin() -> Run:
    """Prepare this process for measuring, and print the machine."""
    warnings.filterwarnings("ignore")  # torch counts cores, torchdata calls deprecated functions
    torch.set_num_threads(1)  # a process with threads must not be forked
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that players are ended
    run = Run(versions=installed(), machine=machine.describe())
    print(f"\n{machine.line(run.machine)}\n{NOTE}", flush=True)
    return run


def execute(rows: Iterable[Row], tables: Callable[[Sequence[Row]], str], out: Path | None) -> Run:
    """Measure rows, print their tables, and store the run after each row."""
    run = begin()
    for row in rows:
        run.rows.append(row)
        run.machine["load_after"] = machine.load()
        print(_progress(row), file=sys.stderr, flush=True)
        if out is not None:
            run.write(out)
    print(tables(run.rows))
    print(_doubts(run.rows), end="", flush=True)
    return run


def text(found: Quartiles | None, form: str) -> str:
    """A cell with quartiles, or a dash."""
    return "-" if found is None else found.text(form)


def _progress(row: Row) -> str:
    """What a row says in short, while others are measured."""
    ratio, share = row.ratio("dataporter", "torch"), row.of_limit("dataporter")
    rounds = max(len(turns.seconds) for turns in row.turns.values())
    found = f"{row.work}, {row.workers} workers: {text(ratio, '{:.2f}x')} to torch"
    of_limit = "" if share is None else f", {text(share, '{:.2f}')} of the limit"
    return f"{found}{of_limit}; {rounds} turns"


def _doubts(rows: Sequence[Row]) -> str:
    """Rows that were measured on a busy machine, and rows that needed more turns."""
    busy = [(row, "; ".join(row.warnings)) for row in rows if row.warnings]
    noisy = [
        (row, ", ".join(f"{who} {noise:.0%}" for who, noise in row.noisy.items()))
        for row in rows
        if row.noisy
    ]
    lines = []
    for title, found in (
        ("Too busy to trust:", busy),
        (f"Noise above {QUIET:.0%} when the row's seconds were over:", noisy),
    ):
        listed = [f"- {row.work}, {row.workers} workers: {why}" for row, why in found]
        lines += ["", title, *listed] if listed else []
    return "\n".join([*lines, ""]) if lines else ""
