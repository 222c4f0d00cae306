"""Faults on the way to a real server: after each, the bytes are those of a quiet run."""

import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from object_servers import SECRET
from stored_files import LARGE
from watching import until

from dataporter.errors import ShardChangedError, ShardsNotFoundError, StorageError
from dataporter.shards.storage import requests as requests_module
from dataporter.shards.storage.pacing import Patience
from dataporter.shards.storage.remote_file import RemoteFile

RANGES = [(at, at + 10_000) for at in range(0, 20_000_000, 1_000_000)]
WANTED = [LARGE[start:stop] for start, stop in RANGES]
SLOW_DOWN = b"<Error><Code>SlowDown</Code></Error>"
ENOUGH = 8  # requests after which it is known how long they take, and so which are late
EXPIRED = b"<Error><Code>ExpiredToken</Code></Error>"
INTERNAL = b"<Error><Code>InternalError</Code><Message>Please try again.</Message></Error>"

PASSING = {
    "500": {"name": "status", "status": "500 Internal Server Error"},
    "503": {"name": "status", "body": SLOW_DOWN},
    "429": {"name": "status", "status": "429 Too Many Requests", "headers": {"Retry-After": "1"}},
    "reset": {"name": "reset"},
    "stall": {"name": "stall"},
    "stall in body": {"name": "stall in body"},
    "cut": {"name": "cut"},
    "200": {"name": "status", "status": "200 OK", "body": INTERNAL},
    "expired": {"name": "status", "status": "403 Forbidden", "body": EXPIRED},
}


def read_all(storage):
    file = storage.find("large.bin")
    return [bytes(data) for data in storage.read(file, RANGES)]


@pytest.mark.parametrize("fault", PASSING)
def test_the_data_is_that_of_a_quiet_run(fault, through_proxy, proxy):
    proxy.fault(**PASSING[fault], times=8)
    # Only a stall needs a try to end by its time. That may end one too which has not come this far.
    stalls = fault.startswith("stall")
    storage = through_proxy(**({"least_timeout": 0.2} if stalls else {}))
    assert read_all(storage) == WANTED
    counters, arrived = storage.counters(), sum(proxy.requests.values())
    assert counters["retries"] >= 8
    assert arrived <= counters["requests"] if stalls else arrived == counters["requests"]
    assert counters["bytes"] == sum(map(len, WANTED))


def test_any_mixture_of_faults_is_survived(through_proxy, proxy):
    for fault in PASSING.values():
        proxy.fault(**fault, probability=0.05)
    storage = through_proxy(least_timeout=0.2, least_delay=0.1)
    assert [read_all(storage) for _ in range(3)] == [WANTED] * 3
    assert storage.counters()["retries"] > 0


def test_a_server_that_is_away_is_waited_for(through_proxy, proxy):
    storage = through_proxy()
    file = storage.find("large.bin")
    proxy.go_away()
    try:
        begun = storage.begin(file, RANGES)
        until(lambda: storage.counters().get("retries", 0) > 20, seconds=60)
    finally:
        proxy.come_back()
    assert [bytes(data) for data in begun.result(60)] == WANTED
    assert "failed" not in storage.counters()


def test_an_outage_is_met_with_few_requests(through_proxy, proxy):
    storage = through_proxy(patience=1.0, max_requests=8)
    file = storage.find("large.bin")
    proxy.fault("status", status="500 Internal Server Error")
    begun = time.monotonic()
    with pytest.raises(StorageError):
        storage.read(file, RANGES)
    seconds = time.monotonic() - begun  # many, on a busy machine
    assert proxy.most <= 8
    # The search, the first tries, those allowed at once, and two in each second. Where one has
    # failed, another may be tried before all are cancelled.
    assert sum(proxy.requests.values()) <= 1 + len(RANGES) + 8 + 2 * (seconds + 1)


def test_throttling_lowers_the_requests_at_a_time(through_proxy, proxy):
    storage = through_proxy(max_requests=16)
    file = storage.find("large.bin")
    proxy.latency = 0.02
    proxy.fault("status", body=SLOW_DOWN, times=16)
    assert [bytes(data) for data in storage.read(file, RANGES)] == WANTED
    assert proxy.most <= 16
    assert storage.counters()["throttled"] == 16
    assert storage._requests._bound.limit < 16


