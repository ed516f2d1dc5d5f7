"""The data source `logstore-state-changes`: lines of state-change logs as rows, one task per file.

    at         string   the latest time so far in its file; lines are ordered by it
    file       int      the file's place in the list; then `line`, the line's number in it
    time       string   the line's time
    topic, partition    the first selected partition that the line names
    node, side, controller_epoch, change, leader, leader_epoch, partition_epoch, isr, replicas, reason
               the fields of our own lines; null for Kafka's
    text       the line; `json`: as `logstore merge-state-changes --json` prints it

A node's own lines keep their order, even if its clock was set back, as in a merge of files; sorting by `at`
gives the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from logstore.replication.state_change_lines import Line, Wanted, line_facts, wanted_lines

NAME: Final = "logstore-state-changes"
ORDER: Final = ("at", "file", "line")
SCHEMA: Final = (
    "at string, file int, line bigint, path string, time string, topic string, partition int, node int, "
    "side string, controller_epoch int, change string, leader int, leader_epoch int, partition_epoch int, "
    "isr array<int>, replicas array<int>, reason string, text string, json string"
)
_FACTS: Final = (
    "node", "side", "controller_epoch", "change", "leader", "leader_epoch", "partition_epoch", "isr",
    "replicas", "reason",
)  # fmt: skip
_ROWS: Final = 4096


def rows_of(file: int, path: str, raw_lines: Iterable[bytes], wanted: Wanted) -> Iterator[dict[str, object]]:
    """Return the wanted lines of a file as rows of `SCHEMA`. Pure."""
    at = ""
    for line in wanted_lines(file, raw_lines, wanted):
        at = max(at, line.time)
        yield _row(at, path, line, wanted)


def _row(at: str, path: str, line: Line, wanted: Wanted) -> dict[str, object]:
    facts = line_facts(line)
    named = wanted.named_in(line.text)
    assert named is not None, "wanted lines name a partition"
    return {
        "at": at,
        "file": line.file,
        "line": line.number,
        "path": path,
        "time": line.time,
        "topic": named.topic,
        "partition": named.partition,
        **{name: facts.get(name) for name in _FACTS},
        "text": line.text,
        "json": json.dumps({"file": path, "line": line.number, **facts}, separators=(", ", ": ")),
    }


class _File(InputPartition):
    """One file, by its place in the list."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Reader(DataSourceReader):
    def __init__(self, paths: Sequence[str], wanted: Wanted) -> None:
        self._paths, self._wanted = paths, wanted

    def partitions(self) -> Sequence[InputPartition]:
        return [_File(number) for number in range(len(self._paths))]

    def read(self, partition: Any) -> Iterator[Any]:
        import pyarrow as pa

        kinds = {
            "string": pa.string(),
            "int": pa.int32(),
            "bigint": pa.int64(),
            "array<int>": pa.list_(pa.int32()),
        }
        schema = pa.schema(
            [(name, kinds[kind]) for name, kind in (each.split() for each in SCHEMA.split(", "))]
        )
        path = self._paths[partition.number]
        with open(path, "rb") as lines:
            rows: list[dict[str, object]] = []
            for row in rows_of(partition.number, path, lines, self._wanted):
                rows.append(row)
                if len(rows) == _ROWS:
                    yield pa.RecordBatch.from_pylist(rows, schema)
                    rows = []
            yield pa.RecordBatch.from_pylist(rows, schema)


class StateChangeLines(DataSource):
    """Options: `files`, a JSON list of paths; `topics` and `partitions`, likewise; `start`, `end`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(
            json.loads(self.options["files"]),
            Wanted(
                frozenset(json.loads(self.options["topics"])),
                frozenset(json.loads(self.options["partitions"])),
                self.options["start"],
                self.options["end"],
            ),
        )
