"""Clouds without credentials, or with wrong ones: an error in seconds that names them.

No cloud is reached. Where no key is given, libraries ask the metadata server of a machine in the
cloud, which elsewhere does not answer.
"""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataporter.errors import OptionError, OptionTypeError, StorageError
from dataporter.shards import ShardedDataset

URLS = {"gs": "gs://bucket/x", "az": "az://container/x", "s3": "s3://bucket/x"}
WORDS = {
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY",
    "s3": "AWS_ACCESS_KEY_ID",
}


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AZURE_STORAGE_ACCOUNT_NAME", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # of gcloud's credentials
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)


@pytest.fixture
def black_hole():
    """The address of a server that does not even refuse connections: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.settimeout(0)
            each.connect_ex(server.getsockname())
        yield "127.0.0.1:{1}".format(*server.getsockname())
        for each in waiting:
            each.close()


def options_of(scheme, black_hole):
    return {
        "gs": {},  # an environment variable
        "az": {"account_name": "x", "msi_endpoint": f"http://{black_hole}/metadata/identity/x"},
        "s3": {"metadata_endpoint": f"http://{black_hole}", "region": "x"},
    }[scheme]


def test_missing_credentials_are_named_long_before_patience_ends(
    open_storage, black_hole, monkeypatch
):
    monkeypatch.setenv("GCE_METADATA_HOST", black_hole)
    with ThreadPoolExecutor(2 * len(URLS)) as pool:  # each takes a second
        works = []
        for scheme, url in URLS.items():
            options = options_of(scheme, black_hole)
            storage = open_storage(url, options, patience=3600.0, least_timeout=3600.0)
            words = f"no credentials .* {WORDS[scheme]}.*skip_signature"
            works.append((pool.submit(storage.find, "a.parquet"), words))
            words = f"files in {url}: no credentials were found"
            works.append((pool.submit(storage.list), words))
        for work, words in works:
            with pytest.raises(StorageError, match=words):
                work.result()


def test_a_dataset_without_credentials_is_an_error_long_before_its_timeout(monkeypatch, black_hole):
    monkeypatch.setenv("GCE_METADATA_HOST", black_hole)
    with pytest.raises(StorageError, match=r"gs://bucket/corpus: no credentials were found"):
        ShardedDataset("gs://bucket/corpus/", storage_timeout=3600)


def test_options_that_are_misspelled_are_named(open_storage):
    for scheme, url in URLS.items():
        with pytest.raises(OptionError, match="not take: 'acount'") as caught:
            open_storage(
                url, {"acount": "s3cret", **({"account_name": "x"} if scheme == "az" else {})}
            )
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None


def test_an_account_that_is_missing_is_named(open_storage):
    with pytest.raises(OptionError, match="AZURE_STORAGE_ACCOUNT_NAME, or storage_options="):
        open_storage("az://container/x", {})
    open_storage("abfss://container@account.dfs.core.windows.net/x", {"account_key": "c2VjcmV0"})


def test_bad_values_are_refused_and_not_shown(open_storage, tmp_path):
    bad = {
        "gs://bucket/x": {"service_account_key": "s3cret-key"},
        "az://container/x": {"account_name": "x", "account_key": "s3cret-key"},
    }
    for url, options in bad.items():
        with pytest.raises(OptionError, match="has a bad value: ") as caught:
            open_storage(url, options)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_profile_that_is_not_there_is_named(open_storage, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(OptionError, match=r"AWS_PROFILE .* cannot be used: .*nobody"):
        open_storage("s3://bucket/x", {"region": "x"})


def test_an_option_that_cannot_be_sent_to_another_process_is_named():
    with pytest.raises(OptionTypeError, match=r"\['credential_provider'\] must .* found function"):
        ShardedDataset("s3://bucket/x", storage_options={"credential_provider": lambda: None})