def test_the_requests_at_a_time_rise_again(through_proxy, proxy):
    storage = through_proxy(max_requests=4)
    file = storage.find("a.bin")
    proxy.fault("status", body=SLOW_DOWN, times=1)
    storage.read(file, [(0, 10)])
    assert storage._requests._bound.limit == 2
    for _ in range(2 + 3):
        storage.read(file, [(0, 10)])
    assert storage._requests._bound.limit == 4


def test_a_late_request_is_sent_a_second_time(through_proxy, proxy):
    storage = through_proxy(least_delay=0.1)
    file = storage.find("large.bin")
    for each in RANGES[:ENOUGH]:
        storage.read(file, [each])
    assert "hedges" not in storage.counters()
    proxy.fault("stall", times=1)
    assert bytes(storage.read(file, [RANGES[0]])[0]) == WANTED[0]
    assert storage.counters()["hedges"] == 1
    assert "retries" not in storage.counters()
    until(lambda: not proxy.running, seconds=60)  # the first one was cancelled


def test_late_requests_are_sent_again_within_a_budget(through_proxy, proxy):
    storage = through_proxy(least_delay=0.001)
    file = storage.find("a.bin")
    took = []
    for _ in range(20):
        begun = time.monotonic()
        storage.read(file, [(0, 10)])
        took.append(time.monotonic() - begun)
    # Late by any measure: a request is late after three times the median.
    proxy.latency = 0.02 + 4 * statistics.median(took)
    for _ in range(20):
        storage.read(file, [(0, 10)])
    assert 1 <= storage.counters()["hedges"] <= 4


def test_a_second_request_takes_the_next_place(through_proxy, proxy):
    storage = through_proxy(least_delay=0.05, max_requests=2)
    stalled, other = storage.find("large.bin"), storage.find("a.bin")
    for _ in range(ENOUGH):
        storage.read(other, [(0, 10)])
    proxy.heal()
    proxy.fault("stall", path="large.bin", times=1)
    proxy.fault("hold", path="a.bin")
    waiting = storage._requests._bound._waiting
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(storage.read, stalled, [(0, 10)])
        until(lambda: proxy.running == 1, seconds=60)
        works = [pool.submit(storage.read, other, [(0, 10)]) for _ in range(5)]
        # Both places are taken, by one that stalls and one that is held. The second request of the
        # first waits for a place. That of the held one may wait too, behind it.
        until(lambda: proxy.running == 2 and waiting, seconds=60)
        assert "hedges" not in storage.counters()
        assert proxy.requests["/corpus-bucket/data/large.bin"] == 1
        assert proxy.requests["/corpus-bucket/data/a.bin"] == 1
        proxy.faults.clear()
        assert all(work.result(60) for work in [first, *works])
    assert storage.counters()["hedges"] >= 1
    assert proxy.requests["/corpus-bucket/data/large.bin"] == 2


def test_an_answer_that_comes_slowly_is_waited_for(through_proxy, proxy):
    storage = through_proxy(least_timeout=0.05)
    file = storage.find("large.bin")
    proxy.fault("slow", pause=0.02)
    assert bytes(storage.read(file, [RANGES[0]])[0]) == WANTED[0]


def test_tries_end_with_the_time_also_where_their_budget_is_used_up(
    through_proxy, proxy, monkeypatch
):
    # After those that are allowed at once, the next try would come in an hour.
    monkeypatch.setattr(requests_module, "_RETRIES_PER_SECOND", 1 / 3600)
    storage = through_proxy(patience=0.5, max_requests=20)
    file = storage.find("large.bin")
    proxy.fault("reset")
    with ThreadPoolExecutor(20) as pool:
        works = [pool.submit(storage.read, file, [each]) for each in RANGES]
        errors = [work.exception(60) for work in works]
    assert all(isinstance(error, StorageError) for error in errors)
    assert sum(proxy.requests.values()) <= 1 + 20 + 20


def test_what_waits_behind_requests_that_fail_is_given_up_with_them(through_proxy, proxy):
    storage = through_proxy(patience=0.5, max_requests=1)
    file = storage.find("large.bin")
    proxy.heal()
    proxy.fault("reset")
    begun = [storage.begin(file, [each]) for each in RANGES[:6]]
    first, *others = [each.exception(60) for each in begun]
    assert "It was tried" in str(first)
    assert all(isinstance(error, StorageError) for error in others)
    # Each at most once, in what was left when the first one was given up.
    tries = int(re.search(r"tried (\d+) times", str(first))[1])
    assert sum(proxy.requests.values()) <= tries + len(others)


