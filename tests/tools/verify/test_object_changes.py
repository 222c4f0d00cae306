"""Objects that change while samples are fetched are seen, and can be put back."""

import pickle

import planted
import planted_causes

from dataporter.tools.verify.object_changes import changes, keep, look


def test_everything_that_fetching_changes_is_seen_and_can_be_put_back():
    counter = [0]

    def collate(samples, seen=counter):
        seen[0] += 1

    dataset = planted.wrong("CountsBesides").dataset
    roots = {"dataset": dataset, "collate_fn": collate}
    before, put_back = look(roots), keep(roots, "dataset.kept")
    dataset[3]
    collate([])
    planted.MODULES.random()
    found = {change.path: change.kind for change in changes(before, look(roots))}
    assert found == {
        "planted.MODULES": "generator",
        "dataset.kept": "size",
        "dataset.reads": "number",
        "collate_fn.defaults[0][0]": "number",
        "dataset.data": "data",
    }
    put_back()
    assert dataset.kept == {}


def test_looking_changes_nothing():
    dataset = planted.wrong("OwnGenerator").dataset
    before = pickle.dumps(dataset)
    assert changes(look({"dataset": dataset}), look({"dataset": dataset})) == []
    assert pickle.dumps(dataset) == before


def test_a_counter_in_slots_is_seen_and_put_back():
    dataset = planted_causes.Slotted()
    roots = {"dataset": dataset}
    before, put_back = look(roots), keep(roots, "dataset.calls")
    dataset[0]
    (change,) = changes(before, look(roots))
    assert change.path == "dataset.calls"
    put_back()
    assert dataset.calls == 0
