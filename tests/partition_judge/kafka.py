"""Apache Kafka's replica of the partition, in a Java process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.judge.java_process import JavaProcess
from tests.judge.sides import SOURCE, Answer, Operation
from tests.partition_judge.ours import BROKER_EPOCH, MAX_LAG_MS, RACKS

_WAITING: Final = Path(__file__).parent / "java" / "Waiting.java"
_PROGRAM: Final = _WAITING.with_name("PartitionJudge.java")


class Kafka:
    """Kafka's partition, with the log manager and the fetcher that it needs."""

    def __init__(self) -> None:
        """Compile and start the Java program. Raises `Missing`."""
        self._java = JavaProcess(SOURCE, _WAITING, _PROGRAM)

    def end(self) -> None:
        """End the process."""
        self._java.end()

    def begin(self, home: Path, settings: Mapping[str, str], now_ms: int) -> None:
        """Begin without a role, and with an empty log dir at `home`."""
        config = {
            each.replace("segment.bytes", "internal.segment.bytes"): settings[each] for each in settings
        }
        is_on_fetch = config.pop("truncate.on.fetch") == "true"
        beginning = {"op": "begin", "directory": str(home), "config": config, "now": now_ms}
        facts: Operation = {
            "max_lag": MAX_LAG_MS,
            "broker_epoch": BROKER_EPOCH,
            "truncates_on_fetch": is_on_fetch,
        }
        facts["racks"] = {str(number): rack for number, rack in RACKS.items()}
        self.perform(beginning | facts)

    def perform(self, operation: Operation) -> Answer:
        """Do one operation."""
        said = self._java.ask(operation)
        return Answer(said.get("result"), said.get("error"), said.get("message", ""), said["state"] or {})
