"""Opening a dataset: its files are found and indexed, here or in a process of its own.

Files of this machine are indexed in this process. Files elsewhere need a network client, and those
do not survive a fork, while loaders fork their workers. So a new process, started by exec, lists
and indexes them. It sends its log and its progress, then the index or an error.
"""

from __future__ import annotations

import logging
import pickle
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dataporter.errors import ShardError
from dataporter.shards.building import Opened, update_index
from dataporter.shards.formats.format import Format, ReadOptions
from dataporter.shards.formats.registry import find_files
from dataporter.shards.listing import Files, is_remote
from dataporter.shards.messages import attached, unnamed_file
from dataporter.shards.notes import received
from dataporter.shards.processes import last_words, start_process
from dataporter.shards.storage.options import StorageOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A dataset that is to be opened."""

    files: Files = field(repr=False)  # a URL may hold secrets
    options: ReadOptions
    format: str | None = None
    folder: Path | None = None  # of the index
    progress: bool = False
    rebuild: bool = False
    storage: StorageOptions | None = None  # of files elsewhere


def open_dataset(wanted: Wanted) -> tuple[Opened, Format]:
    """Find the files of a dataset, and open their index."""
    return _opened_elsewhere(wanted) if is_remote(wanted.files) else opened_here(wanted)


def opened_here(wanted: Wanted) -> tuple[Opened, Format]:
    """Do it in this process."""
    listing, reads = find_files(wanted.files, wanted.options, wanted.format, wanted.storage)
    opened = update_index(
        listing, reads, folder=wanted.folder, progress=wanted.progress, rebuild=wanted.rebuild
    )
    return opened, reads


def _opened_elsewhere(wanted: Wanted) -> tuple[Opened, Format]:
    here, there = socket.socketpair()
    is_bar = wanted.progress and sys.stderr.isatty()
    level = logging.getLogger("dataporter").getEffectiveLevel()
    with here, attached((wanted, level)) as given, unnamed_file() as words:
        with there:
            module, printed = "dataporter.shards.surveying", None if is_bar else words
            process = start_process(module, there, given, printed, is_apart=False)
        try:
            error, answer = received(here)
        except ConnectionError as gone:
            raise _died(words) from gone
        finally:
            process.kill()  # it has answered, or this process was interrupted
            process.wait()
    if error is not None:
        raise pickle.loads(error)  # noqa: S301  from a process of our own user
    opened: tuple[Opened, Format] = answer
    return opened


def _died(words: IO[bytes]) -> ShardError:
    return ShardError(
        f"The process that indexes the files died. {last_words(words)}It may have been killed for "
        "lack of memory. Open the dataset again: what was indexed so far is kept."
    )
