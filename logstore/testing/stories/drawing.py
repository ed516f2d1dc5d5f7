"""The drawing of a replicated partition: rows of offset boxes, high watermark, epochs. Pure.

    picture ─▶ lines(picture)           for a terminal
            ─▶ draw(picture, caption)   one SVG
    pictures ─▶ columns(…)              a whole story as one SVG, the steps below each other

A box is a record: its value, and its leader epoch by number and colour. A dashed box is not known to be
committed by its replica. A red frame marks an offset at which two replicas hold different records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple
from xml.sax.saxutils import escape

from logstore.testing.stories import board
from logstore.testing.stories.board import Board


class Box(NamedTuple):
    """A record, by its value and the leader epoch of its batch."""

    value: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Row:
    """A replica: `role` is "leads", "follows", "waits" (runs without a role) or "down".

    `start` is the log start offset, so the LEO is `start` plus the number of boxes; `epochs` are the entries
    of the epoch cache, as pairs of epoch and start offset. A replica that is down shows nothing of its log.
    """

    name: str
    role: str
    epoch: int = -1
    is_in_sync: bool = False
    start: int = 0
    boxes: tuple[Box, ...] = ()
    high_watermark: int = 0
    epochs: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        """The log end offset (LEO)."""
        return self.start + len(self.boxes)


@dataclass(frozen=True, slots=True)
class Picture:
    """A partition at a moment: what the store says, and every replica."""

    leader: str
    """Empty if there is none."""
    leader_epoch: int
    isr: tuple[str, ...]
    rows: tuple[Row, ...]


class Caption(NamedTuple):
    """A step's number and the sentence above its picture."""

    number: int
    text: str


def diverging(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the offsets at which two of these replicas hold different records."""
    held: dict[int, set[Box]] = {}
    for row in rows:
        for offset, box in enumerate(row.boxes, row.start):
            held.setdefault(offset, set()).add(box)
    return tuple(sorted(offset for offset, boxes in held.items() if len(boxes) > 1))


def lines(picture: Picture | Board) -> list[str]:
    """Return the picture as text: a line for the stored state, then one for each replica.

    A box is `value/epoch`; `|` marks the high watermark. A board has a line for each broker.
    """
    if isinstance(picture, Board):
        return board.lines(picture)
    leader = f"leader {picture.leader}" if picture.leader else "no leader"
    stored = f"store: {leader}, epoch {picture.leader_epoch}, ISR {{{','.join(picture.isr)}}}"
    logs = [_boxes_text(row) for row in picture.rows]
    width = max(map(len, logs))
    found = [stored]
    for row, log in zip(picture.rows, logs, strict=True):
        facts = ""
        if row.role != "down":
            entries = " ".join(f"{epoch}@{start}" for epoch, start in row.epochs)
            facts = f"LEO {row.end}  HW {row.high_watermark}  epochs {entries or '-'}"
        found.append(f"{row.name}  {_role(row):<10}  {log:<{width}}  {facts}".rstrip())
    return found


def _role(row: Row) -> str:
    return f"{row.role} e{row.epoch}" if row.epoch >= 0 else row.role


def _boxes_text(row: Row) -> str:
    if row.role == "down":
        return ""
    parts = [f"{box.value}/{box.epoch}" for box in row.boxes]
    mark = min(max(row.high_watermark - row.start, 0), len(parts))
    return " ".join([*parts[:mark], "|", *parts[mark:]])


# --- SVG ------------------------------------------------------------------------------------------

_BOX, _ROW_HEIGHT, _LEFT, _MARGIN, _FACTS = 46, 46, 124, 14, 132
_TOP = 42
_CHARACTER = 6.6
_SHAPES = """\
text{font:13px system-ui,sans-serif}.dim,.hwt{font-size:11px}.b{font-weight:600}.m{text-anchor:middle}
.open{stroke-dasharray:4 3}.bad{stroke-width:3}.hw{stroke-width:3}.down{fill:none;stroke-dasharray:2 4}
"""
# The colours of paper, text, small text, lines, trouble and high watermark.
_LIGHT = ("#fff", "#1f2430", "#5b6270", "#8a93a6", "#c62828", "#b3400a")
_DARK = ("#1b1f27", "#e8ebf2", "#a4adbd", "#7c879c", "#ff7b72", "#ffa657")
# The colours of epochs 0, 1, 2 …
_LIGHT_EPOCHS = ("#dbe7ff", "#d9f2df", "#fff0c9", "#f3dcf7", "#d5f1f5")
_DARK_EPOCHS = ("#23395f", "#1f4a30", "#574510", "#4d2a55", "#15474f")

EPOCH_COLOURS = len(_LIGHT_EPOCHS)
"""Epoch n has the colour of class `e` + n modulo this."""


def _style() -> str:
    # Without CSS variables, which not every viewer of SVG knows.
    light, dark = _colours(_LIGHT, _LIGHT_EPOCHS), _colours(_DARK, _DARK_EPOCHS)
    return f"{_SHAPES}{light}@media (prefers-color-scheme:dark){{\n{dark}}}\n"


def _colours(palette: Sequence[str], epochs: Sequence[str]) -> str:
    paper, ink, dim, line, trouble, mark = palette
    rules = [
        f".paper{{fill:{paper}}}text,.ink{{fill:{ink}}}.dim{{fill:{dim}}}.box,.down{{stroke:{line}}}",
        f".bad{{stroke:{trouble}}}.alarm{{fill:{trouble}}}.hw{{stroke:{mark}}}.hwt{{fill:{mark}}}",
        "".join(f".e{number}{{fill:{colour}}}" for number, colour in enumerate(epochs)),
    ]
    return "\n".join(rules) + "\n"


def draw(picture: Picture | Board, caption: Caption | None = None) -> str:
    """Return one picture as a complete SVG document, readable on dark and light pages."""
    width = _width([picture])
    body, height = _panel(picture, caption, width)
    return document(width, height, body, caption.text if caption else "Replicas of a partition")


def columns(
    title: str, heads: Sequence[str], stories: Sequence[Sequence[tuple[Caption, Picture | Board]]]
) -> str:
    """Return stories side by side, each a column of pictures under its head, as one SVG document."""
    width = _width([picture for story in stories for _, picture in story])
    parts, tallest = [], 0
    for number, (head, story) in enumerate(zip(heads, stories, strict=True)):
        x, y = number * width, 52
        parts.append(f'<text class="b" x="{x + _MARGIN}" y="44">{escape(head)}</text>')
        for caption, picture in story:
            body, height = _panel(picture, caption, width)
            parts.append(f'<g transform="translate({x},{y})">{body}</g>')
            y += height
        tallest = max(tallest, y)
    parts.insert(0, f'<text class="b" style="font-size:16px" x="{_MARGIN}" y="22">{escape(title)}</text>')
    return document(width * len(stories), tallest + _MARGIN, "\n".join(parts), title)


def document(width: int, height: int, body: str, title: str) -> str:
    """Return the SVG document of a drawing, with the styles of both colour schemes."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_style()}</style>\n"
        f'<rect class="paper" width="{width}" height="{height}"/>\n{body}\n</svg>\n'
    )


