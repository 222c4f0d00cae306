"""Each verdict for its reason: what is advised is what the figures ask for."""

import pytest
from invented import MS, measured

from dataporter.tools.profile.figures import figures_of, judge


def judged(**run):
    found = measured(**run)
    return judge(found.subject, figures_of(found))


def changes(**run):
    return [each.change for each in judged(**run).advice]


def only(part, **run):
    """The one advice whose change has this in it."""
    (found,) = [each for each in judged(**run).advice if part in each.change]
    return found


def test_a_loader_that_keeps_up_is_left_alone():
    verdict = judged(wait=0.2, step=20, stages=[("fetch", 30)])
    assert verdict.bound == "step"
    assert "1.0 % of the time" in verdict.words
    assert verdict.advice == ()


def test_waiting_a_twentieth_of_the_time_is_where_a_loader_is_too_slow():
    assert judged(wait=1.0, step=20).bound == "step"
    assert judged(wait=1.1, step=20).bound == "loader"


def test_too_few_workers_are_counted_by_what_a_batch_costs():
    advice = only("num_workers", stages=[("fetch", 90)], step=20, num_workers=2, cores=8)
    assert advice.change == "num_workers=6"  # 1.15 * 90 / 20, rounded up
    assert "a batch takes a worker 90.0 ms" in advice.why
    assert "a step takes 20.0 ms" in advice.why


def test_without_workers_some_are_advised():
    assert "num_workers=3" in changes(num_workers=0, stages=[("fetch", 50)], wait=50)


def test_no_more_workers_than_cores_are_advised_for_what_computes():
    advice = only("num_workers", stages=[("fetch", 400)], num_workers=2, cores=4, cpu=0.95)
    assert advice.change == "num_workers=4"
    assert "there are 4 cores" in advice.why
    busy = only("more cores", stages=[("fetch", 400)], num_workers=4, cores=4, cpu=0.95)
    assert "all 4 cores have a worker" in busy.why


def test_for_what_waits_more_workers_than_cores_and_threads_are_advised():
    found = changes(stages=[("fetch", 200)], num_workers=2, cores=4, cpu=0.05)
    assert found[:2] == ["num_workers=12", 'engine="threads"']


def test_a_queue_for_cores_is_no_waiting():
    found = changes(stages=[("fetch", 200)], num_workers=2, cores=4, cpu=0.1, queued=0.85)
    assert found[0] == "num_workers=4"


def test_with_workers_enough_more_batches_ahead_are_advised():
    assert "prefetch_factor=8" in changes(stages=[("fetch", 20)], step=20, wait=5, num_workers=4)


def test_workers_that_nobody_needs_are_named():
    advice = only("num_workers", wait=0.1, stages=[("fetch", 5)], num_workers=8)
    assert advice.change == "num_workers=1"


def test_a_number_of_workers_that_adapts_is_left_alone():
    assert changes(wait=0.1, stages=[("fetch", 5)], num_workers=8, adapts=True) == []


def test_slow_samples_are_named_by_index():
    advice = only("slowest", usual=2.0, slowest=[(17, 480.0), (3, 100.0)])
    assert "17 (480 ms), 3 (100 ms)" in advice.change
    assert "240 times the usual 2.0 ms" in advice.why


def test_one_sample_that_explains_the_waiting_is_what_to_change_and_workers_are_not():
    # 1 s in 40 batches: 25 ms of the 31 ms that a batch takes on the average.
    slow = {"stages": [("fetch", 31)], "usual": 0.2, "slowest": [(17, 1000.0)], "wait": 30}
    (only,) = changes(**slow, num_workers=2)
    assert only.startswith("the slowest samples: 17")
    first, second = changes(**slow, num_workers=0)
    assert first.startswith("the slowest samples")
    assert second == "num_workers=1"


def test_slow_samples_that_explain_little_come_after_the_workers_that_are_missing():
    slow = {"stages": [("fetch", 90)], "usual": 2.0, "slowest": [(17, 400.0)], "wait": 30}
    first, second = changes(**slow, num_workers=2)
    assert first == "num_workers=5"  # 1.15 * (90 - 9.95) / 20, rounded up
    assert second.startswith("the slowest samples")
    why = only("num_workers", **slow, num_workers=2).why
    assert why.startswith("a batch takes a worker 80.0 ms without slow samples")


def test_workers_that_make_up_for_slow_samples_are_kept():
    fast = {"wait": 0.1, "stages": [("fetch", 5)], "num_workers": 8}
    assert changes(**fast, usual=0.1, slowest=[(17, 100.0)]) == []


MB = 10**6


@pytest.mark.parametrize("wait", [0.1, 30])
def test_memory_that_grows_with_each_sample_is_named_first(wait):
    grows = [[number * 32 * MB for number in range(1, 41)]]
    first, *_ = judged(wait=wait, memory=grows).advice
    assert first.change == "memory that grows with each sample"
    assert "each sample leaves 1.0 MB" in first.why
    assert "5,000 samples take 5.0 GB" in first.why


