"""Files of a web server: named one by one, with signatures in their URLs that are shown nowhere."""

import base64
import gc
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from certificates import certified
from faulty_proxy import FaultyProxy
from porters import porter_pids, tidy
from stored_files import QUICK
from support import plain
from watching import until

from dataporter import ResumableDataLoader
from dataporter.errors import (
    OptionError,
    OptionTypeError,
    ShardChangedError,
    ShardsNotFoundError,
    StorageError,
)
from dataporter.shards import ShardedDataset
from dataporter.shards.formats.format import SUFFIXES
from dataporter.shards.storage.stored import StorageOptions
from dataporter.shards.storage.stored_listing import list_stored

SIGNATURES = ("s1gnature-one", "s1gnature-two")
NAMES = ("part-1.parquet", "part-3.parquet")


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield
        gc.collect()  # a loader is part of a cycle


@pytest.fixture(scope="session")
def _files(server, texts):
    server.upload("web-bucket", {path.name: path.read_bytes() for path in texts.glob("*.parquet")})
    with FaultyProxy(server.files) as running:
        yield running


@pytest.fixture
def web(_files):
    """A web server that serves the files of `texts`."""
    _files.heal()
    yield _files
    _files.heal()


def url(web, name):
    return f"{web.url}/buckets/web-bucket/{name}"


def signed(web, *signatures):
    return [
        f"{url(web, name)}?Expires=60&Signature={signature}"
        for name, signature in zip(NAMES, signatures, strict=True)
    ]


def want_signatures(web, *signatures, methods=("GET", "HEAD")):
    """Refuse requests for a file without its own signature."""
    for name, signature in zip(NAMES, signatures, strict=True):
        for method in methods:
            forbidden = {"status": "403 Forbidden", "path": name, "method": method}
            web.fault("status", unless=f"Signature={signature}", **forbidden)


@pytest.fixture
def open_web(tmp_path):
    def open_one(files, **options):
        folders = {"cache": tmp_path / "cache", "index": tmp_path / "index"}
        return ShardedDataset(files, **{"storage_timeout": 20, **folders, **options})

    return open_one


@pytest.fixture
def open_local(tmp_path):
    """Open files of this machine. Their folder, which tests share, stays as it is."""
    return lambda files: ShardedDataset(files, index=tmp_path / "local")


