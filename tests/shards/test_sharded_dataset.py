"""`ShardedDataset` under the law: exact, elastic, with a constant state, through kills."""

import gzip
import json
import os
import pickle
import signal
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import one_pass, plain
from watching import until, worker_pids

from dataporter import ResumableDataLoader, sample_rng
from dataporter.errors import (
    ShardChangedError,
    ShardFormatError,
    ShardWarning,
    StateMismatchError,
    WorkerRestartWarning,
)
from dataporter.law.tracks import TracksOrder
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module


@pytest.fixture(autouse=True)
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)


def noisy(sample):
    """Add what only the sample's own random numbers decide."""
    drawn = (np.random.random(), torch.rand(()).item(), float(sample_rng().random()))
    return {"id": sample["id"], "noise": drawn}


def loader_of(dataset, batch_size=8, **options):
    return ResumableDataLoader(dataset, batch_size, **{"shuffle": True, "seed": 3, **options})


def ids(batches):
    return [number for batch in batches for number in plain(batch["id"])]


# Samples


@pytest.mark.parametrize("kind", ["texts", "lines"])
def test_every_sample_is_the_row_of_its_file(kind, request):
    corpus = ShardedDataset(request.getfixturevalue(kind))
    assert len(corpus) == 600
    expected = [{"id": number, "text": f"text {number} " * 5} for number in range(600)]
    assert list(corpus) == expected
    assert corpus[-1] == expected[-1]
    assert corpus.__getitems__([599, 0, 17, 16]) == [expected[i] for i in (599, 0, 17, 16)]


def test_columns_pick_what_is_read(texts):
    assert ShardedDataset(texts, columns=["text"])[7] == {"text": "text 7 " * 5}


def test_tokens_are_read_in_windows(tokens):
    windows = ShardedDataset(tokens, dtype="uint16", window=100)
    assert len(windows) == 40
    assert windows[3]["tokens"].tolist() == list(range(300, 400))
    (batch, *_) = ResumableDataLoader(windows, batch_size=4)
    assert batch["tokens"].shape == (4, 100)


def test_a_transform_is_called_for_each_sample(texts):
    corpus = ShardedDataset(texts, transform=lambda sample: sample["id"] * 2)
    assert corpus[4] == 8
    assert corpus.__getitems__([1, 2]) == [2, 4]


def test_an_unshuffled_loader_reads_files_in_order(texts):
    assert ids(loader_of(ShardedDataset(texts), shuffle=False)) == list(range(600))


def test_a_list_that_is_read_in_another_order_is_warned_of(lines, tmp_path):
    files = [lines / f"part-{number}.jsonl" for number in (10, 2)]
    corpus = ShardedDataset(files, index=tmp_path)
    with pytest.warns(ShardWarning, match=r"part-2\.jsonl comes before .*part-10\.jsonl, which"):
        loader = loader_of(corpus, shuffle=False)
    assert ids(loader) == [*range(30, 45), *range(150, 165)]
    assert sorted(ids(loader_of(corpus))) == ids(loader)  # without a warning
    files = [str(path) for path in reversed(files)]
    assert ids(loader_of(ShardedDataset(files, index=tmp_path), shuffle=False)) == ids(loader)


def test_the_dataset_says_what_it_is(texts):
    assert repr(ShardedDataset(texts)) == (
        "ShardedDataset(600 samples in 40 blocks of 10 parquet files)"
    )


# Order


def test_a_shuffled_loader_reads_every_sample_once_an_epoch(texts):
    loader = loader_of(ShardedDataset(texts))
    first, second = ids(loader), ids(loader)
    assert sorted(first) == sorted(second) == list(range(600))
    assert first != second


def test_small_data_is_shuffled_as_a_whole(texts, monkeypatch):
    asked = {"shuffle": True, "seed": 1, "step_size": 8, "world_size": 1}
    corpus = ShardedDataset(texts)
    assert corpus.epoch_order(**asked).id.startswith("tracks-1, 4 side by side")
    monkeypatch.setattr(dataset_module, "SMALL", 10**6)
    assert corpus.epoch_order(**asked).id == "shuffled-1"


