"""Opening an index: read if it is current, else built, by one process while others wait.

Files that did not change are taken from the old index, and files that a killed process has scanned
from its journal. The index of an updated dataset equals that of a fresh build. While files are
scanned, a bar shows it where a terminal can, else a line in the log now and then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dataporter.errors import (
    ShardCacheError,
    ShardChangedError,
    ShardError,
    ShardFormatError,
    ShardWarning,
    add_note,
)
from dataporter.layout import counted
from dataporter.shards.formats.format import Format
from dataporter.shards.index import BLOCK, Index, IndexedFile, build_index, schema_text
from dataporter.shards.index_file import read_index, write_index
from dataporter.shards.listing import Listing, Status
from dataporter.shards.places import index_paths
from dataporter.shards.schemas import changes_in_words, drift_in_words
from dataporter.shards.storage.stored import Url
from dataporter.system.files import Records, remove_leftovers
from dataporter.user_warnings import warn_user

_EVERY = 10.0  # seconds between lines in the log

_log = logging.getLogger(__name__)

Item = TypeVar("Item")


def progress_of(items: Iterable[Item], total: int, is_shown: bool) -> Iterator[Item]:
    """Yield the items, and say how many of them have come."""
    if is_shown and total and sys.stderr.isatty():
        try:
            return _with_bar(items, total)
        except ImportError:  # rich is an extra
            pass
    return _with_log(items, total)


def _with_bar(items: Iterable[Item], total: int) -> Iterator[Item]:
    from rich.console import Console  # noqa: PLC0415  an extra
    from rich.progress import track  # noqa: PLC0415

    return iter(
        track(
            items,
            f"indexing {total:,} files",
            total=total,
            console=Console(stderr=True),
            transient=True,
        )
    )


def _with_log(items: Iterable[Item], total: int) -> Iterator[Item]:
    last = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= _EVERY:
            _log.info("indexed %s of %s files", f"{count:,}", f"{total:,}")
            last = now


_HEAD = {"journal": 3}  # its version


class Journal(Records):
    """An open journal beside the index at `index_path`, locked where that is possible."""

    def __init__(self, index_path: Path) -> None:
        super().__init__(index_path, f"the process that builds the index at {index_path.parent}")
        self._schemas: set[str] = set()  # those it holds

    def files(self) -> dict[str, IndexedFile]:
        """Return the files that were scanned before, by path."""
        records = [json.loads(bytes(record)) for record in self.read()]
        if not records or records[0] != _HEAD:  # new, or of another version
            self.clear()
            return {}
        schemas: dict[str, dict[str, Any]] = {}
        files: dict[str, IndexedFile] = {}
        for record in records:
            if record == _HEAD:  # without locks, two processes may have begun it
                continue
            if "name" in record:
                schemas[record["name"]] = record["schema"]
            elif record["schema"] in schemas:
                blocks = np.array([tuple(block) for block in record["blocks"]], BLOCK)
                values = (record["path"], record["size"], record["version"])
                schema, warnings = schemas[record["schema"]], tuple(record["warnings"])
                files[record["path"]] = IndexedFile(*values, blocks, schema, warnings)
        self._schemas = set(schemas)
        return files

    def clear(self) -> None:
        """Forget all files."""
        super().clear()
        self._schemas.clear()
        self._append(_HEAD)

    def keep(self, file: IndexedFile) -> None:
        """Keep a file that was scanned."""
        text = schema_text(file.schema)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if name not in self._schemas:
            self._append({"name": name, "schema": file.schema})
            self._schemas.add(name)
        self._append(file._asdict() | {"blocks": file.blocks.tolist(), "schema": name})

    def _append(self, record: dict[str, Any]) -> None:
        self.add(json.dumps(record, separators=(",", ":")).encode())


_MANY = 5  # damaged files, after which a scan gives up
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Opened:
    """An index, and how it came about."""

    index: Index
    old: Index | None = None  # the one that was replaced
    scanned: frozenset[str] = frozenset()  # paths of files


def open_index(
    listing: Listing,
    format: Format,  # noqa: A002  the word of this room
    *,
    folder: Path | None = None,
    progress: bool = False,
    rebuild: bool = False,
) -> Index:
    """Return the index of these files, and write it first unless the one there is current.

    It lies beside the data, or in the user's cache folder if that is read-only, or in `folder`.
    Files that have changed since they were indexed are warned about, also with `rebuild`, which
    scans all files again.
    """
    opened = update_index(listing, format, folder=folder, progress=progress, rebuild=rebuild)
    warn_of(opened, format)
    return opened.index


def update_index(
    listing: Listing,
    format: Format,  # noqa: A002  the word of this room
    *,
    folder: Path | None = None,
    progress: bool = False,
    rebuild: bool = False,
) -> Opened:
    """Do what `open_index` does, without warnings."""
    statuses = listing.statuses()
    paths = index_paths(listing, format, folder)
    if not rebuild:
        for path in paths:
            index = read_index(path, listing.root)
            if index is not None and _is_current(index, listing, statuses):
                remove_leftovers(path)
                return Opened(index)
    with closing(_open_journal(paths)) as journal:
        old = _old_index([journal.result, *paths], listing.root)
        if old is not None and not rebuild and _is_current(old, listing, statuses):
            journal.finish()  # another process has built it meanwhile
            return Opened(old)
        if rebuild:
            journal.clear()
        try:
            known = {} if rebuild else _known(listing, statuses, journal, old)
            return _build(listing, format, known, journal, old, progress)
        except OSError as error:
            if isinstance(error, ShardError):
                raise
            raise _cannot_write([(journal.result, error)]) from error


def _build(
    listing: Listing,
    format: Format,  # noqa: A002  the word of this room
    known: dict[str, IndexedFile],
    journal: Journal,
    old: Index | None,
    progress: bool,
) -> Opened:
    """Scan the files that are not known, and write the index."""
    unknown = [path for path in listing.paths if path not in known]
    for file in progress_of(_scanned(listing, unknown, format), len(unknown), progress):
        journal.keep(file)
        known[file.path] = file
    index = build_index(listing.root, format.name, [known[path] for path in listing.paths])
    index = replace(index, place=journal.result)
    write_index(index, journal.result)
    journal.finish()
    return Opened(index, old, frozenset(unknown))


def _known(
    listing: Listing, statuses: list[Status], journal: Journal, old: Index | None
) -> dict[str, IndexedFile]:
    """Return the files that were scanned before and have not changed since."""
    before = (
        {file.path: file for file in old.files()} if old is not None else {}
    ) | journal.files()
    return {
        path: before[path]
        for path, status in zip(listing.paths, statuses, strict=True)
        if path in before and (before[path].size, before[path].version) == status
    }


# Scanning


def _scanned(
    listing: Listing,
    paths: Sequence[str],
    format: Format,  # noqa: A002  the word of this room
) -> Iterator[IndexedFile]:
    """Scan files in threads. They come as they are done; damaged ones raise at the end."""
    damaged: dict[str, ShardError] = {}
    with ThreadPoolExecutor(listing.threads, "dataporter-scan") as pool:
        futures = {pool.submit(_scan, listing, path, format): path for path in paths}
        try:
            for future in as_completed(futures):
                try:
                    yield future.result()
                except ShardError as error:
                    damaged[futures[future]] = error
                    if len(damaged) >= _MANY:
                        break
        finally:
            pool.shutdown(cancel_futures=True)
    if damaged:
        first, *others = [damaged[path] for path in paths if path in damaged]
        for other in others:
            add_note(first, f"Also: {other}")
        raise first


def _scan(listing: Listing, path: str, format: Format) -> IndexedFile:  # noqa: A002  the word of this room
    tries = listing.tries
    while True:
        file = listing.open(path)
        try:
            scanned = format.scan(file)
        except ShardFormatError:
            tries -= 1
            if not tries:
                raise
        except OSError as error:
            if isinstance(error, ShardError):
                raise
            reason = error.strerror or error
            msg = f"{file.name} cannot be read: {reason}. Make it readable, or leave it out."
            raise ShardError(msg) from error
        else:
            break
    if (again := listing.open(path)).version != file.version or again.size != file.size:
        msg = (
            f"{file.name} changed while it was indexed. Open the dataset when it is written "
            "completely."
        )
        raise ShardChangedError(msg)
    blocks = np.array([tuple(block) for block in scanned.blocks], BLOCK)
    schema, warnings = scanned.schema, tuple(scanned.warnings)
    return IndexedFile(path, file.size, file.version, blocks, schema, warnings)


# Places


def _is_current(index: Index, listing: Listing, statuses: list[Status]) -> bool:
    if tuple(index.paths) != listing.paths:
        return False
    return statuses == list(zip(index.sizes.tolist(), index.versions, strict=True))


def _open_journal(paths: Sequence[Path]) -> Journal:
    """Open the journal in the first place that can be written to."""
    refused = []
    for path in paths:
        try:
            return Journal(path)
        except OSError as error:
            refused.append((path, error))
    raise _cannot_write(refused)


def _old_index(paths: Sequence[Path], root: Path | Url) -> Index | None:
    indexes = (read_index(path, root) for path in paths)
    return next((index for index in indexes if index is not None), None)


def _cannot_write(refused: Sequence[tuple[Path, OSError]]) -> ShardCacheError:
    places = " and ".join(f"{path.parent} ({error.strerror or error})" for path, error in refused)
    msg = (
        f"the index could not be written to {places}. Free some space, make one of these folders "
        "writable, or name another one by index= (--folder of `dataporter index`)."
    )
    return ShardCacheError(refused[0][1].errno, msg)


# Warnings


def warn_of(opened: Opened, format: Format) -> None:  # noqa: A002  the word of this room
    """Warn of what was found when files were indexed, and of files that have changed."""
    index, old, scanned = opened.index, opened.old, opened.scanned
    if not scanned and old is None:
        return
    texts = [changes_in_words(old, index)] if old is not None else []
    texts.append(drift_in_words(index, format))
    about = [file for file, path in enumerate(index.paths) if path in scanned]
    found = [text for file in about for text in index.warnings_about(file)]
    texts += found[:_SHOWN]
    if len(found) > _SHOWN:
        more = counted(len(found) - _SHOWN, "more warning")
        texts.append(f"{more} about files in {index.root}: `dataporter index` shows all of them.")
    for text in filter(None, texts):
        warn_user(text, ShardWarning)
