"""Strategies that find this process's rank and choose its sampler."""

from dataporter.ranks import Strategy
from dataporter.strategies.strategies import (
    DistributedStrategy,
    ResumptionStrategy,
    SimpleStrategy,
    UnifiedResumptionStrategy,
    resolve_strategy,
)

__all__ = [
    "DistributedStrategy",
    "ResumptionStrategy",
    "SimpleStrategy",
    "Strategy",
    "UnifiedResumptionStrategy",
    "resolve_strategy",
]
