"""Run a plan on both sides up to the first difference."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.judge.drawing import Plan
from tests.judge.sides import Operation
from tests.judge.trial import Verdict, scratch
from tests.partition_judge.differences import differences, settle
from tests.partition_judge.kafka import Kafka
from tests.partition_judge.operations import perform
from tests.partition_judge.ours import Ours
from tests.partition_judge.resolving import BEGIN_MS, Cluster

_MOST_SETTLED = 9
"""More differences after one operation are too many to be settled."""


def run(
    plan: Plan, kafka: Kafka, seen: Counter[str], trace: Callable[[str], None] = lambda _: None
) -> Verdict | None:
    """Run the plan; None if the sides agree. `seen` counts operations, their errors, and what was settled."""
    home = Path(tempfile.mkdtemp(prefix="judge-", dir=scratch()))
    ours = Ours()
    try:
        ours.begin(plan.settings, BEGIN_MS)
        kafka.begin(home, plan.settings, BEGIN_MS)
        cluster = Cluster(ours)
        for number, drawn in enumerate(plan.operations):
            for operation in cluster.resolve(drawn):
                trace(f"{number} {operation}")
                found = _do(operation, ours, kafka, seen, trace)
                if found:
                    return Verdict(number, operation, found)
        return None
    finally:
        ours.end()
        kafka.perform({"op": "end"})
        shutil.rmtree(home)


def _do(
    operation: Operation, ours: Ours, kafka: Kafka, seen: Counter[str], trace: Callable[[str], None]
) -> list[str]:
    mine, theirs = perform(ours, operation), kafka.perform(operation)
    trace(f"    ours    {mine}\n    Kafka's {theirs}")
    found = differences(operation, mine, theirs)
    settled: list[str] = []
    while (
        found
        and len(settled) < _MOST_SETTLED
        and (what := settle(operation, mine, theirs, ours, kafka)) is not None
    ):
        settled.append(what)
        mine = mine._replace(state=ours.state())
        theirs = theirs._replace(state=kafka.perform({"op": "nothing"}).state)
        found = differences(operation, mine, theirs)
    seen.update([f"{operation['op']} {mine.error or ''}".strip(), *settled])
    return found + ([f"{ours.overdue} requests wait that could be answered"] if ours.overdue else [])
