"""Traps, damage and what is no checkpoint: nothing runs, and the reason is said."""

import argparse
import json
import os
import pickle
import zipfile
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inspections import refused, run, save_dcp, saved_state
from support import Ids

from dataporter import ResumableDataLoader
from dataporter.errors import CheckpointError, CheckpointNotFoundError, StateMissingError
from dataporter.tools.inspect import find_states


@pytest.fixture
def state() -> dict:
    return saved_state()


class Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def trap(tmp_path):
    """A payload that is known to go off, and has not at the end of the test."""
    mark = tmp_path / "it ran".replace(" ", "_")
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()
    mark.unlink()
    yield Trap(mark)
    assert not mark.exists()


@pytest.mark.parametrize("way", ["torch", "old torch", "pickle", "bytes", "protocol 0"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, state, trap, way):
    path, contents = tmp_path / "trap.pt", {"loader": state, "trap": trap}
    if way in ("pickle", "protocol 0"):
        path.write_bytes(pickle.dumps(contents, 0 if way == "protocol 0" else None))
    elif way == "bytes":
        torch.save({"loader": pickle.dumps(contents)}, path)
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=way == "torch")
    said = refused(path)
    assert "posix.system, which may run anything" in said
    assert "weights_only=False" not in said


class Detour(Trap):
    """The same by way of a name that is not refused."""

    def __reduce__(self):
        return getattr, (super().__reduce__()[0], "__call__"), {"mark": self.mark}


def test_a_trap_that_takes_a_detour_is_refused_as_well(tmp_path, state, trap):
    path = tmp_path / "trap.pkl"
    path.write_bytes(pickle.dumps([state, Detour(trap.mark)]))
    assert "loading it would call posix.system" in refused(path)


def test_a_pickle_of_allowed_names_only_calls_none_of_them(tmp_path, state):
    class Calls:
        def __reduce__(self):
            return torch.arange, (-1,)

    path = tmp_path / "calls.pkl"
    path.write_bytes(pickle.dumps([state, Calls()]))
    with pytest.raises(RuntimeError, match="upper bound"):
        pickle.loads(path.read_bytes())
    assert len(find_states(path).states) == 1


def test_all_names_that_are_not_read_are_told(tmp_path, trap):
    torch.save([trap, print, argparse.ArgumentParser], tmp_path / "names.pt")
    said = refused(tmp_path / "names.pt")
    assert "__builtin__.print, argparse.ArgumentParser, posix.system, which may run" in said


class Hiding:
    """Pickled, its attributes have the names of what a dict can do."""

    def __reduce__(self):
        return Counter, ({"samples_processed": 1},), {"keys": 5, "items": 5, "get": 5}


def test_attributes_that_hide_what_a_dict_can_do_are_no_trap(tmp_path, state):
    path = tmp_path / "hiding.pkl"
    path.write_bytes(pickle.dumps([Hiding(), state]))
    assert len(find_states(path).states) == 1


def test_a_trap_in_a_folders_metadata_is_refused(tmp_path, trap):
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"trap": trap}))
    assert "loading it would call posix.system" in refused(tmp_path)


def test_a_trap_beside_a_state_in_a_folder_is_named_and_does_not_run(tmp_path, state, trap):
    folder = tmp_path / "dcp"
    save_dcp({"loader": state, "trap": [trap]}, folder)
    found = find_states(folder)
    assert len(found.states) == 1
    assert [left.place for left in found.unread] == ["trap"]
    result = run(folder)
    assert result.exit_code == 0
    assert "trap: loading it would call posix.system" in " ".join(result.stdout.split())


def test_what_is_no_checkpoint_is_refused_in_plain_words(tmp_path):
    files = {
        "empty.pt": b"",
        "text.pt": b"hello",
        "image.pt": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "half.json": b'{"epoch": 3, "sam',
        "deep.json": b"[" * 100_000,
        "digits.json": b'{"epoch": ' + b"9" * 5000 + b"}",
    }
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("a/b", "x")
    torch.save({"model": torch.zeros(3)}, tmp_path / "weights.pt")
    said = {path.name: refused(path) for path in sorted(tmp_path.iterdir())}
    assert "it is empty" in said["empty.pt"]
    assert "it is not a checkpoint" in said["text.pt"]
    assert "it is not a checkpoint" in said["image.pt"]
    assert "there is no loader state in" in said["weights.pt"]
    assert "it is a zip file, but not a complete one of torch.save" in said["zip.pt"]
    for name in ("half.json", "deep.json", "digits.json"):
        assert "it is damaged, cut short or no checkpoint" in said[name], name


