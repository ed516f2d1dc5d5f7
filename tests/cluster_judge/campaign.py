"""Tells stories to both sides and compares them after each step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster_judge import asking
from tests.cluster_judge.known import PARTING, Met, known_difference
from tests.cluster_judge.sides import Side
from tests.cluster_judge.snapshots import UNREST, Baseline, Snapshot, differences, elections, short, snapshot
from tests.cluster_judge.stories import Story
from tests.cluster_judge.views import unrest

PATIENCE_S: Final = 40.0
"""The deadline for both clusters to be at rest and alike."""
LASTING_S: Final = 3.0
"""The time that a difference must last while both clusters are at rest."""


@dataclass(frozen=True)
class Difference:
    """A difference between two clusters at rest, or between their answers; `name` if it is documented."""

    number: int
    met: Met
    name: str

    def __str__(self) -> str:
        return f"after {self.met.step!r}, {self.met.what}: Kafka {self.met.kafka!r}, ours {self.met.ours!r}"


class Judge:
    """Two clusters that hear the same stories."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self._sides = sides
        self._last = [Baseline(), Baseline()]
        self._told: dict[str, tuple[Any, Any]] = {}
        """The differences after the previous step, which are not reported again."""
        self.said: list[str] = []
        """The steps of the story so far, each with what Kafka answered."""

    def hear(self, story: Story) -> Iterator[Difference]:
        """Tell a story to both sides; yield each difference. It ends where they part."""
        topics: list[str] = []
        self.said = []
        self._last, self._told = [Baseline(), Baseline()], {}
        self._rest([])
        try:
            for number, step in enumerate(story.steps):
                if step.name.startswith("create "):
                    topics.append(story.full(step.name.split()[1]))
                begin = time.monotonic()
                outcomes = [_done(step.act, side) for side in self._sides]
                found = {"outcome": tuple(outcomes)} if outcomes[0] != outcomes[1] else {}
                found |= self._rest(topics)
                self.said.append(f"{time.monotonic() - begin:5.1f} s  {step.name}: {outcomes[0]}")
                before = [each.name for each in story.steps[:number]]
                met = [
                    Difference(number, each, known_difference(each))
                    for each in (
                        Met(step.name, what, kafka, ours, before, found)
                        for what, (kafka, ours) in found.items()
                    )
                ]
                yield from met
                if not all(each.name for each in met) or PARTING & {each.name for each in met}:
                    return
        finally:
            for side in self._sides:
                side.heal()
            self._rest([])
            for side in self._sides:
                side.remove(topics)

    def _rest(self, topics: Sequence[str]) -> dict[str, tuple[Any, Any]]:
        """Wait until both sides are at rest and alike, or differ for long; return what differs."""
        end = time.monotonic() + PATIENCE_S
        last: dict[str, tuple[Any, Any]] = {}
        since = time.monotonic()
        while True:
            shown = [self._shown(number, topics) for number in range(2)]
            differing = differences(shown[0], shown[1])
            found = {what: values for what, values in differing.items() if self._told.get(what) != values}
            now = time.monotonic()
            is_rest = not any(UNREST in each for each in shown)
            if found != last or not is_rest:
                last, since = found, now
            if (is_rest and (not found or now - since > LASTING_S)) or now > end:
                break
            time.sleep(0.1)
        self._told = differing
        for number, side in enumerate(self._sides):
            view = side.view(topics)
            self._last[number].elections = elections(side, view)
            for topic in topics:
                for place in view.places(topic):
                    self._last[number].epochs[place] = (view.state(place) or {"leader_epoch": 0})[
                        "leader_epoch"
                    ]
        return found

    def _shown(self, number: int, topics: Sequence[str]) -> Snapshot:
        side = self._sides[number]
        try:
            view = side.view(topics)
            if why := unrest(view, list(topics)):
                return {UNREST: why}
            shown = snapshot(side, view, topics, self._last[number])
            if view.awake:
                shown["reassignments"] = sorted(
                    (short(topic), *more) for topic, *more in asking.reassignments(side)
                )
        except OSError as error:
            return {UNREST: repr(error)}
        return shown


def _done(act: Any, side: Side) -> Any:
    try:
        return act(side)
    except OSError as error:
        return type(error).__name__
