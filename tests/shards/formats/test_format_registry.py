"""The registry of formats."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataporter.errors import OptionError
from dataporter.shards.files import LocalListing, list_files
from dataporter.shards.formats.format import FORMATS, SUFFIXES, ReadOptions, find_files, make_format


def listing(*paths, format_=None):
    return LocalListing(root=Path("/data"), paths=paths, format=format_, request=(".",))


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_the_name_that_it_is_registered_by(name):
    made = make_format(listing("a", format_=name), ReadOptions())
    assert made.name == name


def test_an_unknown_suffix_is_refused_with_those_known(tmp_path):
    (tmp_path / "b.csv").touch()
    found = list_files(tmp_path / "b.csv", SUFFIXES)
    match = r"b\.csv has an unknown suffix.*\.parquet.*\.npy.*format=.*litdata"
    with pytest.raises(OptionError, match=match):
        make_format(found, ReadOptions())


def test_an_image_is_no_shard_and_the_message_says_how_it_is_read(tmp_path):
    (tmp_path / "b.png").touch()
    found = list_files(tmp_path / "b.png", SUFFIXES)
    with pytest.raises(OptionError, match="a Dataset of your own, which the loader takes as it is"):
        make_format(found, ReadOptions())


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".TAR.GZ", ".tar.zst"])
def test_a_compressed_tar_file_is_refused(suffix):
    with pytest.raises(OptionError, match=r"is a compressed tar file.*gunzip"):
        make_format(listing(f"a{suffix}"), ReadOptions())


def test_an_unknown_name_is_refused_with_those_known(tmp_path):
    match = r"format='parket' is unknown. Did you mean 'parquet'\? Pass one of parquet, .*mds"
    with pytest.raises(OptionError, match=match):
        find_files(tmp_path, ReadOptions(), "parket")


def test_a_name_is_preferred_to_what_the_suffix_tells(tmp_path):
    (tmp_path / "a.bin").touch()
    assert find_files(tmp_path / "a.bin", ReadOptions(), "tar")[1].name == "tar"
    assert find_files(tmp_path / "a.bin", ReadOptions(), None)[1].name == "tokens"


@pytest.mark.parametrize("options", [{"dtype": "uint16"}, {"window": 8}])
def test_options_of_tokens_are_refused_for_other_files(options):
    match = f"{next(iter(options))}= is for files of tokens, found parquet files. Leave it out."
    with pytest.raises(OptionError, match=match):
        make_format(listing("a", format_="parquet"), ReadOptions(**options))


@pytest.mark.parametrize(("kind", "name"), [("mds", "hashed"), ("mds", "zstd"), ("litdata", "raw")])
def test_a_folder_with_an_index_has_its_format(fixtures, kind, name):
    found = list_files(fixtures / kind / name, SUFFIXES)
    assert make_format(found, ReadOptions()).name == kind


def test_the_registry_imports_no_format():
    code = "import sys, dataporter.shards.formats.format; print(list(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in FORMATS:
        assert f"formats.{name}'" not in done.stdout
