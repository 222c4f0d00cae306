"""Files of real servers: listed, found, read and copied."""

import re
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from stored_files import BUCKET, LARGE, QUICK

from dataporter.errors import OptionError, ShardsNotFoundError, StorageError
from dataporter.shards.formats.format import SUFFIXES
from dataporter.shards.storage.stored import StorageOptions, Stored
from dataporter.shards.storage.stored_listing import list_stored


@pytest.fixture(params=["server", "moto_server"])
def storage(request, open_storage):
    return open_storage(f"s3://{BUCKET}/data", request.getfixturevalue(request.param).options)


def test_a_folder_is_listed_with_sizes_and_versions(storage):
    found = storage.list()
    assert [file.path for file in found] == ["a.bin", "empty.bin", "large.bin", "more/b c%20+ü.bin"]
    assert [file.size for file in found] == [1000, 0, len(LARGE), 3]
    assert all(file.version.startswith('"') for file in found)
    assert storage.list("more") == found[3:]
    assert storage.list("nothing") == []


def test_a_file_is_found_as_it_was_listed(storage):
    assert [storage.find(file.path) for file in storage.list()] == storage.list()
    assert storage.find("none.bin") is None


def test_ranges_are_read_as_they_are_asked_for(storage):
    files = {file.path: file for file in storage.list()}
    ranges = [(5, 10), (0, len(LARGE)), (100, 100), (9 << 20, 19 << 20), (12, 15), (5, 10)]
    answers = storage.read(files["large.bin"], ranges)
    assert [bytes(data) for data in answers] == [LARGE[start:stop] for start, stop in ranges]
    assert [bytes(data) for data in storage.read(files["more/b c%20+ü.bin"], [(0, 3)])] == [b"odd"]
    assert storage.read(files["large.bin"], []) == []


def test_a_range_is_copied_into_a_file(storage, tmp_path):
    file = storage.find("large.bin")
    with (tmp_path / "copy").open("wb") as copy:
        storage.copy(file, 7, 19 << 20, copy.fileno())
    assert (tmp_path / "copy").read_bytes() == LARGE[7 : 19 << 20]


def test_files_are_chosen_by_globs(server):
    options = StorageOptions(given=server.options, **QUICK)
    for pattern, found in {"?.bin": ["a.bin"], "[a-e]*.bin": ["a.bin", "empty.bin"]}.items():
        listing = list_stored(f"s3://{BUCKET}/data/{pattern}", SUFFIXES, options)
        assert list(listing.paths) == found
        listing.storage.close()


def test_a_name_with_brackets_is_taken_at_its_word(moto_server):
    files = {"[1].bin": b"x", "1.bin": b"x", "2.bin": b"x"}
    moto_server.upload("brackets-bucket", {f"data/{name}": files[name] for name in files})
    options = StorageOptions(given=moto_server.options, **QUICK)
    for name, found in {"[1].bin": "[1].bin", "[2].bin": "2.bin"}.items():
        listing = list_stored(f"s3://brackets-bucket/data/{name}", SUFFIXES, options)
        assert listing.paths == (found,)
        listing.storage.close()


ODD = {"tab/a\tb.jsonl": r"'\\t'", "twice//a.jsonl": "an empty part", "up/../a.jsonl": r"'\.\.'"}


@pytest.mark.parametrize("key", ODD)
def test_a_key_that_cannot_be_read_is_named_and_files_beside_it_are_read(
    key, moto_server, open_storage
):
    folder = key.partition("/")[0]
    moto_server.upload("odd-bucket", {key: b"{}", f"{folder}/b.jsonl": b"{}"})
    options = StorageOptions(given=moto_server.options, **QUICK)
    with pytest.raises(StorageError) as caught:
        open_storage("s3://odd-bucket", moto_server.options).list(folder)
    assert caught.match(
        f"the key {re.escape(repr(key))} has {ODD[key]}, which .* Rename the object"
    )
    listing = list_stored([f"s3://odd-bucket/{folder}/b.jsonl"], SUFFIXES, options)
    assert bytes(listing.open("b.jsonl").read(0, 2)) == b"{}"
    listing.storage.close()


def test_a_question_mark_is_part_of_a_key_and_no_query_is_dropped(moto_server):
    files = {"asked/a?b=c.jsonl": b"{}", "asked/a?b.jsonl": b"{}", "asked/a/other.jsonl": b"{}"}
    moto_server.upload("asked-bucket", files)
    options = StorageOptions(given=moto_server.options, **QUICK)
    named = {"a?b.jsonl": "a?b.jsonl", "a[?]b=c.jsonl": "a?b=c.jsonl"}
    for name, path in named.items():
        listing = list_stored(f"s3://asked-bucket/asked/{name}", SUFFIXES, options)
        assert listing.paths == (path,)
        assert bytes(listing.open(path).read(0, 2)) == b"{}"
        listing.storage.close()
    for name in ("a?b=c.jsonl", "a.jsonl?token=s3cret"):
        with pytest.raises(
            OptionError, match=r"takes no query, found s3://.*\?…\. Write \[\?\] f"
        ) as caught:
            list_stored([f"s3://asked-bucket/asked/{name}"], SUFFIXES, options)
        assert "b=c" not in str(caught.value)
        assert "s3cret" not in str(caught.value)


