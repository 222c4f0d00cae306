"""`dataporter plan` on real Parquet and token files."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from PIL import Image
from terminals import COMMAND

from dataporter.shards import dataset as dataset_module
from dataporter.tools.cli.main import run

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def ran(*arguments):
    """Run the command in this process: status, output, errors."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run(["plan", *map(str, arguments)])
    for line in [] if "--json" in arguments else (out.getvalue() + err.getvalue()).splitlines():
        assert len(line) <= 80 or " " not in line.strip()  # a path stays whole
    return ended.value.code, " ".join(out.getvalue().split()), " ".join(err.getvalue().split())


def figures(*arguments, status=0):
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        run(["plan", *map(str, arguments), "--json"])
    assert ended.value.code == status
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """128 blocks of 50 rows."""
    folder = tmp_path_factory.mktemp("plan") / "data"
    folder.mkdir()
    for file in range(8):
        ids = np.arange(800 * file, 800 * file + 800)
        table = pa.table({"id": ids, "text": [f"text {number}" for number in ids]})
        pq.write_table(table, folder / f"part-{file}.parquet", row_group_size=50)
    return folder


@pytest.fixture
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)


@pytest.mark.usefixtures("_tracks")
def test_the_table_is_shown(data):
    code, out, err = ran(
        *(data, "--nodes", 2, "--ranks", 2, "--batch", 4),
        *("--cache", "1GB", "--resume-at", 0.5),
    )
    assert (code, err) == (0, "")
    assert out.startswith(f"{data} data 6,400 samples in 128 blocks of format parquet;")
    for words in (
        "run 2 nodes of 2 ranks with 8 workers, batches of 4: 400 steps of 16 samples in an epoch",
        "order 16 tracks side by side",
        "reads a block is read by 1.0",
        "resumed at position 3,201, saved with other batches or ranks",
        "the least that a cache must hold",
        "cache 1.0 GB: enough; it serves 100 % of later epochs, 50 % of the second one",
        "at 1.0 GB a second; without the start of processes and decoding",
        "samples a second for all nodes together",
        "shuffle as good as a perfect shuffle",
    ):
        assert words in out


@pytest.mark.usefixtures("_tracks")
def test_json_has_the_same(data):
    found = figures(data, "--nodes", 2, "--ranks", 2, "--batch", 4, "--cache", "1GB")
    assert (found["samples"], found["blocks"], found["tracks"], found["steps"]) == (
        *(6_400, 128, 16),
        400,
    )
    assert found["fresh"]["reads_per_block"] >= 1
    assert len(found["fresh"]["by_node"]) == 2
    assert found["resumed"] is None
    assert found["cache"]["bytes"] == 10**9
    assert found["warnings"] == []
    assert figures(data, "--nodes", 2, "--ranks", 2, "--batch", 4, "--cache", "1GB") == found


@pytest.mark.usefixtures("_tracks")
def test_a_cache_that_is_too_small_is_a_failed_check(data):
    code, out, _ = ran(data, "--batch", 4, "--cache", "2kB")
    assert code == 1
    assert "cache 2.0 kB: too small" in out
    assert "Warning: The cache is too small: blocks in use on a node take" in out
    needed = figures(data, "--batch", 4)["in_use"]["bytes_most"]
    tight = figures(data, "--batch", 4, "--cache", int(needed))
    assert tight["cache"]["is_enough"]
    assert "The cache has little room for blocks ahead" in tight["warnings"][0]
    assert figures(data, "--batch", 4, "--cache", tight["good_cache"])["warnings"] == []


@pytest.mark.usefixtures("_tracks")
def test_warnings_name_tracks_and_ranks(data):
    (text,) = figures(data, "--batch", 64)["warnings"]
    assert text.startswith("There are fewer tracks than samples in a step, 16 and 64")
    assert "Write smaller blocks, 512 or more." in text
    assert "worse than a perfect shuffle" in ran(data, "--batch", 64)[1]
    (text,) = figures(data, "--batch", 3, "--nodes", 3)["warnings"]
    assert text.startswith("Ranks do not divide the tracks: blocks are fetched by 1.")
    (text,) = figures(data, "--batch", 4, "--nodes", 3, "--no-shuffle")["warnings"]
    assert "Without a shuffle, blocks are fetched by 3.00 nodes" in text


