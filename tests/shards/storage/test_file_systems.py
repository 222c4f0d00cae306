"""Storages that obstore does not know, by fsspec: real clients, and small servers of their kind."""

import functools
import gc
import logging
import shutil

import pytest
from file_servers import PASSWORD, TOKEN, USER, ftp_server, hub_server
from object_servers import reserved_ports
from porters import tidy
from support import one_pass, plain

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, ShardChangedError, ShardsNotFoundError, StorageError
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.shards.storage.stored import StorageOptions


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield
        gc.collect()  # a loader is part of a cycle


def _copied(texts, folder):
    shutil.copytree(texts, folder, ignore=shutil.ignore_patterns(".*"))
    return folder


@pytest.fixture
def open_dataset(tmp_path):
    def open_one(files, **options):
        folders = {"cache": tmp_path / "cache", "index": tmp_path / "index"}
        return ShardedDataset(files, **{"storage_timeout": 60, **folders, **options})

    return open_one


@pytest.fixture
def open_local(tmp_path):
    """Open files of this machine. Their folder, which tests share, stays as it is."""
    return lambda files: ShardedDataset(files, index=tmp_path / "local")


def ids(dataset):
    loader = ResumableDataLoader(dataset, 8, shuffle=True, seed=3)
    return [number for batch in one_pass(loader) for number in plain(batch["id"])]


# FTP


@pytest.fixture(scope="module")
def served(texts, tmp_path_factory):
    """A folder with the files of `texts`, and a copy that tests may change."""
    folder = tmp_path_factory.mktemp("served")
    _copied(texts, folder / "corpus")
    _copied(texts, folder / "changing")
    return folder


@pytest.fixture(scope="module")
def ftp(served):
    """The address of an FTP server."""
    with ftp_server(served) as address:
        yield address


def test_a_folder_on_an_ftp_server_is_read(ftp, texts, open_dataset, tmp_path, caplog, open_local):
    caplog.set_level(logging.DEBUG, "dataporter")
    local = open_local(texts)
    login = {"username": USER, "password": PASSWORD}
    corpus = open_dataset(f"ftp://{ftp}/corpus/", storage_options=login)
    assert corpus.fingerprint() == local.fingerprint()
    assert ids(corpus) == ids(local)
    kept = [path.read_bytes() for path in tmp_path.rglob("index*") if path.is_file()]
    assert kept
    assert not any(PASSWORD.encode() in data for data in kept)
    assert PASSWORD not in caplog.text


def test_a_login_in_the_url_is_used_and_not_shown(ftp, texts, open_dataset, open_local):
    corpus = open_dataset(f"ftp://{USER}:{PASSWORD}@{ftp}/corpus/part-[12].parquet")
    assert corpus.fingerprint() == open_local(f"{texts}/part-[12].parquet").fingerprint()
    assert corpus[0]["id"] == 60
    assert PASSWORD not in repr(vars(corpus.index))
    with pytest.raises(StorageError, match=r"access was refused") as caught:
        open_dataset(f"ftp://{USER}:wrong-word@{ftp}/corpus/")
    assert "wrong-word" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_file_that_changes_on_an_ftp_server_is_an_error(ftp, served, open_dataset):
    corpus = open_dataset(f"ftp://{USER}:{PASSWORD}@{ftp}/changing/")
    path = served / "changing" / "part-7.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ShardChangedError, match=rf"ftp://{ftp}/changing/part-7\.parquet"):
        list(corpus)


def test_an_ftp_server_and_a_scheme_that_are_not_there_are_named(open_dataset):
    with (
        reserved_ports(1) as (port,),
        pytest.raises(StorageError, match=rf"ftp://127.0.0.1:{port}/x: the connection was refused"),
    ):
        open_dataset(f"ftp://127.0.0.1:{port}/x", storage_timeout=2)
    with pytest.raises(OptionError, match="no library here reads nowhere:// URLs"):
        open_dataset("nowhere://host/x")


# Hugging Face


@pytest.fixture
def copied(texts, tmp_path):
    """A folder with the files of `texts` that a test may change."""
    return _copied(texts, tmp_path / "served" / "corpus")


@pytest.fixture
def hub(copied, tmp_path, monkeypatch):
    with hub_server(copied.parent) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def test_a_dataset_of_the_hub_is_read(hub, texts, open_dataset, tmp_path, caplog, open_local):
    caplog.set_level(logging.DEBUG, "dataporter")
    local = open_local(texts)
    corpus = open_dataset("hf://datasets/somebody/corpus/corpus/")
    assert corpus.fingerprint() == local.fingerprint()
    assert ids(corpus) == ids(local)
    kept = [path.read_bytes() for path in tmp_path.rglob("index*") if path.is_file()]
    assert kept
    assert not any(TOKEN.encode() in data for data in kept)
    assert TOKEN not in caplog.text


def test_only_the_bytes_that_are_needed_are_asked_of_the_hub(hub, open_dataset, monkeypatch):
    # No request is sent twice because the machine is busy.
    options = functools.partial(StorageOptions, least_timeout=60.0, least_delay=60.0)
    monkeypatch.setattr(dataset_module, "StorageOptions", options)
    corpus = open_dataset("hf://datasets/somebody/corpus/corpus/", max_requests=2)
    hub.sent.clear()
    assert len(ids(corpus)) == 600
    sizes = corpus.index.sizes.sum() - 4 * len(corpus.index.sizes)  # "PAR1"
    assert sum(hub.sent.values()) == sizes
    assert hub.lists < 10  # one for each of two threads, here and there, not one for each file


def test_a_file_that_changes_on_the_hub_is_an_error(hub, copied, open_dataset):
    corpus = open_dataset("hf://datasets/somebody/corpus/corpus/")
    path = copied / "part-7.parquet"
    path.write_bytes(path.read_bytes().replace(b"text 42", b"text 24"))
    with pytest.raises(ShardChangedError, match=r"corpus/part-7\.parquet: it was written again"):
        ids(corpus)


def test_a_hub_that_refuses_is_said_so(hub, open_dataset, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wr0ng")
    with pytest.raises(StorageError, match=r"HF_TOKEN") as caught:
        open_dataset("hf://datasets/somebody/corpus/corpus/", storage_timeout=2)
    assert "hf_wr0ng" not in str(caught.value)


def test_a_dataset_that_the_hub_does_not_have_is_named(hub, open_dataset):
    with pytest.raises(ShardsNotFoundError, match="hf://datasets/somebody/other"):
        open_dataset("hf://datasets/somebody/other/")


def test_a_hub_that_is_away_is_an_error_in_time(hub, open_dataset, monkeypatch):
    with (
        reserved_ports(1) as (port,),
        pytest.raises(StorageError, match=r"hf://datasets/somebody/corpus: the connection was"),
    ):
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        open_dataset("hf://datasets/somebody/corpus/", storage_timeout=2)
