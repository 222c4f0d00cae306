"""A cache folder of their own for tests of views."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    # A porter on a busy machine has time to tell its counters.
    patch.setattr("dataporter.shards.porter._PATIENCE", 60.0)
    yield
    patch.undo()
