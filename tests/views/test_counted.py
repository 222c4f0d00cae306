"""Numbers of samples that are counted once and kept in a file."""

import os

import pytest

from dataporter.errors import OptionError
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
    assert written == [(16, [".part"])]
    assert [path.suffix for path in tmp_path.iterdir()] == [".int32"]


def test_a_file_with_numbers_of_fewer_samples_is_refused(lengths, tmp_path):
    lengths.open([tmp_path])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(OptionError, match=r"3 numbers of letters, but the data has 4 samples"):
        lengths.open([tmp_path])
