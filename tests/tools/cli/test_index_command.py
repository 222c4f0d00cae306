"""`dataporter index` on real Parquet and token files."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from terminals import COMMAND, in_terminal

from dataporter.tools.cli.main import run

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def ran(*arguments):
    """Run the command in this process: status, output, errors."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run(["index", *map(str, arguments)])
    for line in [] if "--json" in arguments else (out.getvalue() + err.getvalue()).splitlines():
        assert len(line) <= 80 or " " not in line.strip()  # a path stays whole
    return ended.value.code, out.getvalue(), " ".join(err.getvalue().split())


def write(path, start, count, *, kind=None, rows=100):
    ids = pa.array(range(start, start + count), kind or pa.int64())
    text = [f"text {number}" for number in range(start, start + count)]
    pq.write_table(pa.table({"id": ids, "text": text}), path, row_group_size=rows)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(3):
        write(tmp_path / "data" / f"part-{number}.parquet", 250 * number, 250)
    return tmp_path / "data"


def figures(*arguments, status=0):
    code, out, _ = ran(*arguments, "--json")
    assert code == status
    return json.loads(out)


def test_the_figures_are_shown(data):
    code, out, err = ran(data)
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert words.startswith(f"{data} files 3 of format parquet")
    assert "rows 750" in words
    assert "blocks 9, each of 100 rows" in words
    assert "50 to 100 rows" in words
    assert "schema id: int64, text: string" in words
    assert f"Index: {data}/.dataporter/index-" in words
    assert "Warning" not in words


def test_json_has_the_same(data):
    found = figures(data)
    assert (found["files"], found["blocks"], found["rows"]) == (3, 9, 750)
    assert found["rows_per_block"] == {"least": 50, "median": 100, "most": 100}
    assert found["schema"] == {"columns": {"id": "int64", "text": "string"}}
    assert found["warnings"] == []
    assert found["problem"] is None
    assert len(found["fingerprint"]) == 32
    assert figures(data) == found


def test_several_paths_are_one_dataset(data):
    found = figures(data / "part-0.parquet", data / "part-2.parquet")
    assert (found["files"], found["rows"]) == (2, 500)


def test_changes_are_shown_once(data):
    figures(data)
    (data / "part-1.parquet").unlink()
    (text,) = figures(data)["warnings"]
    assert "1 removed (part-1.parquet)" in text
    assert figures(data)["warnings"] == []


def test_a_drift_of_schemas_is_a_failed_check(data):
    write(data / "part-3.parquet", 750, 10, kind=pa.int32())
    found = figures(data, status=1)
    assert "part-3.parquet has 'id' of type int32 (expected int64)" in found["problem"]
    code, out, _ = ran(data)
    assert code == 1
    assert "Not readable: Files have different schemas" in " ".join(out.split())
    found = figures(data, "--columns", "text")
    assert found["problem"] is None
    assert "part-3.parquet has 'id' of type int32" in found["warnings"][0]


def test_a_missing_column_is_a_failed_check(data):
    assert "Did you mean 'text'?" in figures(data, "--columns", "txt", status=1)["problem"]


def test_tokens_need_their_dtype_and_window(tmp_path):
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    code, _, err = ran(tmp_path)
    assert code == 2
    assert "dtype" in err
    found = figures(tmp_path, "--dtype", "uint16", "--window", 100)
    assert (found["rows"], found["format"]) == (10, "tokens")


def test_the_index_lies_where_it_is_wanted(data, tmp_path):
    found = figures(data, "--folder", tmp_path / "here")
    assert found["index"].startswith(str(tmp_path / "here"))
    assert not (data / ".dataporter").exists()


def test_rebuild_finds_a_file_that_was_replaced_at_the_same_time_and_size(tmp_path):
    path = tmp_path / "a.bin"
    tokens = np.arange(1000, dtype=np.uint16)
    tokens.tofile(path)
    options = (tmp_path, "--dtype", "uint16", "--window", 100)
    before = figures(*options)
    status = path.stat()
    tokens[::-1].tofile(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert figures(*options) == before
    after = figures(*options, "--rebuild")
    assert after["fingerprint"] != before["fingerprint"]
    assert "1 replaced (a.bin)" in after["warnings"][0]


def test_input_that_cannot_be_read_says_why(data, tmp_path):
    code, out, err = ran(tmp_path / "data" / "*.parqet")
    assert (code, out) == (2, "")
    assert "no file matches" in err
    assert "3 .parquet" in err
    (data / "part-1.parquet").write_bytes(b"nonsense")
    code, out, err = ran(data)
    assert (code, out) == (2, "")
    assert "part-1.parquet" in err


def test_many_tiny_blocks_are_warned_of(tmp_path):
    write(tmp_path / "a.parquet", 0, 1200, rows=1)
    found = figures(tmp_path)
    assert any("1,200 blocks of 1,200 decoded to less than" in text for text in found["warnings"])


def test_a_terminal_shows_a_progress_bar(data):
    terminal = in_terminal(*COMMAND, "index", ".", cwd=data)
    assert terminal.status() == 0
    assert "indexing 3 files" in terminal.text()
    assert "rows         750" in terminal.text()


def test_without_pyarrow_the_command_says_what_to_install(data):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from dataporter.tools.cli.main import run\n"
        f"run(['index', {str(data)!r}])"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert child.returncode == 2
    assert 'pip install "torch-dataporter[shards]"' in " ".join(child.stderr.split())