def _width(pictures: Sequence[Picture | Board]) -> int:
    boards = [each for each in pictures if isinstance(each, Board)]
    if boards:
        return max(map(board.width, boards))
    rows = [row for picture in pictures if isinstance(picture, Picture) for row in picture.rows]
    offsets = max((row.end for row in rows), default=0) - min((row.start for row in rows), default=0)
    return max(_LEFT + max(offsets, 1) * _BOX + _FACTS + 2 * _MARGIN, 430)


def _panel(picture: Picture | Board, caption: Caption | None, width: int) -> tuple[str, int]:
    """Return the elements of one picture, and its height."""
    parts = []
    y = _MARGIN
    if caption is not None:
        room = int((width - 2 * _MARGIN) / _CHARACTER)
        for text in wrap(f"{caption.number}. {caption.text}", room):
            y += 16
            parts.append(f'<text x="{_MARGIN}" y="{y}">{escape(text)}</text>')
    if isinstance(picture, Board):
        found, y = board.elements(picture, y + _MARGIN)
        return "\n".join([*parts, *found]), y
    shown = [row for row in picture.rows if row.role != "down"]
    first = min((row.start for row in shown), default=0)
    last = max((row.end for row in shown), default=first)
    parts += [
        f'<text class="dim m" x="{_LEFT + (offset - first) * _BOX + _BOX // 2}" y="{y + 22}">{offset}</text>'
        for offset in range(first, last)
    ]
    y += _TOP - 14
    bad = frozenset(diverging(shown))
    for row in picture.rows:
        parts += _row(row, first, last, y, bad)
        y += _ROW_HEIGHT
    leader = f"leader {picture.leader}" if picture.leader else "no leader"
    isr = ", ".join(picture.isr)
    parts.append(
        f'<text class="dim{"" if picture.leader else " alarm"}" x="{_MARGIN}" y="{y + 10}">'
        f"stored: {escape(leader)}, epoch {picture.leader_epoch}, ISR {{{escape(isr)}}}</text>"
    )
    return "\n".join(parts), y + 18


def _row(row: Row, first: int, last: int, y: int, bad: frozenset[int]) -> list[str]:
    weight = " b" if row.role == "leads" else ""
    parts = [
        f'<text class="b" x="{_MARGIN}" y="{y + 16}">{escape(row.name)}</text>',
        f'<text class="dim{weight}" x="{_MARGIN + 18}" y="{y + 15}">{_role(row)}</text>',
        f'<text class="dim" x="{_MARGIN + 18}" y="{y + 29}">{"in the ISR" if row.is_in_sync else ""}</text>',
    ]
    if row.role == "down":
        length = max(last - first, 1) * _BOX
        parts.append(f'<rect class="down" x="{_LEFT}" y="{y}" width="{length}" height="30" rx="4"/>')
        return parts
    for offset, box in enumerate(row.boxes, row.start):
        x = _LEFT + (offset - first) * _BOX
        kinds = ["box", f"e{box.epoch % EPOCH_COLOURS}"]
        kinds += ["open"] * (offset >= row.high_watermark) + ["bad"] * (offset in bad)
        parts.append(
            f'<rect class="{" ".join(kinds)}" x="{x + 2}" y="{y}" width="{_BOX - 4}" height="30" rx="4"/>'
            f'<text class="m" x="{x + _BOX // 2}" y="{y + 14}">{escape(box.value)}</text>'
            f'<text class="dim m" x="{x + _BOX // 2}" y="{y + 26}">e{box.epoch}</text>'
        )
    x = _LEFT + (row.high_watermark - first) * _BOX
    parts.append(f'<line class="hw" x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + 33}"/>')
    entries = " ".join(f"e{epoch}@{start}" for epoch, start in row.epochs)
    facts = _LEFT + (last - first) * _BOX + 10
    parts += [
        f'<text class="hwt" x="{facts}" y="{y + 13}">HW {row.high_watermark}</text>',
        f'<text class="dim" x="{facts + 44}" y="{y + 13}">LEO {row.end}</text>',
        f'<text class="dim" x="{facts}" y="{y + 28}">{entries}</text>',
    ]
    return parts