def chain_of(error):
    """The texts of an error, and of all that came before it."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error), *getattr(error, "__notes__", [])]
        error = error.__cause__ or error.__context__
    return texts


def test_a_list_of_files_has_the_samples_of_local_files(web, texts, open_web, open_local):
    corpus = open_web([url(web, path.name) for path in texts.glob("*.parquet")])
    local = open_local(texts)
    assert list(corpus) == list(local)
    assert corpus.fingerprint() == local.fingerprint()


def test_a_file_that_a_list_names_twice_is_an_error(web, open_web):
    with pytest.raises(OptionError, match=r"files names http[^?]*part-1\.parquet 2 times"):
        open_web([f"{url(web, NAMES[0])}?Signature={each}" for each in SIGNATURES])


def test_files_are_found_several_at_a_time(web, texts):
    names = [url(web, path.name) for path in texts.glob("*.parquet")]
    options = StorageOptions(**QUICK, max_requests=4)
    web.fault("hold", method="HEAD")
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(list_stored, names, SUFFIXES, options)
        try:
            until(lambda: web.running == 4, seconds=60)
        finally:
            web.faults.clear()
        listing = listed.result(60)
    listing.storage.close()
    assert len(listing.paths) == 10
    assert web.most == 4


@pytest.mark.parametrize("signed_for", ["GET", "GET and HEAD"])
def test_each_signed_url_is_asked_with_its_own_signature(
    signed_for, web, texts, open_web, open_local
):
    want_signatures(web, *SIGNATURES)
    if signed_for == "GET":
        web.fault("status", status="403 Forbidden", method="HEAD")
    corpus = open_web(signed(web, *SIGNATURES))
    local = open_local([texts / name for name in NAMES])
    assert list(corpus) == list(local)
    assert corpus.fingerprint() == local.fingerprint()


@pytest.mark.parametrize("status", ["405 Method Not Allowed", "501 Not Implemented"])
def test_a_server_that_does_not_answer_head_is_asked_for_a_byte(
    status, web, texts, open_web, open_local
):
    web.fault("status", status=status, method="HEAD")
    corpus = open_web([url(web, name) for name in NAMES])
    assert list(corpus) == list(open_local([texts / name for name in NAMES]))
    with pytest.raises(ShardsNotFoundError, match=r"no file http.*/none\.parquet\. Check the URL"):
        open_web(url(web, "none.parquet"))


def test_many_files_may_share_a_query(web, texts, open_web, open_local):
    for method in ("GET", "HEAD"):
        web.fault("status", status="403 Forbidden", method=method, unless="sig=a%2Fb%3D")
    corpus = open_web(
        [f"{url(web, path.name)}?sv=1&sig=a%2Fb%3D" for path in texts.glob("*.parquet")]
    )
    assert list(corpus) == list(open_local(texts))


def test_renewed_signatures_use_the_same_index_and_cache(web, open_web):
    want_signatures(web, *SIGNATURES)
    first = open_web(signed(web, *SIGNATURES))
    samples = list(first)
    state = ResumableDataLoader(first, 8, shuffle=True).state_dict()
    web.heal()
    want_signatures(web, "new-1", "new-2")
    second = open_web(signed(web, "new-1", "new-2"))
    assert second.fingerprint() == first.fingerprint()
    assert second.index.place == first.index.place
    assert list(second) == samples
    assert sum(web.sent.values()) == 0  # each file was asked for by HEAD, and no more
    assert sum(web.requests.values()) == 2
    ResumableDataLoader(second, 8, shuffle=True).load_state_dict(state)


def test_signatures_are_nowhere(web, open_web, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "dataporter")
    want_signatures(web, *SIGNATURES)
    web.fault("reset", times=2)
    corpus = open_web(signed(web, *SIGNATURES))
    loader = ResumableDataLoader(corpus, 8, shuffle=True)
    first = next(iter(loader))
    assert len(plain(first["id"])) == 8
    for process in porter_pids():
        assert b"s1gnature" not in Path(f"/proc/{process}/cmdline").read_bytes()
    shown = [repr(corpus), repr(corpus.index), json.dumps(loader.state_dict()), caplog.text]
    shown += map(str, vars(corpus.index).values())
    assert "try 2 follows" in caplog.text
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any("s1gnature" in text for text in shown)
    assert not any(b"s1gnature" in data for data in kept)


def test_a_signature_that_is_refused_is_not_shown(web, open_web):
    want_signatures(web, "other-1", "other-2")
    with pytest.raises(StorageError, match=r"part-\d.parquet: .*403.* the signed URLs") as caught:
        open_web(signed(web, *SIGNATURES))
    assert not any("s1gnature" in text for text in chain_of(caught.value))


def test_a_signature_that_expires_in_mid_run_is_named_without_it(web, open_web, caplog):
    caplog.set_level(logging.DEBUG, "dataporter")
    corpus = open_web(signed(web, *SIGNATURES), storage_timeout=2)
    assert corpus[0]["id"] == 60
    body = b"<Error><Code>ExpiredToken</Code></Error>"
    web.fault("status", status="403 Forbidden", body=body)
    with pytest.raises(StorageError, match=r"ExpiredToken.* Renew .* the signed URLs") as caught:
        list(corpus)
    assert not any("s1gnature" in text for text in [*chain_of(caught.value), caplog.text])


def test_a_user_name_and_a_password_are_sent_and_not_shown(
    web, texts, open_web, caplog, open_local
):
    caplog.set_level(logging.DEBUG, "dataporter")
    expected = base64.b64encode(b"somebody:pass word-1").decode()
    for method in ("GET", "HEAD"):
        web.fault("status", status="401 Unauthorized", method=method, unless=f"Basic {expected}")
    name = url(web, "part-0.parquet").replace("://", "://somebody:pass%20word-1@")
    assert list(open_web(name)) == list(open_local(texts / "part-0.parquet"))
    with pytest.raises(StorageError, match=r"http://127[^@]*/part-0.parquet: .*401") as caught:
        open_web(name.replace("word-1", "word-2"), storage_timeout=2)
    shown = [*chain_of(caught.value), caplog.text]
    assert not any("somebody" in text or "word-" in text for text in shown)


def test_a_server_without_ranges_is_said_so(web, open_web):
    web.fault("whole")
    with pytest.raises(
        StorageError, match=r"part-\d.parquet: the server does not send ranges.*Cop"
    ):
        open_web([url(web, name) for name in NAMES])


def test_a_file_that_changes_in_mid_run_is_an_error(server, web, texts, open_web):
    server.upload("web-bucket", {"changing.parquet": (texts / NAMES[0]).read_bytes()})
    corpus = open_web(url(web, "changing.parquet"))
    server.upload("web-bucket", {"changing.parquet": (texts / NAMES[1]).read_bytes()})
    with pytest.raises(ShardChangedError, match=r"changing\.parquet"):
        list(corpus)


def test_https_is_read_where_the_certificate_is_trusted(
    server, texts, open_web, open_local, tmp_path
):
    tls, root = certified(tmp_path)
    server.upload("web-bucket", {name: (texts / name).read_bytes() for name in NAMES})
    with FaultyProxy(server.files, tls) as web:
        names = [f"{url(web, name)}?token=1" for name in NAMES]
        assert names[0].startswith("https://")
        with pytest.raises(StorageError, match=r"certificate .* not trusted\. Give its root: stor"):
            open_web(names)
        corpus = open_web(names, storage_options={"client_options": {"root_certificate": root}})
        assert list(corpus) == list(open_local([texts / name for name in NAMES]))


@pytest.mark.parametrize("begins_in", [-10, 10], ids=["expired", "not yet valid"])
def test_a_certificate_of_another_time_is_said_so(begins_in, server, open_web, tmp_path):
    tls, root = certified(tmp_path, begins_in=begins_in)
    trusted = {"client_options": {"root_certificate": root}}
    words = r"or is not valid yet, by the clock .*Set the clock"
    with FaultyProxy(server.files, tls) as web, pytest.raises(StorageError, match=words):
        open_web(url(web, NAMES[0]), storage_options=trusted)


def test_folders_globs_and_missing_files_are_named(web, open_web):
    with pytest.raises(OptionError, match=r"folders cannot be listed over HTTP\. Pass a list"):
        open_web(f"{web.url}/buckets/web-bucket/")
    with pytest.raises(ShardsNotFoundError, match=r"no file http.*\*\.parquet\. Globs cannot"):
        open_web(url(web, "part-*.parquet"))
    with pytest.raises(ShardsNotFoundError, match=r"no file http.*/none\.parquet\. Check the URL"):
        open_web([url(web, "part-0.parquet"), f"{url(web, 'none.parquet')}?token=s3cret"])


def test_a_list_with_a_mistake_does_not_show_signatures(web):
    with pytest.raises(OptionTypeError) as caught:
        ShardedDataset([*signed(web, *SIGNATURES), 5])
    assert "part-1.parquet" in str(caught.value)
    assert not any("s1gnature" in text for text in chain_of(caught.value))
