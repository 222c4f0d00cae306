"""JSON lines: a sample is json.loads of its line, whatever the compression and the blocks."""

import gzip
import json

import pytest
import zstandard
from foreign_files import FOREIGN
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reading import read_all, read_blocks

from dataporter.errors import ShardChangedError, ShardFormatError, ShardSchemaError
from dataporter.shards.formats import jsonl
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.jsonl import JsonLinesFormat
from dataporter.shards.shard_file import LocalFile

ROWS = [{"id": n, "text": "é\n" * (n % 9), "meta": {"n": [n]}} for n in range(200)]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"  # a zstd frame without text, as pzstd writes
COMPRESS = {".gz": gzip.compress, ".zst": lambda text: SKIPPABLE + zstandard.compress(text)}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=4)


def jsonl_format(columns=None):
    return JsonLinesFormat(ReadOptions(columns=columns))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(jsonl, "TARGET", 1000)


def scan(path):
    return jsonl_format().scan(LocalFile(path))


def frames(text, size, suffix):
    """Compress every `size` bytes of a text as one frame."""
    return b"".join(
        COMPRESS[suffix](text[start : start + size]) for start in range(0, max(len(text), 1), size)
    )


def written(folder, suffix, text, size=None):
    path = folder / f"a.jsonl{suffix}"
    path.write_bytes(frames(text, size or len(text) or 1, suffix) if suffix else text)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_samples_are_those_of_json(tmp_path, suffix):
    path = written(tmp_path, suffix, TEXT)
    assert read_all(jsonl_format(), path) == ROWS
    assert scan(path).schema["columns"] == {"id": "int", "text": "str", "meta": "dict"}


@settings(max_examples=60)
@given(
    st.lists(objects, max_size=30),
    st.sampled_from(["", ".gz", ".zst"]),
    st.lists(st.sampled_from(["\n", "\r\n", "\n\n", "\n  \t\n", "\n  "]), min_size=1),
    st.integers(1, 200),
    st.booleans(),
)
def test_any_lines_and_frames_give_all_rows(
    tmp_path_factory, rows, suffix, separators, size, ends_in_newline
):
    lines = [json.dumps(row, ensure_ascii=bool(len(row) % 2)) for row in rows]
    text = "".join(line + separators[place % len(separators)] for place, line in enumerate(lines))
    if not ends_in_newline:
        text = text.rstrip()
    blob = text.encode("utf-8", "surrogatepass")
    path = written(tmp_path_factory.mktemp("jsonl"), suffix, blob, size)
    expected = [json.loads(line) for line in blob.split(b"\n") if line.strip()]
    assert expected == rows
    assert read_all(jsonl_format(), path) == rows


def test_plain_blocks_are_slices_cut_at_newlines(tmp_path):
    path = written(tmp_path, "", TEXT)
    blocks = scan(path).blocks
    assert len(blocks) > 5
    assert [block.offset + block.size for block in blocks[:-1]] == [b.offset for b in blocks[1:]]
    assert blocks[-1].offset + blocks[-1].size == len(TEXT)
    assert len({block.checksum for block in blocks}) == len(blocks)


