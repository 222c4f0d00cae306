"""`ShardedDataset` over a real S3 server: the same promises as over local files."""

import contextlib
import functools
import gc
import json
import logging
import multiprocessing
import os
import pickle
import random
import re
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from object_servers import SECRET
from porters import leaves_no_zombie, porter_pids, tidy, until_no_porter_is_left
from proxy_process import ProxyProcess
from stored_files import QUICK
from support import one_pass, plain
from watching import run_script, until, worker_pids

from dataporter import ResumableDataLoader
from dataporter.errors import (
    OptionError,
    ShardCacheError,
    ShardChangedError,
    ShardsNotFoundError,
    StorageError,
    TooManySkippedError,
    WorkerRestartWarning,
)
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module


@pytest.fixture(autouse=True)
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Try again soon, and send no request twice because the machine is busy."""
    times = {name: seconds for name, seconds in QUICK.items() if name != "patience"}
    options = functools.partial(dataset_module.StorageOptions, **times)
    monkeypatch.setattr(dataset_module, "StorageOptions", options)


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield
        gc.collect()  # a loader is part of a cycle


@pytest.fixture(scope="session")
def stored(server, texts, lines):
    """The corpora of the other tests, in a bucket."""
    for kind, folder in {"texts": texts, "lines": lines}.items():
        files = {f"{kind}/{path.name}": path.read_bytes() for path in folder.glob("part-*")}
        server.upload("stored-bucket", files)
    return server


@pytest.fixture(scope="session")
def _elsewhere(server):
    with ProxyProcess(server.endpoint) as running:
        yield running


@pytest.fixture
def proxy(_elsewhere):
    _elsewhere.heal()
    yield _elsewhere
    _elsewhere.heal()


@pytest.fixture
def open_stored(stored, proxy, tmp_path):
    """Open a corpus through the proxy, with a cache of the test's own."""

    def open_one(kind="texts", **options):
        given = stored.through(proxy.url).options
        folders = {"cache": tmp_path / "cache", "index": tmp_path / "index"}
        defaults = {"storage_options": given, "storage_timeout": 60, **folders}
        return ShardedDataset(f"s3://stored-bucket/{kind}/", **{**defaults, **options})

    return open_one


def loader_of(dataset, batch_size=8, **options):
    return ResumableDataLoader(dataset, batch_size, **{"shuffle": True, "seed": 3, **options})


def ids(batches):
    return [number for batch in batches for number in plain(batch["id"])]


def local_ids(folder):
    return ids(one_pass(loader_of(ShardedDataset(folder))))


# Samples


@pytest.mark.parametrize("kind", ["texts", "lines"])
def test_samples_order_and_fingerprint_are_those_of_local_files(kind, open_stored, request):
    local, corpus = ShardedDataset(request.getfixturevalue(kind)), open_stored(kind)
    assert list(corpus) == list(local)
    assert corpus.fingerprint() == local.fingerprint()
    assert ids(loader_of(corpus, num_workers=2)) == ids(loader_of(local))


@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.soak)]
)
def test_workers_of_every_start_method_work_also_if_this_process_used_the_network(
    method, open_stored, stored, texts
):
    import obstore
    from obstore.store import S3Store

    options = {**stored.options, "client_options": {"allow_http": True}}
    obstore.get(S3Store("stored-bucket", **options), "texts/part-0.parquet").bytes()
    corpus = open_stored()
    context = multiprocessing.get_context(method)
    loader = loader_of(corpus, num_workers=2, multiprocessing_context=context)
    assert ids(loader) == local_ids(texts)


def test_a_state_of_local_files_goes_on_from_a_storage_with_other_workers_and_ranks(
    open_stored, texts
):
    local = loader_of(ShardedDataset(texts))
    batches = iter(local)
    before = ids(next(batches) for _ in range(20))
    state = json.loads(json.dumps(local.state_dict()))
    after = []
    corpus = open_stored()
    for rank in range(2):
        loader = loader_of(corpus, batch_size=4, rank=rank, world_size=2, num_workers=rank)
        loader.load_state_dict(state)
        after += ids(loader)
    assert sorted(before + after) == list(range(600))


def test_globs_files_and_lists_are_found(stored):
    names = [f"s3://stored-bucket/texts/part-{number}.parquet" for number in (1, 3)]
    for files in (names, "s3://stored-bucket/**/part-[13].parquet", names[0]):
        corpus = ShardedDataset(files, storage_options=stored.options)
        rows = 60 if files == names[0] else 120
        assert len(corpus) == rows
        assert corpus[0]["id"] == 60


