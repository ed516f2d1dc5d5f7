"""Run a plan on both sides up to the first difference, and shrink a plan that shows one."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.judge.differences import Pair, differences
from tests.judge.directories import differing_files
from tests.judge.documented import settle
from tests.judge.drawing import Plan
from tests.judge.resolving import BEGIN_MS, resolve
from tests.judge.sides import Answer, Kafka, Operation, Ours

_SHARED_MEMORY: Final = Path("/dev/shm")
"""Where it exists, syncs cost nothing there."""
_NUMBERS: Final = re.compile(r"\d+")


class Verdict(NamedTuple):
    """The first operation after which the sides differ, its number in the plan, and the differences."""

    number: int
    operation: Operation
    differences: list[str]

    @property
    def kind(self) -> tuple[str, ...]:
        """The kind of the difference, for `shrink`."""
        names = {_NUMBERS.sub("", each.partition(":")[0]) for each in self.differences}
        return self.operation["op"], *sorted(names)


def scratch() -> Path | None:
    """Return where the directory of a run should be; None for the usual place."""
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None


def run(
    plan: Plan, kafka: Kafka, seen: Counter[str], trace: Callable[[str], None] = lambda _: None
) -> Verdict | None:
    """Run the plan; None if the sides agree. `seen` counts operations, their errors, and what was settled."""
    home = Path(tempfile.mkdtemp(prefix="judge-", dir=scratch()))
    ours = Ours()
    try:
        ours.begin(home / "ours", plan.settings, BEGIN_MS)
        kafka.begin(home / "kafka", plan.settings, BEGIN_MS)
        for number, drawn in enumerate([*plan.operations, {"op": "reopen"}]):
            for operation in resolve(drawn, ours):
                trace(f"{number} {operation}")
                found = _do(operation, ours, kafka, seen, trace)
                if found is None:
                    return None
                if found:
                    return Verdict(number, operation, found)
        return None
    finally:
        ours.end()
        kafka.perform({"op": "abandon"})
        shutil.rmtree(home)


def _do(
    operation: Operation, ours: Ours, kafka: Kafka, seen: Counter[str], trace: Callable[[str], None]
) -> list[str] | None:
    """Do an operation on both sides and return the differences; None if Kafka's log cannot go on."""
    before = ours.state()
    if operation["op"] == "compact":
        state = kafka.perform({"op": "nothing"}).state
        has_empty = any(not size for _, size, _ in state["segments"][:-1])
        # No batch lies between, but perhaps the base of a segment; and the file of an empty one may be young.
        if state["last_stable"] != before["last_stable"] or has_empty:
            return []
    pair = Pair(operation, ours, ours.perform(operation), kafka.perform(operation))
    trace(f"    ours    {pair.ours}\n    Kafka's {pair.kafka}")
    name = operation["op"]
    if pair.kafka.message.startswith("Attempt to append to a full"):
        seen["Kafka's index is full in the middle of an append or a recovery"] += 1
        return None
    if name == "crash" and pair.kafka.error == "INVALID_TXN_STATE":
        # Forgotten at an opening before, because its transaction began below the log start.
        seen["Kafka reads an open transaction that it had forgotten, and cannot go on"] += 1
        return None
    if name == "close":
        return list(differing_files(ours, kafka.directory, before["start"]))
    found = list(differences(pair))
    settled: list[str] = []
    while found and len(settled) < 3 and (what := settle(pair, before, kafka)) is not None:
        pair = pair._replace(ours=_again(pair.ours, ours), kafka=_again(pair.kafka, kafka))
        found = list(differences(pair))
        settled.append(what)
    mark = pair.kafka.state["high_watermark"]
    if not found and mark != (own := pair.ours.state["high_watermark"]):
        # No batch lies between; in a gap, Kafka's is that of the next batch. It may fall below the log start.
        side, offset = (kafka, own) if mark < pair.ours.state["start"] else (ours, mark)
        side.perform({"op": "high_watermark", "offset": offset})
    seen.update([f"{name} {pair.ours.error or ''}".strip(), *settled])
    return found


def _again(answer: Answer, side: Ours | Kafka) -> Answer:
    """The answer, with the state that the side is in now."""
    return answer._replace(state=side.perform({"op": "nothing"}).state)


def shrink(plan: Plan, run_one: Callable[[Plan], Verdict | None]) -> Plan:
    """Return a plan with the same kind of difference from which no operation can be taken."""
    first = run_one(plan)
    assert first is not None, "only a plan that shows a difference can be shrunk"

    def fails(candidate: Plan) -> bool:
        found = run_one(candidate)
        return found is not None and found.kind == first.kind

    size = max(len(plan.operations) // 2, 1)
    while True:
        start = 0
        while start < len(plan.operations):
            candidate = plan.without(range(start, start + size))
            if fails(candidate):
                plan = candidate
            else:
                start += size
        if size == 1:
            return plan
        size //= 2
