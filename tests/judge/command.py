"""The command line of a judge: seeds or one plan, and the differences that they show."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from bench.kafka.jars import Missing
from logstore.testing.__main__ import seeds_of
from tests.judge.drawing import Plan
from tests.judge.trial import Verdict, shrink


class _Process(Protocol):
    def end(self) -> None: ...


K = TypeVar("K", bound=_Process)


class Judge(NamedTuple, Generic[K]):
    """Its module and text, how Kafka's side starts, how plans are drawn, and how one is run."""

    module: str
    description: str
    start: Callable[[], K]
    draw: Callable[[int, int], Plan]
    run: Callable[[Plan, K, Counter[str], Callable[[str], None]], Verdict | None]


def main(judge: Judge[K], arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {judge.module}", description=judge.description)
    parser.add_argument("--seeds", type=seeds_of, default="1..100", help="A..B, both included (%(default)s)")
    parser.add_argument("--operations", type=int, default=150, help="for each seed (%(default)s)")
    parser.add_argument(
        "--plan", help="a plan in JSON, as printed for a seed; runs it, and prints each answer"
    )
    options = parser.parse_args(arguments)
    try:
        kafka = judge.start()
    except Missing as reason:
        print(f"not run: {reason}")
        return 0
    seen: Counter[str] = Counter()
    try:
        if options.plan is not None:
            plan = Plan(*json.loads(options.plan))
            return _report("plan", judge.run(plan, kafka, seen, print))
        differing = 0
        for seed in options.seeds:
            plan = judge.draw(seed, options.operations)
            if _report(f"seed {seed}", judge.run(plan, kafka, seen, _unheard)):
                differing += 1
                shrunk = shrink(plan, lambda each: judge.run(each, kafka, Counter(), _unheard))
                print(f"    --plan '{json.dumps(shrunk)}'", flush=True)
    finally:
        kafka.end()
    for what, count in sorted(seen.items()):
        print(f"{count:8}  {what}")
    print(f"{len(options.seeds)} seeds, {differing} with a difference")
    return 1 if differing else 0


def _report(name: str, verdict: Verdict | None) -> int:
    """Print a difference, and return how many there are."""
    if verdict is None:
        return 0
    operation = verdict.operation["op"]
    print(f"{name}, operation {verdict.number}: {operation}", *verdict.differences, sep="\n    ")
    return 1


def _unheard(_line: str) -> None:
    """Drop a line of the trace."""
