"""WebDataset tar files, compared with webdataset's own reader."""

import gzip
import io
import json
import os
import pickle
import subprocess
import tarfile

import numpy as np
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from portable import same
from reading import read_all
from webdataset import autodecode, tariterators

from dataporter.errors import (
    OptionError,
    ShardChangedError,
    ShardFormatError,
    ShardSchemaError,
)
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.tar import TarFormat
from dataporter.shards.shard_file import LocalFile


def tar(**options):
    return TarFormat(ReadOptions(**options))


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def write(path, members, tar_format=tarfile.GNU_FORMAT):
    """Write members, each (name, bytes) or a TarInfo, in the given order."""
    with tarfile.open(path, "w", format=tar_format) as file:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
                continue
            name, body = member
            info = tarfile.TarInfo(name)
            info.size = len(body)
            file.addfile(info, io.BytesIO(body))
    return path


def by_webdataset(path):
    """Read samples by the parts of webdataset's pipeline; its opener never closes a file."""
    decoder = autodecode.Decoder([])
    with path.open("rb") as stream:
        files = tariterators.tar_file_expander([{"url": str(path), "stream": stream}])
        samples = [decoder(sample) for sample in tariterators.group_by_keys(files)]
    for sample in samples:
        sample.pop("__url__")
    return samples


def compare(path, **options):
    ours, theirs = read_all(tar(**options), path), by_webdataset(path)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        same(one, other)
    return ours


def sample(i):
    return {
        "__key__": f"folder/{i:06d}",
        "jpg": os.urandom(300 + i),
        "txt": f"Grüße {i} 你好",
        "cls": i,
        "json": {"a": [i, None, "ü"]},
        "npy": np.arange(i % 7, dtype=np.float32),
        "seg.png": b"",
        "npz": {"x": np.eye(2), "y": np.int64(i)},
        "transcript": "t",
        "text": "",
        "id": -i,
        "index": i,
        "inx": i,
        "cls2": i,
        "jsn": [1],
        "count": b"1",
        "class": b"2",
    }


def encode(sample):
    encoders = {
        "json": json.dumps,
        "jsn": json.dumps,
        "npy": npy,
        "npz": lambda arrays: npz(**arrays),
    }
    encoded = {}
    for key, value in sample.items():
        value = encoders.get(key, lambda v: v)(value)
        if key != "__key__" and not isinstance(value, bytes):
            value = str(value).encode()
        encoded[key] = value
    return encoded


def test_samples_of_its_tar_writer_equal_webdatasets_own(tmp_path):
    path = tmp_path / "a.tar"
    with webdataset.TarWriter(str(path), encoder=False) as writer:
        for i in range(50):
            writer.write(encode(sample(i)))
    assert len(compare(path)) == 50


def test_samples_of_its_shard_writer_equal_webdatasets_own(tmp_path):
    with webdataset.ShardWriter(str(tmp_path / "s-%02d.tar"), maxcount=7, verbose=0) as writer:
        for i in range(20):
            writer.write(
                {"__key__": f"{i}", "txt": f"ö{i}", "cls": i, "png": b"p" * i, "npy": np.ones(i)}
            )
    paths = sorted(tmp_path.glob("*.tar"))
    assert [len(compare(path)) for path in paths] == [7, 7, 6]


def test_pickles_are_read_only_if_allowed(tmp_path):
    path = write(
        tmp_path / "a.tar",
        [(f"a.{kind}", pickle.dumps({"a": 1})) for kind in ("pyd", "pickle", "pkl", "x.pyd")]
        + [("a.txt", b"text")],
    )
    with pytest.raises(OptionError, match=r"'pickle' are pickles.*allow_pickle=True"):
        read_all(tar(), path)
    assert read_all(tar(columns=("txt",)), path) == [{"__key__": "a", "txt": "text"}]
    compare(path, allow_pickle=True)


def test_an_array_of_objects_is_read_only_if_pickles_are_allowed(tmp_path):
    path = write(tmp_path / "a.tar", [("a.npy", npy(np.array([{"a": 1}])))])
    with pytest.raises(ShardFormatError, match=r"'npy' of sample 'a' at offset 512.*allow_pickle"):
        read_all(tar(), path)
    (read,) = read_all(tar(allow_pickle=True), path)
    assert read["npy"][0] == {"a": 1}