IN_A_PROGRAM = """
import json, sys
import psutil
from dataporter import ResumableDataLoader
from dataporter.shards import ShardedDataset

def look(sample):
    sockets = psutil.Process().net_connections(kind="inet") if sample["id"] % 100 == 0 else []
    return {"id": sample["id"], "used": len(sockets) + ("obstore" in sys.modules)}

corpus = ShardedDataset(
    "s3://stored-bucket/lines/", transform=look, index=f"{sys.argv[1]}/index",
    cache=f"{sys.argv[1]}/cache", storage_options=json.loads(sys.argv[2]),
)
for workers in (0, 1):
    batches = list(ResumableDataLoader(corpus, 8, num_workers=workers))
    print(sum(len(each["id"]) for each in batches), sum(int(sum(each["used"])) for each in batches))
"""


def test_the_program_and_its_workers_open_no_connection(stored, tmp_path):
    printed = run_script(IN_A_PROGRAM, tmp_path, json.dumps(stored.options))
    assert printed.split() == ["600", "0"] * 2


# Requests


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_batch_waits_for_its_own_blocks_only(workers, open_stored, proxy, lines):
    first = local_ids(lines)[:8]
    corpus = open_stored("lines", max_requests=2)
    for number in set(range(40)) - {sample // 15 for sample in first}:
        proxy.fault("stall", path=f"/part-{number}.jsonl")
    loader = loader_of(corpus, num_workers=workers, prefetch_factor=1 if workers else None)
    assert ids([next(iter(loader))]) == first


def test_each_byte_is_fetched_once_and_nothing_else(open_stored, proxy: ProxyProcess, texts):
    corpus = open_stored(columns=["id", "text"])
    proxy.heal()
    loader = loader_of(corpus, num_workers=2)
    for _ in range(2):
        assert len(ids(loader)) == 600
    stats = corpus.stats()
    index = corpus.index
    tails = int(index.sizes.sum()) - int(index.size.sum()) - 4 * len(index.paths)  # "PAR1"
    assert sum(proxy.sent.values()) == int(index.size.sum()) + tails == stats["fetched"]
    # Each block, and the tail of each file.
    assert sum(proxy.requests.values()) == 40 + 10 == stats["requests"]


def test_only_the_bytes_of_chosen_columns_are_fetched(open_stored, proxy: ProxyProcess):
    fetched = {}
    for column in ("id", "text"):
        corpus = open_stored(columns=[column])
        proxy.heal()
        assert len(list(corpus)) == 600
        fetched[column] = sum(proxy.sent.values())
    tails = int(corpus.index.sizes.sum()) - int(corpus.index.size.sum()) - 4 * 10  # "PAR1"
    assert fetched["id"] + fetched["text"] == int(corpus.index.size.sum()) + 2 * tails


def test_ranks_of_a_machine_share_what_was_fetched(open_stored, proxy: ProxyProcess):
    corpora = [open_stored() for _ in range(2)]
    proxy.heal()
    found = []
    loaders = [
        loader_of(corpus, rank=rank, world_size=2, num_workers=1)
        for rank, corpus in enumerate(corpora)
    ]
    for batches in zip(*loaders, strict=True):
        found += ids(batches)
    assert sorted(found) == list(range(600))
    assert sum(proxy.requests.values()) == 50


def test_a_second_run_fetches_nothing(open_stored, proxy: ProxyProcess):
    expected = ids(loader_of(open_stored()))
    proxy.heal()
    assert ids(loader_of(open_stored())) == expected
    assert set(proxy.requests) == {"/stored-bucket"}  # the listing


def test_requests_at_a_time_are_bounded(open_stored, proxy: ProxyProcess):
    corpus = open_stored(max_requests=3)
    proxy.heal()
    proxy.delay(0.01)
    assert len(ids(loader_of(corpus, num_workers=2))) == 600
    assert proxy.most <= 3


def test_a_cache_of_half_the_data_serves_about_half(open_stored, proxy: ProxyProcess):
    half = int(open_stored("lines").index.decoded.sum()) // 2
    corpus = open_stored("lines", cache_bytes=half)
    loader = loader_of(corpus, num_workers=1, batch_size=4)
    assert len(ids(loader)) == 600
    first = corpus.stats()["decoded"]
    for _ in range(4):
        assert len(ids(loader)) == 600
    later = (corpus.stats()["decoded"] - first) / 4
    assert 38 <= first <= 48  # a block can be read before it is counted
    assert later <= 0.75 * 40


def test_a_cache_of_the_bytes_that_an_error_names_is_large_enough(open_stored):
    with pytest.raises(ShardCacheError, match="cache_bytes=") as caught:
        ids(loader_of(open_stored("lines", cache_bytes=1)))
    needed = int(re.search(r"cache_bytes=(\d+) or more", str(caught.value))[1])
    corpus = open_stored("lines", cache_bytes=needed)
    assert needed < 0.5 * int(corpus.index.decoded.sum())  # blocks of few rows
    assert sorted(ids(loader_of(corpus))) == list(range(600))
    assert corpus.stats()["evicted"] > 0


def test_footers_give_way_to_blocks_in_a_small_cache(open_stored, tmp_path):
    assert len(ids(loader_of(open_stored()))) == 600
    entries = [path.stat().st_size for path in sorted((tmp_path / "cache").rglob("*.block"))]
    blocks, footers = entries[:40], entries[40:]
    assert len(footers) == 10
    assert sum(footers[:4]) > 2 * max(blocks)
    # Four tracks, one block that comes, and one that is longer than was estimated.
    corpus = open_stored(cache=tmp_path / "small", cache_bytes=6 * max(blocks))
    assert sorted(ids(loader_of(corpus))) == list(range(600))


# Faults


@pytest.mark.parametrize("kind", [pytest.param("texts", marks=pytest.mark.soak), "lines"])
@pytest.mark.parametrize(
    "faults",
    [
        {"status": {"probability": 0.3}},
        {"status": {"probability": 0.2, "status": "429 Too Many", "headers": {"Retry-After": "1"}}},
        {"reset": {"probability": 0.3}},
        {"cut": {"probability": 0.3}},
        {"reset": {"probability": 0.1}, "cut": {"probability": 0.1}, "status": {"times": 10}},
    ],
    ids=" and ".join,
)
def test_faults_change_nothing(kind, faults, open_stored, proxy: ProxyProcess, request):
    corpus = open_stored(kind)
    for name, details in faults.items():
        proxy.fault(name, **details)
    assert ids(loader_of(corpus, num_workers=2)) == local_ids(request.getfixturevalue(kind))
    assert corpus.stats()["retries"] > 0


def test_wrong_bytes_are_fetched_again(open_stored, proxy: ProxyProcess, lines):
    corpus = open_stored("lines")
    proxy.fault("flip", times=2)  # of three tries
    assert list(corpus) == list(ShardedDataset(lines))


def test_a_footer_that_arrived_damaged_is_fetched_again_for_the_index(
    open_stored, stored, proxy: ProxyProcess, tmp_path
):
    import pyarrow as pa
    import pyarrow.parquet as pq

    # One row of many columns: the middle of the file, where a bit changes, is in the footer.
    columns = {f"column-{number}": [number] for number in range(200)}
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet", write_statistics=False)
    stored.upload("stored-bucket", {"wide/a.parquet": (tmp_path / "wide.parquet").read_bytes()})
    proxy.fault("flip", path="a.parquet", times=2)
    assert open_stored("wide")[0] == {name: values[0] for name, values in columns.items()}


@pytest.mark.parametrize("kind", ["texts", "lines"])
def test_damaged_blocks_in_the_cache_are_fetched_again(kind, open_stored, tmp_path, request):
    expected = list(open_stored(kind))
    for path in (tmp_path / "cache").rglob("*.block"):  # footers too
        path.write_bytes(bytes(path.stat().st_size))
    assert list(open_stored(kind)) == expected
    assert expected == list(ShardedDataset(request.getfixturevalue(kind)))


def test_a_server_that_is_away_is_waited_for(open_stored, proxy: ProxyProcess, texts):
    corpus = open_stored()
    loader = loader_of(corpus, num_workers=2)
    proxy.go_away()
    try:
        batches = iter(loader)
        until(lambda: corpus.stats().get("retries", 0) > 5, seconds=60)
    finally:
        proxy.come_back()
    assert ids(batches) == local_ids(texts)


def test_a_fault_that_stays_names_the_object_the_range_and_what_was_tried(
    open_stored, proxy: ProxyProcess
):
    corpus = open_stored("lines", storage_timeout=2)
    proxy.fault("status", path="part-7.jsonl")
    with pytest.raises(StorageError, match=r"s3://stored-bucket/lines/part-7\.jsonl") as caught:
        list(corpus)
    words = str(caught.value)
    assert "503" in words
    assert re.search(r"tried \d+ times in \d+ s", words)
    assert "bytes 0" in words
    proxy.heal()
    assert corpus[0]["id"] == 0


@pytest.mark.parametrize("status", ["503 Service Unavailable", "403 Forbidden"])
def test_a_block_that_was_given_up_is_read_as_soon_as_the_storage_is_well(
    status, open_stored, proxy: ProxyProcess
):
    corpus = open_stored("lines", storage_timeout=1)
    assert corpus[0]["id"] == 0
    proxy.fault("status", path="part-7.jsonl", status=status)
    with pytest.raises(StorageError, match="tried"):
        corpus[7 * 15]
    tries = proxy.requests["/stored-bucket/lines/part-7.jsonl"]
    with pytest.raises(StorageError):
        corpus[7 * 15]
    # Once; refused credentials are read again before they are tried once more.
    once = 2 if status.startswith("403") else 1
    assert proxy.requests["/stored-bucket/lines/part-7.jsonl"] == tries + once
    proxy.heal()
    assert corpus[7 * 15]["id"] == 7 * 15


def test_a_new_porter_reads_refused_credentials_again(open_stored, proxy: ProxyProcess):
    corpus = open_stored("lines")
    proxy.fault("status", path="part-7.jsonl", status="403 Forbidden", times=5)
    assert corpus[7 * 15]["id"] == 7 * 15
    assert corpus.stats()["retries"] == 5


def test_a_footer_that_many_blocks_wait_for_is_tried_for_one_patience(
    open_stored, proxy: ProxyProcess
):
    corpus = open_stored(storage_timeout=1)
    proxy.heal()  # the index is built
    proxy.fault("hold, then reset", path="part-0.parquet", times=1)
    proxy.fault("reset", path="part-0.parquet")
    with ThreadPoolExecutor(4) as pool:
        samples = [pool.submit(corpus.__getitem__, 15 * block) for block in range(4)]
        until(lambda: corpus.stats().get("waits") == 4, seconds=60)
        proxy.release()
        errors = [str(sample.exception(60)) for sample in samples]
    tries = int(re.search(r"tried (\d+) times", errors[0])[1])
    assert set(errors) == {errors[0]}
    assert proxy.requests["/stored-bucket/texts/part-0.parquet"] == tries


def test_holes_of_an_object_that_cannot_be_fetched_keep_positions(open_stored, proxy, lines):
    expected = [number for number in local_ids(lines) if number // 15 != 7]
    corpus = open_stored("lines", storage_timeout=2)
    proxy.fault("status", path="part-7.jsonl")
    loader = loader_of(corpus, num_workers=1, on_error="skip", max_skipped=15)
    assert ids(loader) == expected
    assert {skipped.index // 15 for skipped in loader.skipped} == {7}
    assert "part-7.jsonl" in loader.skipped[0].error


def test_holes_beyond_their_budget_are_an_error(open_stored, proxy):
    corpus = open_stored("lines", storage_timeout=2)
    proxy.fault("status", path="part-7.jsonl")
    loader = loader_of(corpus, on_error="skip", max_skipped=14)
    with pytest.raises(TooManySkippedError, match=r"part-7\.jsonl"):
        ids(loader)


def test_an_object_that_is_replaced_in_mid_run_is_an_error(open_stored, stored, lines):
    corpus = open_stored("lines", cache_bytes=10_000)
    assert corpus[0]["id"] == 0
    path = lines / "part-33.jsonl"
    stored.upload("stored-bucket", {f"lines/{path.name}": b"{}\n" * 15})
    try:
        with pytest.raises(ShardChangedError, match=r"lines/part-33\.jsonl"):
            list(corpus)
    finally:
        stored.upload("stored-bucket", {f"lines/{path.name}": path.read_bytes()})


# Kills


def test_datasets_that_nobody_reads_leave_no_zombies(open_stored):
    corpora = [open_stored() for _ in range(3)]  # each by a process that becomes a porter
    until_no_porter_is_left()
    until(leaves_no_zombie, seconds=60)
    assert [len(corpus) for corpus in corpora] == [600] * 3


def test_kills_of_porters_and_workers_change_nothing(open_stored, proxy: ProxyProcess, texts):
    loader = loader_of(open_stored(), num_workers=2, prefetch_bytes=0, max_restarts=100)
    chance = random.Random(0)
    found = []
    with warnings.catch_warnings():
        # One that had delivered all its batches is not missed, so there may be no warning.
        warnings.simplefilter("ignore", WorkerRestartWarning)
        for number, batch in enumerate(loader):
            found.append(batch)
            if number % 9 == 4:
                victims = porter_pids() if chance.random() < 0.6 else worker_pids()
                for victim in victims[:1]:
                    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                        os.kill(victim, signal.SIGKILL)
    assert ids(found) == local_ids(texts)


def _run(open_one, state, out):
    loader = loader_of(open_one(), num_workers=1, batch_size=4)
    if state:
        loader.load_state_dict(state)
    for batch in loader:
        out.send((ids([batch]), loader.state_dict()))
    out.send(None)


def test_a_job_that_is_killed_as_a_whole_goes_on(open_stored, proxy: ProxyProcess, texts, tmp_path):
    chance = random.Random(1)
    context = multiprocessing.get_context("fork")
    found, state, is_done = [], None, False
    while not is_done:
        inward, outward = context.Pipe(duplex=False)
        job = context.Process(target=_run, args=(open_stored, state, outward))
        job.start()
        outward.close()
        stop_after = chance.randrange(20, 80)
        for _ in range(stop_after):
            if (message := inward.recv()) is None:
                is_done = True
                break
            numbers, state = message
            found += numbers
        for victim in [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have just ended by itself
                victim.kill()
        job.join()
    assert found == ids(one_pass(loader_of(ShardedDataset(texts), batch_size=4)))
    assert ids(loader_of(open_stored(), batch_size=4)) == found
    assert not list((tmp_path / "cache").rglob("*.tmp"))


# Secrets


def test_credentials_are_nowhere(open_stored, proxy: ProxyProcess, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "dataporter")
    corpus = open_stored()
    loader = loader_of(corpus, num_workers=1)
    next(iter(loader))
    proxy.fault("status", status="403 Forbidden")
    with pytest.raises(StorageError) as caught:
        list(open_stored(cache=tmp_path / "other", storage_timeout=2))
    shown = [repr(corpus), repr(corpus.index), json.dumps(loader.state_dict()), caplog.text]
    shown += [repr(caught.value), repr(caught.value.__cause__)]
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET in text for text in shown)
    assert not any(SECRET.encode() in data for data in kept)
    for process in porter_pids():
        assert SECRET.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()


# Mistakes


def test_what_is_not_there_is_named(open_stored):
    with pytest.raises(ShardsNotFoundError, match=r"s3://stored-bucket/nothing.*nothing is there"):
        open_stored("nothing")


def test_a_mixture_of_places_is_refused(texts):
    with pytest.raises(OptionError, match="must lie in one place"):
        ShardedDataset(["s3://bucket/a.parquet", str(texts)])
    with pytest.raises(OptionError, match="one bucket"):
        ShardedDataset(["s3://bucket/a.parquet", "s3://other/a.parquet"])


def test_storage_options_of_local_files_are_refused(texts):
    with pytest.raises(OptionError, match="storage_options"):
        ShardedDataset(texts, storage_options={"region": "x"})


def test_a_stored_dataset_can_be_pickled(open_stored):
    corpus = open_stored()
    assert pickle.loads(pickle.dumps(corpus))[5] == corpus[5]


def test_a_progress_of_what_is_waited_for_is_logged(open_stored, proxy: ProxyProcess, caplog):
    caplog.set_level(logging.INFO, "dataporter")
    corpus = open_stored()
    proxy.fault("hold")
    with ThreadPoolExecutor(1) as pool:
        sample = pool.submit(corpus.__getitem__, 0)
        try:
            words = "waiting for 1 block from s3://stored-bucket/texts"
            until(lambda: words in caplog.text, seconds=60)
        finally:
            proxy.heal()
        assert sample.result(60)["id"] == 0
    assert isinstance(corpus.stats()["waited_ms"], int)
    assert np.all(corpus.index.rows == 15)
