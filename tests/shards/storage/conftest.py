"""A server for the tests of this folder, a proxy in front of it, and storages through both."""

import pytest
from faulty_proxy import FaultyProxy
from object_servers import ObjectServer, moto, seaweed
from stored_files import BUCKET, FILES, QUICK

from dataporter.shards.storage.storage import Storage
from dataporter.shards.storage.stored import StorageOptions, Url


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory):
    with seaweed(tmp_path_factory.mktemp("seaweed")) as running:
        running.upload(BUCKET, FILES)
        yield running


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory):
    with moto(tmp_path_factory.mktemp("moto")) as running:
        running.upload(BUCKET, FILES)
        yield running


@pytest.fixture(scope="session")
def _proxy(server: ObjectServer):
    with FaultyProxy(server.endpoint) as running:
        yield running


@pytest.fixture
def proxy(_proxy: FaultyProxy):
    _proxy.heal()
    yield _proxy
    _proxy.heal()


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture
def open_storage():
    """Open storages that are closed after the test."""
    opened = []

    def open_one(url: str, given: dict, *, is_known: bool = False, **more) -> Storage:
        options = StorageOptions(given=given, **{**QUICK, **more})
        opened.append(Storage(Url.of(url), options, is_known=is_known))
        return opened[-1]

    yield open_one
    for storage in opened:
        storage.close()


@pytest.fixture
def through_proxy(server: ObjectServer, proxy: FaultyProxy, open_storage):
    """Open the bucket's folder through the proxy."""

    def open_one(**more) -> Storage:
        options = server.through(proxy.url).options
        return open_storage(f"s3://{BUCKET}/data", {**options, **more.pop("given", {})}, **more)

    return open_one
