"""Measure brokers of ours beside Apache Kafka's: `python -m bench.kafka [--rows consume-1k] [--json]`.

Both clusters run at the same time and take turns with each measurement, driven by Kafka's own performance
tools. Each figure is the median of the rounds after a warm-up; `load` is the machine's load average while it
was measured, with everything else that ran. On a busy machine only processor time a record says much.

The short form shows that everything works. Its warm-up is too short for a JVM: its ratios flatter ours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.kafka import measuring
from bench.kafka.jars import Missing, jars
from bench.kafka.rows import FACTORS, HEAD, Figure, chosen


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kafka", description=__doc__.splitlines()[0])
    parser.add_argument("--versions", default="3.9.1,4.1.1", help="of Apache Kafka (%(default)s)")
    parser.add_argument("--rows", default="", help="first letters of rows, with commas between; all without")
    parser.add_argument("--short", action="store_true", help="one round and little data: some minutes")
    parser.add_argument("--rounds", type=int, help="after a warm-up (3; short: 1)")
    parser.add_argument("--megabytes", type=int, help="records of one run of a tool (1000; short: 100)")
    parser.add_argument("--gib", type=float, help="unflushed at the restart (2; short: 0.125)")
    parser.add_argument("--directory", help="where the logs go (build)", default="build")
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    options = parser.parse_args(arguments)
    try:
        rows = chosen(options.rows)
    except ValueError as error:
        parser.error(str(error))
    versions = [each.strip() for each in options.versions.split(",")]
    Path(options.directory).mkdir(parents=True, exist_ok=True)
    for version in versions:
        try:
            found = jars(version)
        except Missing as error:
            print(f"skipped: Apache Kafka {version} is not available: {error}", file=sys.stderr)
            continue
        home = Path(tempfile.mkdtemp(prefix="bench-kafka-", dir=options.directory)).resolve()
        short = options.short
        plan = measuring.Plan(
            directory=home,
            version=version,
            jars=found,
            rounds=options.rounds or (1 if short else 3),
            megabytes=options.megabytes or (100 if short else 1000),
            restart_mebibytes=int(1024 * (options.gib or (0.125 if short else 2))),
        )
        if not options.json:
            print(f"beside Apache Kafka {version}, on {os.cpu_count()} cores\n{HEAD}", flush=True)
        try:
            for figure in measure(plan, rows):
                line = json.dumps({"kafka_version": version, **figure.facts()}, ensure_ascii=False)
                print(line if options.json else figure.row(), flush=True)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    return 0


def measure(plan: measuring.Plan, rows: Sequence[str]) -> Iterator[Figure]:
    """Yield the figures of the rows as they are measured."""
    figures: list[Figure] = []
    for factor in FACTORS:
        traffic = [row for row in rows if row.endswith(f"-rf{factor}")]
        with_three = [row for row in rows if row in ("partitions", "failover")] if factor == 3 else []
        if not traffic and not with_three:
            continue
        with measuring.running(plan, factor) as pair:
            for figure in measuring.traffic(plan, pair, traffic, factor):
                figures.append(figure)
                yield figure
            if "partitions" in with_three:
                yield from measuring.partitions(plan, pair)
            if "failover" in with_three:
                yield from measuring.failover(plan, pair)
    yield from measuring.cost_of_replicas(figures)
    if "start" in rows:
        yield from measuring.start(plan)
    if "restart" in rows:
        yield from measuring.restart(plan)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
