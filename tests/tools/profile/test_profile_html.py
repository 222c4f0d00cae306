"""A profile in a notebook."""

from dataclasses import replace

import pytest
from invented import measured
from shown_html import cells, words

from dataporter.tools.profile.figures import figures_of, judge
from dataporter.tools.profile.profiles import Profile
from dataporter.tools.profile.tuning import Settings, Trial, Tuning

EVIL = "<script>alert('$x$')</script> & more"


def profiled(**changes) -> Profile:
    found = measured(**changes)
    figures = figures_of(found)
    return Profile(measured=found, figures=figures, verdict=judge(found.subject, figures))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_profile_shows_its_verdict_figures_and_advice(workers):
    profile = profiled(num_workers=workers)
    found, shown = cells(profile), " ".join(words(profile))
    assert {"fetch", "collate", "write", "wait"} <= {row[0] for row in found}
    assert any(row[0] == "worker 1" for row in found) == bool(workers)
    assert profile.verdict.words in shown
    assert all(each.change in shown for each in profile.verdict.advice)
    assert repr(profile) == str(profile)


def test_a_tuned_profile_shows_its_trials():
    settings = Settings(num_workers=4, engine="processes", prefetch_factor=2)
    trial = Trial(settings=settings, rates=(31.0,), waits=(0.25,))
    refused = Trial(settings=settings, refused=EVIL)
    tuning = Tuning(now=trial, best=trial, trials=(trial, refused), stopped=False)
    shown = " ".join(words(replace(profiled(), tuning=tuning)))
    assert f"{settings}: 31.0 batches/s, 25 % waiting" in shown
    assert f"{settings}: {EVIL}" in shown
