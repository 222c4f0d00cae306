"""Readers of data on a server: tests run them, and do not judge the measured speeds."""

import itertools
import time
import urllib.request

import pytest
from latency_proxy import delayed
from shard_contenders import BATCH_SIZE, ours, values_of
from shard_data import make, values

obstore = pytest.importorskip("obstore")

import server_shards  # noqa: E402
from object_server import seaweed  # noqa: E402
from server_contenders import BUCKET, Served, readers  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries that are compared
    pytest.mark.soak,
]

ROWS = 640
OURS = "dataporter, parquet"


@pytest.fixture(autouse=True)
def _own_rule_for_small_data(monkeypatch):
    """Readers change it for the process that they run in."""
    monkeypatch.setattr(ours, "SMALL", ours.SMALL)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    data = make("texts", ROWS, tmp_path_factory.mktemp("data"))
    with seaweed(tmp_path_factory.mktemp("server")) as server:
        made = Served(data=data, server=server)
        made.upload()
        yield made


def test_our_reader_reads_the_samples_of_the_server(served, tmp_path):
    reader = readers(served)[OURS]
    reader.prepare(tmp_path)
    batches = itertools.islice(reader.batches(tmp_path), ROWS // BATCH_SIZE)
    found = [value for batch in batches for value in values_of(batch, "txt")]
    assert sorted(found) == sorted(values("texts", ROWS))


def test_bare_gets_ask_for_every_byte_of_the_blocks_once(served, tmp_path):
    reader = server_shards.BareGets(served, "parquet")
    reader.prepare(tmp_path)
    asked = sum(end - start for _, start, end in reader.ranges)
    stored = sum(path.stat().st_size for path in served.data.files("parquet"))
    magic = 4  # bytes at the beginning of each file
    assert asked == stored - magic * len(served.data.files("parquet"))


def test_a_first_epoch_is_timed_in_a_new_process(served):
    turn = server_shards._first_epoch(readers(served)[OURS], ROWS // BATCH_SIZE)
    assert not turn.failure
    assert 0 < turn.first <= turn.last


def test_a_reader_that_fails_says_why():
    turn = server_shards._first_epoch(server_shards.Reader(), 1)
    assert "NotImplementedError" in turn.failure


def test_requests_are_counted(served, monkeypatch):
    monkeypatch.setattr(server_shards, "_LATER", 1)
    monkeypatch.setattr(Served, "forms", property(lambda _: ["parquet"]))
    table = server_shards.traffic(served).splitlines()
    (first,) = [row for row in table if "all blocks" in row and "the first" in row]
    (later,) = [row for row in table if "all blocks" in row and "a later one" in row]
    assert "| 1.00 " in first
    assert "| 0.00 " in later


def test_a_proxy_adds_latency_to_each_request(served):
    with delayed(served.server.endpoint, 0.3) as endpoint:
        (url, *_) = served.through(endpoint).urls("parquet")
        started = time.monotonic()
        with urllib.request.urlopen(url) as answer:  # noqa: S310
            data = answer.read()
        assert time.monotonic() - started >= 0.3
    assert f"/{BUCKET}/" in url
    assert data == served.data.files("parquet")[0].read_bytes()
