"""The search finds the best settings of loaders whose speed is known, within its time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invented import measured

from dataporter.errors import FactoryError
from dataporter.tools.profile.figures import figures_of
from dataporter.tools.profile.tuning import search
from dataporter.tools.units import rate


class Model:
    """A loader whose batches take so long, and whose workers share so many cores."""

    def __init__(self, *, cost, step=20.0, cores=8, cpu=1.0, threads=True, **about):
        self.cost, self.step, self.cores, self.cpu = cost, step, cores, cpu
        self.threads = threads
        self.about = {"cores": cores, **about}
        self.asked = []

    def figures(self, workers, factor=2):
        fetching = self.cost / max(workers, 1)
        if self.cpu > 0.5:
            fetching = self.cost / max(min(workers, self.cores), 1)
        wait = max(fetching - self.step, 0.0) if workers else self.cost
        wait += 0.4 * self.step / factor if workers and self.about.get("uneven") else 0.05
        about = {name: value for name, value in self.about.items() if name != "uneven"}
        about["num_workers"] = workers
        run = measured(
            wait=wait, step=self.step, stages=[("fetch", self.cost)], cpu=self.cpu, **about
        )
        return run.subject, figures_of(run)

    def measure(self, options):
        self.asked.append(options)
        if options.get("engine") == "threads" and not self.threads:
            raise FactoryError("the dataset draws from the global random generators")
        return self.figures(options["num_workers"], options.get("prefetch_factor", 2))[1]

    def search(self, now=2, tries=1000, **listeners):
        subject, figures = self.figures(now)
        left = {"time_left": lambda: self.left(tries)}
        return search(subject, figures, self.measure, **left, **listeners)

    def left(self, tries):
        return 1 - len(self.asked) / tries if tries else 0.0


def test_as_many_workers_as_keep_up_are_found_and_no_more():
    tuning = Model(cost=70).search(now=1)
    assert tuning.best.settings.num_workers == 4
    assert tuning.best.waiting < 0.05
    assert tuning.now.settings.num_workers == 1
    assert "num_workers=4" in tuning.words
    assert "3.5 times as fast as now (14.3 batches/s)" in tuning.words
    assert not tuning.stopped


def test_a_loader_that_is_as_good_as_it_gets_is_left_as_it_is():
    tuning = Model(cost=30).search(now=2)
    assert tuning.best.settings == tuning.now.settings
    assert tuning.words.startswith("Keep the settings")


def test_of_equals_the_one_with_fewer_workers_is_best():
    tuning = Model(cost=10).search(now=8)
    assert tuning.best.settings.num_workers == 1
    assert "cheaper and as fast as now" in tuning.words


def test_the_best_and_what_there_is_are_measured_again_by_turns():
    model = Model(cost=70)
    tuning = model.search(now=1)
    assert len(tuning.best.rates) == len(tuning.now.rates) == 3
    assert [options["num_workers"] for options in model.asked[-4:]] == [4, 1, 4, 1]


def test_an_engine_that_the_loader_refuses_is_said_to_be_refused_and_left():
    tuning = Model(cost=70, threads=False).search()
    refused = [trial for trial in tuning.trials if trial.refused]
    assert len(refused) == 1
    assert refused[0].settings.engine == "threads"
    assert "random generators" in str(refused[0])
    assert tuning.best.settings.engine == "processes"


def test_where_batches_come_unevenly_more_of_them_ahead_are_tried():
    tuning = Model(cost=30, uneven=True).search(now=2)
    assert tuning.best.settings.prefetch_factor == 8


def test_one_trial_that_was_held_up_does_not_end_the_search():
    model = Model(cost=70)
    measure = model.measure
    model.measure = lambda options: (
        model.figures(0)[1] if options["num_workers"] == 2 else measure(options)
    )
    assert model.search(now=1).best.settings.num_workers == 4


def test_the_present_settings_are_the_first_row_and_marked():
    shown = []
    Model(cost=70).search(now=1, on_trial=shown.append)
    first = [trial for trial in shown if len(trial.rates) == 1]
    assert [trial.is_now for trial in first] == [True] + [False] * (len(first) - 1)
    assert str(shown[0]).startswith("num_workers=1, prefetch_factor=2: ")
    assert str(shown[0]).endswith(" (now)")
    assert "now" not in str(shown[1])


def test_every_rate_that_the_outcome_names_is_in_a_row():
    shown = []
    model = Model(cost=70)
    measure, times = model.measure, iter(range(1, 100))

    def slower_each_time(options):
        model.cost = 70 + next(times)
        return measure(options)

    model.measure = slower_each_time
    tuning = model.search(now=1, on_trial=shown.append)
    rows = list(map(str, shown))
    for trial in (tuning.now, tuning.best):
        assert str(trial) in rows
        assert str(trial).endswith("median of 3)")
        assert f"{rate(trial.rate)} batches/s" in tuning.words


def test_measurements_are_counted_up_to_the_most_that_there_may_be():
    noted = []
    model = Model(cost=300, cpu=0.05)
    model.search(now=1, on_progress=lambda done, most: noted.append((done, most)))
    assert [done for done, _ in noted] == list(range(len(model.asked)))
    assert {most for _, most in noted} == {20}
    assert len(model.asked) <= 20


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_two_other_numbers_of_workers_are_tried_in_however_little_time(cores):
    model = Model(cost=300, cores=cores)
    model.search(now=0, tries=2)
    assert [options["num_workers"] for options in model.asked] == [1, 2]


def test_time_is_kept_for_measuring_again():
    tuning = Model(cost=300, cpu=0.05).search(now=1, tries=10)
    assert tuning.stopped
    assert "The time was up before all settings were tried" in tuning.words
    assert len(tuning.best.rates) > 1
    assert len(tuning.now.rates) > 1


def test_lanes_are_read_by_processes_and_no_more_of_them_than_there_are():
    model = Model(cost=200, has_lanes=True, lanes=4, cpu=0.1)
    tuning = model.search(now=1)
    assert tuning.best.settings.num_workers == 4
    assert {options["engine"] for options in model.asked} == {"processes"}


@given(
    cost=st.floats(1, 400),
    now=st.integers(0, 12),
    cores=st.sampled_from([1, 2, 8]),
    cpu=st.sampled_from([0.05, 1.0]),
    tries=st.integers(0, 12),
)
@settings(max_examples=40)
def test_it_stays_within_its_tries_and_never_advises_what_is_worse(cost, now, cores, cpu, tries):
    model = Model(cost=cost, cores=cores, cpu=cpu)
    tuning = model.search(now=now, tries=tries)
    assert len(model.asked) <= tries
    assert tuning.best.rate * 1.03 >= max(trial.rate for trial in tuning.trials)
    assert tuning.best.rate * 1.03 >= tuning.now.rate
    assert tries or tuning.stopped


def test_with_all_the_time_it_finds_what_an_exhaustive_search_finds():
    for cost in (5, 45, 130):
        model = Model(cost=cost, cpu=0.05)
        every = [model.figures(workers)[1].batches_per_second for workers in range(33)]
        assert model.search(now=1).best.rate == pytest.approx(max(every), rel=0.04)
