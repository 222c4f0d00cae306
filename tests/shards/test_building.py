"""Indexes that are built, kept, updated and shared."""

import logging
import os
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from lines_format import SUFFIXES, LinesFormat, write_lines
from test_index import assert_same

from dataporter.errors import (
    ShardCacheError,
    ShardChangedError,
    ShardError,
    ShardFormatError,
    ShardSchemaError,
    ShardsNotFoundError,
    ShardWarning,
)
from dataporter.shards.building import Journal, open_index
from dataporter.shards.files import list_files
from dataporter.shards.formats.format import ReadOptions
from dataporter.shards.places import default_folder
from dataporter.shards.schemas import check_schemas
from dataporter.shards.shard_file import Scanned
from dataporter.system.files import user_folder, whole_records


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dataporter"


@pytest.fixture
def data(tmp_path):
    for number in range(5):
        write_lines(tmp_path / "data" / f"{number}.lines", range(number, 2 * number + 1))
    return tmp_path / "data"


@pytest.fixture
def scans(tmp_path):
    log = tmp_path / "scans"
    log.touch()

    def taken():
        names = sorted(log.read_text().split())
        log.write_text("")
        return names

    taken.log = log
    return taken


def opened(files, scans=None, options=None, **how):
    log = scans.log if scans is not None else None
    return open_index(list_files(files, SUFFIXES), LinesFormat(options, log=log), **how)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_index_is_built_once_and_then_read(data, scans):
    first = opened(data, scans)
    assert scans() == [f"{number}.lines" for number in range(5)]
    again = opened(data, scans)
    assert scans() == []
    assert_same(again, first, but=())
    assert len(first) == 1 + 2 + 3 + 4 + 5
    assert first.place.parent == data / ".dataporter"
    assert names_in(data / ".dataporter") == [first.place.name]


def test_several_requests_and_options_have_an_index_each(data, scans):
    opened(data)
    places = {opened(files).place for files in (data, f"{data}/*.lines", data / "1.lines")}
    assert len(places) == 3
    assert opened(data, options=ReadOptions(window=3)).place not in places
    # An option that a scan does not heed needs no other index.
    assert opened(data, options=ReadOptions(columns=("id",), allow_pickle=True)).place in places


def test_only_an_added_file_is_scanned(data, scans):
    old = opened(data, scans)
    scans()
    write_lines(data / "9.lines", "ab")
    with pytest.warns(
        ShardWarning, match=r"1 added \(9\.lines\).*17 rows now, and had 15"
    ) as found:
        new = opened(data, scans)
    assert scans() == ["9.lines"]
    assert "States saved before belong to the old data" in str(found[0].message)
    assert new.fingerprint != old.fingerprint
    assert opened(data, scans).fingerprint == new.fingerprint  # and warns no more


def test_every_kind_of_change_is_named(data):
    opened(data)
    for number in range(10, 15):
        write_lines(data / f"{number}.lines", "x")
    (data / "0.lines").unlink()
    write_lines(data / "1.lines", "z")
    (data / "4.lines").write_bytes((data / "4.lines").read_bytes()[:-2])
    with pytest.warns(ShardWarning) as found:
        opened(data)
    text = str(found[0].message)
    assert "5 added (10.lines, 11.lines, 12.lines and 2 more)" in text
    assert "1 removed (0.lines)" in text
    assert "2 replaced (1.lines, 4.lines)" in text


def test_a_file_that_was_only_touched_changes_nothing(data, scans):
    old = opened(data, scans)
    scans()
    os.utime(data / "2.lines", ns=(1, 1))
    new = opened(data, scans)
    assert scans() == ["2.lines"]
    assert_same(new, old, but=("versions",))
    opened(data, scans)
    assert scans() == []