@pytest.mark.parametrize(
    "memory",
    [
        [],
        [[300 * MB] * 40],
        [[number * 32 * MB for number in range(1, 20)] + [620 * MB] * 21],  # a start
        [[number * MB // 4 for number in range(1, 41)]],  # an allocator's
        [[number * 32 * MB for number in range(1, 41)], [300 * MB] * 50],  # in a short pass
        [[0] * 40],  # unknown
    ],
)
def test_memory_that_is_flat_in_the_end_is_not_named(memory):
    assert not any("memory" in each for each in changes(memory=memory))


def test_no_sample_is_to_be_looked_at_while_workers_lack_cores():
    found = changes(usual=2.0, slowest=[(17, 480.0)], cpu=0.1, queued=0.86)
    assert not any("slowest" in each for each in found)


def test_threads_are_not_advised_to_a_dataset_that_they_would_refuse():
    waiting = {"stages": [("fetch", 200)], "cpu": 0.1, "num_workers": 2}
    assert 'engine="threads"' in changes(**waiting)
    assert 'engine="threads"' not in changes(**waiting, draws=True)


def test_many_cheap_samples_ask_for_a_vectorised_fetch():
    cheap = {"stages": [("fetch", 2.0), ("collate", 0.2)], "step": 0.5, "wait": 1}
    assert any("__getitems__" in each for each in changes(**cheap))
    assert not any("__getitems__" in each for each in changes(**cheap, way="gathered"))
    assert not any("__getitems__" in each for each in changes(stages=[("fetch", 90)]))


def test_one_fetch_that_waited_for_a_core_does_not_make_cheap_samples_dear():
    found = measured(stages=[("fetch", 2.0), ("collate", 0.2)], step=0.5, wait=1)
    late = found.made[7]
    (fetch, start, end), *others = late.spans
    spans = [(fetch, start, end + 2000 * MS), *others]
    found.made[7] = late._replace(spans=spans)
    advice = judge(found.subject, figures_of(found)).advice
    assert any("__getitems__" in each.change for each in advice)


@pytest.mark.parametrize("way", ["one by one", "__getitems__"])
def test_samples_that_draw_are_not_asked_for_a_vectorised_fetch_that_would_not_be_used(way):
    cheap = {"stages": [("fetch", 2.0), ("collate", 0.2)], "step": 0.5, "wait": 1}
    found = changes(**cheap, way=way, draws=True)
    assert "random numbers for a batch at once, drawn in collate_fn" in found
    assert not any("vectorised" in each for each in found)
    assert not any("random" in each for each in changes(stages=[("fetch", 90)], draws=True))


def test_a_few_bytes_are_not_asked_to_be_fewer():
    few = {"stages": [("fetch", 50), ("write", 60)], "bytes_by_dtype": {"int64": 16}}
    assert not any("dtypes" in each for each in changes(**few))


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ("collate", "collation"),
        ("convert", "converter"),
        ("state", "snapshot_every_n_steps"),
        ("write", "smaller dtypes"),
    ],
)
def test_a_stage_that_takes_most_of_the_making_is_what_to_change(stage, part):
    large = {"float32": 1_000_000}
    assert only(part, stages=[("fetch", 50), (stage, 60)], bytes_by_dtype=large)
    assert not [
        each
        for each in changes(stages=[("fetch", 95), (stage, 5)], bytes_by_dtype=large)
        if part in each
    ]


def test_large_batches_are_named_with_their_dtype():
    advice = only(
        "smaller dtypes",
        stages=[("fetch", 20), ("write", 30)],
        bytes_by_dtype={"float32": 30_000_000, "uint8": 10_000_000},
    )
    assert "40.0 MB, 75 % of it float32" in advice.why


def test_a_collate_function_of_the_users_own_is_called_theirs():
    advice = only("collation", stages=[("fetch", 5), ("collate", 60)], has_collate_fn=True)
    assert "your collate_fn takes 92 %" in advice.why


def test_workers_that_start_anew_for_each_pass_are_asked_to_stay():
    assert "persistent_workers=True" in changes(passes=4, first=900)
    assert "persistent_workers=True" not in changes(passes=4, first=900, stays=True)
    assert "persistent_workers=True" not in changes(passes=1, first=900)


def test_lanes_bound_the_workers_and_are_said_to_change_with_them():
    assert "change with them" in only("num_workers", stages=[("fetch", 90)], has_lanes=True).why
    assert (
        "each of the 2 lanes" in only("more", stages=[("fetch", 90)], has_lanes=True, lanes=2).why
    )


def test_of_torchs_loader_only_the_wait_is_judged():
    verdict = judged(is_ours=False, wait=30, loader="torch's DataLoader")
    assert verdict.bound == "loader"
    assert [each.change for each in verdict.advice] == ["dataporter.ResumableDataLoader"]


def test_without_steps_there_is_nothing_but_waiting():
    assert "without steps" in judged(step=0, wait=5).words
