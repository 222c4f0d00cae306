"""A folder of torch.distributed.checkpoint: its contents other than tensors.

`.metadata`, a pickle, says where the bytes of every entry are. A nested dict was cut into one entry
for each value; here it is put together again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataporter.errors import CheckpointDamagedError, CheckpointError
from dataporter.tools.inspect.files import damage, read_bytes
from dataporter.tools.inspect.pickles import read_pickle

METADATA = ".metadata"


def read_folder(folder: Path) -> tuple[dict[Any, Any], list[tuple[str, str]]]:
    """Return the values except tensors, and the entries that were not read with the reason.

    Lists come back as dicts with indices as keys.
    """
    contents: dict[Any, Any] = {}
    unread = []
    for name, path, info in _entries(folder):
        try:
            _put(contents, path, read_bytes(_bytes_of(folder, info)))
        except CheckpointError as error:
            unread.append((name, str(error)))
    return contents, unread


def _entries(folder: Path) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Yield the name, the path in the dicts and the location of each entry that is no tensor."""
    try:
        metadata = read_pickle((folder / METADATA).read_bytes())
        kinds, stored = metadata.state_dict_metadata, metadata.storage_data
        paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        where = {index.fqn: info for index, info in stored.items()}
        entries = [
            (str(name), tuple(paths.get(name, (name,))), where[name])
            for name, kind in kinds.items()
            if type(kind).__name__ == "BytesStorageMetadata"
        ]
    except CheckpointError:
        raise
    except Exception as error:  # the file may contain anything
        raise damage(error) from error
    yield from entries


def _bytes_of(folder: Path, info: Any) -> bytes:
    try:
        path: Path = (folder / info.relative_path).resolve()
        if not path.is_relative_to(folder.resolve()):
            msg = f"it is outside of the folder, in {info.relative_path!r}."
            raise CheckpointDamagedError(msg)
        if info.offset < 0 or not 0 <= info.length <= path.stat().st_size - info.offset:
            msg = f"{info.relative_path} is cut short."
            raise CheckpointDamagedError(msg)
        with path.open("rb") as file:
            file.seek(info.offset)
            return file.read(info.length)
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise damage(error) from error


def _put(contents: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    *outer, last = path
    for key in outer:
        contents = contents.setdefault(key, {})
        if not isinstance(contents, dict):
            msg = f"{path} is inside of a value."
            raise CheckpointDamagedError(msg)
    contents[last] = value
