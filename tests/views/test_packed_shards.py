"""Packed documents that lie in files: blocks are fetched ahead, and lengths are counted once."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from locks import waits_for_a_lock
from torch.utils.data import Subset, default_collate
from typer.testing import CliRunner
from watching import until

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, ShardSchemaError, StateMismatchError
from dataporter.shards import ShardedDataset
from dataporter.shards import dataset as dataset_module
from dataporter.tools.cli.main import app
from dataporter.tools.verify import verify
from dataporter.views import Mixture, packed
from dataporter.views.counted import Counted
from dataporter.views.packing import count_of
from dataporter.views.tokens import TokenIds

LENGTHS = np.random.default_rng(7).integers(0, 60, 1200)
KINDS = ("windows", "best-fit")


@pytest.fixture
def _tracks(monkeypatch):
    """Order small data by tracks too."""
    monkeypatch.setattr(dataset_module, "SMALL", 0)


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory):
    """1,200 documents in 40 row groups of 10 files; token k of document i is 1000 i + k."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = [1000 * number + np.arange(n) for number, n in enumerate(LENGTHS)]
    for file in range(10):
        rows = slice(120 * file, 120 * file + 120)
        tokens = pa.array(documents[rows], pa.list_(pa.int32()))
        texts = [f"{number} " * 3 for number in range(rows.start, rows.stop)]
        table = pa.table({"tokens": tokens, "text": texts})
        pq.write_table(table, folder / f"part-{file}.parquet", row_group_size=30)
    return folder


def loader_of(data, batch_size=4, **options):
    options = {"shuffle": True, "seed": 5, "tail": "uneven", **options}
    return ResumableDataLoader(data, batch_size, **options)


def tokens_of(batches):
    return [token for batch in batches for token in batch["tokens"].flatten().tolist()]


def all_tokens():
    return [1000 * number + place for number, n in enumerate(LENGTHS) for place in range(n)]


@pytest.mark.usefixtures("_tracks")
@pytest.mark.parametrize("kind", KINDS)
def test_every_token_of_files_comes_once_in_an_epoch_on_any_ranks(corpus_folder, kind):
    view = ShardedDataset(corpus_folder).packed(64, kind=kind, pad_id=-1)
    found = []
    for rank in range(3):
        found += tokens_of(loader_of(view, rank=rank, world_size=3, num_workers=rank % 2))
    assert sorted(token for token in found if token >= 0) == all_tokens()


@pytest.mark.usefixtures("_tracks")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_over_files_goes_on_with_other_ranks_and_batches(corpus_folder, kind):
    view = ShardedDataset(corpus_folder).packed(64, kind=kind, pad_id=-1)
    loader = loader_of(view, 5)
    order = loader.sampler.order
    batches = iter(loader)
    found = tokens_of(next(batches) for _ in range(20))
    state = loader.state_dict()
    for rank in range(2):
        resumed = loader_of(view, 7, rank=rank, world_size=2)
        resumed.load_state_dict(state)
        assert resumed.sampler.order.id == order.id
        found += tokens_of(resumed)
    assert sorted(token for token in found if token >= 0) == all_tokens()