def test_a_queue_that_moves_is_waited_for_longer_than_requests_are_tried(through_proxy, proxy):
    storage = through_proxy(patience=1.0, max_requests=1)
    file = storage.find("large.bin")
    proxy.latency = 0.1
    begun = [storage.begin(file, [each]) for each in RANGES]
    assert [bytes(each.result(60)[0]) for each in begun] == WANTED


def test_stalls_end_with_the_time(through_proxy, proxy):
    storage = through_proxy(patience=0.6, least_timeout=0.1)
    file = storage.find("large.bin")
    proxy.fault("stall")
    with pytest.raises(StorageError, match=r"no answer came in time\. It was tried \d+ times in"):
        storage.read(file, [RANGES[0]])


def test_credentials_are_read_again_from_their_file(
    server, proxy, open_storage, tmp_path, monkeypatch
):
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text("[default]\naws_access_key_id = OLDKEY\naws_secret_access_key = old\n")
    given = {"endpoint": proxy.url, "region": "us-east-1"}
    storage = open_storage("s3://corpus-bucket/data", given)
    found = storage.find("large.bin")
    proxy.fault("status", status="403 Forbidden", body=EXPIRED, unless="Credential=NEWKEY/")
    begun = storage.begin(found, RANGES)
    until(lambda: storage.counters().get("renewed credentials", 0) >= 2, seconds=60)
    file.write_text("[default]\naws_access_key_id")  # half written
    until(lambda: storage.counters().get("renewed credentials", 0) >= 4, seconds=60)
    file.write_text("[default]\naws_access_key_id = NEWKEY\naws_secret_access_key = new\n")
    assert [bytes(data) for data in begun.result(60)] == WANTED


def test_credentials_that_stay_refused_are_an_error_soon(through_proxy, proxy):
    storage = through_proxy(renewal=0.2, patience=300.0)
    file = storage.find("a.bin")
    proxy.fault("status", status="403 Forbidden", body=EXPIRED)
    with pytest.raises(StorageError, match=r"\(ExpiredToken\)\. It was tried .* Renew the cred"):
        storage.read(file, [(0, 3)])
    proxy.fault("status", status="403 Forbidden", method="HEAD")
    with pytest.raises(StorageError, match=r"403 Forbidden\. Use credentials that may list and"):
        through_proxy(patience=300.0).find("a.bin")


def test_credentials_of_a_storage_that_answered_another_process_are_read_again(
    server, proxy, open_storage, monkeypatch
):
    monkeypatch.setattr(requests_module, "_NEW_KEY", 0.0)
    options = server.through(proxy.url).options
    file = open_storage("s3://corpus-bucket/data", options).find("a.bin")
    for body in (EXPIRED, b""):
        storage = open_storage("s3://corpus-bucket/data", options, is_known=True)
        proxy.fault("status", status="403 Forbidden", body=body, times=3)
        assert bytes(storage.read(file, [(0, 3)])[0]) == b"012"
        assert storage.counters()["renewed credentials"] == 3


def test_without_patience_a_request_is_tried_once_and_once_more_with_new_credentials(
    through_proxy, proxy
):
    storage = through_proxy()
    file = storage.find("a.bin")
    for status, tries in {"503 Service Unavailable": 1, "403 Forbidden": 2}.items():
        proxy.heal()
        proxy.fault("status", status=status)
        with pytest.raises(StorageError):
            storage.read(file, [(0, 3)], Patience(0.0))
        assert proxy.requests["/corpus-bucket/data/a.bin"] == tries
    proxy.heal()
    assert bytes(storage.read(file, [(0, 3)], Patience(0.0))[0]) == b"012"