def test_the_tracks_of_the_first_run_are_kept_in_the_state(lines):
    loader = loader_of(ShardedDataset(lines))
    batches = iter(loader)
    seen = ids([next(batches) for _ in range(10)])
    state = loader.state_dict()
    assert state["order"].startswith("tracks-1, 4 side by side")
    state["order"] = state["order"].replace("tracks-1, 4", "tracks-1, 2")  # of other options
    resumed = loader_of(ShardedDataset(lines))
    resumed.load_state_dict(state)
    rest = ids(resumed)
    assert len(rest) == 600 - len(seen)
    assert resumed.state_dict()["order"].startswith("tracks-1, 2 side by side")


# The state


def test_the_state_is_small_and_its_fingerprint_is_that_of_the_index(texts):
    corpus = ShardedDataset(texts)
    loader = loader_of(corpus)
    next(iter(loader))
    state = loader.state_dict()
    assert state["fingerprint"] == corpus.fingerprint() == corpus.index.fingerprint
    assert len(json.dumps(state)) < 500


def test_a_copy_of_the_files_elsewhere_resumes_and_other_files_do_not(lines, tmp_path):
    loader = loader_of(ShardedDataset(lines))
    next(iter(loader))
    state = loader.state_dict()
    for file in lines.glob("*.jsonl"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    moved = loader_of(ShardedDataset(tmp_path))
    moved.load_state_dict(state)
    assert ids(moved) == ids(loader_resumed(lines, state))
    changed = tmp_path / "part-7.jsonl"
    changed.write_text(changed.read_text().replace("text", "word"))
    with (
        pytest.warns(match="part-7.jsonl"),
        pytest.raises(StateMismatchError, match="fingerprint changed"),
    ):
        loader_of(ShardedDataset(tmp_path)).load_state_dict(state)


def loader_resumed(folder, state):
    loader = loader_of(ShardedDataset(folder))
    loader.load_state_dict(state)
    return loader


# The law


@settings(max_examples=30)
@given(
    runs=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=4
    ),
    tail=st.sampled_from(["pad", "uneven", "drop"]),
)
def test_any_chain_of_ranks_and_batch_sizes_delivers_every_sample_once(lines, runs, tail):
    corpus = ShardedDataset(lines)
    state, seen, position = None, [], 0
    for number, (world_size, batch_size, steps) in enumerate(runs):
        ranks = [
            loader_of(corpus, batch_size, rank=rank, world_size=world_size, tail=tail)
            for rank in range(world_size)
        ]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in ranks]
        if number == len(runs) - 1:
            rest = [ids(iterator) for iterator in iterators]
            break
        whole = (len(corpus) - position) // (world_size * batch_size)
        for _ in range(min(steps, whole)):
            seen += [each for iterator in iterators for each in plain(next(iterator)["id"])]
        states = [loader.state_dict() for loader in ranks]
        assert all(each == states[0] for each in states)
        state, position = states[0], states[0]["samples_processed"]
    seen += [each for rank in rest for each in rank]
    if tail == "uneven":
        assert sorted(seen) == list(range(600))
    elif tail == "pad":
        assert set(seen) == set(range(600))
        assert len(seen) < 600 + world_size
        assert len({len(rank) for rank in rest}) == 1
    else:
        assert len(set(seen)) == len(seen) > 600 - world_size * batch_size