def test_small_data_is_shuffled_as_a_whole(corpus_folder):
    view = ShardedDataset(corpus_folder).packed(64)
    batch = next(iter(loader_of(view, 8)))["tokens"]
    blocks = {int(token) // 1000 // 30 for token in batch.flatten()}
    assert len(blocks) >= 8
    assert max(tokens_of(loader_of(view))) == all_tokens()[-1]


def test_subsets_of_windows_over_files_are_parts_of_a_mixture(corpus_folder):
    view = ShardedDataset(corpus_folder).packed(64, pad_id=-1)
    parts = {"a": (Subset(view, range(4, 9)), 5), "b": (Subset(view, [7, -1]), 2)}
    loader = loader_of(Mixture(parts, epoch=7), 3)
    found = sorted(row.tolist() for batch in loader for row in batch["tokens"])
    wanted = [*range(4, 9), 7, len(view) - 1]
    assert found == sorted(view[index]["tokens"].tolist() for index in wanted)


@pytest.mark.usefixtures("_tracks")
@pytest.mark.parametrize("kind", KINDS)
def test_unshuffled_documents_come_in_the_order_of_the_files(corpus_folder, kind):
    view = ShardedDataset(corpus_folder).packed(64, kind=kind, pad_id=-1)
    found = [token for token in tokens_of(loader_of(view, shuffle=False)) if token >= 0]
    assert sorted(found) == all_tokens()
    if kind == "windows":
        assert found == all_tokens()
    else:
        firsts = tokens_of([{"tokens": b["tokens"][:, 0]} for b in loader_of(view, shuffle=False)])
        assert firsts == sorted(firsts)


@pytest.mark.usefixtures("_tracks")
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_decoded_before_they_are_asked_for(corpus_folder, kind, tmp_path):
    corpus = ShardedDataset(corpus_folder, cache=tmp_path)
    view = corpus.packed(64, kind=kind)
    batches = iter(loader_of(view))
    next(batches)
    until(
        lambda: corpus.stats().get("ahead", 0) >= 10, seconds=60
    )  # of what the next batches ask for
    for _ in batches:
        pass
    stats = corpus.stats()
    assert stats["decoded"] == 40
    assert stats["ahead"] >= 10


@pytest.mark.usefixtures("_tracks")
def test_a_small_cache_decodes_few_blocks_twice(corpus_folder, tmp_path):
    whole = ShardedDataset(corpus_folder, cache=tmp_path / "whole")
    list(loader_of(whole.packed(64)))
    budget = whole.stats()["bytes"] // 2
    corpus = ShardedDataset(corpus_folder, cache=tmp_path / "half", cache_bytes=budget)
    found = tokens_of(loader_of(corpus.packed(64)))
    assert len(set(found)) >= len(all_tokens())
    assert corpus.stats()["decoded"] <= 60


def make_loader():
    folder = os.environ["PACKED_CORPUS"]
    dataset_module.SMALL = 0
    return loader_of(ShardedDataset(folder).packed(64, boundaries=True), 6, tail="pad")


@pytest.mark.soak
@pytest.mark.usefixtures("_tracks")
def test_verify_says_exact_of_packed_files(corpus_folder, monkeypatch):
    monkeypatch.setenv("PACKED_CORPUS", str(corpus_folder))
    options = {"workers": (2,), "batch_sizes": (5,), "world_sizes": (2,)}
    report = verify(make_loader, batches=6, points=1, seconds=1000, **options)
    assert report.is_exact, str(report)


def test_other_data_is_noticed_at_a_resume(corpus_folder, tmp_path):
    saved = loader_of(ShardedDataset(corpus_folder).packed(64))
    next(iter(saved))
    tokens = pa.array([[1] * 70] * 500, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": tokens}), tmp_path / "other.parquet")
    with pytest.raises(StateMismatchError):
        loader_of(ShardedDataset(tmp_path).packed(64)).load_state_dict(saved.state_dict())


def test_a_missing_column_is_named(corpus_folder):
    with pytest.raises(OptionError, match=r"no column 'token'\. Did you mean 'tokens'"):
        ShardedDataset(corpus_folder).packed(64, by="token")


@pytest.mark.usefixtures("_tracks")
@pytest.mark.parametrize("kind", KINDS)
def test_batches_that_are_gathered_are_those_of_the_samples(corpus_folder, kind):
    view = ShardedDataset(corpus_folder).packed(64, kind=kind, boundaries=True, pad_id=7)
    assert view.batch_gather() is not None
    gathered = list(loader_of(view, num_workers=1))
    one_by_one = list(loader_of(view, collate_fn=default_collate))
    plain = ShardedDataset(corpus_folder, transform=dict)  # its documents are read as samples
    read = list(loader_of(plain.packed(64, kind=kind, boundaries=True, pad_id=7)))
    for batches in (one_by_one, read):
        for one, other in zip(gathered, batches, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                assert one[name].dtype == other[name].dtype
                assert torch.equal(one[name], other[name])


def test_lengths_that_are_wrong_are_noticed_in_blocks_too(corpus_folder):
    lengths = LENGTHS.copy()
    lengths[17] += 1
    view = ShardedDataset(corpus_folder).packed(64, lengths=lengths)
    with pytest.raises(OptionError, match=r"document 17 has .* tokens, but .* were counted"):
        list(loader_of(view))


# Counting


class Watched(Counted):
    """A count that says how many samples it has counted."""

    __slots__ = ()
    counted: list[int] = []  # noqa: RUF012  shared by all

    def evaluate(self, start, num_workers=None):
        for numbers in super().evaluate(start, num_workers):
            self.counted.append(len(numbers))
            yield numbers


def test_lengths_are_counted_once_and_kept_beside_the_index(corpus_folder):
    corpus = ShardedDataset(corpus_folder)
    corpus.packed(64)
    what = Watched(*count_of(corpus, TokenIds()))
    Watched.counted.clear()
    folder = corpus.index.place.parent
    assert what.open([folder]).tolist() == LENGTHS.tolist()
    assert Watched.counted == []
    assert not list(folder.glob("*.part"))


def test_a_count_that_stops_goes_on_where_it_was(corpus_folder, tmp_path):
    corpus = ShardedDataset(corpus_folder)

    def failing(index, sample):
        if index == 700 and not (tmp_path / "repaired").exists():
            raise OSError("gone")
        return len(sample["tokens"])

    what = Watched(corpus, failing, "test", "corpus")
    Watched.counted.clear()
    with pytest.raises(OSError, match="gone"):
        what.open([tmp_path], num_workers=0)
    (part,) = tmp_path.glob("*.part")
    assert part.stat().st_size == 4 * 512 + 2 * 16  # the heads of two records
    with part.open("ab") as file:
        file.write(b"\1")  # cut short by a kill
    (tmp_path / "repaired").touch()
    Watched.counted.clear()
    assert what.open([tmp_path], num_workers=2).tolist() == LENGTHS.tolist()
    assert sum(Watched.counted) == 1200 - 512


def test_numbers_of_other_functions_are_counted_apart(corpus_folder, tmp_path):
    corpus = ShardedDataset(corpus_folder)
    one = packed(corpus, 64, tokenizer=lambda text: list(text.encode()), folder=tmp_path)
    two = packed(corpus, 64, tokenizer=lambda text: list(text.encode()[1:]), folder=tmp_path)
    assert one.num_tokens == two.num_tokens + 1200
    assert len(list(tmp_path.iterdir())) == 2
    packed(corpus, 64, tokenizer=lambda text: list(text.encode()), folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def counted_past(folder: Path, gate: Path, sums) -> None:
    """Count in a process of its own, which stops at sample 700 until the gate is open."""

    def length_of(index, sample):
        if index == 700:
            until(gate.exists, seconds=100)
        return len(sample["tokens"])

    counted = Counted(ShardedDataset(folder), length_of, "slow", "corpus")
    sums.put(int(counted.open([gate.parent / "counts"], num_workers=0).sum()))


def test_a_killed_count_is_finished_by_another_process(corpus_folder, tmp_path):
    context = multiprocessing.get_context("fork")
    gate, counts, sums = tmp_path / "gate", tmp_path / "counts", context.SimpleQueue()
    counts.mkdir()
    ShardedDataset(corpus_folder)  # its index is there
    first, second = (
        context.Process(target=counted_past, args=(corpus_folder, gate, sums)) for _ in range(2)
    )
    first.start()
    try:
        until(lambda: any(path.stat().st_size for path in counts.glob("*.part")), seconds=60)
        second.start()
        until(lambda: waits_for_a_lock(second.pid), seconds=60)
    finally:
        first.kill()
    first.join()
    gate.touch()
    assert sums.get() == LENGTHS.sum()
    second.join()
    assert len(list(counts.iterdir())) == 1


def test_the_command_line_counts_lengths_ahead(corpus_folder, tmp_path):
    arguments = ["index", str(corpus_folder), "--folder", str(tmp_path), "--lengths", "tokens"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"{LENGTHS.sum():,} in 'tokens'" in result.output
    corpus = ShardedDataset(corpus_folder, index=tmp_path)
    what = Watched(*count_of(corpus, TokenIds()))
    Watched.counted.clear()
    assert what.open([tmp_path]).tolist() == LENGTHS.tolist()
    assert Watched.counted == []
    wrong = CliRunner().invoke(app, [*arguments[:-1], "token"])
    assert isinstance(wrong.exception, ShardSchemaError)


def test_batches_are_those_of_the_documents(corpus_folder):
    view = ShardedDataset(corpus_folder).packed(64, boundaries=["position_ids", "loss_mask"])
    batch = next(iter(loader_of(view)))
    inside = batch["loss_mask"][:, 1:]
    steps = torch.diff(batch["tokens"])
    assert bool((steps[inside] == 1).all())


@pytest.mark.parametrize("kind", ["windows", "best-fit"])
def test_blocks_of_several_record_batches_are_cut_as_they_lie(tmp_path, kind):
    random = np.random.default_rng(4)
    documents = [
        np.arange(n, dtype=np.int32) + 100 * i for i, n in enumerate([0, 3, 0, 9, 1, 0, 5])
    ]
    documents += [random.integers(0, 99, n).astype(np.int32) for n in random.integers(0, 20, 60)]
    table = pa.table({"tokens": documents})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=5)
    corpus = ShardedDataset(tmp_path)
    assert len(corpus.flat_lists(0, "tokens")) > 1
    plain = packed([{"tokens": document} for document in documents], 16, kind=kind)
    found = [sample["tokens"].tolist() for sample in corpus.packed(16, kind=kind)]
    assert found == [sample["tokens"].tolist() for sample in plain]
