"""Play stories, and tell what was seen: as text, as facts for JSON, and as one drawing.

`play(story, is_on=False)` switches the story's rule off for the whole process while it plays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from logstore.testing.stories import board, drawing
from logstore.testing.stories.board import Board
from logstore.testing.stories.rules import Patch
from logstore.testing.stories.scene import Outcome, Step


def _keep_all(stack: ExitStack) -> None:
    """The rule is a setting: `begin` does without it."""


class Played(Protocol):
    """What a story plays on: it takes pictures, and tells what came of it."""

    @property
    def steps(self) -> Sequence[Step]: ...

    def outcome(self) -> Outcome: ...


S = TypeVar("S", bound=Played)


@dataclass(frozen=True, slots=True)
class Story(Generic[S]):
    """A scenario: `begin` builds its scene, `act` acts on it, `switch_off` drops its rule.

    `begin` is told whether the rule is on, for rules that are settings. `rule` and `off` say in a sentence
    what holds with the rule and without it.
    """

    name: str
    title: str
    rule: str
    off: str
    begin: Callable[[bool], S]
    act: Callable[[S], None]
    switch_off: Patch = _keep_all


@dataclass(frozen=True, slots=True)
class Told:
    """A story as it went, with the rule in force or not."""

    story: Story[Any]
    is_on: bool
    steps: tuple[Step, ...]
    outcome: Outcome

    @property
    def head(self) -> str:
        """The sentence about the rule."""
        return f"Rule on: {self.story.rule}" if self.is_on else f"Rule off: {self.story.off}"


def play(story: Story[Any], *, is_on: bool = True) -> Told:
    """Play a story on the engine. Without `is_on` the rule is off until it returns, process-wide."""
    with ExitStack() as stack:
        if not is_on:
            story.switch_off(stack)
        scene = story.begin(is_on)
        story.act(scene)
        return Told(story, is_on, tuple(scene.steps), scene.outcome())


def changes(before: drawing.Picture | Board, after: drawing.Picture | Board) -> list[str]:
    """Return what a step did to each replica's log, and to the stored state, as short phrases."""
    if isinstance(before, Board) or isinstance(after, Board):
        assert isinstance(before, Board)
        assert isinstance(after, Board)
        return board.changes(before, after)
    found = []
    for old, new in zip(before.rows, after.rows, strict=True):
        if new.role == "down" or old.role == "down":
            continue
        kept = 0
        for one, other in zip(old.boxes, new.boxes, strict=False):
            if one != other:
                break
            kept += 1
        if kept < len(old.boxes):
            gone = ", ".join(box.value for box in old.boxes[kept:])
            found.append(f"{new.name} truncates to {new.start + kept}: {gone} goes")
        if kept < len(new.boxes):
            found.append(f"{new.name} appends {', '.join(box.value for box in new.boxes[kept:])}")
        if old.high_watermark != new.high_watermark:
            found.append(f"{new.name}'s HW {old.high_watermark} to {new.high_watermark}")
    if before.leader_epoch != after.leader_epoch:
        found.append(f"epoch {after.leader_epoch}, led by {after.leader or 'nobody'}")
    if before.isr != after.isr:
        found.append(f"ISR {{{','.join(after.isr)}}}")
    return found


def verdict(outcome: Outcome) -> list[str]:
    """Return the sentences about an outcome."""
    if not outcome.is_led:
        said = ["The partition has no leader: nothing can be read or written, and nothing is lost yet."]
    else:
        said = [f"Acknowledged with acks=all and lost: {_list(outcome.lost_acks_all)}."]
        if outcome.lost_acks_1:
            said.append(f"Acknowledged with acks=1 and lost: {_list(outcome.lost_acks_1)}.")
    offsets = tuple(map(str, outcome.diverging_offsets))
    said.append(f"Offsets at which replicas differ: {_list(offsets)}.")
    if outcome.unanswered:
        said.append(f"Sent with acks=all, not answered yet: {_list(outcome.unanswered)}.")
    if outcome.idle:
        said.append(f"Live brokers that lead nothing: {_list(outcome.idle)}.")
    if outcome.refused:
        said.append(f"Refused, so the producer knows: {_list(outcome.refused)}.")
    return said


def _list(items: Sequence[str]) -> str:
    return ", ".join(items) or "none"


def paragraphs(told: Told) -> Iterator[str]:
    """Yield the transcript in pieces: the head, each step with its picture, the outcome."""
    yield f"{told.story.title}\n{told.head}\n"
    before = None
    for number, (text, picture) in enumerate(told.steps, 1):
        shown = [f"{number}. {text}"]
        if before is not None and (what := changes(before, picture)):
            shown.append(f"   ({'; '.join(what)})")
        yield "\n".join([*shown, *("   " + line for line in drawing.lines(picture)), ""])
        before = picture
    yield "\n".join(verdict(told.outcome)) + "\n"


def facts(told: Told) -> Iterator[dict[str, object]]:
    """Yield an object for each step, then one for the outcome."""
    named = {"story": told.story.name, "rule": "on" if told.is_on else "off"}
    for number, (text, picture) in enumerate(told.steps, 1):
        yield {**named, "step": number, "text": text, **asdict(picture)}
    yield {**named, "outcome": asdict(told.outcome)}


def drawn(played: Sequence[Told]) -> str:
    """Return one SVG of a story, played once or with the rule off and on side by side."""
    return drawing.columns(
        played[0].story.title,
        ["Rule on" if told.is_on else "Rule off" for told in played],
        [
            [(drawing.Caption(number, text), picture) for number, (text, picture) in enumerate(told.steps, 1)]
            for told in played
        ],
    )
