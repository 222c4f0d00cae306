"""A race: contenders take turns, each in a process of its own, while the machine is watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import machine
from measure import Row, Turns, in_turns
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
    work: str, workers: int, makers: Makers, *, seconds: float, batch_size: int = 1, unit: str
) -> Row:
    """Let contenders take turns for so long, or until they are quiet."""
    until, turn = time.monotonic() + seconds, turn_seconds(seconds)
    with _players(makers) as players:
        sizes = {}
        for who, player in players.items():
            with suppress(PlayerFailedError):
                sizes[who] = player.call("warm_up", turn)
        before = machine.Clocks.now()
        found = _take_turns(players, sizes, until)
        after = machine.Clocks.now()
    turns = {
        who: _turns(found[who], batch_size) if who in found else Turns(failed=players[who].failure)
        for who in makers
    }
    busy = after.shares_since(before) if after and before else {}
    warnings = tuple(machine.reasons_for_distrust(busy))
    return Row(work=work, workers=workers, unit=unit, turns=turns, busy=busy, warnings=warnings)


def _take_turns(
    players: Mapping[str, Player], sizes: Mapping[str, int], until: float
) -> dict[str, list[tuple[int, float, float]]]:
    """Let all take turns; if one fails, the others begin again without it."""
    while True:
        ready = {who: size for who, size in sizes.items() if not players[who].failure}
        calls = {who: partial(players[who].call, "turn", size) for who, size in ready.items()}
        with suppress(PlayerFailedError):
            return in_turns(calls, seconds_of=lambda turn: turn[1], until=until)


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
