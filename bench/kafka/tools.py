"""Apache Kafka's own performance tools, run against a cluster, and what they say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

_PRODUCED: Final = re.compile(r"(\d+) records sent, ([\d.]+) records/sec .* ([\d.]+) ms 99th,")
_PATIENCE_S: Final = 1_800


class Produced(NamedTuple):
    """The end of ProducerPerformance."""

    records: int
    rate: float
    p99_ms: float


class Tools:
    """The tools of one version of Apache Kafka."""

    def __init__(self, jars: Path) -> None:
        self._java = ["java", "-Xmx512M", "-cp", f"{jars}/*"]

    def produce(self, bootstrap: str, topic: str, *, records: int, size: int, acks: str) -> Produced:
        """Run ProducerPerformance, with batches of 64 KiB and a linger of 5 ms. Raises `RuntimeError`."""
        said = self._run(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(records), "--record-size", str(size)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"),
            *(f"acks={acks}", "batch.size=65536", "linger.ms=5", "enable.idempotence=false"),
        )
        found = _PRODUCED.findall(said)
        if not found or int(found[-1][0]) != records:
            raise RuntimeError(f"ProducerPerformance said: {said[-1000:]}")
        return Produced(records, float(found[-1][1]), float(found[-1][2]))

    def consume(self, bootstrap: str, topic: str, *, records: int) -> float:
        """Run ConsumerPerformance in a group of its own; return its records per second of fetching.

        Raises `RuntimeError`.
        """
        said = self._run(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--topic", topic, "--messages", str(records), "--bootstrap-server", bootstrap),
            *("--timeout", "60000", "--hide-header"),
        )
        # start, end, MB, MB/s, records, records/s, ms of rebalancing, ms of fetching, MB/s, records/s
        rows = [row for row in said.splitlines() if row.count(",") >= 9]
        if not rows:
            raise RuntimeError(f"ConsumerPerformance said: {said[-1000:]}")
        fields = [each.strip() for each in rows[-1].rsplit(",", 9)]
        if float(fields[4]) < records:
            raise RuntimeError(f"ConsumerPerformance read {fields[4]} of {records} records: {said[-1000:]}")
        return float(fields[9])

    def _run(self, tool: str, *arguments: str) -> str:
        done = subprocess.run(
            [*self._java, tool, *arguments],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{tool} ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
        return done.stdout