def test_mistakes_in_urls_keys_and_end_points_are_named(moto_server, open_storage, monkeypatch):
    options = StorageOptions(given=moto_server.options, **QUICK)
    for url in ("s3://", "s3:///data", "https:///a.bin"):
        with pytest.raises(OptionError, match=r"names no bucket or host\. Write "):
            list_stored(url, SUFFIXES, options)
    with pytest.raises(OptionError, match=r"with http:// or https://, found 'localhost:9000'"):
        open_storage("s3://bucket", {"endpoint": "me:secret@localhost:9000"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(OptionError, match=r"with http:// or https://, found 'localhost:9000'"):
        open_storage("s3://bucket", {})


def test_what_was_asked_for_is_counted(server, open_storage):
    storage = open_storage(f"s3://{BUCKET}", server.options)
    file = storage.find("data/large.bin")
    storage.read(file, [(0, 10 << 20), (100, 200)])
    counters = storage.counters()
    assert (counters["requests"], counters["bytes"]) == (3, 10 << 20)


def test_a_bucket_that_is_not_there_is_named(server, open_storage):
    other = open_storage("s3://no-such-bucket/data", server.options)
    with pytest.raises(ShardsNotFoundError, match=r"of s3://no-such-bucket/data/a: .* Check the"):
        other.read(Stored("a", 5, '"x"'), [(0, 5)])
    with pytest.raises(ShardsNotFoundError, match="files in s3://no-such-bucket/data: "):
        other.list()


def test_thousands_of_files_are_listed(server, open_storage):
    server.upload("many-bucket", {f"{number:05}": b"" for number in range(1100)})
    found = open_storage("s3://many-bucket", server.options).list()
    assert [file.path for file in found] == [f"{number:05}" for number in range(1100)]


def test_threads_share_a_storage(server, open_storage):
    storage = open_storage(f"s3://{BUCKET}/data", server.options, max_requests=3)
    file = storage.find("large.bin")
    with ThreadPoolExecutor(8) as pool:
        parts = list(
            pool.map(lambda at: storage.read(file, [(at, at + 99)])[0], range(0, 9900, 99))
        )
    assert b"".join(parts) == LARGE[:9900]


def test_closing_ends_requests_that_are_under_way(through_proxy, proxy):
    storage = through_proxy(least_timeout=60.0)
    file = storage.find("a.bin")
    proxy.fault("stall")
    begun = storage.begin(file, [(0, 5)])
    storage.close()
    storage.close()
    with pytest.raises(CancelledError):
        begun.result()
    assert not storage._thread.is_alive()


def test_a_list_that_fails_leaves_no_thread_behind(server):
    before = set(threading.enumerate())
    options = StorageOptions(given=server.options, **QUICK)
    with pytest.raises(ShardsNotFoundError):
        list_stored(f"s3://{BUCKET}/nothing/", SUFFIXES, options)
    assert set(threading.enumerate()) <= before


def test_an_option_that_is_unknown_is_named_without_its_value(server, open_storage):
    for options in ({"colour": "s3cret"}, {"config": {"colour": "s3cret"}}):
        with pytest.raises(OptionError, match="not take: 'colour'") as caught:
            open_storage(f"s3://{BUCKET}", {**server.options, **options})
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(OptionError, match="colour"):
        open_storage(f"s3://{BUCKET}", {**server.options, "client_options": {"colour": "s3cret"}})
    with pytest.raises(OptionError, match="endpoint"):
        open_storage("https://example.com/data", server.options)


def test_empty_objects_that_stand_for_folders_are_no_files(request, open_storage, server):
    spark = {
        "out.parquet/": b"",
        "out.parquet/part-0.parquet": b"data",
        "out.parquet/_SUCCESS": b"",
    }
    files = {
        "spark/": b"",
        "spark/empty.bin": b"",
        **{f"spark/{name}": spark[name] for name in spark},
    }
    for one in (server, request.getfixturevalue("moto_server")):
        one.upload("folders-bucket", files)
        found = ["out.parquet/_SUCCESS", "out.parquet/part-0.parquet"]
        storage = open_storage("s3://folders-bucket/spark", one.options)
        assert [file.path for file in storage.list()] == ["empty.bin", *found]
        assert [file.path for file in storage.list("out.parquet")] == found
        for url in ("s3://folders-bucket/spark/", "s3://folders-bucket/spark/out.parquet"):
            listing = list_stored(
                url, {".parquet": "parquet"}, StorageOptions(given=one.options, **QUICK)
            )
            assert [path.rpartition("/")[2] for path in listing.paths] == ["part-0.parquet"]
            listing.storage.close()
