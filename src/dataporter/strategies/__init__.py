"""Which rank of how many am I, and so which sampler."""

from dataporter.strategies.strategies import (
    DistributedStrategy,
    ResumptionStrategy,
    SimpleStrategy,
    UnifiedResumptionStrategy,
    agreed,
    resolve_strategy,
)

__all__ = [
    "DistributedStrategy",
    "ResumptionStrategy",
    "SimpleStrategy",
    "UnifiedResumptionStrategy",
    "agreed",
    "resolve_strategy",
]
