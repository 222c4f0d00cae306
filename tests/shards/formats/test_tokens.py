"""Token files: windows of raw numbers and of .npy files."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import read_all

from dataporter.errors import (
    OptionError,
    ShardChangedError,
    ShardFormatError,
    ShardSchemaError,
)
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.tokens import TokensFormat
from dataporter.shards.shard_file import LocalFile


def tokens(**options):
    return TokensFormat(ReadOptions(**options))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64", "float32", "bool", ">u2"])
@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_a_sample_is_a_window_of_tokens(tmp_path, dtype, suffix):
    numbers = np.arange(1000).astype(dtype)
    path = tmp_path / f"a{suffix}"
    if suffix == ".bin":
        numbers.tofile(path)
    else:
        np.save(path, numbers)
    samples = read_all(tokens(window=64, dtype=dtype if suffix == ".bin" else None), path)
    assert len(samples) == 15
    for i, sample in enumerate(samples):
        assert list(sample) == ["tokens"]
        np.testing.assert_array_equal(sample["tokens"], numbers[64 * i : 64 * i + 64])
        assert sample["tokens"].dtype == np.dtype(dtype).newbyteorder("=")
        assert sample["tokens"].flags.owndata
        assert sample["tokens"].flags.writeable


@given(
    length=st.integers(1, 400), window=st.integers(1, 50), dtype=st.sampled_from(["u1", "u2", "i4"])
)
def test_all_whole_windows_are_there(tmp_path_factory, length, window, dtype):
    numbers = np.arange(length).astype(dtype)
    path = tmp_path_factory.mktemp("t") / "a.bin"
    numbers.tofile(path)
    if length < window:
        with pytest.raises(ShardFormatError, match="fewer than one window"):
            tokens(window=window, dtype=dtype).scan(LocalFile(path))
        return
    read = np.concatenate([s["tokens"] for s in read_all(tokens(window=window, dtype=dtype), path)])
    np.testing.assert_array_equal(read, numbers[: length // window * window])


def test_blocks_have_about_8_mib_and_differ_by_one_window(tmp_path):
    path = tmp_path / "a.bin"
    numbers = np.arange(9_000_000, dtype=np.uint32)
    numbers.tofile(path)
    blocks = tokens(window=1000, dtype="uint32").scan(LocalFile(path)).blocks
    assert [block.rows for block in blocks] == [2250] * 4
    assert blocks[0].offset == 0
    for one, after in pairwise(blocks):
        assert one.offset + one.size == after.offset
    assert all(block.size == block.decoded == block.rows * 4000 for block in blocks)
    assert len({block.checksum for block in blocks}) == 4
    samples = read_all(tokens(window=1000, dtype="uint32"), path)
    np.testing.assert_array_equal(np.concatenate([s["tokens"] for s in samples]), numbers)


def test_a_window_larger_than_a_block_is_a_block(tmp_path):
    path = tmp_path / "a.bin"
    np.zeros(20 << 20, np.uint8).tofile(path)
    assert [
        b.rows for b in tokens(window=10 << 20, dtype="uint8").scan(LocalFile(path)).blocks
    ] == [1, 1]


@pytest.mark.parametrize("at", [0, 3000, -1])
def test_the_checksum_sees_changes_at_the_ends_of_a_block(tmp_path, at):
    path = tmp_path / "a.bin"
    numbers = np.zeros(100_000, np.uint8)
    numbers.tofile(path)
    before = tokens(window=10, dtype="uint8").scan(LocalFile(path)).blocks[0]
    numbers[at] = 1
    numbers.tofile(path)
    after = tokens(window=10, dtype="uint8").scan(LocalFile(path)).blocks[0]
    assert before.checksum != after.checksum
    assert before._replace(checksum=0) == after._replace(checksum=0)


def test_rows_of_an_array_with_two_dimensions_are_samples(tmp_path):
    numbers = np.arange(60, dtype=np.int16).reshape(20, 3)
    path = tmp_path / "a.npy"
    np.save(path, numbers)
    for window in (None, 3):
        samples = read_all(tokens(window=window), path)
        np.testing.assert_array_equal([s["tokens"] for s in samples], numbers)
    with pytest.raises(OptionError, match=r"window=4 does not fit .*a\.npy.*\(3,\)"):
        tokens(window=4).scan(LocalFile(path))


def test_rows_may_have_more_dimensions(tmp_path):
    numbers = np.arange(60, dtype=np.int16).reshape(5, 3, 4)
    np.save(tmp_path / "a.npy", numbers)
    samples = read_all(tokens(), tmp_path / "a.npy")
    np.testing.assert_array_equal([s["tokens"] for s in samples], numbers)


def test_many_tokens_left_out_are_a_warning(tmp_path):
    path = tmp_path / "a.bin"
    np.zeros(199, np.uint8).tofile(path)
    (warning,) = tokens(window=100, dtype="uint8").scan(LocalFile(path)).warnings
    assert "99 tokens" in warning
    assert "shorter window" in warning
    np.zeros(10_099, np.uint8).tofile(path)
    assert tokens(window=100, dtype="uint8").scan(LocalFile(path)).warnings == ()


def test_a_raw_file_needs_a_dtype(tmp_path):
    np.zeros(10, np.uint8).tofile(tmp_path / "a.bin")
    with pytest.raises(OptionError, match=r"a\.bin has raw numbers of unknown type.*dtype="):
        tokens(window=2).scan(LocalFile(tmp_path / "a.bin"))


@pytest.mark.parametrize("dtype", ["uint17", "object", "U4", "complex64", "u2,u2", ""])
def test_an_unknown_dtype_is_refused_before_anything_is_read(dtype):
    with pytest.raises(OptionError, match="no dtype of tokens"):
        tokens(window=2, dtype=dtype)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_without_tokens_is_refused(window):
    with pytest.raises(OptionError, match=f"window must be at least 1, found {window}"):
        tokens(window=window)


def test_tokens_in_one_row_need_a_window(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(10))
    with pytest.raises(OptionError, match=r"10 tokens in one row.*Pass window="):
        tokens().scan(LocalFile(tmp_path / "a.npy"))


def test_a_size_that_does_not_fit_the_dtype_is_an_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(11))
    with pytest.raises(ShardFormatError, match=r"a\.bin has 11 bytes.*no multiple of 4"):
        tokens(window=2, dtype="int32").scan(LocalFile(tmp_path / "a.bin"))


def test_an_empty_raw_file_is_an_error(tmp_path):
    (tmp_path / "a.bin").touch()
    with pytest.raises(ShardFormatError, match="0 tokens, fewer than one window"):
        tokens(window=2, dtype="int32").scan(LocalFile(tmp_path / "a.bin"))


def test_the_dtype_must_be_that_of_the_npy_file(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(10, np.uint16))
    with pytest.raises(OptionError, match="has dtype uint16, not int32"):
        tokens(window=2, dtype="int32").scan(LocalFile(tmp_path / "a.npy"))
    assert len(read_all(tokens(window=2, dtype="uint16"), tmp_path / "a.npy")) == 5


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.asfortranarray(np.zeros((3, 4))), "Fortran order"),
        (np.array([{}, {}]), "dtype object"),
        (np.array(["a", "b"]), "dtype <U1"),
        (np.zeros(3, [("a", "u1")]), "dtype"),
        (np.array(1), "no dimension"),
        (np.zeros((0, 3)), "is empty"),
        (np.zeros(0), "0 tokens"),
    ],
)
def test_arrays_that_are_no_tokens_are_refused(tmp_path, array, found):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ShardFormatError, match=found) as caught:
        tokens(window=2 if array.ndim == 1 else None).scan(LocalFile(tmp_path / "a.npy"))
    assert str(tmp_path / "a.npy") in str(caught.value)


@given(st.data())
def test_a_truncated_npy_file_is_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("t") / "a.npy"
    np.save(path, np.arange(40))
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ShardFormatError, match=r"a\.npy"):
        tokens(window=4).scan(LocalFile(path))


def test_a_longer_npy_file_is_an_error(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(40))
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ShardFormatError, match="too long"):
        tokens(window=4).scan(LocalFile(path))


def test_a_file_that_became_shorter_is_an_error(tmp_path):
    path = tmp_path / "a.bin"
    np.zeros(100, np.uint8).tofile(path)
    format_ = tokens(window=10, dtype="uint8")
    scanned = format_.scan(LocalFile(path))
    with pytest.raises(ShardChangedError, match=r"99 bytes.*ends at 100"):
        format_.open(memoryview(bytes(99)), scanned.blocks[0], scanned.schema)


def test_the_only_column_is_tokens():
    tokens(columns=("tokens",)).check({})
    with pytest.raises(ShardSchemaError, match="No column is named 'text'"):
        tokens(columns=("text",)).check({})
