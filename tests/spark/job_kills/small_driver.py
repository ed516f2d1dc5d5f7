"""What Spark does for the jobs that need it, in one process and without Spark: hundreds of restarts a minute.

Spark's part is replaced, the job's part is not: a stream's batches with their checkpoint (offsets before a
batch, a commit after it), rows that are parsed and written below the staging directory, the latest record of
each key. Tasks run one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logstore.disk.ids import new_id
from logstore.disk.topic_partition import TopicPartition
from logstore.log.reader import LogReader
from logstore.spark.jobs.compact import TABLE, Compact
from logstore.spark.jobs.compact_segments import WINNERS, write_segments
from logstore.spark.jobs.ingest import Ingest
from logstore.spark.jobs.job import Answer
from logstore.spark.jobs.stream import REFUSED, Stream
from logstore.spark.jobs.work import Workers
from logstore.spark.sink import os_sink
from logstore.spark.write_options import WriteOptions

BATCH = 10
"""Offsets of a partition, or files, in a batch."""


def without_spark(patch: pytest.MonkeyPatch) -> None:
    """Let these jobs do Spark's part themselves, in this process."""
    patch.setattr(Stream, "run", run_stream)
    patch.setattr(Stream, "_stage", stage_rows)
    patch.setattr(Ingest, "run", run_ingest)
    patch.setattr(Ingest, "_write", write_lines)
    patch.setattr(Compact, "_write", write_latest)


def write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f".{path.name}").write_text(text)
    path.with_name(f".{path.name}").rename(path)


def run_batches(
    checkpoint: Path, ends: Callable[[Any], Any], publish: Callable[[Any, Any, int], None]
) -> None:
    """Publish the batch that is not committed, then new ones; `ends` returns the end after another end."""
    if not (checkpoint / "metadata").exists():
        write_whole(checkpoint / "metadata", json.dumps({"id": "query"}))
    number = len(list((checkpoint / "commits").glob("[0-9]*")))
    before = None
    if number:
        before = json.loads((checkpoint / "offsets" / str(number - 1)).read_text().splitlines()[2])
    while True:
        offsets = checkpoint / "offsets" / str(number)
        if not offsets.exists():
            if (end := ends(before)) == before:
                return
            write_whole(offsets, f"v1\n{{}}\n{json.dumps(end)}\n")
        end = json.loads(offsets.read_text().splitlines()[2])
        publish(before, end, number)
        write_whole(checkpoint / "commits" / str(number), "v1\n")
        before, number = end, number + 1


# --- stream -------------------------------------------------------------------------------------------------


class Records(list[Any]):
    """Stands for a batch's frame."""

    sparkSession = None


def run_stream(job: Stream, _: Workers) -> Answer:
    source = Path(json.loads(job.source["paths"])[0])
    logs = {path.name.rpartition("-")[2]: list(LogReader(path).records()) for path in source.glob("t-*")}

    def ends(before: Any) -> Any:
        done = (before or {"t": {}})["t"]
        return {
            "t": {
                partition: min(done.get(partition, 0) + BATCH, len(records))
                for partition, records in sorted(logs.items())
            }
        }

    def publish(before: Any, end: Any, number: int) -> None:
        done = (before or {"t": {}})["t"]
        rows = [
            (int(partition), record)
            for partition, last in end["t"].items()
            for record in logs[partition][done.get(partition, 0) : last]
        ]
        job._publish(Records(rows), number, {})  # type: ignore[arg-type] # `stage_rows` takes it

    job.disk.make_dir(job.output)
    job.disk.make_dir(job.ledger)
    run_batches(Path(job.checkpoint), ends, publish)
    return Answer({}, [])


def stage_rows(job: Stream, rows: Sequence[Any], staging: str, _: int | None) -> dict[str, Any]:
    """Write good rows and refused ones below `staging`, as the schema `id INT, of INT` parses them."""
    good: dict[int, list[dict[str, Any]]] = {}
    bad = []
    for partition, record in rows:
        try:
            fields = json.loads(record.value)
        except (TypeError, ValueError):
            bad.append({"partition": partition, "offset": record.offset})
            continue
        row = {"id": fields["id"], "_partition": partition, "_offset": record.offset}
        good.setdefault(fields["of"], []).append(row)
    for name, some in [*((f"table/of={of}", some) for of, some in good.items()), (REFUSED, bad)]:
        write_parquet(Path(staging, name), some)
    columns = {"id": "int", "of": "int"}
    return {"rows": len(rows), "refused": len(bad), "late": 0, "latest_ms": None, "columns": columns}


def write_parquet(directory: Path, rows: Sequence[Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if rows:
        pq.write_table(pa.Table.from_pylist(list(rows)), directory / f"part-{new_id(Random())}.parquet")


# --- ingest -------------------------------------------------------------------------------------------------


def run_ingest(job: Ingest, _: Workers) -> Answer:
    assert job.checkpoint is not None
    checkpoint = Path(job.checkpoint)

    def ends(before: Any) -> Any:
        there = sorted(int(path.stem) for path in Path(job.inputs.paths[0]).glob("[0-9]*.log"))
        return [there[0], min(there[-1] + 1, (before or [0, 0])[1] + 3)]

    def publish(before: Any, end: Any, number: int) -> None:
        files = range((before or [0, 0])[1], end[1])
        job._write(files, ("ingest-query", number), None)  # type: ignore[arg-type] # `write_lines` takes it

    run_batches(checkpoint, ends, publish)
    return Answer({}, [])


def write_lines(job: Ingest, files: range, write_id: tuple[str, int], _: None) -> None:
    """Write the lines of files, one task each, as Spark does with the sink."""
    given, ledger = job._named(write_id)
    sink = os_sink(WriteOptions.parse(given, streaming=False))
    messages = []
    for task, file in enumerate(files):
        lines = Path(job.inputs.paths[0], f"{file}.log").read_text().splitlines()
        rows = pa.RecordBatch.from_pydict({"key": lines, "value": lines})
        messages.append(
            sink.stage([rows], ledger, write_id[1], spark_partition=task, attempt=task, random=Random())
        )
    sink.commit(messages, ledger, write_id[1])


# --- compact ------------------------------------------------------------------------------------------------


def write_latest(job: Compact, workers: Workers, staging: str) -> dict[str, Any]:
    ranges = job._planned()
    kept = keys = records = 0
    for wanted in ranges:
        last: dict[bytes | None, Any] = {}
        for record in records_of(job, wanted.topic_partition):
            last[record.key] = record
            records += 1
        found = [record for record in last.values() if record.value is not None]
        keys, kept = keys + len(last), kept + len(found)
        place = f"topic={wanted.topic}/partition={wanted.partition}"
        if job._segments is None:
            rows = [{"key": each.key, "value": each.value, "offset": each.offset} for each in found]
            write_parquet(Path(staging, TABLE, place), rows)
            continue
        size = job._segments.task_offsets
        for bucket in {each.offset // size for each in found}:
            rows = [{"offset": each.offset} for each in found if each.offset // size == bucket]
            write_parquet(Path(staging, WINNERS, place, f"bucket={bucket}"), rows)
    written: dict[str, Any] = {}
    if job._segments is not None:
        written = write_segments(workers, job._parsed, ranges, staging, job._segments)
    counts = {"records": records, "keys": keys, "rows": kept, "tombstones": keys - kept, "null_keys": 0}
    return {**written, **counts, "seconds": 0.0}


def records_of(job: Compact, partition: TopicPartition) -> Iterator[Any]:
    return iter(LogReader(Path(job._parsed.paths[0], str(partition))).records())
