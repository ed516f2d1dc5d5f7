"""Tells one story to both sides, and makes a differing story short."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from tests.wire_judge.judging import Renaming, differences, plain
from tests.wire_judge.known import known_difference
from tests.wire_judge.sides import PATIENCE_S, Outcome, Settling, Side, shared_versions
from tests.wire_judge.stories import Draw, Step

Area = Callable[[Draw], list[Step]]

_CHANGES: Final = (
    *(t.CreateTopicsRequest, t.CreatePartitionsRequest, t.DeleteTopicsRequest, t.MetadataRequest),
    *(t.AlterConfigsRequest, t.IncrementalAlterConfigsRequest, t.AlterPartitionReassignmentsRequest),
    *(t.AlterClientQuotasRequest, t.AlterUserScramCredentialsRequest),
    *(t.CreateAclsRequest, t.DeleteAclsRequest, t.CreateDelegationTokenRequest),
    *(t.RenewDelegationTokenRequest, t.ExpireDelegationTokenRequest),
)


@dataclass(frozen=True)
class Difference:
    """A field of one response; `name` is that of a documented difference, or empty."""

    step: int
    request: Struct
    version: int
    path: str
    kafka: Any
    ours: Any
    name: str

    @property
    def parts_ways(self) -> bool:
        """Return whether one side refused something that the other did."""
        return not self.path or self.path.endswith(("error_code", "session_id"))

    @property
    def what(self) -> str:
        """The difference without its story, to count it by."""
        kind = type(self.request).__name__.removesuffix("Request")
        return f"{kind} {self.path or 'outcome'} {self.kafka!r} {self.ours!r}"[:300]

    def __str__(self) -> str:
        kind = type(self.request).__name__
        return f"{kind} v{self.version} {self.path or 'outcome'}: Kafka {self.kafka!r}, ours {self.ours!r}"


class Judge:
    """Two sides that hear the same stories."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self._sides = sides
        self._settle = [Settling(each) for each in sides]
        self.versions = shared_versions(sides)
        self.is_secured = bool(sides[0].door)

    def hear(self, steps: Sequence[Step]) -> Iterator[Difference]:
        """Send a story to both sides; yield each difference. It ends where one side did what the other
        refused: what follows would differ, too."""
        renaming = Renaming()
        try:
            waiting: dict[str, tuple[int, Step, Struct]] = {}
            for number, step in enumerate(steps):
                if step.client in waiting:
                    yield from self._compare(*waiting.pop(step.client), [], renaming)
                built, outcomes = self._ask(step)
                if "parked" in outcomes and outcomes[0] == outcomes[1]:
                    waiting[step.client] = (number, step, built)
                    continue
                found = list(self._compare(number, step, built, outcomes, renaming))
                yield from found
                if any(each.parts_ways for each in found):
                    return
            for client in list(waiting):
                yield from self._compare(*waiting.pop(client), [], renaming)
        finally:
            for side in self._sides:
                side.forget()

    def _ask(self, step: Step) -> tuple[Any, list[Outcome]]:
        outcomes: list[Outcome] = []
        requests: list[Any] = []
        for side, settle in zip(self._sides, self._settle, strict=True):
            if step.raw is not None:
                requests.append(step.raw)
                outcomes.append(side.ask_raw(step.raw, step.client))
                continue
            requests.append(step.build(side.known))
            how = {"is_answered": step.is_answered, "may_park": step.may_park, "is_tagged": step.is_tagged}
            outcomes.append(side.ask(requests[-1], step.version, step.client, **how))
            if isinstance(requests[-1], _CHANGES):
                settle()
        return requests[0], outcomes

    def _compare(
        self, number: int, step: Step, built: Struct, outcomes: list[Outcome], renaming: Renaming
    ) -> Iterator[Difference]:
        outcomes = outcomes or [each.collect(step.client, PATIENCE_S) for each in self._sides]
        shown: list[Any] = []
        for side, outcome in zip(self._sides, outcomes, strict=True):
            if isinstance(outcome, Struct):
                step.learn(outcome, side.known)
                if step.trim is not None:
                    step.trim(outcome)
                names = {value: name for name, value in side.known.items()}
                shown.append(plain(outcome, step.version, names))
            else:
                shown.append(outcome)
        for path, kafka, ours in differences(shown[0], shown[1], renaming):
            name = known_difference(built, step.version, path, kafka, ours)
            yield Difference(number, built, step.version, path, kafka, ours, name)


def shrunk(steps: int, differs: Callable[[Sequence[int]], bool]) -> list[int]:
    """Return the numbers of the requests that a differing story of so many `steps` needs to differ."""
    kept = list(range(steps))
    for number in reversed(range(steps)):
        shorter = [each for each in kept if each != number]
        if shorter and differs(shorter):
            kept = shorter
    return kept
