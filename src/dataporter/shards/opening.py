"""Opening a dataset: its files are found and indexed, here or in a process of its own.

Files of this machine are indexed in this process. Files elsewhere need a network client, and those
do not survive a fork, while loaders fork their workers. So a new process, started by exec, lists
and indexes them. It sends its log and its progress, then the index or an error. Then it becomes
the first porter, or ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dataporter.errors import ShardError
from dataporter.shards.building import Opened, update_index
from dataporter.shards.formats.format import Format, ReadOptions, find_files
from dataporter.shards.listing import Files, is_remote
from dataporter.shards.processes import attached, last_words, received, start_process
from dataporter.shards.storage.stored import StorageOptions
from dataporter.system.memory import unnamed_file


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
    with surveyed(wanted) as (opened, reads, _):
        return opened, reads


@contextmanager
def surveyed(wanted: Wanted) -> Iterator[tuple[Opened, Format, Survey | None]]:
    """Open a dataset, and yield the process that did so too, if it was another one.

    That process ends with the context, unless it has become a porter.
    """
    if not is_remote(wanted.files):
        yield *opened_here(wanted), None
        return
    with closing(Survey(wanted)) as survey:
        yield *survey.opened(), survey


def opened_here(wanted: Wanted) -> tuple[Opened, Format]:
    """Do it in this process."""
    listing, reads = find_files(wanted.files, wanted.options, wanted.format, wanted.storage)
    opened = update_index(
        listing, reads, folder=wanted.folder, progress=wanted.progress, rebuild=wanted.rebuild
    )
    return opened, reads


class Survey:
    """A process that opens a dataset. It has loaded what a porter needs, and may become one."""

    def __init__(self, wanted: Wanted) -> None:
        self._here, there = socket.socketpair()
        # A progress bar is printed where the user sees it. What a porter prints is not.
        self._is_bar = wanted.progress and sys.stderr.isatty()
        self.words = os.fdopen(unnamed_file(), "w+b")
        self.has_left = False
        level = logging.getLogger("dataporter").getEffectiveLevel()
        with there, attached((wanted, level)) as given:
            printed = None if self._is_bar else self.words
            module = "dataporter.shards.surveying"
            self.process = start_process(module, there, given, printed, is_apart=False)

    def opened(self) -> tuple[Opened, Format]:
        """Wait for the dataset, and return it or raise."""
        try:
            error, answer = received(self._here)
        except ConnectionError as gone:
            raise _died(self.words) from gone
        if error is not None:
            raise pickle.loads(error)  # noqa: S301  from a process of our own user
        found: tuple[Opened, Format] = answer
        return found

    def become_porter(self, listener: socket.socket, given: IO[bytes]) -> bool:
        """Make the process serve a listening socket, with what a porter is given."""
        if not self._is_bar:
            with suppress(OSError):  # it has died: others start a porter when they need one
                socket.send_fds(self._here, [b"!"], [listener.fileno(), given.fileno()])
                self.has_left = True
        return self.has_left

    def close(self) -> None:
        """End the process, unless it has become a porter."""
        self._here.close()
        if not self.has_left:
            self.process.kill()
            self.process.wait()
            self.words.close()


def _died(words: IO[bytes]) -> ShardError:
    return ShardError(
        f"The process that indexes the files died. {last_words(words)}It may have been killed for "
        "lack of memory. Open the dataset again: what was indexed so far is kept."
    )