def test_a_path_that_leads_nowhere_is_refused_in_plain_words(tmp_path):
    assert "there is no" in refused(tmp_path / "nothing")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    assert "cannot be read: No such file" in refused(tmp_path / "dangling")
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refused(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert "there is no loader state in" in refused(tmp_path / "folder")


def test_each_trouble_has_an_error_of_its_own_type(tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    for path, error in (
        (tmp_path / "nothing", CheckpointNotFoundError),
        (tmp_path / "text.pt", CheckpointError),
        (tmp_path, StateMissingError),
    ):
        with pytest.raises(error):
            find_states(path)


def test_a_folder_that_was_not_saved_to_its_end_says_so(tmp_path, state):
    save_dcp({"loader": state}, tmp_path)
    (tmp_path / ".metadata").rename(tmp_path / "metadata")
    assert "it is incomplete: there is no .metadata" in refused(tmp_path)


def test_a_folder_whose_data_is_cut_short_says_so(tmp_path, state):
    save_dcp({"loader": state}, tmp_path)
    (data,) = tmp_path.glob("*.distcp")
    data.write_bytes(data.read_bytes()[:100])
    assert "is cut short" in refused(tmp_path)


def test_a_folders_metadata_does_not_lead_out_of_the_folder(tmp_path, state):
    folder = tmp_path / "dcp"
    save_dcp({"loader": state}, folder)
    (data,) = folder.glob("*.distcp")
    data.rename(tmp_path / "12345678")
    metadata = (folder / ".metadata").read_bytes()
    assert data.name == "__0_0.distcp"
    # Of the same length, since a pickle counts the letters of its strings.
    (folder / ".metadata").write_bytes(metadata.replace(b"__0_0.distcp", b"./../1234567"))
    (tmp_path / "12345678").rename(tmp_path / "1234567")
    assert "it is outside of the folder" in refused(folder)


def test_what_is_harmless_among_hyper_parameters_hides_no_state(tmp_path, state):
    parameters = {
        "folder": Path("/data"),
        "arguments": argparse.Namespace(rate=0.1, folder=Path("/out")),
        "took": timedelta(hours=3),
    }
    torch.save({"hyper_parameters": parameters, "loader": state}, tmp_path / "run.pt")
    result = run(tmp_path / "run.pt")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "['loader']" in result.stdout


def test_a_damaged_state_is_shown_with_what_is_wrong_with_it(tmp_path, state):
    (tmp_path / "bad.json").write_text(json.dumps(state | {"epoch": -1}))
    assert "'epoch' must be an int of at least 0 and below 2**63, found int -1" in refused(
        tmp_path / "bad.json"
    )
    (tmp_path / "good.json").write_text(json.dumps(state))
    result = run(tmp_path)
    assert result.exit_code == 0  # one of them can be resumed from
    assert "cannot be read" in result.stdout


def test_a_traceback_is_shown_only_if_asked_for(tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    result = run(tmp_path / "text.pt", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert "it is not a checkpoint" in result.stderr


def test_what_a_checkpoint_says_cannot_reach_the_terminal_as_a_command(tmp_path, state):
    evil = "\x1b[2J\x1b]0;title\x07"
    torch.save({evil: state | {"order": evil, "fingerprint": evil}}, tmp_path / "evil.pt")
    torch.save({evil: {"samples_processed": 1, "batches_processed": 1, evil: 1}}, tmp_path / "b.pt")
    for result in (run(tmp_path / "evil.pt"), run(tmp_path / "b.pt"), run(tmp_path)):
        assert result.output
        assert "\x1b" not in result.output
        assert "\x07" not in result.output


PLACES = st.integers(0, 2**20)  # taken modulo the length, which depends on the folder's name


@settings(max_examples=60)
@given(
    way=st.sampled_from(["torch", "old torch", "pickle", "json", "metadata"]),
    changes=st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=3),
    cut=st.none() | PLACES,
)
def test_damage_of_any_kind_is_told_without_a_traceback(tmp_path_factory, way, changes, cut):
    folder = tmp_path_factory.mktemp("damage")
    path = folder / "damaged.pt"
    state = ResumableDataLoader(Ids(10), batch_size=2, seed=1).state_dict()
    if way == "metadata":
        save_dcp({"loader": state}, folder)
        path = folder / ".metadata"
    elif way == "json":
        path.write_text(json.dumps(state))
    elif way == "pickle":
        path.write_bytes(pickle.dumps(state))
    else:
        contents = {"loader": state, "w": torch.zeros(20)}
        torch.save(contents, path, _use_new_zipfile_serialization=way == "torch")
    raw = bytearray(path.read_bytes())
    for place, byte in changes:
        raw[place % len(raw)] = byte
    path.write_bytes(raw if cut is None else raw[: cut % len(raw)])
    result = run(folder if way == "metadata" else path)
    assert result.exit_code in (0, 2)
