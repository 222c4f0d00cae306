"""The registry of formats."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataporter.errors import OptionError
from dataporter.shards.files import Listing, list_files
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.formats.registry import FORMATS, SUFFIXES, make_format


def listing(*paths, format_=None):
    return Listing(root=Path("/data"), paths=paths, format=format_, request=(".",))


@pytest.mark.parametrize("name", FORMATS)
def test_the_suffixes_of_a_format_are_those_in_the_registry(name):
    made = make_format(listing("a"), ReadOptions(), name)
    assert made.name == name
    assert made.suffixes == FORMATS[name].suffixes
    assert all(SUFFIXES[suffix] == name for suffix in made.suffixes)


def test_an_unknown_suffix_is_refused_with_those_known(tmp_path):
    (tmp_path / "b.csv").touch()
    found = list_files(tmp_path / "b.csv", SUFFIXES)
    match = r"b\.csv has an unknown suffix.*\.parquet.*\.npy.*format=.*litdata"
    with pytest.raises(OptionError, match=match):
        make_format(found, ReadOptions(), None)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".TAR.GZ", ".tar.zst"])
def test_a_compressed_tar_file_is_refused(suffix):
    with pytest.raises(OptionError, match=r"is a compressed tar file.*gunzip"):
        make_format(listing(f"a{suffix}"), ReadOptions(), None)


def test_an_unknown_name_is_refused_with_those_known():
    with pytest.raises(OptionError, match=r"'csv' is unknown.*parquet.*mds"):
        make_format(listing("a.tar"), ReadOptions(), "csv")


def test_a_name_is_preferred_to_what_the_listing_found():
    assert make_format(listing("a.bin", format_="tokens"), ReadOptions(), "tar").name == "tar"
    assert make_format(listing("a.bin", format_="tokens"), ReadOptions(), None).name == "tokens"


@pytest.mark.parametrize(("kind", "name"), [("mds", "hashed"), ("mds", "zstd"), ("litdata", "raw")])
def test_a_folder_with_an_index_has_its_format(fixtures, kind, name):
    found = list_files(fixtures / kind / name, SUFFIXES)
    assert make_format(found, ReadOptions(), None).name == kind


def test_the_registry_imports_no_format():
    code = "import sys, dataporter.shards.formats.registry; print(list(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in FORMATS:
        assert f"formats.{name}'" not in done.stdout
