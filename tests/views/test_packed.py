"""Packed documents in a loader: every token once in an epoch, exact and elastic resumes."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dataporter import ResumableDataLoader
from dataporter.errors import OptionError, OptionTypeError, StateMismatchError
from dataporter.tools.verify import verify
from dataporter.views import Mixture, collate_packed, packed
from dataporter.views.packing import _SHUFFLED, Packed

KINDS = ("windows", "best-fit")
PAD = -1


def numbered(lengths):
    """Make documents whose tokens are all different: document and place."""
    return [{"tokens": 1000 * number + np.arange(n)} for number, n in enumerate(lengths)]


def loader_of(data, batch_size=3, **options):
    options = {"shuffle": True, "seed": 5, "tail": "uneven", **options}
    return ResumableDataLoader(data, batch_size, **options)


def tokens_of(batches):
    return [token for batch in batches for token in batch["tokens"].flatten().tolist()]


def all_tokens(lengths):
    return [1000 * number + place for number, n in enumerate(lengths) for place in range(n)]


document_lengths = st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any)
kinds = st.sampled_from(KINDS)


@settings(max_examples=60)
@given(lengths=document_lengths, data=st.data(), kind=kinds, shuffle=st.booleans())
def test_every_token_comes_once_in_an_epoch(lengths, data, kind, shuffle):
    length = data.draw(st.integers(1, sum(lengths)))
    view = packed(numbered(lengths), length, kind=kind, pad_id=PAD)
    loader = loader_of(view, data.draw(st.integers(1, 5)), shuffle=shuffle)
    for _ in range(2):
        found = [token for token in tokens_of(loader) if token != PAD]
        assert sorted(found) == all_tokens(lengths)


@settings(max_examples=30)
@given(lengths=document_lengths, data=st.data())
def test_a_dropped_rest_is_shorter_than_a_window(lengths, data):
    length = data.draw(st.integers(1, sum(lengths)))
    found = tokens_of(loader_of(packed(numbered(lengths), length, last="drop")))
    assert len(set(found)) == len(found) == sum(lengths) // length * length


@settings(max_examples=40, deadline=None)
@given(lengths=document_lengths, data=st.data(), kind=kinds)
def test_any_chain_of_ranks_and_batch_sizes_is_one_epoch(lengths, data, kind):
    length = data.draw(st.integers(1, min(sum(lengths), 40)))
    view = packed(numbered(lengths), length, kind=kind, pad_id=PAD)
    state, found = None, []
    while state is None or not state["finished"]:
        ranks, size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
        steps = data.draw(st.integers(1, 4))
        states = []
        for rank in range(ranks):
            loader = loader_of(view, size, rank=rank, world_size=ranks)
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            for _ in range(steps):
                batch = next(batches, None)
                found += [] if batch is None else tokens_of([batch])
            states.append((loader.samples_processed, rank, loader.state_dict()))
        if states[0][2]["samples_processed"] >= len(view):
            break
        state = states[0][2]
    assert sorted(token for token in found if token != PAD) == all_tokens(lengths)


def test_epochs_shuffle_documents_anew_and_windows_are_cut_anew():
    view = packed(numbered([7] * 30), 10)
    loader = loader_of(view)
    first, second = tokens_of(loader), tokens_of(loader)
    assert first != second
    assert sorted(first) == sorted(second)
    joints = [{first[i] // 1000 for i in range(a, a + 10)} for a in range(0, 210, 10)]
    assert joints != [{second[i] // 1000 for i in range(a, a + 10)} for a in range(0, 210, 10)]


def test_a_resume_continues_with_the_next_window_on_other_workers():
    view = packed(numbered(np.random.default_rng(0).integers(0, 50, 400)), 64, boundaries=True)
    whole = loader_of(view, 4, num_workers=2)
    batches = list(whole) + list(whole)
    loader = loader_of(view, 4)
    for done, _ in enumerate(loader, start=1):
        if done == 17:
            state = pickle.loads(pickle.dumps(loader.state_dict()))
            break
    resumed = loader_of(view, 4, num_workers=1)
    resumed.load_state_dict(state)
    rest = list(resumed) + list(resumed)
    assert len(rest) == len(batches) - 17
    for one, other in zip(rest, batches[17:], strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", KINDS)
def test_other_lengths_are_not_taken_for_the_same_data(kind):
    saved = loader_of(packed(numbered([5, 6, 7]), 6, kind=kind))
    next(iter(saved))
    for other in (packed(numbered([5, 7, 6]), 6, kind=kind), packed(numbered([5, 6, 7]), 7)):
        with pytest.raises(StateMismatchError):
            loader_of(other).load_state_dict(saved.state_dict())


def make_loader():
    lengths = np.random.default_rng(0).integers(0, 40, 200)
    return loader_of(packed(numbered(lengths), 32, boundaries=True), 4, tail="pad")


def make_mixture():
    web, code = numbered([9] * 70), numbered([5] * 30)
    parts = {"web": (packed(web, 8), 0.7), "code": (packed(code, 8, kind="best-fit"), 0.3)}
    return loader_of(Mixture(parts), 4, tail="pad")


@pytest.mark.parametrize("make", [make_loader, make_mixture])
def test_verify_says_exact(make):
    report = verify(
        make, batches=8, points=1, seconds=1000, workers=(2,), batch_sizes=(3,), world_sizes=(2,)
    )
    assert report.is_exact, str(report)


def test_a_mixture_of_packed_parts_has_every_token_of_each_part_once():
    web, code = numbered([9] * 70), [{"tokens": -1 - each["tokens"]} for each in numbered([5] * 30)]
    parts = {"web": (packed(web, 10), 0.7), "code": (packed(code, 10), 0.3)}
    mixture = Mixture(parts, epoch=63 + 27)
    found = tokens_of(loader_of(mixture))
    assert sorted(token for token in found if token >= 0) == all_tokens([9] * 70)
    of_code = [-1 - token for token in found if token < 0]
    assert set(of_code) == set(all_tokens([5] * 30))
    nested = Mixture({"all": (mixture, 0.5), "more": (packed(web, 10), 0.5)}, epoch=50)
    assert len(tokens_of(loader_of(nested))) == 500


def test_many_documents_without_blocks_are_read_in_tracks(monkeypatch):
    monkeypatch.setattr("dataporter.views.packing._SHUFFLED", 64)
    lengths = np.random.default_rng(1).integers(0, 12, 4000)
    view = packed([np.full(n, number) for number, n in enumerate(lengths)], 16)
    order = view.epoch_order(shuffle=True, seed=1, step_size=8, world_size=1)
    assert order.tracks == 8
    found = np.array(tokens_of(loader_of(view, 8)))
    counts = np.bincount(found, minlength=4000)
    counts[0] -= -len(found) % 16 + len(found) - lengths.sum()  # padding
    assert counts.tolist() == lengths.tolist()
    batch = next(iter(loader_of(view, 8)))["tokens"]
    assert len({int(token) // 500 for token in batch.flatten()}) >= 4
    assert _SHUFFLED == 1 << 20


# Samples


def test_samples_have_the_dtype_of_the_tokens_and_are_padded_at_the_end():
    view = packed([np.array([1, 2, 3], np.uint16), np.array([4, 5], np.uint16)], 3, pad_id=9)
    assert [each["tokens"].tolist() for each in view] == [[1, 2, 3], [4, 5, 9]]
    assert view[0]["tokens"].dtype == torch.uint16
    assert view[-1]["tokens"].tolist() == [4, 5, 9]
    with pytest.raises(IndexError, match="out of range"):
        view[-3]


def test_boundaries_say_where_documents_begin():
    names = ["position_ids", "loss_mask", "cu_seqlens"]
    view = packed([[1, 2], [3], [4, 5, 6, 7]], 5, boundaries=names)
    first, second = view
    assert first["tokens"].tolist() == [1, 2, 3, 4, 5]
    assert first["position_ids"].tolist() == [0, 1, 0, 0, 1]
    assert first["loss_mask"].tolist() == [False, True, False, False, True]
    assert first["cu_seqlens"].tolist() == [0, 2, 3, 5]
    assert second["tokens"].tolist() == [6, 7, 0, 0, 0]
    assert second["position_ids"].tolist() == [0, 1, 0, 1, 2]
    assert second["loss_mask"].tolist() == [False, True, False, False, False]
    assert second["cu_seqlens"].tolist() == [0, 2, 5]
    batch = next(iter(loader_of(view, 2, shuffle=False, collate_fn=collate_packed)))
    assert batch["cu_seqlens"].tolist() == [0, 2, 3, 5, 7, 10]
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["position_ids"].shape == (2, 5)


@given(lengths=document_lengths, data=st.data(), kind=kinds)
def test_boundaries_agree_with_the_tokens(lengths, data, kind):
    length = data.draw(st.integers(1, sum(lengths)))
    names = ["position_ids", "loss_mask", "cu_seqlens"]
    for sample in packed(numbered(lengths), length, kind=kind, boundaries=names, pad_id=PAD):
        tokens = sample["tokens"].tolist()
        documents = [PAD if token == PAD else token // 1000 for token in tokens]
        begins = [0, *(i for i in range(1, length) if documents[i] != documents[i - 1])]
        place = [i - max(begin for begin in begins if begin <= i) for i in range(length)]
        if kind == "best-fit":  # parts of one document may lie side by side only if it is split
            assert sample["cu_seqlens"].tolist()[0] == 0
        assert sample["position_ids"].tolist() == place
        assert sample["cu_seqlens"].tolist() == [*begins, length]
        mask = [token != PAD and at > 0 for token, at in zip(tokens, place, strict=True)]
        assert sample["loss_mask"].tolist() == mask


def test_an_end_is_added_to_every_document_that_is_not_empty():
    view = packed([[1, 2], [], [3]], 5, end_id=9)
    assert view[0]["tokens"].tolist() == [1, 2, 9, 3, 9]


def test_texts_are_tokenised_when_they_are_read():
    texts = [{"text": "ab"}, {"text": ""}, {"text": "cde"}]
    as_list = packed(texts, 5, tokenizer=lambda text: list(text.encode()))
    as_mapping = packed(texts, 5, tokenizer=lambda text: {"input_ids": list(text.encode())})
    assert as_list[0]["tokens"].tolist() == as_mapping[0]["tokens"].tolist() == list(b"abcde")


def test_fullness_is_the_share_of_tokens_that_are_no_padding():
    assert packed([[1, 2], [3, 3]], 3, kind="best-fit").fullness == pytest.approx(4 / 6)
    view = packed([[1] * 6], 4)
    assert view.fullness == pytest.approx(6 / 8)
    assert repr(view) == "Packed(2 windows of 4 tokens, 75.0 % full, of 1 document)"
    assert packed([[1] * 6], 4, last="drop").fullness == 1


def test_lengths_may_be_given_and_are_checked_when_documents_are_read():
    view = packed([[1, 2], [3]], 3, lengths=[2, 1])
    assert view[0]["tokens"].tolist() == [1, 2, 3]
    wrong = packed([[1, 2], [3]], 3, lengths=[2, 2])
    with pytest.raises(OptionError, match="document 1 has 1 tokens, but 2 were counted"):
        wrong[0]


def test_every_copy_reads_the_same():
    view = packed(numbered([5, 6, 7]), 4)
    assert isinstance(view, Packed)
    copy = pickle.loads(pickle.dumps(view))
    index = int(
        view.epoch_order(shuffle=True, seed=1, step_size=1, world_size=1).indices(3, np.array([2]))[
            0
        ]
    )
    assert index >= len(view)
    assert copy[index]["tokens"].tolist() == view[index]["tokens"].tolist()


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"length": 100}, OptionError, "length=100 is more than all data has: 2 documents with 5"),
        ({"length": 0}, OptionError, "length must be at least 1"),
        ({"by": "token"}, OptionError, "document 0 has no column 'token'. Did you mean 'tokens'"),
        ({"by": 3}, OptionTypeError, "by must be the name of a column"),
        ({"by": "text"}, OptionError, "document 0 has no token ids.* Pass tokenizer="),
        ({"by": "nested"}, OptionError, "document 0 has no token ids: expected a list of integers"),
        ({"by": "floats"}, OptionError, "document 0 has no token ids"),
        ({"tokenizer": 7}, OptionTypeError, "tokenizer must be callable"),
        ({"tokenizer": len}, OptionError, "tokenizer must return a list of token ids, found int"),
        ({"tokenizer": int}, OptionError, "tokenizer failed for document 0: ValueError"),
        ({"kind": "first-fit"}, OptionError, "kind must be 'windows' or 'best-fit'"),
        ({"last": "keep"}, OptionError, "last must be 'pad' or 'drop'"),
        ({"boundaries": ["mask"]}, OptionError, "boundaries must be True, False or some of"),
        ({"pad_id": None}, OptionTypeError, "pad_id must be a token id"),
        ({"lengths": [1]}, OptionError, "a number of tokens for each of 2 documents"),
        ({"num_workers": -1, "lengths": [2, 3]}, OptionError, "num_workers must be at least 0"),
        ({"lengths": [1, -4]}, OptionError, "a number of tokens for each of 2 documents"),
    ],
)
def test_mistakes_are_named(arguments, error, says):
    data = [
        {"tokens": [1, 2], "text": "one", "nested": [[1], [2, 3]], "floats": [1.5]},
        {"tokens": [3, 4, 5], "text": "two", "nested": [[1]], "floats": [0.5]},
    ]
    with pytest.raises(error, match=says):
        packed(data, **{"length": 2, **arguments})


def test_padding_that_does_not_fit_is_named():
    view = packed([np.array([1, 2, 3], np.uint8)], 2, pad_id=-100)
    with pytest.raises(OptionError, match="pad_id=-100 does not fit tokens of dtype uint8"):
        view[1]


def test_a_mixture_is_not_packed_as_a_whole():
    with pytest.raises(OptionTypeError, match="Pack each part, and mix those"):
        packed(Mixture({"a": ([[1, 2]], 1.0)}), 2)
    with pytest.raises(OptionTypeError, match="data must have __len__"):
        packed(iter([[1]]), 1)
