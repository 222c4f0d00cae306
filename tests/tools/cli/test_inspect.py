"""`dataporter inspect` on checkpoints of real frameworks, on anything else, and on traps."""

import argparse
import io
import json
import os
import pickle
import random
import subprocess
import sys
import uuid
import warnings
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Ids
from torch.utils.data import IterableDataset

from dataporter import ResumableDataLoader
from dataporter.errors import CheckpointError, CheckpointNotFoundError, StateMissingError
from dataporter.law.lane_states import pack
from dataporter.tools.cli.main import run as run_command
from dataporter.tools.inspect import find_states


class Result(NamedTuple):
    exit_code: Any
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run(*arguments: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        run_command(["inspect", *map(str, arguments)])
    return Result(ended.value.code, out.getvalue(), err.getvalue())


def refused(*arguments: object) -> str:
    """What is said of something that cannot be inspected."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    for line in result.output.splitlines():
        assert len(line) <= 80 or " " not in line.strip()  # a path stays whole
    return " ".join(result.output.split())


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that Lightning, Accelerate, transformers, torch and torchdata have written."""
    folder = tmp_path_factory.mktemp("made")
    script = Path(__file__).with_name("framework_checkpoints.py")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.run(
        [sys.executable, str(script), str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert child.returncode == 0, child.stderr
    return folder


def save_dcp(contents: dict, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant to be
        dcp.save(contents, checkpoint_id=folder, no_dist=True)


@pytest.fixture
def state() -> dict:
    loader = ResumableDataLoader(Ids(40), batch_size=4, shuffle=True, seed=7)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return loader.state_dict()


IN_FRAMEWORKS = {
    "lightning.ckpt": "['loops']['fit_loop']['state_dict']['combined_loader'][0]",
    "accelerate": "custom_checkpoint_0.pkl",
    "transformers/checkpoint-2": (
        "trainer_state.json['stateful_callbacks']['LoaderCallback']['attributes']['loader']"
    ),
    "dcp": "['progress'][0]['loader']",
    "dcp_pickled": "['loader']['state'][0]",
    "manager": "checkpoint-000001-epoch0.pt['dataloaders'][0]",
    "manager/checkpoint-000001-epoch0.pt": "['dataloaders'][0]",
}


@pytest.mark.parametrize("name", IN_FRAMEWORKS)
def test_the_state_is_found_in_a_real_checkpoint(made, state, name):
    (found,) = find_states(made / name).states
    assert found.places == (IN_FRAMEWORKS[name],)
    fingerprint = found.state["fingerprint"]  # of tensors, where `state` is of a dataset without
    assert fingerprint.startswith("contents-")
    assert found.state == state | {"fingerprint": fingerprint}
    result = run(made / name)
    assert result.exit_code == 0
    assert "12 of 40 samples (30.0 %), after 3 batches" in result.stdout


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_torchdata_is_recognised(made, workers):
    result = run(made / f"torchdata_{workers}.pt", "--json")
    (found,) = json.loads(result.stdout)["states"]
    assert (found["kind"], found["batches"], found["finished"]) == ("torchdata", 3, False)


def test_what_a_folder_holds_beside_states_is_named_if_it_was_not_read(made):
    found = find_states(made / "transformers")
    assert [left.place for left in found.unread] == [
        "checkpoint-1/training_args.bin",
        "checkpoint-2/training_args.bin",
    ]
    assert len(found.states) == 1
    assert len(found.states[0].places) == 2  # the same in both


def test_the_text_is_this(tmp_path, state, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path is part of it
    torch.save({"model": torch.zeros(3), "loaders": [state]}, "last.pt")
    assert run("last.pt").stdout == (
        "last.pt: 1 loader state\n"
        "\n"
        "['loaders'][0]\n"
        "  epoch      0\n"
        "  position   12 of 40 samples (30.0 %), after 3 batches\n"
        "  next       position 12: samples 24, 28, 8, 6, ... of the dataset; 28 samples\n"
        "             remain, 7 full steps\n"
        "  order      shuffled by seed 7\n"
        "  saved on   1 rank, batches of 4\n"
        "  to resume  the same 40 samples, shuffle=True, seed=7 or none given; batch\n"
        "             size, ranks and workers may differ\n"
    )


@pytest.mark.parametrize("length", [10, 60, 65, 70, 75, 80, 200])
def test_a_path_is_shown_whole_whatever_its_length(tmp_path, state, monkeypatch, length):
    monkeypatch.chdir(tmp_path)
    path = Path("a" * length)
    path.write_text(json.dumps(state))
    heading = run(path).stdout.partition("\n\n")[0]
    assert " ".join(heading.split()) == f"{path}: 1 loader state"
    path.write_text("nothing")
    assert f"{path} was not read" in refused(path)


def test_json_says_the_same_for_machines(tmp_path, state):
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"loader": state}))
    said = json.loads(run(path, "--json").stdout)
    assert said["path"] == str(path)
    assert said["unread"] == []
    (found,) = said["states"]
    assert found["places"] == ["['loader']"]
    expected = {"kind": "dataporter", "epoch": 0, "position": 12, "length": 40, "seed": 7}
    assert found.items() >= (expected | {"remaining": 28, "batches": 3}).items()
    assert found["next_indices"] == [24, 28, 8, 6]


KEYS = st.text(max_size=5) | st.integers()
LEAVES = st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
NESTS = st.recursive(
    st.just("HERE"),
    lambda inner: (
        st.builds(
            lambda key, part, others: {**others, key: part},
            KEYS,
            inner,
            st.dictionaries(KEYS, LEAVES),
        )
        | st.builds(lambda part, others: [*others, part], inner, st.lists(LEAVES, max_size=3))
    ),
    max_leaves=6,
)


def planted(nest: object, state: dict) -> object:
    if nest == "HERE":
        return state
    if isinstance(nest, dict):
        return {key: planted(part, state) for key, part in nest.items()}
    return [planted(part, state) for part in nest] if isinstance(nest, list) else nest


@settings(max_examples=30)
@given(nest=NESTS)
def test_a_state_is_found_wherever_it_lies_and_its_place_leads_there(tmp_path_factory, nest):
    state = ResumableDataLoader(Ids(10), batch_size=2, seed=1).state_dict()
    contents = planted(nest, state)
    path = tmp_path_factory.mktemp("nest") / "nested.pt"
    torch.save(contents, path)
    (found,) = find_states(path).states
    assert found.state == state
    for place in found.places:
        assert eval(f"contents{place}", {"contents": contents}) == state  # noqa: S307  our own keys


def test_contents_that_hold_themselves_or_go_deep_are_searched_to_their_end(tmp_path, state):
    ring: list = [state]
    ring.append(ring)
    deep: list = [ring]
    for _ in range(400):
        deep = [deep]
    torch.save(deep, tmp_path / "deep.pt")
    (found,) = find_states(tmp_path / "deep.pt").states
    assert found.places == ("[0]" * 402,)


def test_a_state_that_every_rank_saved_is_one_finding(tmp_path, state):
    for rank in (10, 9, 0):
        torch.save({"loader": state}, tmp_path / f"rank{rank}.pt")
    (found,) = find_states(tmp_path).states
    assert found.places == tuple(f"rank{rank}.pt['loader']" for rank in (0, 9, 10))


def test_states_that_differ_are_each_explained(tmp_path, state):
    torch.save({"train": state, "val": state | {"epoch": 5}}, tmp_path / "both.pt")
    assert run(tmp_path / "both.pt").stdout.count("\n  position ") == 2


def test_arrays_beside_a_state_are_no_hindrance(tmp_path, state):
    random_states = np.random.get_state(), np.float64(1.5)  # as Accelerate saves them
    torch.save({"loader": state, "rng": random_states}, tmp_path / "arrays.pt")
    assert len(find_states(tmp_path / "arrays.pt").states) == 1


HARMLESS = {
    "a time somewhere": datetime.now(timezone.utc),
    "a time anywhere": datetime(2026, 1, 2, 3),  # noqa: DTZ001  as people write it
    "a time in a zone": datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC")),
    "a dict with defaults": defaultdict(list, a=[1]),
    "a counter": Counter("abc"),
    "a deque": deque([1, 2]),
    "a range": range(3),
    "sets": ({1, 2}, frozenset("ab")),
    "namespaces": (argparse.Namespace(lr=1), SimpleNamespace(lr=1)),
    "bytes": (b"\xff", b"", bytearray(b"x")),
    "numbers": (1j, Decimal("1.5"), Fraction(1, 3), np.float32(1), np.arange(3)),
    "an id": uuid.UUID(int=5),
    "a path": Path("x"),
    "types": (int, type(None), torch.float32, slice(1), ...),
    "generators": (random.Random(1), random.getstate(), np.random.default_rng(0)),
    "a module": torch.nn.Linear(2, 2),
}


@pytest.mark.parametrize("way", ["torch", "old torch", *range(pickle.HIGHEST_PROTOCOL + 1)])
def test_what_is_harmless_is_no_hindrance_in_files_of_any_kind(tmp_path, state, way):
    for name, beside in HARMLESS.items():
        contents = {"beside": beside, "loader": state}
        if isinstance(way, int):
            (tmp_path / name).write_bytes(pickle.dumps(contents, way))
        else:
            zipped = way == "torch"
            torch.save(contents, tmp_path / name, _use_new_zipfile_serialization=zipped)
        (found,) = find_states(tmp_path / name).states
        assert (found.state, found.places) == (state, ("['loader']",)), name


@pytest.mark.parametrize("way", ["torch", "pickle"])
def test_a_state_in_a_dict_of_another_class_is_the_same_state(tmp_path, state, way):
    contents = [OrderedDict(state), {"raw": defaultdict(list, state)}, Counter(state)]
    save = torch.save if way == "torch" else lambda what, path: path.write_bytes(pickle.dumps(what))
    save(contents, tmp_path / "dicts")
    (found,) = find_states(tmp_path / "dicts").states
    assert found.state == state
    assert found.places == ("[0]", "[1]['raw']", "[2]")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_json_with_a_mark_of_its_encoding_is_read(tmp_path, state, encoding):
    (tmp_path / "state.json").write_text(json.dumps(state), encoding=encoding)
    assert len(find_states(tmp_path / "state.json").states) == 1


@pytest.mark.parametrize("way", ["torch", "old torch", "pickle", "json"])
def test_a_state_in_bytes_or_a_file_of_any_kind_is_found(tmp_path, state, way):
    path = tmp_path / "state"
    if way == "json":
        path.write_text(json.dumps(state))
    elif way == "pickle":
        path.write_bytes(pickle.dumps(state))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=way == "torch")
    assert find_states(path).states[0].places == ("",)
    torch.save({"raw": path.read_bytes()}, tmp_path / "outer.pt")
    assert find_states(tmp_path / "outer.pt").states[0].places == ("['raw']",)
    assert "the whole file" in run(path).stdout


class Drawing(IterableDataset):
    """Its state has a tensor and an array in it."""

    def __iter__(self):
        return iter(range(10))

    def state_dict(self):
        return {"generator": torch.zeros(9, dtype=torch.uint8), "buffer": np.arange(5)}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("way", ["torch", "old torch", "pickle", "pack"])
def test_lanes_whose_states_hold_tensors_and_arrays_are_explained(tmp_path, way):
    loader = ResumableDataLoader(Drawing(), batch_size=2)
    next(iter(loader))
    path = tmp_path / "lanes.pt"
    if way in ("pickle", "pack"):
        dumps = pickle.dumps if way == "pickle" else pack
        path.write_bytes(dumps(loader.state_dict()))
    else:
        torch.save(loader.state_dict(), path, _use_new_zipfile_serialization=way == "torch")
    result = run(path)
    assert result.exit_code == 0, result.output
    assert "1; batches delivered of each: 1" in result.stdout


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


PEAK = """
import re, sys
from pathlib import Path
from dataporter.tools.cli.inspect import inspect
for path in sys.argv[1:]:
    inspect([Path(path)])
    # Of this program alone: rusage would count what its parent had in memory at the fork.
    kilobytes = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
    print(int(kilobytes) >> 10, file=sys.stderr)
"""


def test_piped_it_is_plain_text_and_weights_are_not_read_into_memory(tmp_path, state):
    paths = [tmp_path / name for name in ("small", "large", "large_and_old")]
    for path, megabytes in zip(paths, (1, 128, 128), strict=True):
        weights = {f"w{i}": torch.ones(megabytes << 14) for i in range(16)}
        zipped = path.name != "large_and_old"
        torch.save({"model": weights, "loader": state}, path, _use_new_zipfile_serialization=zipped)
    child = subprocess.run(
        [sys.executable, "-c", PEAK, *(path.name for path in paths)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert child.stdout.isascii()
    assert "\x1b" not in child.stdout
    assert all(len(line) <= 80 for line in child.stdout.splitlines())
    small, *large = map(int, child.stderr.split())
    assert all(peak - small < 32 for peak in large), child.stderr


# Several paths


def test_several_checkpoints_are_shown_one_after_another(tmp_path, state, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, at in (("one.json", 4), ("two.json", 8)):
        Path(name).write_text(json.dumps({**state, "samples_processed": at}))
    paths = ["one.json", "two.json"]
    result = run(*paths)
    assert result.exit_code == 0
    assert result.stdout.index("one.json: 1 loader state") < result.stdout.index("two.json: 1 l")
    assert result.stdout.count("position ") >= 2
    each = json.loads(run(*paths, "--json").stdout)
    assert [found["path"] for found in each] == paths
    assert [found["states"][0]["position"] for found in each] == [4, 8]


def test_one_of_several_that_cannot_be_read_does_not_hide_the_others(tmp_path, state, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.json").write_text(json.dumps(state))
    Path("bad.pt").write_bytes(b"nonsense")
    result = run("bad.pt", "good.json", "missing.pt")
    assert result.exit_code == 2
    assert "good.json: 1 loader state" in result.stdout
    said = " ".join(result.stdout.split())
    assert "bad.pt was not read: it is not a checkpoint" in said
    assert "there is no missing.pt. Name a checkpoint" in said
    found = json.loads(run("bad.pt", "good.json", "--json").stdout)
    assert "not a checkpoint" in found[0]["error"]
    assert len(found[1]["states"]) == 1


def test_excluded_spans_are_shown(tmp_path):
    loader = ResumableDataLoader(Ids(100), 10, shuffle=True, seed=3)
    loader.exclude(0, 20, 30)
    loader.exclude(2, 0, 5)
    torch.save({"loader": loader.state_dict()}, tmp_path / "checkpoint.pt")
    result = run(tmp_path / "checkpoint.pt")
    assert "excluded   positions 20 to 29 of epoch 0, 0 to 4 of epoch 2" in result.stdout
    assert "90 samples remain" in " ".join(result.stdout.split())
    (found,) = json.loads(run(tmp_path / "checkpoint.pt", "--json").stdout)["states"]
    assert found["excluded"] == [[0, 20, 30], [2, 0, 5]]
    assert found["remaining"] == 90