def test_compressed_members_are_decoded(tmp_path):
    body = {"txt.gz": b"text", "json.gz": b'{"a": 1}', "jpg.gz": b"image", "gz": b"raw"}
    path = write(tmp_path / "a.tar", [(f"a.{k}", gzip.compress(v)) for k, v in body.items()])
    (read,) = compare(path)
    assert read == {
        "__key__": "a",
        "txt.gz": "text",
        "json.gz": {"a": 1},
        "jpg.gz": b"image",
        "gz": b"raw",
    }


NAMES = [
    "a.txt",
    "A.TXT",
    "b.Seg.PNG",
    "dir/c.jpg",
    "dir.with.dots/d.jpg",
    "./e.jpg",
    "no_extension",
    ".hidden",
    "dir2/.hidden",
    "._mac.jpg",
    "f.",
    "g..jpg",
    "dir/no_extension",
    "__meta__",
    "__meta__/x.jpg",
    "__half.jpg",
    "dir/__inner__/y.jpg",
    "h.__note",
    "ü/ß.jpg",
    "long/" + "n" * 150 + ".jpg",
    "/".join(["part" * 10] * 6) + "/i.jpg",
    "new\nline.jpg",
    "space name.jpg",
]


@pytest.mark.parametrize(
    "tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]
)
def test_names_are_split_as_webdataset_splits_them(tmp_path, tar_format):
    names = [n for n in NAMES if tar_format != tarfile.USTAR_FORMAT or len(n) < 100]
    path = write(tmp_path / "a.tar", [(n, b"%d" % i) for i, n in enumerate(names)], tar_format)
    assert len(compare(path)) > 10


@given(
    names=st.lists(
        st.text(st.sampled_from("ab._/ü"), min_size=1, max_size=9).filter(
            lambda name: not name.endswith("/")
        ),
        max_size=6,
        unique=True,
    )
)
def test_any_names_are_split_as_webdataset_splits_them(tmp_path_factory, names):
    path = write(tmp_path_factory.mktemp("t") / "a.tar", [(name, b"x") for name in names])
    try:
        theirs = by_webdataset(path)
    except Exception:  # noqa: BLE001  webdataset has no error class of its own
        theirs = None
    try:
        ours = read_all(tar(), path)
    except ShardFormatError as error:
        assert "twice" in str(error) or "two places" in str(error)  # noqa: PT017
        assert theirs is None or len({s["__key__"] for s in theirs}) < len(theirs)
    else:
        assert ours == theirs


def info(name, kind, **fields):
    member = tarfile.TarInfo(name)
    member.type = kind
    for field, value in fields.items():
        setattr(member, field, value)
    return member


@pytest.mark.parametrize(
    "tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]
)
def test_members_that_are_no_regular_files_are_skipped(tmp_path, tar_format):
    path = write(
        tmp_path / "a.tar",
        [
            info("folder", tarfile.DIRTYPE),
            ("a.txt", b"1"),
            info("a.link", tarfile.SYMTYPE, linkname="a.txt"),
            info("a.hard", tarfile.LNKTYPE, linkname="a.txt"),
            info("a.pipe", tarfile.FIFOTYPE),
            ("a.jpg", b"2" * 600),
            info("end", tarfile.DIRTYPE),
        ],
        tar_format,
    )
    assert [list(s) for s in compare(path)] == [["__key__", "txt", "jpg"]]


def test_pax_records_are_honoured(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "c"}) as file:
        for i in range(3):
            member = tarfile.TarInfo(f"{i}ü.txt")
            member.size = 2
            member.mtime = 0.5 + i  # a pax record without a name or size
            member.pax_headers = {"size": "2"}
            file.addfile(member, io.BytesIO(b"ab"))
    assert len(compare(path)) == 3