@pytest.mark.parametrize(
    ("kind", "context"), [("texts", "fork"), ("lines", "fork"), ("texts", "spawn")]
)
def test_workers_change_nothing_however_they_start(kind, context, request):
    corpus = ShardedDataset(request.getfixturevalue(kind), transform=noisy)
    expected = one_pass(loader_of(corpus))
    workers = loader_of(corpus, num_workers=2, multiprocessing_context=context)
    assert one_pass(workers) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_has_the_same_augmentation_in_any_batches(texts, workers):
    corpus = ShardedDataset(texts, transform=noisy)
    whole = {
        number: noise
        for batch in one_pass(loader_of(corpus))
        for number, *noise in zip(batch["id"], *batch["noise"], strict=True)
    }
    loader = loader_of(corpus, num_workers=workers)
    batches = iter(loader)
    for _ in range(11):
        next(batches)
    resumed = loader_of(corpus, 13, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    rest = [
        (number, noise)
        for batch in one_pass(resumed)
        for number, *noise in zip(batch["id"], *batch["noise"], strict=True)
    ]
    assert len(rest) == 600 - 88
    assert all(whole[number] == noise for number, noise in rest)


def test_threads_read_too(texts):
    corpus = ShardedDataset(texts)
    threads = loader_of(corpus, num_workers=2, engine="threads")
    assert one_pass(threads) == one_pass(loader_of(corpus))


def test_batches_that_come_out_of_order_are_all_delivered(texts):
    loader = loader_of(ShardedDataset(texts), num_workers=2, in_order=False)
    assert sorted(ids(loader)) == list(range(600))


# The cache


def test_evicted_blocks_do_not_stay_mapped(texts, tmp_path):
    half = int(ShardedDataset(texts).index.decoded.sum()) // 2
    corpus = ShardedDataset(texts, cache=tmp_path, cache_bytes=half)
    loader = loader_of(corpus, batch_size=4)
    mapped = []
    for _ in range(4):
        for batch in loader:
            assert len(batch["id"]) == 4
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped.append(sum(".block (deleted)" in line and str(tmp_path) in line for line in maps))
    assert max(mapped[1:]) <= 10  # of 40 blocks, of which 20 may lie in the cache


def written_over(cache):
    """Damage every decoded block, and return what they held."""
    held = {path: path.read_bytes() for path in cache.rglob("*.block")}
    for path, data in held.items():
        path.write_bytes(bytes(len(data)))
    return held


def compressed_lines(folder, lines):
    for path in lines.glob("*.jsonl"):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    return folder


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["texts", "lines"])
def test_damaged_blocks_in_the_cache_are_decoded_again(kind, workers, request, tmp_path):
    folder = request.getfixturevalue(kind)
    (tmp_path / "data").mkdir()
    folder = compressed_lines(tmp_path / "data", folder) if kind == "lines" else folder
    corpus = ShardedDataset(folder, cache=tmp_path / "cache")
    expected = ids(one_pass(loader_of(corpus)))
    del corpus
    held = written_over(tmp_path / "cache")
    assert len(held) == 40
    loader = loader_of(ShardedDataset(folder, cache=tmp_path / "cache"), num_workers=workers)
    assert ids(loader) == expected
    assert {path: path.read_bytes() for path in held} == held


@pytest.mark.parametrize("workers", [0, 2])
def test_a_block_whose_rows_are_readable_but_wrong_is_decoded_again(workers, texts, tmp_path):
    corpus = ShardedDataset(texts, cache=tmp_path)
    expected = one_pass(loader_of(corpus))
    corpus._porter.close()
    held = {path: path.read_bytes() for path in tmp_path.rglob("*.block")}
    for path, data in held.items():
        path.write_bytes(data.replace(b"text ", b"tfxt "))
    again = ShardedDataset(texts, cache=tmp_path)
    assert one_pass(loader_of(again, num_workers=workers)) == expected
    assert {path: path.read_bytes() for path in held} == held
    assert again.stats()["decoded"] >= len(held) == 40  # two may find one to be damaged at once


def test_a_block_is_checked_once_a_run(texts, tmp_path):
    corpus = ShardedDataset(texts, cache=tmp_path)
    text = corpus[0]["text"]
    corpus._porter.close()
    runs = [ShardedDataset(texts, cache=tmp_path) for _ in range(2)]
    assert [run[0]["text"] for run in runs] == [text, text]
    assert runs[0].stats() == {}  # no porter was needed
    (table,) = tmp_path.rglob("sizes")
    entries = np.fromfile(table, np.int64)
    checked = entries[41 + 1]
    assert runs[1]._porter._since < checked < time.time_ns()
    assert pickle.loads(pickle.dumps(runs[1]))[0]["text"] == text
    assert np.fromfile(table, np.int64)[41 + 1] == checked


