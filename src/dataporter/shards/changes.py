"""Changes of a dataset: between two indexes, and of a file since it was indexed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dataporter.errors import ShardChangedError
from dataporter.shards.index import Index

_SHOWN = 3


def changes_in_words(old: Index, new: Index) -> str | None:
    """Name the files that were added, removed and replaced. Return None if the data is the same."""
    if old.fingerprint == new.fingerprint:
        return None
    before = {file.path: file for file in old.files()}
    after = {file.path: file for file in new.files()}
    both = [path for path in after if path in before]
    changes = {
        "added": [path for path in after if path not in before],
        "removed": [path for path in before if path not in after],
        "replaced": [path for path in both if not before[path].has_same_rows(after[path])],
    }
    found = [f"{len(paths):,} {what} ({named(paths)})" for what, paths in changes.items() if paths]
    return (
        f"The files in {new.root} changed since they were indexed: {', '.join(found)}. The dataset "
        f"has {len(new):,} rows now, and had {len(old):,}. States saved before belong to the old "
        "data. To resume them, restore its files."
    )


def named(paths: Sequence[str]) -> str:
    """Name the first few paths.

    >>> named(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def require_unchanged(index: Index, file: int, status: os.stat_result | None) -> None:
    """Raise unless a file is the one that was indexed. The status of a missing file is None."""
    size, version = int(index.sizes[file]), index.versions[file]
    if status is None:
        difference = "it is gone"
    elif status.st_size != size:
        difference = f"it has {status.st_size:,} bytes, and had {size:,}"
    elif str(status.st_mtime_ns) != version:
        difference = "it was written again since"
    else:
        return
    msg = (
        f"a file changed after it was indexed: {index.root / index.paths[file]}: {difference}. Put "
        "the file back, or build the dataset anew, which indexes the file again; a state of the "
        "old data is refused then."
    )
    raise ShardChangedError(msg)
