"""A cache folder of their own for tests of data in files, and small corpora."""

import json

import numpy as np
import pytest

collect_ignore_glob = ["fixtures/*.py"]  # scripts, for packages that the tests do without


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    # A porter on a busy machine has time to tell its counters.
    patch.setattr("dataporter.shards.porter._PATIENCE", 60.0)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """Parquet files of 600 rows in 40 row groups; row i is {"id": i, "text": …}."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("texts")
    for file in range(10):
        ids = list(range(60 * file, 60 * file + 60))
        table = pa.table({"id": ids, "text": [f"text {number} " * 5 for number in ids]})
        pq.write_table(table, folder / f"part-{file}.parquet", row_group_size=15)
    return folder


@pytest.fixture(scope="session")
def lines(tmp_path_factory):
    """Files of JSON lines, 600 rows; row i is {"id": i, "text": …}."""
    folder = tmp_path_factory.mktemp("lines")
    for file in range(40):
        ids = range(15 * file, 15 * file + 15)
        rows = [json.dumps({"id": number, "text": f"text {number} " * 5}) for number in ids]
        (folder / f"part-{file}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    """A file of 4,000 tokens: token i is i."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    np.arange(4000, dtype=np.uint16).tofile(path)
    return path