def test_a_replaced_file_of_the_same_size_is_noticed(data):
    old = opened(data)
    status = (data / "2.lines").stat()
    write_lines(data / "2.lines", (7, 8, 9))
    os.utime(data / "2.lines", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert (data / "2.lines").stat().st_size == status.st_size
    with pytest.warns(ShardWarning, match=r"1 replaced \(2\.lines\)"):
        assert opened(data).fingerprint != old.fingerprint


def test_a_copy_elsewhere_is_the_same_data(data, tmp_path, scans):
    index = opened(data)
    shutil.copytree(data, tmp_path / "copy")  # with its index, and the times of its files
    copy = opened(tmp_path / "copy", scans)
    assert scans() == []
    assert copy.root == tmp_path / "copy"
    assert copy.fingerprint == index.fingerprint
    shutil.rmtree(tmp_path / "copy/.dataporter")
    assert opened(tmp_path / "copy").fingerprint == index.fingerprint
    (tmp_path / "copy/1.lines").rename(tmp_path / "copy/one.lines")
    with pytest.warns(ShardWarning):
        assert opened(tmp_path / "copy").fingerprint != index.fingerprint


def test_rebuild_scans_everything(data, scans):
    opened(data, scans)
    scans()
    opened(data, scans, rebuild=True)
    assert len(scans()) == 5


def test_a_damaged_index_is_built_again(data, scans):
    first = opened(data, scans)
    first.place.write_bytes(b"nonsense")
    scans()
    assert_same(opened(data, scans), first)
    assert len(scans()) == 5


# Places


def test_a_folder_can_be_chosen(data, tmp_path, cache):
    write_lines(tmp_path / "other" / "0.lines", "ab")
    chosen = tmp_path / "chosen"
    places = {opened(files, folder=chosen).place for files in (data, tmp_path / "other")}
    assert {path.parent for path in places} == {chosen}
    assert len(places) == 2
    assert not cache.exists()
    assert not (data / ".dataporter").exists()


def test_a_read_only_folder_has_its_index_in_the_cache(data, cache, scans):
    (data / ".dataporter").touch()  # no folder can be made here, by nobody
    index = opened(data, scans)
    assert index.place.parent == cache
    scans()
    assert_same(opened(data, scans), index, but=())
    assert scans() == []


def test_an_index_beside_read_only_data_is_read_and_updated_in_the_cache(data, cache, scans):
    beside = opened(data, scans).place
    contents = beside.read_bytes()
    shutil.rmtree(beside.parent)
    write_lines(data / "9.lines", "ab")
    # A folder that holds the old index, in which no journal can be made.
    beside.parent.mkdir()
    beside.write_bytes(contents)
    beside.with_suffix(".part").mkdir()
    scans()
    with pytest.warns(ShardWarning, match="1 added"):
        index = opened(data, scans)
    assert index.place.parent == cache
    assert scans() == ["9.lines"]
    assert opened(data, scans).place == index.place
    assert scans() == []


def test_no_place_is_an_error_with_a_remedy(data, cache, tmp_path):
    (data / ".dataporter").touch()
    cache.parent.mkdir()
    cache.touch()
    with pytest.raises(ShardCacheError, match="another one by index=") as error:
        opened(data)
    assert str(data / ".dataporter") in str(error.value)
    assert str(cache) in str(error.value)
    assert error.value.errno is not None
    with pytest.raises(ShardCacheError, match="chosen"):
        (tmp_path / "chosen").touch()
        opened(data, folder=tmp_path / "chosen")


FULL_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from lines_format import LinesFormat, SUFFIXES
from dataporter.errors import ShardCacheError
from dataporter.shards.building import open_index
from dataporter.shards.files import list_files
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)  # writing more is an OSError
try:
    open_index(list_files(sys.argv[2], SUFFIXES), LinesFormat())