def test_all_requests_for_a_file_share_one_patience(through_proxy, proxy):
    storage = through_proxy(patience=1.0)
    stored = storage.find("large.bin")
    file = RemoteFile(storage, stored, {"more/b": storage.find("a.bin")})
    proxy.fault("reset")
    with pytest.raises(StorageError, match=r"tried \d+ times in 1 s\. Check"):
        file.read(0, 10)
    proxy.heal()
    proxy.fault("reset")
    for read in (file.read, file.beside("more/b").read):
        with pytest.raises(StorageError, match=r"once, after others .* failed for 1 s\."):
            read(100, 10)
    assert sum(proxy.requests.values()) == 2
    proxy.heal()
    assert bytes(file.read(0, 10)) == LARGE[:10]


@pytest.mark.parametrize(
    "body",
    [
        b"<Error><Code>RequestTimeTooSkewed</Code></Error>",
        b"<Code>AuthenticationFailed</Code><Detail>Request date header too old: 'Thu'</Detail>",
        b"<Code>SignatureDoesNotMatch</Code><Message>Signature expired: 20261119T1</Message>",
    ],
    ids=["S3", "Azure", "AWS's tokens"],
)
def test_a_clock_that_differs_is_said_so(body, through_proxy, proxy):
    storage = through_proxy(renewal=0.2)
    file = storage.find("a.bin")
    proxy.fault("status", status="403 Forbidden", body=body, times=2)
    assert bytes(storage.read(file, [(0, 3)])[0]) == b"012"  # it was set right meanwhile
    proxy.fault("status", status="403 Forbidden", body=body)
    with pytest.raises(StorageError, match=r"the clock of this machine differs .*\. Set the clock"):
        storage.read(file, [(0, 3)])


PAGED = [f"{number:05}" for number in range(1100)]  # two pages


@pytest.fixture
def paged(server, proxy, open_storage):
    """Open a bucket that is listed in two pages, through the proxy."""
    server.upload("paged-bucket", dict.fromkeys(PAGED, b""))
    options = server.through(proxy.url).options
    return lambda **more: open_storage("s3://paged-bucket", options, **more)


def test_a_list_goes_on_where_a_page_failed(paged, proxy):
    proxy.fault("reset", times=2, after=1)
    assert [file.path for file in paged().list()] == PAGED
    assert proxy.requests["/paged-bucket"] == 5  # the last one confirms the end


@pytest.mark.parametrize("spared", [0, 1, 2])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "body", [INTERNAL, b"<ListBucketResult><Contents><Key>000"], ids=["error", "half"]
)
def test_a_list_is_whole_although_a_page_of_it_was_none(body, times, spared, paged, proxy):
    proxy.fault("status", status="200 OK", body=body, times=times, after=spared)
    assert [file.path for file in paged().list()] == PAGED


def test_a_list_that_stays_cut_short_is_an_error(paged, proxy):
    proxy.fault("status", status="200 OK", body=INTERNAL, after=1)
    with pytest.raises(StorageError, match=r"files in s3://paged-bucket: the list of files was c"):
        paged(patience=1.0).list()


def test_the_fault_before_the_end_of_the_patience_is_named(through_proxy, proxy):
    """The last try is given up by us: that its server was late is nothing that we know."""
    storage = through_proxy(patience=0.5)
    file = storage.find("large.bin")
    proxy.fault(**PASSING["500"], times=1)
    held = proxy.fault("hold")
    with pytest.raises(StorageError, match=r"answered 500 .* It was tried 2 times in"):
        storage.read(file, RANGES[:1])
    assert held in proxy.faults


def test_a_list_ends_although_its_last_file_is_removed_meanwhile(server, proxy, open_storage):
    files = {f"{number}.bin": b"" for number in range(3)}
    server.upload("shrinking-bucket", files)
    storage = open_storage("s3://shrinking-bucket", server.through(proxy.url).options)
    held = proxy.fault("hold", after=1)  # the request that confirms the end
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(storage.list)
        until(lambda: proxy.requests["/shrinking-bucket"] == 2, seconds=60)
        server.remove("shrinking-bucket/2.bin")
        proxy.faults.remove(held)
        assert [file.path for file in listed.result(60)] == ["0.bin", "1.bin"]


