"""An updated index equals a fresh one, and fingerprints are equal where the data is."""

import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "shards"))
from lines_format import SUFFIXES, LinesFormat, write_lines
from test_index import assert_same

from dataporter.errors import ShardFormatError, ShardWarning
from dataporter.shards.building import open_index
from dataporter.shards.files import list_files

names = st.sampled_from(["1.lines", "2.lines", "10.lines", "x/1.lines", "x/y/3.lines"])
rows = st.lists(st.sampled_from("abc"), max_size=5)
schemas = st.sampled_from(["text:string", "text:string", "text:binary n:int64"])
writes = st.tuples(st.just("write"), names, rows, schemas)
others = st.tuples(st.sampled_from(["remove", "touch", "same", "fail"]), names)
histories = st.lists(st.lists(writes | others, min_size=1, max_size=4), min_size=1, max_size=5)


def apply(change, folder: Path, clock: list[int]) -> None:
    what, name, *contents = change
    path = folder / name
    if what == "write":
        write_lines(path, *contents)
    elif what == "fail":  # a build that leaves its journal behind
        (folder / "0.lines").write_text("damaged")
        with pytest.raises(ShardFormatError):
            open_index(list_files(folder, SUFFIXES), LinesFormat())
        (folder / "0.lines").unlink()
        return
    elif not path.exists():
        return
    elif what == "remove":
        path.unlink()
    elif what == "same":  # written again
        path.write_bytes(path.read_bytes())
    if path.exists():
        clock[0] += 1  # every write has a time of its own
        os.utime(path, ns=(clock[0], clock[0]))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.lines")}


@settings(max_examples=40, deadline=None)
@given(histories)
def test_an_updated_index_equals_a_fresh_one(history):
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ShardWarning)
        folder, clock = Path(place) / "data", [0]
        folder.mkdir()
        seen = {}  # fingerprints, and the data that they stand for
        last = None
        for changes in history:
            for change in changes:
                apply(change, folder, clock)
            if not contents(folder):
                continue
            listing = list_files(folder, SUFFIXES)
            found.clear()
            updated = open_index(listing, LinesFormat())
            texts = [str(warning.message) for warning in found]
            fresh = open_index(listing, LinesFormat(), folder=Path(place) / "fresh", rebuild=True)
            assert_same(updated, fresh)
            shutil.rmtree(Path(place) / "fresh")
            data = contents(folder)
            # Equal if and only if the data is.
            assert seen.setdefault(updated.fingerprint, data) == data
            assert list(seen.values()).count(data) == 1
            has_changed = last is not None and last != data
            assert any("changed since they were indexed" in text for text in texts) == has_changed
            last = data