def test_large_blocks_are_warned_about(tmp_path):
    zeros = pa.array([b"\0" * 1000]).take(pa.array([0] * 100_000))
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"x": zeros}), path, use_dictionary=False, compression="zstd")
    found = figures(path, "--batch", 4)
    assert "Blocks are large: 101 MB decoded" in " ".join(found["warnings"])


def test_small_data_is_planned_as_a_whole(data):
    code, out, _ = ran(data, "--batch", 8, "--nodes", 2)
    assert code == 0
    assert "order shuffled as a whole, since the data is small: all blocks are in use" in out
    assert "Warning: Small data is shuffled as a whole" in out
    found = figures(data, "--batch", 8)
    assert (found["order"], found["in_use"]["blocks_most"]) == ("whole shuffle", 128)
    assert found["warnings"] == []


def test_without_a_shuffle_there_is_no_verdict_on_it(data):
    code, out, _ = ran(data, "--batch", 8, "--no-shuffle")
    assert code == 0
    assert "order not shuffled: one block after the other" in out
    assert "perfect shuffle" not in out


def test_tokens_are_mapped_and_need_no_cache(tmp_path):
    (tmp_path / "data").mkdir()
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "data" / "a.bin")
    options = (tmp_path / "data", "--batch", 2, "--dtype", "uint16", "--window", 100)
    code, out, _ = ran(*options, "--cache", "1GB", "--folder", tmp_path / "here")
    assert code == 0
    assert "10 samples in 1 block of format tokens" in out
    assert "Files are mapped where they lie: there is no cache" in out
    assert (tmp_path / "here").exists()
    code, _, err = ran(tmp_path / "data", "--batch", 2)
    assert code == 2
    assert "dtype" in err


def test_stored_bytes_of_columns_are_an_upper_bound(data):
    _, out, _ = ran(data, "--batch", 8, "--columns", "id")
    assert "a node fetches at most" in out
    assert "the stored bytes of the chosen columns are not known" in out


@pytest.mark.parametrize("suffix", ["svg", "png", "html"])
def test_the_plan_is_drawn(data, tmp_path, suffix):
    path = tmp_path / f"plan.{suffix}"
    options = (data, "--nodes", 2, "--batch", 8, "--cache", "1GB", "--resume-at", 0.5)
    code, out, _ = ran(*options, "--out", path)
    assert code == 0
    assert f"The picture is in {path}." in out
    if suffix == "png":
        with Image.open(path) as image:
            assert image.size == (1500, 1350)
        return
    text = path.read_text()
    for words in ("blocks in use on a node", "its share of all data", "later epochs"):
        assert words in text
    if suffix == "html":
        assert "Small data is shuffled as a whole" in text
        assert "http" not in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--batch", 0], "batch must be at least 1, found 0"),
        (["--batch", 8, "--nodes", 0], "nodes must be at least 1, found 0"),
        (["--batch", 8, "--cache", "much"], "--cache must be bytes, such as 200GB or 512MiB"),
        (["--batch", 8, "--cache", "-1GB"], "found '-1GB'"),
        (["--batch", 8, "--cache", "0"], "cache must be at least 1, found 0"),
        (["--batch", 8, "--latency", "30km"], "--latency must be a time, such as 30ms"),
        (["--batch", 8, "--bandwidth", "0"], "bandwidth must be finite and above 0"),
        (["--batch", 8, "--resume-at", "1"], "resume_at must be below 1"),
        (["--batch", 8, "--out", "plan.pdf"], "--out must be a file .svg, .png or .html"),
        (["--batch", 8, "--out", "/nowhere/plan.svg"], "cannot be written"),
        (["--batch", 8, "--columns", "txt"], "Did you mean 'text'?"),
    ],
)
def test_input_that_cannot_be_used_says_why(data, options, words):
    code, out, err = ran(data, *options)
    assert (code, out) == (2, "")
    assert words in err


def test_data_that_is_not_there_says_why(tmp_path):
    code, _, err = ran(tmp_path / "*.parquet", "--batch", 8)
    assert code == 2
    assert "no file matches" in err
    code, _, err = ran(tmp_path)
    assert code == 2
    assert "--batch" in err


def test_the_other_commands_do_without_its_packages():
    code = "import sys, dataporter.tools.cli.main; print('pyarrow' in sys.modules)"
    ran_ = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran_.stdout == "False\n"


def test_the_command_runs_by_itself(data):
    ended = subprocess.run(
        [*COMMAND, "plan", str(data), "--batch", "8"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "shuffled as a whole" in ended.stdout
