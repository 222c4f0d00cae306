"""A state is found wherever it lies in a checkpoint, and whatever lies beside it."""

import argparse
import json
import pickle
import random
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inspections import run, saved_state
from support import Ids
from torch.utils.data import IterableDataset

from dataporter import ResumableDataLoader
from dataporter.law.lane_states import pack
from dataporter.tools.inspect import find_states


@pytest.fixture
def state() -> dict:
    return saved_state()


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
