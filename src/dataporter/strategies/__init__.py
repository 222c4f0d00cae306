"""Strategies that find this process's rank and choose its sampler."""

from dataporter.strategies.strategies import (
    DistributedStrategy,
    ResumptionStrategy,
    SimpleStrategy,
    Strategy,
    UnifiedResumptionStrategy,
    agreed,
    resolve_strategy,
)

__all__ = [
    "DistributedStrategy",
    "ResumptionStrategy",
    "SimpleStrategy",
    "Strategy",
    "UnifiedResumptionStrategy",
    "agreed",
    "resolve_strategy",
]
