"""Token files: `.bin` with raw numbers, and `.npy`.

`window` consecutive tokens are a sample, `{"tokens": array}`. The windows of a file lie end to
end; the tokens after its last whole window are left out. An `.npy` file with more than one
dimension has a sample in each row and needs no window.

A sample has memory of its own and the byte order of this machine.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dataporter.errors import OptionError, ShardFormatError
from dataporter.shards.formats.evidence import ends, evidence_of_ends, read_ends, require_whole
from dataporter.shards.formats.format import Format, ReadOptions, Rows, Sample, check_columns
from dataporter.shards.shard_file import Block, Scanned, ShardFile

COLUMN = "tokens"
_BLOCK_BYTES = 8 << 20
_LONGEST_HEADER = 12 + 10_000  # bytes of an .npy file: NumPy refuses to parse more
_WORTH_A_WARNING = 0.01  # share of a file's tokens that are left out


class TokensFormat(Format):
    """Numbers as they lie in memory, in windows of equal length."""

    name = "tokens"
    scan_options = ("dtype", "window")

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        if options.dtype is not None:
            _parse_dtype(options.dtype)

    def scan(self, file: ShardFile) -> Scanned:
        is_npy = file.name.endswith(".npy")
        dtype, shape, start = self._read_npy_header(file) if is_npy else self._raw_layout(file)
        stored = file.size - start
        expected = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if stored != expected:
            msg = (
                f"{file.name} is {'truncated' if stored < expected else 'too long'}: its header "
                f"announces {expected:,} bytes of numbers, but {stored:,} follow. Write the "
                f"file again."
            )
            raise ShardFormatError(msg)
        rows, row_shape = self._rows(file.name, shape)
        row_bytes = dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        blocks = cut_windows(file, start, rows, row_bytes)
        flat = len(shape) == 1
        warnings = left_out_warnings(file.name, shape[0], row_shape[0]) if flat else ()
        return Scanned(blocks, {"dtype": dtype.str, "shape": list(row_shape)}, warnings)

    def check(self, schema: Mapping[str, Any]) -> None:  # noqa: ARG002  all have one column
        check_columns(self.options.columns, [COLUMN])

    def open(self, data: memoryview, block: Block, schema: Mapping[str, Any]) -> Rows:
        require_whole(data, block)
        stored = np.dtype(schema["dtype"])
        native = stored.newbyteorder("=")
        shape = (block.rows, *schema["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        samples: NDArray[Any] = np.frombuffer(data, stored, count, block.offset).reshape(shape)

        def rows(numbers: Sequence[int]) -> list[Sample]:
            # astype copies, so a sample does not keep the file mapped.
            return [{COLUMN: samples[number].astype(native)} for number in numbers]

        return rows

    def _raw_layout(self, file: ShardFile) -> tuple[np.dtype[Any], tuple[int, ...], int]:
        if self.options.dtype is None:
            msg = (
                f"{file.name} has raw numbers of unknown type. Pass their dtype, such as "
                f"dtype='uint16'."
            )
            raise OptionError(msg)
        dtype = _parse_dtype(self.options.dtype)
        if file.size % dtype.itemsize:
            msg = (
                f"{file.name} has {file.size:,} bytes, which is no multiple of {dtype.itemsize}, "
                f"the size of {dtype.name}. The file is truncated, or has another dtype."
            )
            raise ShardFormatError(msg)
        return dtype, (file.size // dtype.itemsize,), 0

    def _read_npy_header(self, file: ShardFile) -> tuple[np.dtype[Any], tuple[int, ...], int]:
        head = io.BytesIO(file.read(0, _LONGEST_HEADER))
        try:
            version = npy.read_magic(head)
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, fortran_order, dtype = read(head)
        except KeyError:
            msg = (
                f"{file.name} has version {version[0]}.{version[1]} of the .npy format; 1.0 and "
                f"2.0 can be read. Write it again with numpy.save, with a plain dtype."
            )
            raise ShardFormatError(msg) from None
        except ValueError as error:
            msg = f"{file.name} does not begin as an .npy file: {error} Write it with numpy.save."
            raise ShardFormatError(msg) from error
        if dtype.kind not in "biuf":
            msg = (
                f"{file.name} has dtype {dtype}; tokens are integers, floats or booleans. Write it "
                f"again with a plain dtype."
            )
            raise ShardFormatError(msg)
        if not shape:
            msg = f"{file.name} has a single number and no dimension. Write an array of tokens."
            raise ShardFormatError(msg)
        if fortran_order and len(shape) > 1:
            msg = (
                f"{file.name} has Fortran order, in which the numbers of a row do not lie "
                f"together. Write it again with numpy.save(path, numpy.ascontiguousarray(array))."
            )
            raise ShardFormatError(msg)
        if self.options.dtype is not None and dtype != _parse_dtype(self.options.dtype):
            msg = (
                f"{file.name} has dtype {dtype.name}, not {self.options.dtype}. Leave dtype out "
                f"for .npy files."
            )
            raise OptionError(msg)
        return dtype, shape, head.tell()

    def _rows(self, name: str, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the number of samples of a file, and the shape of each."""
        window = self.options.window
        if len(shape) > 1:
            if window is not None and shape[1:] != (window,):
                msg = (
                    f"window={window} does not fit {name}, whose rows have the shape "
                    f"{shape[1:]}. Leave window out: a row is a sample."
                )
                raise OptionError(msg)
            if 0 in shape:
                msg = f"{name} is empty: its shape is {shape}. Leave the file out."
                raise ShardFormatError(msg)
            return shape[0], shape[1:]
        rows = windows_of(name, shape[0], window)
        return rows, (window or 0,)