def test_a_tar_file_made_by_tar_is_read(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    for i in range(5):
        (folder / f"{i}.txt").write_text(f"text {i}")
        (folder / f"{i}.{'x' * 120}.bin").write_bytes(os.urandom(i * 400))
    for kind in ("gnu", "pax", "ustar", "oldgnu", "v7"):
        names = sorted(p.name for p in folder.iterdir() if kind != "v7" or len(p.name) < 90)
        path = tmp_path / f"{kind}.tar"
        subprocess.run(
            ["tar", f"--format={kind}", "-cf", path, *names],  # noqa: S607
            cwd=folder,
            check=kind != "ustar",
        )
        assert len(compare(path)) == 5


def test_blocks_are_cut_between_samples(tmp_path):
    path = write(
        tmp_path / "a.tar",
        [("x", b""), info("folder", tarfile.DIRTYPE)]
        + [(f"{i:03d}.{e}", os.urandom(100_000)) for i in range(60) for e in ("a", "b")],
    )
    scanned = tar().scan(LocalFile(path))
    assert [block.rows for block in scanned.blocks] == [11, 11, 11, 11, 11, 5]
    assert scanned.blocks[0].offset == 0
    for i in range(len(scanned.blocks) - 1):
        assert scanned.blocks[i].offset + scanned.blocks[i].size == scanned.blocks[i + 1].offset
    assert len(compare(path)) == 60


def test_long_names_stay_with_their_block(tmp_path):
    path = write(
        tmp_path / "a.tar",
        [(f"{'n' * 150}{i:03d}.jpg", os.urandom(3_000_000)) for i in range(10)],
    )
    assert len(tar().scan(LocalFile(path)).blocks) > 2
    assert len(compare(path)) == 10


def test_columns_are_extensions(tmp_path):
    path = write(
        tmp_path / "a.tar",
        [("0.jpg", b"j"), ("0.TXT", b"t"), ("0.cls", b"1"), ("1.cls", b"2"), ("1.txt", b"u")],
    )
    read = read_all(tar(columns=("txt", "cls")), path)
    assert read == [
        {"__key__": "0", "txt": "t", "cls": 1},
        {"__key__": "1", "txt": "u", "cls": 2},
    ]
    with pytest.raises(ShardSchemaError, match=r"a\.tar: The sample '1' at offset .* 'jpg'"):
        tar(columns=("jpg",)).scan(LocalFile(path))
    scanned = tar().scan(LocalFile(path))
    assert scanned.schema == {"extensions": ["cls", "jpg", "txt"]}
    with pytest.raises(ShardSchemaError, match=r"No column is named 'png'.*'jpg'"):
        tar(columns=("png",)).check(scanned.schema)
    rows = tar(columns=("jpg",)).open(
        memoryview(path.read_bytes()), scanned.blocks[0], scanned.schema
    )
    assert rows([0]) == [{"__key__": "0", "jpg": b"j"}]
    with pytest.raises(ShardSchemaError, match="The sample '1' at offset"):
        rows([1])


def test_the_checksum_sees_other_members(tmp_path):
    one = tar().scan(LocalFile(write(tmp_path / "a.tar", [("0.jpg", b"j")]))).blocks[0]
    other = tar().scan(LocalFile(write(tmp_path / "b.tar", [("1.jpg", b"j")]))).blocks[0]
    assert one.checksum != other.checksum
    assert 0 <= one.checksum < 2**64


def test_an_extension_twice_is_an_error(tmp_path):
    path = write(tmp_path / "a.tar", [("0.jpg", b"j"), ("0.JPG", b"k")])
    match = r"a\.tar has the extension 'jpg' of key '0' twice, .* offsets 512 and 1,536"
    with pytest.raises(ShardFormatError, match=match):
        tar().scan(LocalFile(path))


def test_a_key_that_comes_again_is_an_error(tmp_path):
    path = write(tmp_path / "a.tar", [("0.jpg", b"j"), ("1.jpg", b"k"), ("0.txt", b"t")])
    match = r"a\.tar has the key '0' in two places, at offsets 0 and 2,048"
    with pytest.raises(ShardFormatError, match=match):
        tar().scan(LocalFile(path))


def test_a_member_cannot_be_called_key(tmp_path):
    path = write(tmp_path / "a.tar", [("0.__key__", b"j")])
    with pytest.raises(ShardFormatError, match="reserved for the key"):
        tar().scan(LocalFile(path))


@pytest.mark.parametrize(
    ("name", "body"), [("json", b"{"), ("txt", b"\xff"), ("cls", b"x"), ("npy", b""), ("gz", b"x")]
)
def test_a_value_that_cannot_be_decoded_is_named(tmp_path, name, body):
    path = write(tmp_path / "a.tar", [("k.jpg", b""), (f"k.{name}", body)])
    with pytest.raises(ShardFormatError, match=f"'{name}' of sample 'k' at offset 1,024"):
        read_all(tar(), path)
    assert read_all(tar(columns=("jpg",)), path) == [{"__key__": "k", "jpg": b""}]


def test_a_tar_file_without_samples_is_a_warning(tmp_path):
    scanned = tar().scan(LocalFile(write(tmp_path / "a.tar", [])))
    assert scanned.blocks == ()
    assert "no samples" in scanned.warnings[0]


@pytest.mark.parametrize(
    ("compress", "tool"), [(gzip.compress, "gunzip"), (lambda b: b"BZh9" + b, "bunzip2")]
)
def test_a_compressed_tar_file_is_refused(tmp_path, compress, tool):
    path = tmp_path / "a.tar"
    path.write_bytes(compress(write(tmp_path / "b.tar", [("0.jpg", b"j")]).read_bytes()))
    with pytest.raises(ShardFormatError, match=rf"a\.tar is compressed .* with {tool}"):
        tar().scan(LocalFile(path))


@pytest.mark.parametrize("content", [b"", b"short", os.urandom(5000), b"text " * 500])
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ShardFormatError, match=r"a\.tar"):
        tar().scan(LocalFile(tmp_path / "a.tar"))


