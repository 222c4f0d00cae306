"""`dataporter inspect` on states of data in files: the index, and where in the files they stand."""

import gc
import io
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime, timezone

import numpy as np
import pytest
import torch
from object_servers import SECRET, moto
from porters import tidy
from support import Ids
from torch.utils.data import Subset, WeightedRandomSampler
from tracked import Tracked

from dataporter import ResumableDataLoader
from dataporter.shards import ShardedDataset
from dataporter.shards.places import kept_indexes
from dataporter.tools.cli.main import run

FILES, ROWS_OF_FILE, ROWS_OF_BLOCK = 20, 30, 5
ROWS, BLOCKS = FILES * ROWS_OF_FILE, FILES * ROWS_OF_FILE // ROWS_OF_BLOCK


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder, where indexes are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dataporter"


@pytest.fixture(autouse=True)
def _tidy():
    with tidy():
        yield
        gc.collect()  # a loader is part of a cycle


@pytest.fixture
def corpus(tmp_path):
    """Parquet files of some row groups; row i is {"id": i}."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "corpus"
    folder.mkdir()
    for file in range(FILES):
        ids = range(file * ROWS_OF_FILE, (file + 1) * ROWS_OF_FILE)
        table = pa.table({"id": ids})
        pq.write_table(table, folder / f"part-{file}.parquet", row_group_size=ROWS_OF_BLOCK)
    return folder


@pytest.fixture
def lines(tmp_path):
    """JSON lines, a block a file, which are mapped: no porter is needed."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for file in range(FILES):
        ids = range(file * ROWS_OF_FILE, (file + 1) * ROWS_OF_FILE)
        text = "".join(json.dumps({"id": number}) + "\n" for number in ids)
        (folder / f"part-{file}.jsonl").write_text(text)
    return folder


