"""Numbers of samples that are counted once and kept in a file."""

import os

import pytest

from dataporter.errors import ShardCacheError
from dataporter.views.counted import Counted


class Named(list):
    """Samples that have a name, so that their numbers are kept."""

    def fingerprint(self):
        return "named"


@pytest.fixture
def lengths():
    letters = Named(["a", "bbb", "", "cc"])
    return Counted(letters, lambda index, sample: len(sample), "letters", "these letters")


def test_numbers_are_on_the_disk_before_their_file_has_its_name(lengths, tmp_path, monkeypatch):
    written, fsync = [], os.fsync

    def watched(descriptor):
        fsync(descriptor)
        written.append((os.fstat(descriptor).st_size, [path.suffix for path in tmp_path.iterdir()]))

    monkeypatch.setattr(os, "fsync", watched)
    assert lengths.open([tmp_path]).tolist() == [1, 3, 0, 2]
    ((size, suffixes),) = written
    assert (size % 64, sorted(suffixes)) == (16, [".part", ".tmp"])
    assert [path.suffix for path in tmp_path.iterdir()] == [".numbers"]


@pytest.mark.parametrize("damage", ["cut", "flip", "as an older version wrote it"])
def test_a_damaged_file_of_numbers_is_counted_again(lengths, tmp_path, damage):
    lengths.open([tmp_path])
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[:-4],
            "flip": whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:],
            "as an older version wrote it": whole[-16:],
        }[damage]
    )
    assert lengths.open([tmp_path]).tolist() == [1, 3, 0, 2]
    assert path.read_bytes() == whole


def test_numbers_are_kept_in_the_first_folder_that_can_be_written_to(lengths, tmp_path):
    (tmp_path / "file").touch()
    folders = [tmp_path / "file", tmp_path / "folder"]
    assert lengths.open(folders).tolist() == [1, 3, 0, 2]
    assert len(list(folders[1].iterdir())) == 1
    with pytest.raises(ShardCacheError, match="the numbers of letters could not be written to"):
        lengths.open(folders[:1])
