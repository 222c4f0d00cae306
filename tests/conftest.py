"""Hypothesis settings: no deadlines, since the machine is shared; the same runs everywhere."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "dataporter",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("dataporter")
