"""A race: contenders take turns, each in a process of its own, while the machine is watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import machine
from measure import Turns, in_turns
from players import Player, PlayerFailedError, close_all

_TURN = 0.3  # seconds
_LEAST = 20  # turns that a race has time for


class Contender(Protocol):
    """What a player does in its turns."""

    def warm_up(self, seconds: float) -> int:
        """Work for a while; return the size of a turn that takes so long."""

    def turn(self, size: int) -> tuple[int, float, float]:
        """Take a turn: its batches, its seconds, and CPU seconds of the consuming thread."""


Makers = Mapping[str, Callable[[], Contender]]


def race(
    makers: Makers, batch_size: int, seconds: float
) -> tuple[dict[str, Turns], tuple[str, ...]]:
    """Let contenders take turns for so long, or until they are quiet.

    Returns their turns, and reasons not to trust them.
    """
    until, turn = time.monotonic() + seconds, turn_seconds(seconds)
    with _players(makers) as players:
        sizes: dict[str, int] = {}
        failed: dict[str, Turns] = {}
        for who, player in players.items():
            try:
                sizes[who] = player.call("warm_up", turn)
            except PlayerFailedError as error:
                failed[who] = Turns(failed=str(error))
        before = machine.Clocks.now()
        work = {who: partial(players[who].call, "turn", size) for who, size in sizes.items()}
        found = in_turns(work, seconds_of=lambda turn: turn[1], until=until)
        after = machine.Clocks.now()
    taken = {who: _turns(turns, batch_size) for who, turns in found.items()} | failed
    warnings = after.warnings_since(before) if after and before else ()
    return {who: taken[who] for who in makers}, tuple(warnings)


def turn_seconds(seconds: float) -> float:
    """The length of a turn, shorter in a race of few seconds.

    >>> turn_seconds(12.0), turn_seconds(1.0)
    (0.3, 0.05)
    """
    return min(_TURN, seconds / _LEAST)


def _turns(turns: list[tuple[int, float, float]], batch_size: int) -> Turns:
    batches = turns[0][0]
    return Turns(
        amount=batches * batch_size,
        batches=batches,
        seconds=tuple(seconds for _, seconds, _ in turns),
        consumer=tuple(spent for _, _, spent in turns),
    )


@contextmanager
def _players(makers: Makers) -> Iterator[dict[str, Player]]:
    players: dict[str, Player] = {}
    try:
        for who, make in makers.items():
            players[who] = Player(make)
        yield players
    finally:
        close_all(players.values())