def _parse_dtype(name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        msg = (
            f"dtype={name!r} is no dtype of tokens. Pass the name of a NumPy dtype of integers, "
            f"floats or booleans, such as 'uint16'."
        )
        raise OptionError(msg)
    return dtype


def cut_windows(file: ShardFile, start: int, rows: int, row_bytes: int) -> tuple[Block, ...]:
    """Cut windows into blocks of about 8 MiB that differ by one window at most."""
    number = min(rows, max(1, round(rows * row_bytes / _BLOCK_BYTES)))
    cuts = [rows * i // number for i in range(number + 1)]
    blocks = []
    for begin, end in pairwise(cuts):
        size = (end - begin) * row_bytes
        blocks.append(Block(start + begin * row_bytes, size, end - begin, size))
    file.expect([probe for block in blocks for probe in ends(block.offset, block.size)])
    return tuple(_with_evidence(file, block) for block in blocks)


def _with_evidence(file: ShardFile, block: Block) -> Block:
    head, tail = read_ends(file, block.offset, block.size)
    return block._replace(checksum=evidence_of_ends(head, tail, block.size))


def left_out_warnings(name: str, tokens: int, window: int) -> tuple[str, ...]:
    """Warn of the tokens after the last whole window, if they are many."""
    left_out = tokens % window
    if left_out <= _WORTH_A_WARNING * tokens:
        return ()
    warning = (
        f"{name} has {left_out:,} tokens after its last whole window of {window:,}, and they are "
        f"left out. Choose a shorter window to use them."
    )
    return (warning,)


def windows_of(name: str, tokens: int, window: int | None) -> int:
    """Return the number of whole windows in a file. Raise if there is none."""
    if window is None:
        msg = (
            f"{name} has {tokens:,} tokens in one row, so the length of a sample is unknown. Pass "
            f"window=, such as window=1024."
        )
        raise OptionError(msg)
    if tokens < window:
        msg = (
            f"{name} has {tokens:,} tokens, fewer than one window of {window:,}. Choose a shorter "
            f"window, or leave the file out."
        )
        raise ShardFormatError(msg)
    return tokens // window