def test_a_damaged_block_whose_source_is_gone_is_an_error_about_the_source(lines, tmp_path):
    (tmp_path / "data").mkdir()
    folder = compressed_lines(tmp_path / "data", lines)
    corpus = ShardedDataset(folder, cache=tmp_path / "cache")
    assert corpus[0]["id"] == 0
    copy = pickle.loads(pickle.dumps(corpus))
    written_over(tmp_path / "cache")
    (folder / "part-0.jsonl.gz").unlink()
    with pytest.raises(ShardChangedError, match=r"part-0\.jsonl\.gz: it is gone"):
        copy[0]


def test_a_row_that_is_damaged_in_its_source_is_decoded_again_once(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": 0}\n{"id": \n{"id": 2}\n'))
    corpus = ShardedDataset(path, cache=tmp_path / "cache")
    for _ in range(3):
        with pytest.raises(ShardFormatError, match=rf"A line is no JSON.* The file is {path}\.$"):
            corpus[1]
        assert corpus[2]["id"] == 2
    assert corpus.stats()["decoded"] == 2


# Kills


def test_killed_workers_change_nothing(texts):
    corpus = ShardedDataset(texts, transform=noisy)
    expected = one_pass(loader_of(corpus))
    loader = loader_of(corpus, num_workers=2, prefetch_bytes=0)  # so that much is left to do
    found = []
    with warnings.catch_warnings():
        # One that had delivered all its batches is not missed, so there may be no warning.
        warnings.simplefilter("ignore", WorkerRestartWarning)
        for number, batch in enumerate(loader):
            found.append(plain(batch))
            if number % 20 == 5:
                os.kill(worker_pids()[0], signal.SIGKILL)
    assert found == expected


def porters():
    """The porter processes of this test."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if any("dataporter.shards" in argument for argument in child.cmdline()):
                found.append(child)
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_porter_is_replaced_and_changes_nothing(texts, tmp_path, workers):
    expected = one_pass(loader_of(ShardedDataset(texts)))
    corpus = ShardedDataset(texts, cache=tmp_path)
    loader = loader_of(corpus, num_workers=workers)
    found, killed = [], 0
    for number, batch in enumerate(loader):
        found.append(plain(batch))
        if number % 15 == 5:
            for porter in porters():
                porter.kill()
                killed += 1
            for file in tmp_path.rglob("*"):
                if file.is_file() and file.stat().st_size > 4096:
                    file.unlink(missing_ok=True)  # as if evicted, so that it is needed again
    assert found == expected
    assert killed


def test_no_porter_outlives_its_dataset(texts, tmp_path):
    corpus = ShardedDataset(texts, cache=tmp_path)
    assert corpus[0]["id"] == 0
    assert porters()
    del corpus
    until(lambda: not porters(), seconds=60)


def test_a_dataset_can_be_pickled(texts):
    corpus = pickle.loads(pickle.dumps(ShardedDataset(texts)))
    assert corpus[5]["id"] == 5
    order = corpus.epoch_order(shuffle=True, seed=1, step_size=8, world_size=1)
    assert isinstance(order, TracksOrder)


def test_files_that_can_be_mapped_are_not_decoded_beside_files_that_cannot(tmp_path):
    for number in range(8):
        rows = "".join(json.dumps({"id": 10 * number + row}) + "\n" for row in range(10))
        compressed = gzip.compress(rows.encode())
        if number % 2:
            (tmp_path / f"{number}.jsonl.gz").write_bytes(compressed)
        else:
            (tmp_path / f"{number}.jsonl").write_text(rows)
    corpus = ShardedDataset(tmp_path, cache=tmp_path / "cache")
    assert sorted(ids(loader_of(corpus))) == list(range(80))
    until(lambda: len(list((tmp_path / "cache").rglob("*.block"))) == 4, seconds=60)
    assert sorted(ids(loader_of(corpus))) == list(range(80))
    assert len(list((tmp_path / "cache").rglob("*.block"))) == 4


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_cache_that_holds_the_blocks_in_use_is_enough(texts, tmp_path, shuffle):
    size = int(ShardedDataset(texts).index.decoded.sum())
    corpus = ShardedDataset(texts, cache=tmp_path, cache_bytes=size // 2)
    loader = loader_of(corpus, shuffle=shuffle)
    for _ in range(2):
        assert sorted(ids(loader)) == list(range(600))
