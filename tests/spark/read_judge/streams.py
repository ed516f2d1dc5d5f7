"""A random stream: stopped, crashed and started again between appends; its batches beside the plain rows."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logstore.disk.topic_partition import TopicPartition
from tests.spark.read_judge.batches import Row, rows_of
from tests.spark.read_judge.queries import as_json
from tests.spark.read_judge.topics import COLUMNS, Plain, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CRASH: Final = "the sink crashes"
_NOT_OURS: Final = "Python worker failed to connect back"
_SELECT: Final = COLUMNS[:8]


class Stream:
    """One query over its checkpoint. `batches` are the rows of each batch, as it ran last."""

    def __init__(self, spark: SparkSession, source: str, rng: random.Random, home: Path) -> None:
        self._spark, self._source, self._rng, self._home = spark, source, rng, home
        self.topics = Topics(rng, home)
        self.options: dict[str, str] = {"includeHeaders": "true", "metadataIntervalMs": "0"}
        self.batches: dict[int, list[Row]] = {}
        self.wrong: list[str] = []
        self._committed = rng.random() < 0.4
        self._most = rng.choice((None, 1, 5, 20))
        self._crash_at: int | None = None
        self._read_to: dict[TopicPartition, int] = {}
        self._told = 0
        self._kept_from = 0
        """no row of this batch or a later one was deleted or compacted since"""

    def judged(self) -> str:
        """Run the stream; return what is wrong with its batches, nothing if they are right."""
        try:
            for phase in range(3):
                self._phase(phase)
                if self.wrong:
                    return f"phase {phase}, {self.options}\n    " + "\n    ".join(self.wrong)
            return ""
        finally:
            self.topics.close()

    def _phase(self, phase: int) -> None:
        """Write, and read all of it; crash before, perhaps, or repeat the last batch."""
        rng, topics = self._rng, self.topics
        if phase == 1 and rng.random() < 0.5:
            topics.add("later")
            for where in topics.partitions.keys() - self._read_to.keys():
                topics.partitions[where].read_to = 0
        repeats = phase > 0 and rng.random() < 0.3
        topics.write(8, only_append=repeats)
        self._kept_from = self._kept_from if repeats else self._told
        plain = topics.plain()
        if phase == 0:
            self._choose(plain)
        if repeats:
            self._forget()
        crashes = rng.random() < 0.5
        if crashes:
            self._crash_at = self._told + rng.choice((0, 0, 1, 3))
            self._run(availableNow=True)
            self._crash_at = None
            topics.write(4, only_append=True)
            plain = topics.plain()
        if rng.random() < 0.25:
            self._run(processingTime="20 milliseconds")
        # `once` takes one batch alone, and that is the one that runs again.
        is_free = self._most is None and phase > 0 and not repeats and not crashes
        takes_all = is_free and rng.random() < 0.3
        self._run(**{"once" if takes_all else "availableNow": True})
        self._compare(plain)

    # --- options --------------------------------------------------------------------------------------------

    def _choose(self, plain: Mapping[TopicPartition, Plain]) -> None:
        rng, options = self._rng, self.options
        options["subscribePattern"] = ".*"
        if self._committed:
            options["isolation"] = "read_committed"
        if self._most is not None:
            options["maxOffsetsPerTrigger"] = str(self._most)
        if rng.random() < 0.3:
            options["minOffsetsPerTrigger"] = "1"
            options["maxTriggerDelay"] = rng.choice(("1ms", "1h"))
        if rng.random() < 0.3:
            options["maxRecordsPerPartition"] = rng.choice(("1", "4"))
        if rng.random() < 0.3:
            options["minPartitions"] = rng.choice(("3", "10"))
        ends = {each: found.readable(committed=self._committed) for each, found in plain.items()}
        starts = {each: found.start for each, found in plain.items()}
        match rng.randrange(4):
            case 0:
                options["startingOffsets"] = "earliest"
            case 1:
                given = {each: rng.choice((-2, rng.randint(starts[each], ends[each]))) for each in plain}
                options["startingOffsets"] = as_json(given)
                starts = {each: starts[each] if at == -2 else at for each, at in given.items()}
            case 2:
                times = [at for found in plain.values() for _, at in found.times] or [0]
                time_ms = max(rng.choice(times), 0)
                options["startingTimestamp"] = str(time_ms)
                options["startingOffsetsByTimestampStrategy"] = "latest"
                by_time = {
                    each: found.by_time(time_ms, committed=self._committed) for each, found in plain.items()
                }
                starts = {each: ends[each] if at is None else at for each, at in by_time.items()}
            case 3:
                if rng.random() < 0.5:
                    options["startingOffsets"] = "latest"
                starts = ends
        self._read_to = dict(starts)

    # --- running --------------------------------------------------------------------------------------------

    def _run(self, **trigger: Any) -> None:
        """Run the query to its end, or to the crash."""
        from pyspark.errors import StreamingQueryException

        for _ in range(5):
            rows = self._spark.readStream.format(self._source).options(**self.options)
            writer = rows.load(f"{self._home}/node*").writeStream
            writer = writer.option("checkpointLocation", str(self._home / "checkpoint"))
            query = writer.foreachBatch(self._take).trigger(**trigger).start()
            try:
                if "processingTime" in trigger:
                    query.processAllAvailable()
                    query.stop()
                assert query.awaitTermination(300), "it has an end"
                return
            except StreamingQueryException as error:
                if CRASH in str(error):
                    return
                if _NOT_OURS not in str(error):
                    self.wrong.append(f"{trigger}: {error}")
                    return

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id == self._crash_at and self._rng.random() < 0.5:
            raise RuntimeError(CRASH)
        rows = rows_of(frame, _SELECT)
        before = self.batches.get(batch_id, rows)
        if before != rows:
            self.wrong.append(f"batch {batch_id} again: {rows!s:.800}\n    before: {before!s:.800}")
        self.batches[batch_id] = rows
        if batch_id == self._crash_at:
            raise RuntimeError(CRASH)

    def _forget(self) -> None:
        """As if the process had died before the last batch was marked as done."""
        done = self._home / "checkpoint" / "commits"
        last = max((int(each.name) for each in done.glob("[0-9]*")), default=None)
        if last is not None and last >= self._kept_from:
            (done / str(last)).unlink()
            (done / f".{last}.crc").unlink(missing_ok=True)

    # --- comparing ------------------------------------------------------------------------------------------

    def _compare(self, plain: Mapping[TopicPartition, Plain]) -> None:
        """The rows since the last comparison are those that were written since, each once and in order."""
        found: dict[TopicPartition, list[Row]] = {each: [] for each in plain}
        for batch_id in sorted(self.batches):
            if batch_id >= self._told:
                for row in self.batches[batch_id]:
                    found[TopicPartition(*row[2:4])].append(row)
        self._told = max(self.batches, default=-1) + 1
        for where, each in plain.items():
            start, end = self._read_to.get(where, 0), each.readable(committed=self._committed)
            true = [row[:8] for row in each.between(start, end, committed=self._committed)]
            if found[where] != true:
                ours = f"{found[where]!s:.900}\n    true: {true!s:.900}"
                self.wrong.append(f"{where} from {start} to {end}: {ours}")
            self._read_to[where] = max(start, end)
            self.topics.partitions[where].read_to = self._read_to[where]
        self._check_sizes()

    def _check_sizes(self) -> None:
        """No batch has more than `maxOffsetsPerTrigger` offsets, and one for each partition."""
        if self._most is None:
            return
        logs = self._home / "checkpoint" / "offsets"
        ends = [
            json.loads((logs / str(number)).read_text().splitlines()[-1])
            for number in sorted(int(each.name) for each in logs.glob("[0-9]*"))
        ]
        for before, after in pairwise(ends):
            moved = [
                offset - before.get(topic, {}).get(partition, 0)
                for topic, partitions in after.items()
                for partition, offset in partitions.items()
            ]
            if sum(moved) > self._most + len(moved):
                self.wrong.append(f"a batch of {moved} offsets")
