"""The picture of a cluster with many partitions: what each broker leads, and follows in sync. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True)
class Seat:
    """A broker: the partitions that it leads, and those in whose ISR it is without leading them."""

    broker: str
    is_up: bool
    leads: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Board:
    """A cluster at a moment. `preferred` has the broker that each partition prefers as its leader."""

    seats: tuple[Seat, ...]
    preferred: tuple[tuple[str, str], ...]

    @property
    def leaders(self) -> dict[str, str]:
        """The leader of each partition that has one."""
        return {partition: seat.broker for seat in self.seats for partition in seat.leads}

    @property
    def idle(self) -> tuple[str, ...]:
        """The live brokers that are preferred by partitions and lead none at all."""
        wanted = {broker for _, broker in self.preferred}
        return tuple(
            seat.broker for seat in self.seats if seat.is_up and not seat.leads and seat.broker in wanted
        )


def changes(before: Board, after: Board) -> list[str]:
    """Return which leaderships moved, as short phrases."""
    old, new = before.leaders, after.leaders
    return [
        f"{partition}: {old.get(partition, 'none')} to {new.get(partition, 'none')}"
        for partition, _ in after.preferred
        if old.get(partition) != new.get(partition)
    ]


def lines(board: Board) -> list[str]:
    """Return a line for each broker. A leader that is not the preferred one has a star."""
    preferred = dict(board.preferred)
    led = [_led(seat, preferred) for seat in board.seats]
    width = max(map(len, led))
    return [
        f"{seat.broker}  {text:<{width}}  in sync {' '.join(seat.follows) or '-'}"
        if seat.is_up
        else f"{seat.broker}  down"
        for seat, text in zip(board.seats, led, strict=True)
    ]


def _led(seat: Seat, preferred: dict[str, str]) -> str:
    names = [each if preferred[each] == seat.broker else f"{each}*" for each in seat.leads]
    return f"leads {' '.join(names) or '-'}"


_BOX, _HEIGHT, _LEFT, _MARGIN = 46, 32, 48, 14
_FOLLOWS = 5
"""Boxes of room for what a broker leads, before what it follows."""


def width(board: Board) -> int:
    """Return the width of the drawing, in pixels."""
    most = max(len(seat.follows) for seat in board.seats)
    return _LEFT + (_FOLLOWS + max(most, 6)) * _BOX + 2 * _MARGIN


def elements(board: Board, y: int) -> tuple[list[str], int]:
    """Return the SVG elements from `y` on, and the height where they end. Preferred leaders have colour 0."""
    preferred = dict(board.preferred)
    parts: list[str] = []
    for seat in board.seats:
        parts.append(f'<text class="b" x="{_MARGIN}" y="{y + 18}">{escape(seat.broker)}</text>')
        if not seat.is_up:
            parts.append(
                f'<rect class="down" x="{_LEFT}" y="{y}" width="{_FOLLOWS * _BOX}" height="26" rx="4"/>'
            )
        at_home = [(each, preferred[each] == seat.broker) for each in seat.leads]
        parts += _boxes([(each, "box e0" if is_it else "box e2") for each, is_it in at_home], 0, y)
        parts += _boxes([(each, "box paper open") for each in seat.follows], _FOLLOWS, y)
        y += _HEIGHT
    return parts, y + 6


def _boxes(named: Sequence[tuple[str, str]], first: int, y: int) -> list[str]:
    return [
        f'<rect class="{kind}" x="{_LEFT + (first + number) * _BOX + 2}" y="{y}" width="{_BOX - 4}" '
        f'height="26" rx="4"/><text class="m" x="{_LEFT + (first + number) * _BOX + _BOX // 2}" '
        f'y="{y + 18}">{escape(name)}</text>'
        for number, (name, kind) in enumerate(named)
    ]
