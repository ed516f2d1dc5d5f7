"""`python -m tests.judge`: random operations on our log and on Apache Kafka's, step by step.

Prints each seed whose answers, states or files differ, with the operations that show it; exit 1 if there is
one. Such a plan can be run again with `--plan`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable

from bench.kafka.jars import Missing
from logstore.testing.__main__ import seeds_of
from tests.judge.drawing import Plan, draw
from tests.judge.sides import Kafka
from tests.judge.trial import run, shrink


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.judge", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="1..100", help="A..B, both included (%(default)s)")
    parser.add_argument("--operations", type=int, default=150, help="for each seed (%(default)s)")
    parser.add_argument(
        "--plan", help="a plan in JSON, as printed for a seed; runs it, and prints each answer"
    )
    options = parser.parse_args(arguments)
    try:
        kafka = Kafka()
    except Missing as reason:
        print(f"not run: {reason}")
        return 0
    seen: Counter[str] = Counter()
    try:
        if options.plan is not None:
            return _judge("plan", Plan(*json.loads(options.plan)), kafka, seen, trace=print)
        seeds = options.seeds
        differing = sum(_judge(f"seed {seed}", draw(seed, options.operations), kafka, seen) for seed in seeds)
    finally:
        kafka.end()
    for what, count in sorted(seen.items()):
        print(f"{count:8}  {what}")
    print(f"{len(seeds)} seeds, {differing} with a difference")
    return 1 if differing else 0


def _judge(
    name: str,
    plan: Plan,
    kafka: Kafka,
    seen: Counter[str],
    *,
    trace: Callable[[str], None] | None = None,
) -> int:
    """Run a plan, report a difference, and return how many there are."""
    verdict = run(plan, kafka, seen, trace=trace or (lambda _: None))
    if verdict is None:
        return 0
    print(
        f"{name}, operation {verdict.number}: {verdict.operation['op']}", *verdict.differences, sep="\n    "
    )
    if trace is None:
        print(f"    --plan '{json.dumps(shrink(plan, kafka))}'", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