def test_a_file_that_was_replaced_is_an_error(server, open_storage, proxy):
    server.upload("changing-bucket", {"replaced.bin": b"old"})
    storage = open_storage("s3://changing-bucket", server.through(proxy.url).options)
    file = storage.find("replaced.bin")
    server.upload("changing-bucket", {"replaced.bin": b"new"})
    with pytest.raises(ShardChangedError, match=r"of s3://changing-bucket/replaced.bin: .*412"):
        storage.read(file, [(0, 3)])
    # A server that ignores If-Match.
    proxy.fault("header", headers={"ETag": '"other"'})
    file = storage.find("replaced.bin")
    with pytest.raises(ShardChangedError, match=r"replaced.bin: it has another ETag. Put the file"):
        storage.read(file, [(0, 3)])
    assert sum(proxy.requests.values()) == 4  # it is not tried again


def test_a_file_that_was_cut_or_removed_is_an_error(server, through_proxy):
    storage = through_proxy()
    file = storage.find("a.bin")
    with pytest.raises(ShardChangedError, match="it has 1,000 bytes, and had 2,000"):
        storage.read(file._replace(size=2000), [(0, 3)])
    with pytest.raises(ShardChangedError, match="416"):
        storage.read(file._replace(size=2000), [(1500, 1600)])
    with pytest.raises(ShardsNotFoundError, match=r"data/gone.bin: there is no such file"):
        storage.read(file._replace(path="gone.bin"), [(0, 3)])


def test_the_error_says_what_was_tried(through_proxy, proxy):
    storage = through_proxy(patience=1.0)
    file = storage.find("large.bin")
    proxy.fault("status", body=SLOW_DOWN)
    with pytest.raises(StorageError) as caught:
        storage.read(file, [(5_000, 1_005_000)])
    assert caught.match(
        r"^a storage did not give bytes 5,000 to 1,005,000 of s3://corpus-bucket/data/large.bin: "
        r"the server answered 503 Service Unavailable \(SlowDown\)\. It was tried \d+ times in "
        r"\d+ s\. The storage asks for fewer requests"
    )
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert storage.counters()["failed"] == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"name": "reset"}, "the connection was reset"),
        ({"name": "stall"}, "no answer came in time"),
        ({"name": "stall in body"}, "no answer came in time"),
        ({"name": "cut"}, "the answer was cut short"),
        ({"name": "status", "status": "500 Internal Server Error"}, "answered 500 Internal Server"),
    ],
)
def test_the_last_fault_is_said_in_plain_words(fault, words, through_proxy, proxy):
    storage = through_proxy(
        patience=1.0, **({"least_timeout": 0.1} if "stall" in str(fault) else {})
    )
    file = storage.find("large.bin")
    proxy.fault(**fault)
    with pytest.raises(StorageError, match=f"{words}.* It was tried .*Check that the server is up"):
        storage.read(file, [(0, 10_000)])


def test_a_server_that_refuses_connections_is_said_so(through_proxy, proxy):
    storage = through_proxy(patience=1.0)
    proxy.go_away()
    try:
        with pytest.raises(StorageError, match=r"data/a.bin: the connection was refused\. It was"):
            storage.find("a.bin")
    finally:
        proxy.come_back()


def test_a_server_whose_name_is_not_found_is_an_error_long_before_patience_ends(
    server, open_storage, monkeypatch
):
    monkeypatch.setattr(requests_module, "_NEW_NAME", 0.2)
    options = server.through("http://no-such-server.invalid").options
    storage = open_storage("s3://bucket", options, patience=3600.0)
    words = r"a.bin: the name of the server was not found\. It was .* Check the spelling of the URL"
    with pytest.raises(StorageError, match=words):
        storage.find("a.bin")


def test_no_error_and_no_log_shows_secrets(through_proxy, proxy, caplog):
    caplog.set_level("DEBUG", logger="dataporter.shards")
    body = b"<Error><Code>AccessDenied</Code><AWSAccessKeyId>anybody</AWSAccessKeyId></Error>"
    storage = through_proxy(renewal=0.0)
    file = storage.find("a.bin")
    # The first is tried again, as the log says, and the second is the end at once.
    proxy.fault("status", status="500 Internal Server Error", body=body, times=1)
    proxy.fault("status", status="403 Forbidden", body=body)
    with pytest.raises(StorageError) as caught:
        storage.read(file, [(0, 3)])
    assert caught.value.__cause__ is caught.value.__context__ is None
    for text in (str(caught.value), caplog.text):
        assert "Debug source" not in text
        assert SECRET not in text
        assert "anybody" not in text
        assert "127.0.0.1" not in text
    assert "try 2 follows" in caplog.text