def test_tar_files_that_were_joined_are_refused(tmp_path):
    path = write(tmp_path / "a.tar", [("0.jpg", b"j")])
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ShardFormatError, match="goes on after its end marker at offset 1,024"):
        tar().scan(LocalFile(path))


def test_a_sparse_member_is_refused(tmp_path):
    (tmp_path / "s.bin").write_bytes(b"")
    os.truncate(tmp_path / "s.bin", 10_000_000)
    for kind in ("gnu", "pax"):
        path = tmp_path / f"{kind}.tar"
        subprocess.run(
            ["tar", f"--format={kind}", "--sparse", "-cf", path, "s.bin"],  # noqa: S607
            cwd=tmp_path,
            check=True,
        )
        with pytest.raises(ShardFormatError, match="sparse"):
            tar().scan(LocalFile(path))


@given(st.data())
def test_a_truncated_tar_file_is_an_error(tmp_path_factory, data):
    path = write(
        tmp_path_factory.mktemp("t") / "a.tar",
        [(f"{'n' * 110}{i}.{e}", b"x" * (300 * i)) for i in range(4) for e in "ab"],
        data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])),
    )
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    path.write_bytes(whole[: data.draw(st.integers(0, end))])
    with pytest.raises(ShardFormatError, match=r"a\.tar"):
        tar().scan(LocalFile(path))


@given(st.data())
def test_damaged_headers_are_an_error_or_harmless(tmp_path_factory, data):
    """No damage may end in another error, an endless loop, or fewer samples."""
    path = write(
        tmp_path_factory.mktemp("t") / "a.tar",
        [(f"{'n' * 110}{i}.a", b"x" * 10) for i in range(3)],
        data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])),
    )
    damaged = bytearray(path.read_bytes())
    end = len(bytes(damaged).rstrip(b"\0"))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, end))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        samples = read_all(tar(), path)
    except ShardFormatError:
        return
    assert len(samples) == 3


def test_a_changed_file_is_an_error(tmp_path):
    path = write(tmp_path / "a.tar", [("0.jpg", b"j"), ("1.jpg", b"k")])
    scanned = tar().scan(LocalFile(path))
    data = path.read_bytes()
    with pytest.raises(ShardChangedError, match="became shorter"):
        tar().open(memoryview(data[:1500]), scanned.blocks[0], scanned.schema)
    other = write(tmp_path / "a.tar", [("0.jpg", b"j"), ("0.txt", b"k")]).read_bytes()
    with pytest.raises(ShardChangedError, match="1 samples, but 2 were indexed"):
        tar().open(memoryview(other), scanned.blocks[0], scanned.schema)
