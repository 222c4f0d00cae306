"""Ranks: who shares the data, as a value.

A value of `Ranks` is found in one place (`dataporter.ranks.find_ranks`) and given to a source,
which asks it and nobody else. It may be given another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataporter.errors import OptionError, OptionTypeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One rank among `world_size` ranks."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in ("rank", "world_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                msg = f"{name} must be an int, found {value!r}."
                raise OptionTypeError(msg)
        if self.world_size < 1:
            msg = f"world_size must be at least 1, found {self.world_size}."
            raise OptionError(msg)
        if not 0 <= self.rank < self.world_size:
            msg = (
                f"rank must be in [0, world_size), found rank {self.rank} "
                f"with world_size {self.world_size}. Ranks count from 0."
            )
            raise OptionError(msg)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that share the data: always the `known` ones, or those that share at the moment.

    A loader may be built before its process group is up. Then `now` says who shares, and the known
    ones hold while it says None.

    >>> Ranks(Topology(rank=1, world_size=4)).topology
    Topology(rank=1, world_size=4)
    >>> Ranks(Topology(), now=lambda: Topology(rank=1, world_size=2)).topology
    Topology(rank=1, world_size=2)
    """

    known: Topology
    now: Callable[[], Topology | None] | None = None
    # A seed drawn now is to be agreed on with the ranks of a process group that comes up later.
    seed_is_open: bool = False

    @property
    def topology(self) -> Topology:
        """This rank, and how many there are."""
        return (None if self.now is None else self.now()) or self.known

    @property
    def follow_group(self) -> bool:
        """True if the process group decides who shares the data, whatever becomes of it."""
        return self.now is not None