def test_a_line_longer_than_a_block_is_one_block(tmp_path):
    rows = [{"a": "x" * size} for size in (10, 5000, 10, 3000)]
    path = written(tmp_path, "", "\n".join(map(json.dumps, rows)).encode())
    assert read_all(jsonl_format(), path) == rows


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_frames_are_grouped_into_blocks(tmp_path, suffix):
    for size in (7, 250, 1300, 5000):
        path = written(tmp_path, suffix, TEXT, size)
        found = read_blocks(jsonl_format(), path)
        assert [row for block in found for row in block] == ROWS
        assert len(found) > 2


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_frames_that_end_with_lines_share_no_bytes(tmp_path, suffix):
    lines = TEXT.splitlines(keepends=True)
    parts = [b"".join(lines[start : start + 30]) for start in range(0, len(lines), 30)]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(b"".join(map(COMPRESS[suffix], parts)))
    blocks = scan(path).blocks
    assert len(blocks) == len(parts)
    assert [block.offset + block.size for block in blocks[:-1]] == [b.offset for b in blocks[1:]]
    assert read_all(jsonl_format(), path) == ROWS


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_large_file_of_one_frame_is_warned_of(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(jsonl, "LARGE", 5000)
    assert len(scan(written(tmp_path, suffix, TEXT)).blocks) == 1
    (warning,) = scan(written(tmp_path, suffix, TEXT)).warnings
    assert "several files" in warning
    assert not scan(written(tmp_path, suffix, TEXT, 1000)).warnings


def test_the_contents_tell_the_compression_not_the_name(tmp_path):
    path = tmp_path / "a.jsonl.gz"  # as a browser leaves it that has decompressed it
    path.write_bytes(TEXT)
    assert read_all(jsonl_format(), path) == ROWS


def test_gzip_padding_is_no_data(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(TEXT) + bytes(700))
    assert read_all(jsonl_format(), path) == ROWS


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("blank", ["", "\n", " \r\n\n", " "])
def test_a_byte_order_mark_and_blank_lines_are_no_data(tmp_path, blank, suffix):
    path = written(tmp_path, suffix, b"\xef\xbb\xbf" + blank.encode() + TEXT)
    assert read_all(jsonl_format(), path) == ROWS


def test_a_file_of_a_byte_order_mark_alone_has_no_rows(tmp_path):
    assert scan(written(tmp_path, "", b"\xef\xbb\xbf\n")).blocks == ()


def test_a_byte_order_mark_in_mid_file_is_an_error(tmp_path):
    with pytest.raises(ShardFormatError, match=r"line 201, byte \d+ begins with"):
        scan(written(tmp_path, "", TEXT + b"\xef\xbb\xbf" + TEXT))


def test_samples_have_the_chosen_columns(tmp_path):
    path = written(tmp_path, "", b'{"a": 1, "b": 2}\n{"b": 3, "c": 4}\n')
    assert read_all(jsonl_format(("b", "a")), path) == [{"b": 2, "a": 1}, {"b": 3}]
    with pytest.raises(ShardSchemaError, match=r"none of the columns 'bb'.* Did you mean 'b'"):
        read_all(jsonl_format(("bb",)), path)


def test_files_may_have_different_keys():
    assert not JsonLinesFormat.fixes_schema
    jsonl_format(("a",)).check({"columns": {"b": "int"}})


@pytest.mark.parametrize("suffix", [".gz", ".zst", ""])
@pytest.mark.parametrize("text", [b"", b"\n", b"\n  \n\r\n"])
def test_a_file_without_rows_has_no_blocks(tmp_path, suffix, text):
    assert not scan(written(tmp_path, suffix, text)).blocks


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_an_empty_file_is_no_compressed_data(tmp_path, suffix):
    (tmp_path / f"a.jsonl{suffix}").touch()
    with pytest.raises(ShardFormatError, match="an empty file"):
        scan(tmp_path / f"a.jsonl{suffix}")


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_named(tmp_path, kind):
    path = written(tmp_path, "", FOREIGN[kind])
    with pytest.raises(ShardFormatError) as caught:
        scan(path)
    for part in (str(path), "not a file of JSON lines", kind, "again"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'[{"a": 1}]', "one JSON array"),
        (b'{"a": 1}\n[2]\n', "line 2, byte 9"),
        (b'{"a": 1}\n\n3\n', "line 3, byte 10"),
        (b'{\n  "a": 1\n}\n', "line 2, byte 2"),
        (b"{\n", "first line"),
        (TEXT + b"null\n", "line 201"),
        ('{"a": 1}\n'.encode("utf-16"), "UTF-16"),
    ],
)
def test_a_line_that_is_no_object_is_an_error_with_its_place(tmp_path, text, found):
    path = written(tmp_path, "", text)
    with pytest.raises(ShardFormatError) as caught:
        scan(path)
    assert found in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_line_that_is_no_json_is_an_error_with_its_place(tmp_path):
    path = written(tmp_path, "", b'{"a": 1}\n{"a": }\n{"a": 3}\n')
    with pytest.raises(ShardFormatError, match="at byte 9 of its file"):
        read_all(jsonl_format(), path)
    deep = b'{"a": 1}\n{"a": ' + b"[" * 100_000 + b'\n{"a": 3}\n'
    with pytest.raises(ShardFormatError, match="at byte 9 of its file"):
        read_all(jsonl_format(), written(tmp_path, "", deep))


@settings(max_examples=80)
@given(st.sampled_from([".gz", ".zst"]), st.sampled_from([None, 500]), st.floats(0, 0.9999))
def test_compressed_data_that_is_cut_off_is_an_error(tmp_path_factory, suffix, size, share):
    path = written(tmp_path_factory.mktemp("cut"), suffix, TEXT, size)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    try:
        found = read_all(jsonl_format(), path)
    except ShardFormatError as error:
        assert "again" in str(error)  # noqa: PT017  both outcomes are right
        return
    # A cut between two frames and two lines leaves a whole file behind.
    assert size is not None
    assert found == ROWS[: len(found)]


@settings(max_examples=60)
@given(st.integers(1, len(TEXT) - 1))
@example(len(TEXT) - 1)
def test_plain_text_that_is_cut_in_a_line_is_an_error(tmp_path_factory, end):
    path = written(tmp_path_factory.mktemp("cut"), "", TEXT[:end])
    is_whole = TEXT[end - 1 : end] == b"\n" or TEXT[end : end + 1] == b"\n"
    if is_whole:
        assert len(read_all(jsonl_format(), path)) == TEXT[: end + 1].count(b"\n")
        return
    with pytest.raises(ShardFormatError, match=r"cut off|first line"):
        scan(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged_compressed_data_is_an_error(tmp_path, suffix):
    path = written(tmp_path, suffix, TEXT)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(ShardFormatError) as caught:
        read_all(jsonl_format(), path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_replaced_file_is_an_error(tmp_path, suffix):
    path = written(tmp_path, suffix, TEXT, 2000)
    source = jsonl_format()
    found = source.scan(LocalFile(path))
    other = TEXT.replace(b'"id": 1', b'"id": 2') if suffix else TEXT.replace(b"\n", b"\n\n")
    written(tmp_path, suffix, other, 2000)
    with pytest.raises((ShardChangedError, ShardFormatError)):
        for block in found.blocks:
            if suffix:
                source.decode(LocalFile(path), block, found.schema, tmp_path / "decoded")
            else:
                source.open(memoryview(path.read_bytes()), block, found.schema)