except ShardCacheError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [10, 1500])  # bytes: in the journal, in the index
def test_a_full_disk_is_an_error_that_leaves_nothing_half_written(data, limit):
    here = str(Path(__file__).parent)
    child = subprocess.run(
        [sys.executable, "-c", FULL_DISK, here, str(data), str(limit)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "the index could not be written to" in child.stdout
    assert [name.rpartition(".")[2] for name in names_in(data / ".dataporter")] == ["part"]
    opened(data)
    assert [name.rpartition(".")[2] for name in names_in(data / ".dataporter")] == ["arrow"]


def test_the_cache_folder_is_the_users(data, tmp_path, monkeypatch):
    (data / ".dataporter").touch()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if sys.platform == "linux":
        assert opened(data).place.parent == tmp_path / "home/.cache/dataporter"


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_blocks_and_indexes_lie_in_one_folder_of_the_user(system, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", system)
    place = {"linux": ".cache", "darwin": "Library/Caches"}[system]
    assert default_folder() == user_folder() / "blocks" == tmp_path / place / "dataporter/blocks"


# Processes


def test_one_builds_while_others_wait(data, scans, caplog):
    caplog.set_level(logging.INFO, "dataporter")
    listing = list_files(data, SUFFIXES)
    found = []
    barrier = threading.Barrier(6)

    def build():
        barrier.wait()
        found.append(open_index(listing, LinesFormat(seconds=0.05, log=scans.log)))

    threads = [threading.Thread(target=build) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(scans()) == 5
    for index in found:
        assert_same(index, found[0], but=())
    assert names_in(data / ".dataporter") == [found[0].place.name]
    assert "waiting for the process that builds the index" in caplog.text


def test_without_locks_each_builds_and_the_index_is_whole(data, monkeypatch):
    monkeypatch.setattr("dataporter.system.files.fcntl", None)
    listing = list_files(data, SUFFIXES)
    found = []

    def build():
        found.append(open_index(listing, LinesFormat(seconds=0.01)))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({index.fingerprint for index in found}) == 1
    assert_same(opened(data), found[0])
    assert names_in(data / ".dataporter") == [found[0].place.name]


def test_a_journal_that_another_process_has_begun_or_removed_meanwhile_is_read(data, monkeypatch):
    monkeypatch.setattr("dataporter.system.files.fcntl", None)
    index = opened(data)
    files = {file.path: file for file in index.files()}
    with closing(Journal(index.place)) as journal:
        journal.clear()
        head = journal.path.read_bytes()
        for file in files.values():
            journal.keep(file)
        journal.path.write_bytes(head + journal.path.read_bytes())
        assert journal.files().keys() == files.keys()
        with closing(Journal(index.place)) as others:
            others.finish()
        assert not journal.path.exists()
        assert journal.files().keys() == files.keys()


def test_temporary_files_of_a_killed_process_are_removed(data):
    place = opened(data).place
    leftover = place.with_name(f"{place.name}.123.tmp")
    leftover.touch()
    os.utime(data / "0.lines", ns=(1, 1))
    opened(data)
    assert not leftover.exists()


def test_a_journal_that_was_cut_anywhere_is_continued(data, scans):
    """As a kill leaves it: any prefix of a journal, then a build."""
    whole = opened(data)
    journal = whole.place.with_suffix(".part")
    whole.place.unlink()
    (data / "5.lines").write_text("damaged")
    with pytest.raises(ShardFormatError):
        opened(data)
    (data / "5.lines").unlink()
    contents = journal.read_bytes()
    assert len(list(whole_records(contents))) == 1 + 1 + 5  # a head, a schema, the files
    for length in range(0, len(contents) + 1, 23):
        whole.place.unlink(missing_ok=True)
        journal.write_bytes(contents[:length])
        scans()
        assert_same(opened(data, scans), whole)
        finished = max(0, len(list(whole_records(contents[:length]))) - 2)
        assert len(scans()) == 5 - finished
        assert not journal.exists()


def test_a_file_that_changed_since_it_was_journalled_is_scanned_again(data, scans):
    (data / "5.lines").write_text("damaged")
    with pytest.raises(ShardFormatError):
        opened(data, scans)
    write_lines(data / "1.lines", "new rows here")
    (data / "5.lines").unlink()
    scans()
    index = opened(data, scans)
    assert scans() == ["1.lines"]
    assert_same(index, opened(data, rebuild=True))


def test_files_on_a_slow_file_system_are_looked_at_in_threads(data, scans, monkeypatch):
    for number in range(10, 200):
        write_lines(data / f"{number}.lines", "ab")
    index = opened(data)
    monkeypatch.setattr("dataporter.shards.files._QUICK", 0.0)
    assert_same(opened(data, scans), index, but=())
    assert scans() == []


# Problems of files


def test_damaged_files_are_named_and_the_others_are_kept(data, scans):
    (data / "1.lines").write_text("x")
    (data / "3.lines").write_text("x")
    with pytest.raises(ShardFormatError, match=r"1\.lines is damaged") as error:
        opened(data, scans)
    assert any("3.lines is damaged" in note for note in error.value.__notes__)
    scans()
    write_lines(data / "1.lines", "ab")
    write_lines(data / "3.lines", "ab")
    opened(data, scans)
    assert scans() == ["1.lines", "3.lines"]


def test_many_damaged_files_end_the_scan(data):
    for number in range(100):
        (data / f"{number}.lines").write_text("x")
    with pytest.raises(ShardFormatError) as error:
        opened(data)
    assert len(error.value.__notes__) == 4


def test_a_file_that_cannot_be_read_is_named(data):
    class Unreadable(LinesFormat):
        def scan(self, file):  # noqa: ARG002  it never gets to the file
            raise PermissionError(13, "Permission denied")

    with pytest.raises(ShardError, match=r"0\.lines cannot be read: Permission denied"):
        open_index(list_files(data, SUFFIXES), Unreadable())


def test_a_link_that_leads_nowhere_is_named(data):
    (data / "7.lines").symlink_to(data / "gone")
    with pytest.raises(ShardsNotFoundError, match=r"7\.lines is a link that leads nowhere"):
        opened(f"{data}/7.lines")


def test_a_file_that_changes_while_it_is_scanned_is_an_error(data):
    class Growing(LinesFormat):
        def scan(self, file):
            scanned = super().scan(file)
            with file.path.open("a") as opened:
                opened.write("more\n")
            return scanned

    with pytest.raises(ShardChangedError, match="changed while it was indexed"):
        open_index(list_files(data, SUFFIXES), Growing())


def test_warnings_of_formats_are_given_once_and_kept(data):
    for number in range(10, 16):
        write_lines(data / f"{number}.lines", [])
    with pytest.warns(ShardWarning) as found:
        index = opened(data)
    texts = [str(each.message) for each in found]
    assert texts[0] == "10.lines: It is empty. Leave it out."
    assert len(texts) == 4
    assert texts[3].startswith("3 more warnings about files in")
    assert opened(data).warnings == index.warnings  # which raises if it warns again
    assert len(index.warnings) == 6


# Schemas


def test_a_drift_of_schemas_is_named_and_raises_for_selected_columns(data):
    write_lines(data / "5.lines", "x", "text:binary n:int64")
    write_lines(data / "6.lines", "x", "n:int64")
    with pytest.warns(ShardWarning) as found:
        opened(data)
    text = str(found[0].message)
    assert "5.lines has 'text' of type binary (expected string), 'n' of type int64" in text
    assert "6.lines has no 'text'" in text
    index = opened(data)
    with pytest.raises(ShardSchemaError, match=r"5\.lines has 'text' of type binary"):
        check_schemas(index, LinesFormat())
    with pytest.raises(ShardSchemaError, match=r"6\.lines has no 'text'"):
        check_schemas(index, LinesFormat(ReadOptions(columns=("text",))))
    check_schemas(index, LinesFormat(ReadOptions(columns=())))


def test_a_column_that_is_the_same_everywhere_may_be_selected(tmp_path):
    write_lines(tmp_path / "a.lines", "x", "id:int64 text:string")
    write_lines(tmp_path / "b.lines", "x", "id:int64 text:binary")
    with pytest.warns(ShardWarning):
        index = opened(tmp_path)
    check_schemas(index, LinesFormat(ReadOptions(columns=("id",))))
    with pytest.raises(ShardSchemaError):
        check_schemas(index, LinesFormat(ReadOptions(columns=("text",))))


def test_a_format_without_a_fixed_schema_has_no_drift(data):
    class Loose(LinesFormat):
        fixes_schema = False

    write_lines(data / "5.lines", "x", "n:int64")
    index = open_index(list_files(data, SUFFIXES), Loose())
    check_schemas(index, Loose())
    assert len(index.schemas) == 2


def test_schemas_without_columns_are_compared_as_they_are(tmp_path):
    class Raw(LinesFormat):
        def scan(self, file):
            return Scanned(super().scan(file).blocks, {"dtype": file.path.stem})

    write_lines(tmp_path / "u2.lines", "x")
    write_lines(tmp_path / "u4.lines", "x")
    with pytest.warns(ShardWarning, match=r"u4.lines has 'dtype' of type u4 \(expected u2\)"):
        index = open_index(list_files(tmp_path, SUFFIXES), Raw())
    with pytest.raises(ShardSchemaError):
        check_schemas(index, Raw(ReadOptions(columns=("tokens",))))


# Progress


def test_progress_is_logged_where_there_is_no_terminal(data, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "dataporter")
    monkeypatch.setattr("dataporter.shards.building._EVERY", 0.0)
    opened(data, progress=True)
    assert "indexed 5 of 5 files" in caplog.text
