"""Readers of data in files: tests run them, and do not judge the measured speeds."""

import itertools

import pytest
import shard_contenders
import shards
from measure import AT_ONCE, BARE, Run
from shard_contenders import BATCH_SIZE, contenders, ours, sequential, taken, values_of
from shard_data import make, values

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries that are compared

ROWS = 640


@pytest.fixture(autouse=True)
def _own_rule_for_small_data(monkeypatch):
    """Readers change it for the process that they run in."""
    monkeypatch.setattr(ours, "SMALL", ours.SMALL)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return make("texts", ROWS, tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("kind", ["texts", "jpegs"])
def test_samples_depend_on_their_number_alone(kind):
    first, again = list(values(kind, 3)), list(values(kind, 5))
    assert first == again[:3]
    assert len(set(again)) == 5


def test_every_contender_reads_the_same_samples(texts):
    expected = sorted(values("texts", ROWS))
    ours = {who: each for who, each in contenders(texts).items() if who.startswith("dataporter")}
    assert len(ours) >= 5
    for who, each in {**ours, "in sequence": sequential, "taken": taken}.items():
        batches = each(texts)
        epoch = itertools.islice(batches, ROWS // BATCH_SIZE)
        found = [value for batch in epoch for value in values_of(batch, "txt")]
        batches.close()
        # Batches of a sequence end with their file.
        assert sorted(found) == expected or (who == "in sequence" and set(found) <= set(expected))


def test_readers_race_beside_the_limits(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("script.torch.set_num_threads", lambda _: None)
    monkeypatch.setattr("script.warnings.filterwarnings", lambda _: None)
    monkeypatch.setattr("script.signal.signal", lambda *_: None)
    chosen = shard_contenders.contenders
    monkeypatch.setattr(
        shards, "contenders", lambda data: dict(itertools.islice(chosen(data).items(), 1))
    )
    path = tmp_path / "run.json"
    options = ("--rows", "^texts", "--seconds", "0.5", "--samples", str(ROWS))
    shards.main([*options, "--folder", str(tmp_path), "--out", str(path)])
    (row,) = Run.read(path).rows
    assert {BARE, AT_ONCE, shards.IN_SEQUENCE, "dataporter"} == set(row.turns)
    assert row.of_limit("dataporter").median > 0
    assert "## texts of 1 kB, 2 workers" in capsys.readouterr().out


def test_resumes_and_memory_are_measured_in_new_processes(texts):
    asked = shards._asked(texts, "parquet")
    state = shards._child("state", asked)
    assert state["samples_processed"] > 0
    assert shards._child("resumed", {**asked, "cold": True}, state, 0) > 0
    found = shards.memory(texts)
    assert "| half of them fit " in found


def test_an_index_of_many_files_is_opened(texts):
    assert "| open " in shards.index(files=20)
