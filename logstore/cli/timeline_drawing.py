"""The drawing of a timeline: a lane for each node, an event a row, the leader of each time as a bar. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from logstore.cli.terminal import printable
from logstore.replication.history import Event, Kind
from logstore.testing.stories.drawing import EPOCH_COLOURS, document

MOST_EVENTS = 400
"""More would be a drawing that nobody reads."""

_TIME, _LANE, _ROW, _TOP, _BAR, _MARGIN, _CHARACTER = 190, 62, 22, 74, 18, 14, 6.4
_MOST_CHARACTERS = 110
_ALARMS = frozenset({Kind.TRUNCATION, Kind.LOSS, Kind.WATERMARK, Kind.TROUBLE})


class _Tenure(NamedTuple):
    """The rows from `first` to before `last` in which `leader` led one partition, in lane order."""

    leader: int
    epoch: int
    first: int
    last: int


def draw(title: str, events: Sequence[Event], time_of: Callable[[Event], str]) -> str:
    """Return the drawing of events in their order, as an SVG document; bars only for a single partition."""
    nodes = sorted(_nodes(events))
    lanes = {node: _TIME + number * _LANE for number, node in enumerate(nodes)}
    text_x = _TIME + len(nodes) * _LANE + _MARGIN
    partitions = {event.partition for event in events if event.partition is not None}
    texts = [_text(event, with_partition=len(partitions) > 1) for event in events]
    width = int(text_x + max(map(len, texts), default=0) * _CHARACTER + _MARGIN)
    height = _TOP + len(events) * _ROW + _MARGIN
    parts = [f'<text class="b" style="font-size:16px" x="{_MARGIN}" y="24">{escape(title)}</text>']
    for node, x in lanes.items():
        parts.append(f'<text class="b m" x="{x}" y="{_TOP - 20}">node {node}</text>')
        parts.append(f'<path class="box" d="M{x},{_TOP - 12}V{height - _MARGIN}"/>')
    if len(partitions) == 1:
        parts += [_bar(tenure, lanes) for tenure in _tenures(events) if tenure.leader in lanes]
    for row, (event, text) in enumerate(zip(events, texts, strict=True)):
        y = _TOP + row * _ROW
        parts.append(f'<text class="dim" x="{_MARGIN}" y="{y + 4}">{escape(time_of(event))}</text>')
        place = lanes.get(event.node if event.leader is None else event.leader)  # type: ignore[arg-type]
        if place is not None:
            kind = "alarm" if event.kind in _ALARMS else "ink"
            parts.append(f'<circle class="{kind}" cx="{place}" cy="{y}" r="4"/>')
        alarm = " alarm" if event.kind in _ALARMS else ""
        parts.append(f'<text class="t{alarm}" x="{text_x}" y="{y + 4}">{escape(text)}</text>')
    return document(max(width, 420), height, "\n".join(parts), title)


def _nodes(events: Sequence[Event]) -> set[int]:
    found = {event.node for event in events if event.node is not None}
    return found | {event.leader for event in events if event.leader is not None and event.leader >= 0}


def _text(event: Event, *, with_partition: bool) -> str:
    where = f"{event.partition}: " if with_partition and event.partition is not None else ""
    text = printable(f"{event.kind.value}: {where}{event.text}")
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


def _tenures(events: Sequence[Event]) -> list[_Tenure]:
    starts = [(row, event) for row, event in enumerate(events) if event.leader is not None]
    ends = [*(row for row, _ in starts), len(events)][1:]
    return [
        _Tenure(event.leader, event.leader_epoch, row, end)
        for (row, event), end in zip(starts, ends, strict=True)
        if event.leader is not None and event.leader >= 0
    ]


def _bar(tenure: _Tenure, lanes: dict[int, int]) -> str:
    x, y = lanes[tenure.leader] - _BAR // 2, _TOP + tenure.first * _ROW - _ROW // 2
    height = (tenure.last - tenure.first) * _ROW - 3
    return (
        f'<rect class="box e{tenure.epoch % EPOCH_COLOURS}" x="{x}" y="{y}" width="{_BAR}" height="{height}" '
        f'rx="4"><title>epoch {tenure.epoch}</title></rect>'
        f'<text class="dim" x="{x + _BAR + 2}" y="{y + 14}">e{tenure.epoch}</text>'
    )