def inspected(*arguments):
    """Run the command in this process: status, output, errors."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run(["inspect", *map(str, arguments)])
    for line in [] if "--json" in arguments else (out.getvalue() + err.getvalue()).splitlines():
        assert len(line) <= 80 or " " not in line.strip()  # a path stays whole
    return ended.value.code, out.getvalue(), " ".join(err.getvalue().split())


def data_of(*arguments, status=0):
    """The data of the only state in a checkpoint, as JSON."""
    code, out, err = inspected(*arguments, "--json")
    assert (code, err) == (status, "")
    (state,) = json.loads(out)["states"]
    return state["data"]


def stopped(dataset, path, batches, **options):
    """Save the checkpoint of a loader after some batches; return the ids before and after it."""
    options = {"batch_size": 16, "shuffle": True, "seed": 3, **options}
    loader = ResumableDataLoader(dataset, **options)
    each = iter(loader)
    before = [number for _ in range(batches) for number in next(each)["id"].tolist()]
    torch.save({"model": torch.zeros(3), "loader": loader.state_dict()}, path)
    after = [number for batch in each for number in batch["id"].tolist()]
    return before, after


def blocks_of(ids):
    return set((np.array(ids, dtype=np.int64) // ROWS_OF_BLOCK).tolist())


def number_of(found):
    """The number of a block in the corpus."""
    file = int(found["file"].removeprefix("part-").removesuffix(".parquet"))
    return file * ROWS_OF_FILE // ROWS_OF_BLOCK + found["block"]


@pytest.mark.parametrize("batches", [0, 1, 7, 30])
def test_blocks_and_rows_of_tracks_are_those_that_the_loader_reads(corpus, tmp_path, batches):
    before, after = stopped(Tracked(corpus), tmp_path / "run.pt", batches)
    tracks = 8
    assert len(before) % tracks == 0  # between groups, counts of stretches are exact
    found = data_of(tmp_path / "run.pt", "--data", corpus)
    standing = found["standing"]
    assert (standing["epoch"], standing["position"]) == (0, len(before))
    for expected, sample in zip(after[:3], standing["next_samples"], strict=True):
        assert sample["index"] == expected
        file, row = divmod(expected, ROWS_OF_FILE)
        assert (sample["file"], sample["row"]) == (f"part-{file}.parquet", row)
        assert sample["block"] == row // ROWS_OF_BLOCK
        whole = (corpus / sample["file"]).read_bytes()
        assert 0 < sample["offset"] < sample["offset"] + sample["size"] < len(whole)
    step = after[:16]
    assert standing["step_samples"] == 16
    assert standing["step_blocks"] == len(blocks_of(step))
    assert standing["step_files"] == len({number // ROWS_OF_FILE for number in step})

    in_use, read, left = blocks_of(after[:tracks]), blocks_of(before), blocks_of(after)
    counts = standing["blocks"]
    assert counts["in_use"] == len(in_use)
    assert counts["finished"] == BLOCKS - len(left | in_use)
    assert counts["not_begun"] == BLOCKS - len(read | in_use)
    assert counts["interrupted"] == len((read & left) - in_use)
    assert counts["all"] == BLOCKS
    first = standing["next_blocks"][0]
    number, ahead = number_of(first), first["position"] - len(before)
    assert number not in in_use | blocks_of(after[:ahead])
    assert number in blocks_of(after[ahead : ahead + tracks])


def test_in_sequence_one_block_is_in_use(corpus, tmp_path):
    stopped(ShardedDataset(corpus), tmp_path / "run.pt", 4, shuffle=False)
    standing = data_of(tmp_path / "run.pt", "--data", corpus)["standing"]
    assert [sample["row"] for sample in standing["next_samples"]] == [4, 5, 6]
    assert {sample["file"] for sample in standing["next_samples"]} == {"part-2.parquet"}
    counts = standing["blocks"]
    assert (counts["in_use"], counts["finished"], counts["not_begun"]) == (1, 12, BLOCKS - 13)
    (first, *_) = standing["next_blocks"]
    assert (first["position"], first["file"], first["block"]) == (65, "part-2.parquet", 1)


def test_small_data_that_is_shuffled_as_a_whole_has_all_blocks_in_use(corpus, tmp_path):
    _, after = stopped(ShardedDataset(corpus), tmp_path / "run.pt", 4)
    standing = data_of(tmp_path / "run.pt", "--data", corpus)["standing"]
    assert [sample["index"] for sample in standing["next_samples"]] == after[:3]
    assert standing["blocks"]["in_use"] == standing["blocks"]["all"] == BLOCKS
    _, out, _ = inspected(tmp_path / "run.pt", "--data", corpus)
    assert f"all {BLOCKS} in use, since small data is shuffled as a whole" in " ".join(out.split())


def test_a_finished_epoch_stands_at_the_start_of_the_next_one(corpus, tmp_path):
    loader = ResumableDataLoader(Tracked(corpus), batch_size=16, shuffle=True, seed=3)
    list(loader)
    torch.save(loader.state_dict(), tmp_path / "run.pt")
    (first, *_) = next(iter(loader))["id"].tolist()
    standing = data_of(tmp_path / "run.pt", "--data", corpus)["standing"]
    assert (standing["epoch"], standing["position"]) == (1, 0)
    assert standing["next_samples"][0]["index"] == first
    assert standing["blocks"]["finished"] == 0


def test_samples_that_were_delivered_ahead_are_not_shown_as_next(corpus, tmp_path):
    loader = ResumableDataLoader(ShardedDataset(corpus), batch_size=16, seed=3, in_order=False)
    next(iter(loader))
    torch.save(loader.state_dict() | {"ahead": [[17, 19], [32, 48]]}, tmp_path / "run.pt")
    standing = data_of(tmp_path / "run.pt", "--data", corpus)["standing"]
    assert standing["position"] == 16
    assert [sample["position"] for sample in standing["next_samples"]] == [16, 19, 20]


def test_the_text_is_this(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stopped(Tracked(lines), "run.pt", 2)
    (index,) = kept_indexes(lines / ".dataporter")
    days_ago = time.time() - 3.5 * 86_400
    os.utime(index, (days_ago, days_ago))
    status, out, _ = inspected("run.pt", "--data", "lines")
    assert status == 0
    found = data_of("run.pt", "--data", "lines")
    fingerprint = found["index"]["fingerprint"]
    assert datetime.fromisoformat(found["index"]["written"]) == datetime.fromtimestamp(
        days_ago, timezone.utc
    )
    words = " ".join(out.split())
    total = sum(path.stat().st_size for path in lines.glob("*.jsonl"))
    assert f"data 20 files of format jsonl in {lines}: 600 rows in 20 blocks," in words
    assert total == found["index"]["stored_bytes"]
    assert f"index written 3 days ago, fingerprint {fingerprint}, in {index} " in words
    samples = [
        f"row {one['row']} of {one['file']} (block 0, bytes 0 to {one['size'] - 1:,})"
        for one in found["standing"]["next_samples"]
    ]
    counts = found["standing"]["blocks"]
    assert f"in files {', '.join(samples)}, ...; the next step takes 16 samples from" in words
    assert f"{counts['in_use']} of 20 in use (" in words
    assert f"{counts['finished']} finished and {counts['not_begun']} not begun in epoch 0" in words
    # The order is known now, so the indices that come next are too.
    indices = [str(one["index"]) for one in found["standing"]["next_samples"]]
    assert f"next position 32: samples {', '.join(indices)}, " in words


def test_a_state_of_other_data_is_told_with_both_fingerprints(corpus, lines, tmp_path):
    stopped(Tracked(lines), tmp_path / "run.pt", 1)
    given = ShardedDataset(corpus).index
    found = data_of(tmp_path / "run.pt", "--data", corpus, status=1)
    saved = torch.load(tmp_path / "run.pt")["loader"]["fingerprint"]
    assert (found["matches"], found["state_fingerprint"]) == (False, saved)
    assert [index["fingerprint"] for index in found["indexes"]] == [given.fingerprint]
    status, out, _ = inspected(tmp_path / "run.pt", "--data", corpus)
    assert status == 1
    assert (
        f"data not that in {corpus}: the state has fingerprint {saved}, the data there has "
        f"{given.fingerprint} (index {given.place})"
    ) in " ".join(out.split())
    # Several places: the state's own is found.
    both = data_of(tmp_path / "run.pt", "--data", corpus, "--data", lines)
    assert both["matches"] is True


def test_a_state_without_fingerprint_is_told_not_to_be_of_that_data(lines, tmp_path):
    ShardedDataset(lines)
    torch.save(ResumableDataLoader(Ids(10)).state_dict(), tmp_path / "run.pt")
    assert data_of(tmp_path / "run.pt", "--data", lines, status=1)["state_fingerprint"] is None
    assert "the state has no fingerprint" in inspected(tmp_path / "run.pt", "--data", lines)[1]
    assert data_of(tmp_path / "run.pt") is None


@pytest.mark.parametrize("place", ["folder", "glob", "file", "index", "indexes"])
def test_a_place_has_several_names(lines, tmp_path, place):
    names = {
        "folder": lines,
        "glob": lines / "*.jsonl",
        "file": lines / "part-7.jsonl",
        "indexes": lines / ".dataporter",
    }
    index = ShardedDataset(lines).index
    stopped(ShardedDataset(lines), tmp_path / "run.pt", 1)
    found = data_of(tmp_path / "run.pt", "--data", names.get(place, index.place))
    assert found["matches"] is True
    assert found["index"]["path"] == str(index.place)
    assert found["index"]["root"] == str(lines)


def test_an_index_in_a_folder_of_its_own_knows_where_its_files_were(lines, tmp_path):
    dataset = ShardedDataset(lines, index=tmp_path / "indexes")
    stopped(dataset, tmp_path / "run.pt", 1)
    found = data_of(tmp_path / "run.pt", "--data", tmp_path / "indexes")
    assert found["index"]["root"] == str(lines)
    assert found["standing"]["next_samples"]


def test_files_that_were_moved_or_removed_are_not_needed(lines, tmp_path):
    _, after = stopped(ShardedDataset(lines), tmp_path / "run.pt", 1)
    moved = tmp_path / "moved"
    lines.rename(moved)
    for path in moved.glob("*.jsonl"):
        path.unlink()
    found = data_of(tmp_path / "run.pt", "--data", moved)
    assert found["index"]["root"] == str(moved)
    assert found["standing"]["next_samples"][0]["index"] == after[0]


def test_an_index_in_the_users_cache_folder_is_found_by_the_state_alone(lines, tmp_path, cache):
    (lines / ".dataporter").write_text("in the way, as in a folder that is read-only")
    dataset = ShardedDataset(lines)
    assert dataset.index.place.parent == cache
    _, after = stopped(dataset, tmp_path / "run.pt", 1)
    ShardedDataset(lines / "part-1*.jsonl")  # another one is kept beside it
    assert len(kept_indexes(cache)) == 2
    for arguments in ([], ["--data", lines], ["--data", lines / "*.jsonl"]):
        found = data_of(tmp_path / "run.pt", *arguments)
        assert found["index"]["path"] == str(dataset.index.place)
        assert found["standing"]["next_samples"][0]["index"] == after[0]
    # Damage is no reason to show something wrong.
    dataset.index.place.write_bytes(dataset.index.place.read_bytes()[:-100])
    assert data_of(tmp_path / "run.pt") is None


def test_without_an_index_a_state_of_tracks_says_how_to_see_more(lines, tmp_path):
    stopped(Tracked(lines), tmp_path / "run.pt", 1)
    status, out, _ = inspected(tmp_path / "run.pt")
    assert status == 0
    assert "its index was not found: name the data, or the index, by --data" in " ".join(
        out.split()
    )


def test_a_place_without_an_index_says_how_to_build_it(lines, tmp_path):
    stopped(ShardedDataset(lines), tmp_path / "run.pt", 1)
    shutil.rmtree(lines / ".dataporter")
    status, out, err = inspected(tmp_path / "run.pt", "--data", lines)
    assert (status, out) == (2, "")
    assert f"there is no index of {lines} that can be read" in err
    assert f"`dataporter index {lines}`" in err
    assert not (lines / ".dataporter").exists()
    _, _, err = inspected(tmp_path / "run.pt", "--data", tmp_path / "nowhere")
    assert f"there is no file or folder {tmp_path / 'nowhere'}" in err
    url = "https://me:very-secret@example.com/corpus/a.jsonl?signature=very-secret"
    status, _, err = inspected(tmp_path / "run.pt", "--data", url)
    assert status == 2
    assert "there is no index of https://example.com/corpus/a.jsonl" in err
    assert SECRET not in err


def test_data_in_a_storage_is_shown_without_reaching_it_and_without_secrets(
    lines, tmp_path, cache, monkeypatch
):
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "moto").mkdir()
    with moto(tmp_path / "moto") as server:
        server.upload("bucket", {f"lines/{p.name}": p.read_bytes() for p in lines.iterdir()})
        dataset = Tracked("s3://bucket/lines/", storage_options=server.options)
        _, after = stopped(dataset, tmp_path / "run.pt", 3)
    (index,) = kept_indexes(cache)
    assert SECRET.encode() not in index.read_bytes()
    secret = f"s3://anybody:{SECRET}@bucket/lines?token={SECRET}"
    names = ["s3://bucket/lines", "s3://bucket/lines/*.jsonl", "s3://bucket/lines/part-3.jsonl"]
    for arguments in ([], *(["--data", name] for name in [*names, secret])):
        found = data_of(tmp_path / "run.pt", *arguments)
        assert found["index"]["root"] == "s3://bucket/lines"
        assert [one["index"] for one in found["standing"]["next_samples"]] == after[:3]
        assert SECRET not in inspected(tmp_path / "run.pt", *arguments)[1]
    # Also where it is other data.
    torch.save(ResumableDataLoader(Ids(10)).state_dict(), tmp_path / "other.pt")
    status, out, _ = inspected(tmp_path / "other.pt", "--data", secret)
    assert status == 1
    assert "not that in s3://bucket/lines:" in " ".join(out.split())
    assert SECRET not in out


def test_parts_and_samplers_show_the_index_and_why_there_is_no_more(lines, tmp_path):
    dataset = ShardedDataset(lines)
    stopped(Subset(dataset, range(50, 150)), tmp_path / "subset.pt", 1)
    found = data_of(tmp_path / "subset.pt", "--data", lines)
    assert (found["matches"], found["standing"]) == (True, None)
    assert "a Subset of this data" in found["unknown"]
    sampler = WeightedRandomSampler([1.0] * len(dataset), 100)
    stopped(dataset, tmp_path / "sampled.pt", 1, shuffle=None, sampler=sampler)
    found = data_of(tmp_path / "sampled.pt", "--data", lines)
    assert "the index alone does not tell the order" in found["unknown"]
    _, out, _ = inspected(tmp_path / "sampled.pt", "--data", lines)
    assert "in files not known: the index alone" in " ".join(out.split())


@pytest.mark.parametrize(
    "change",
    [
        {"num_samples": 10**6, "samples_processed": 10**5},
        {"ahead": [[599, 10**7]]},
        {"order": "tracks-1, 16777216 side by side, blocks 0"},
        {"order": "tracks-2, 8 side by side, blocks 0"},
        {"batch_size": 2**62},
        {"epoch": 2**63 - 1, "finished": True},
        {"samples_processed": 2**63 - 1},
        {"seed": 2**64 - 1},
    ],
)
def test_a_damaged_state_leads_to_no_traceback(lines, tmp_path, change):
    stopped(Tracked(lines), tmp_path / "run.pt", 1)
    state = torch.load(tmp_path / "run.pt")["loader"] | change
    torch.save(state, tmp_path / "damaged.pt")
    status, out, err = inspected(tmp_path / "damaged.pt", "--data", lines)
    assert (status, err) == (0, "")
    assert "data 20 files" in " ".join(out.split())


def test_names_of_files_cannot_reach_the_terminal_as_a_command(tmp_path):
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "a\x1b[2J.jsonl").write_text('{"id": 1}\n' * 9)
    stopped(ShardedDataset(folder), tmp_path / "run.pt", 1, batch_size=2)
    status, out, _ = inspected(tmp_path / "run.pt", "--data", folder)
    assert status == 0
    assert "\x1b" not in out


def test_without_pyarrow_states_are_shown_and_the_extra_is_named(lines, tmp_path):
    (lines / ".dataporter").write_text("in the way")
    stopped(ShardedDataset(lines), tmp_path / "run.pt", 1)
    torch.save(ResumableDataLoader(Ids(10)).state_dict(), tmp_path / "other.pt")

    def without_pyarrow(*arguments):
        code = (
            "import sys; sys.modules['pyarrow'] = None\n"
            "from dataporter.tools.cli.main import run\n"
            f"run({['inspect', *map(str, arguments)]!r})"
        )
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
        return child.returncode, child.stdout, " ".join(child.stderr.split())

    extra = 'pip install "torch-dataporter[shards]"'
    assert without_pyarrow(tmp_path / "other.pt") == inspected(tmp_path / "other.pt")
    status, out, err = without_pyarrow(tmp_path / "run.pt")
    assert (status, err) == (0, "")
    assert "16 of 600 samples" in out
    assert extra in " ".join(out.split())
    status, out, err = without_pyarrow(tmp_path / "run.pt", "--data", lines)
    assert (status, out) == (2, "")
    assert extra in err
