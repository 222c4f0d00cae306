"""A cache folder of their own for tests of views, and files to read."""

import json

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    # A porter on a busy machine has time to tell its counters.
    patch.setattr("dataporter.shards.porter._PATIENCE", 60.0)
    yield
    patch.undo()


@pytest.fixture
def lines(tmp_path):
    """Files of JSON lines with 7 to 16 rows each, 1,150 rows in all; row i is {"id": i}."""
    folder, first = tmp_path / "lines", 0
    folder.mkdir()
    for file in range(100):
        rows = range(first, first + 7 + file % 10)
        first = rows.stop
        text = "\n".join(json.dumps({"id": row, "even": row % 2 == 0}) for row in rows)
        (folder / f"{file:03}.jsonl").write_text(text)
    return folder
