"""From a sink's rows to a topic, once: the files that tasks stage, the plan of a publication, its execution.

A staged file has finished batches without offsets and producer:

    00003-17-3kT….staged
    ┌────────────────────────┬───┬────────────────────────────────────┬──────────────┬──────────────┐
    │ batches at offset 0,   │ … │ index: JSON, a row for each run of │ CRC-32C of   │ its length   │
    │ of one partition, of … │   │ batches of one partition, in order │ it, u32      │ in bytes, u32│
    └────────────────────────┴───┴────────────────────────────────────┴──────────────┴──────────────┘

    index: [[topic, partition, position, size, records], …]

Big-endian. The file is durable when its task is done; every attempt writes a file with a name of its own. A
file that a crash leaves behind is ignored unless an intent names it with its size; then it is complete.

    plan        files  [[name, size], …] in the order of Spark's partitions
                topics {topic: partitions} to create first
                producer [id, epoch]
                owed   [[topic, partition, end_offset, first_sequence, skip, records], …]
                rows   [number, sum] of a write with txnAppId (`row_sums.py`)
                cluster  the id of the cluster that is written to; "" for a directory
    kept   facts of a job, for the ledger's state once the plan is carried out (`jobs/replay.py`)

Of a partition's staged records, the first `skip` are already in the log. The rest follow as batches of the
sink's producer, numbered from `first_sequence`, after `end_offset`. Other writers may append in between, so
producer id and sequence identify the batches that are in the log. Batches are sent one at a time, in order:
those in the log are the first ones, and the rest is sent. A plan can therefore be repeated after any crash;
a batch with an unknown outcome is looked up, or sent again with its old sequence number.

A log that lost the producer's last sequence number (it lost records, or was replaced) refuses the next one.
Then a new plan is decided for the rest, with another producer, before anything else is sent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, Self

from logstore.disk.files import Disk, File, make_durable_dir
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, set_producer, walk
from logstore.format.crc import crc32c
from logstore.format.record import add_sequence, subtract_sequence
from logstore.log.outgoing import Compression
from logstore.spark.errors import PublicationBroken, StagedFileGone, WriteRefused
from logstore.spark.ledger import Intent, Json, Ledger, staging_directory
from logstore.spark.partition_batches import FLUSH_BYTES, Encoded, PartitionBatches
from logstore.spark.row_sums import RowSum, kept_sums
from logstore.spark.sink_rows import Placed, Topic
from logstore.spark.write_options import Delivery

SUFFIX: Final = ".staged"
_TRAILER: Final = struct.Struct(">II")


class Run(NamedTuple):
    """Consecutive batches of one partition in a staged file; sizes are bytes."""

    position: int
    size: int
    records: int


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged file: its name in the staging directory ("" for none), size, and records per partition."""

    name: str = ""
    size: int = 0
    records: Mapping[TopicPartition, int] = field(default_factory=dict)


class Stage:
    """Writes one staged file. It is created with the first rows, so a task without rows leaves none."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        slots: Sequence[TopicPartition],
        *,
        compression: Compression,
        batch_bytes: int,
        max_batch_bytes: Callable[[str], int],
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        """`path` is without the suffix; `slots` may grow meanwhile.

        `max_batch_bytes` returns a topic's limit for a batch, after compression.
        """
        self._disk, self._path = disk, path + SUFFIX
        self._directory, _, self._name = self._path.rpartition("/")
        self._batches = PartitionBatches(
            slots,
            compression=compression,
            batch_bytes=batch_bytes,
            max_batch_bytes=max_batch_bytes,
            flush_bytes=flush_bytes,
            outcome=Delivery.EXACTLY_ONCE.outcome,
        )
        self._file: File | None = None
        self._end = 0
        self._index: list[tuple[TopicPartition, Run]] = []

    def add(self, placed: Placed) -> None:
        """Add rows. Raises `RowRefused` for rows too large for any batch, and `OSError`."""
        self._take(self._batches.add(placed))

    def finish(self) -> Staged:
        """Write the rest and make the file durable. Raises as `add`."""
        self._take(self._batches.rest())
        if self._file is None:
            return Staged()
        rows = [(*partition, *run) for partition, run in self._index]
        index = json.dumps(rows, separators=(",", ":")).encode()
        self._write(index + _TRAILER.pack(crc32c(index), len(index)))
        self._file.sync()
        self._file.close()
        self._disk.sync_dir(self._directory)
        records: dict[TopicPartition, int] = {}
        for partition, run in self._index:
            records[partition] = records.get(partition, 0) + run.records
        return Staged(self._name, self._end, records)

    def close(self) -> None:
        """Close the file, finished or not."""
        if self._file is not None:
            self._file.close()

    def _take(self, runs: Iterator[Encoded]) -> None:
        for partition, data, records in runs:
            self._index.append((partition, Run(self._end, len(data), records)))
            self._write(data)

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        if self._file is None:
            make_durable_dir(self._disk, self._directory)
            self._file = self._disk.open(self._path, create=True, exclusive=True, write=True)
        self._file.pwrite(data, self._end)
        self._end += len(data)


class StagedFile:
    """A staged file to publish. It is opened only while it is read: there may be thousands."""

    def __init__(self, disk: Disk, path: str, size: int) -> None:
        """Read the index. Raises `StagedFileGone` if the file is not what its task wrote, and `OSError`."""
        self._disk, self._path = disk, path
        self.runs: dict[TopicPartition, list[Run]] = {}
        with closing(self._open()) as file:
            index = self._index(file, size)
        for topic, partition, *run in json.loads(index):
            self.runs.setdefault(TopicPartition(topic, partition), []).append(Run(*run))

    def _open(self) -> File:
        try:
            return self._disk.open(self._path)
        except FileNotFoundError:
            raise StagedFileGone(
                f"{self._path} does not exist: the driver and all executors must share the directory of "
                "staged files; name it with option stagingPath"
            ) from None

    def _index(self, file: File, size: int) -> bytes:
        trailer = file.pread(_TRAILER.size, max(size - _TRAILER.size, 0))
        if file.size() == size and len(trailer) == _TRAILER.size:
            crc, length = _TRAILER.unpack(trailer)
            if length <= size - _TRAILER.size:
                index = file.pread(length, size - _TRAILER.size - length)
                if crc32c(index) == crc:
                    return index
        raise StagedFileGone(f"{self._path} differs from what its task wrote: its disk lost or changed it")

    def batches(self, partition: TopicPartition) -> Iterator[memoryview]:
        """Yield the partition's batches in row order, in writable memory.

        Raises `StagedFileGone`, `OSError`, and `CorruptBatch` for a batch that the disk changed.
        """
        runs = self.runs.get(partition, ())
        file = self._open() if runs else None
        try:
            for run in runs:
                assert file is not None
                data = bytearray(file.pread(run.size, run.position))
                position = 0
                for batch in walk(data):
                    batch.check_crc()  # now: a new checksum is computed later, which would hide damage
                    yield memoryview(data)[position : position + batch.size]
                    position += batch.size
                if position != run.size:
                    raise StagedFileGone(f"{self._path} is cut off at byte {run.position + position}")
        finally:
            if file is not None:
                file.close()


_RENEWALS: Final = 3


class Producer(NamedTuple):
    """The producer of a sink's batches. It belongs to one ledger."""

    id: int
    epoch: int


def _named(cluster: str | None) -> str:
    return f"cluster {cluster}" if cluster else "a directory"


class PartPlan(NamedTuple):
    """The part of a plan for one partition."""

    topic_partition: TopicPartition
    end_offset: int
    first_sequence: int
    skip: int
    records: int

    @property
    def left(self) -> int:
        return self.records - self.skip

    def written(self, batches: Iterable[Batch], producer: Producer) -> int:
        """Return how many of the records left are in the log, given all batches after the end offset.

        The last of our batches decides, because compaction may have removed others.
        """
        found = 0
        for batch in batches:
            if batch.producer_id == producer.id and batch.producer_epoch == producer.epoch:
                found = subtract_sequence(batch.last_sequence, self.first_sequence) + 1
        if found > self.left:
            raise PublicationBroken(
                f"{self.topic_partition}: after offset {self.end_offset}, producer {producer.id} has "
                "sequence numbers of another write: the ledger is a copy or an old version"
            )
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """A publication as its intent stores it."""

    files: Sequence[tuple[str, int]]
    producer: Producer
    owed: Sequence[PartPlan]
    topics: Mapping[str, int] = field(default_factory=dict)
    rows: RowSum | None = None
    kept: Json = field(default_factory=dict)
    cluster: str | None = None

    def to_json(self) -> Json:
        return {
            "files": [list(file) for file in self.files],
            "topics": dict(self.topics),
            "producer": list(self.producer),
            "owed": [[*owed.topic_partition, *owed[1:]] for owed in self.owed],
            **({} if self.rows is None else {"rows": list(self.rows)}),
            **({"kept": self.kept} if self.kept else {}),
            **({} if self.cluster is None else {"cluster": self.cluster}),
        }

    @classmethod
    def of_json(cls, plan: Json) -> Self:
        return cls(
            [(name, size) for name, size in plan["files"]],
            Producer(*plan["producer"]),
            [PartPlan(TopicPartition(topic, partition), *rest) for topic, partition, *rest in plan["owed"]],
            plan["topics"],
            RowSum(*plan["rows"]) if "rows" in plan else None,
            plan.get("kept", {}),
            plan.get("cluster"),
        )


class PartWrite(NamedTuple):
    """The part of a plan for one partition, with its staged files."""

    owed: PartPlan
    producer: Producer
    files: Sequence[StagedFile]

    def batches(self, written: int) -> Iterator[memoryview]:
        """Yield the batches after the first `written` records left, with sequence numbers and checksums."""
        done, start = 0, self.owed.skip + written
        for file in self.files:
            for data in file.batches(self.owed.topic_partition):
                count = Batch(data).record_count
                if done >= start:
                    sequence = add_sequence(self.owed.first_sequence, done - self.owed.skip)
                    set_producer(
                        data,
                        producer_id=self.producer.id,
                        producer_epoch=self.producer.epoch,
                        base_sequence=sequence,
                    )
                    yield data
                elif done + count > start:
                    raise PublicationBroken(
                        f"{self.owed.topic_partition}: {start} records are in the log, which ends inside a "
                        "staged batch: another program wrote with this sink's producer id"
                    )
                done += count


class Target(Protocol):
    """The partitions that a sink writes to. For one thread; raises `EngineError`."""

    def cluster(self) -> str | None:
        """Return the id of the cluster; "" for a directory, None for a cluster without an id."""

    def topic(self, name: str) -> Topic | None:
        """Return the topic of that name; None if it does not exist."""

    def create(self, name: str, partitions: int) -> None:
        """Create the topic, or its missing partitions."""

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of each log. Publications from now on are after it."""

    def new_producer(self) -> Producer:
        """Return a producer with an id that nothing else uses."""

    def write(self, parts: Sequence[PartWrite]) -> Mapping[TopicPartition, int]:
        """Append, durably, the records that are not in the log; return how many of each part then are.

        The number is below `PartPlan.left` only if the log refuses the producer's next sequence number.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """A task's message to the commit. `new_topics` did not exist: topic → partitions."""

    ledger: str
    number: int
    spark_partition: int
    staged: Staged
    new_topics: Mapping[str, int] = field(default_factory=dict)
    rows: RowSum | None = None
    """the sum of its rows, of a write with `txnAppId`"""


class Publisher:
    """Plans and carries out publications of one ledger: the two callables of `publish_once`."""

    def __init__(self, disk: Disk, ledger: Ledger, target: Target) -> None:
        """Raises `WriteRefused` for a ledger of another cluster, and the target's errors."""
        self._disk, self._ledger, self._target = disk, ledger, target
        self._cluster = target.cluster()
        known = ledger.state.get("cluster") if ledger.intent is None else ledger.intent.plan.get("cluster")
        if None not in (known, self._cluster) and known != self._cluster:
            raise WriteRefused(
                f"{ledger.directory} is the record of writes to {_named(known)}, and this write is for "
                f"{_named(self._cluster)}: nothing was written. Name the former target, or begin with a "
                "checkpoint and a stagingPath of its own"
            )

    def plan(self, number: int, messages: Sequence[Message], kept: Json | None = None) -> Json:
        """Return the plan to publish these messages, whose completion leaves `kept` in the ledger's state.

        Raises `StagedFileGone`, and the target's errors.
        """
        ordered = sorted(messages, key=lambda message: message.spark_partition)
        records: dict[TopicPartition, int] = {}
        topics: dict[str, int] = {}
        files = []
        for message in ordered:
            if message.staged.name:
                files.append((message.staged.name, message.staged.size))
            topics.update(message.new_topics)
            for partition, count in message.staged.records.items():
                records[partition] = records.get(partition, 0) + count
        topics = {name: count for name, count in topics.items() if not self._is_there(name, count)}
        self._open(number, files)  # decide only if all files are there
        producer, sequences = self._producer(bool(records))
        counts = {partition: (0, records[partition]) for partition in sorted(records)}
        owed = self._owed(counts, sequences, topics)
        sums = [message.rows for message in ordered if message.rows is not None]
        rows = RowSum.of_all(sums) if sums else None
        return Plan(files, producer, owed, topics, rows, kept or {}, self._cluster).to_json()

    def _is_there(self, topic: str, partitions: int) -> bool:
        """Return whether the topic was created after tasks found it missing. Raises `WriteRefused`."""
        found = self._target.topic(topic)
        if found is not None and found.partitions != partitions:
            raise WriteRefused(
                f"another program created topic {topic} with {found.partitions} partitions, while rows were "
                f"placed in {partitions}: repeat the write. Nothing was published"
            )
        return found is not None

    def carry_out(self, intent: Intent) -> Json:
        """Carry out an intent. Raises `PublicationBroken`, `StagedFileGone`, and the target's errors."""
        plan = Plan.of_json(intent.plan)
        for topic, partitions in sorted(plan.topics.items()):
            self._target.create(topic, partitions)
        files = self._open(intent.number, plan.files)
        for _ in range(_RENEWALS):
            written = self._target.write([PartWrite(owed, plan.producer, files) for owed in plan.owed])
            if all(written[owed.topic_partition] == owed.left for owed in plan.owed):
                return self._state(plan, intent.number)
            plan = self._renewed(plan, written)
            self._ledger.decide(intent.number, plan.to_json())
        raise PublicationBroken(
            f"the log refused the sequence numbers of {_RENEWALS} new producers: run logstore verify"
        )

    def _open(self, number: int, files: Iterable[tuple[str, int]]) -> list[StagedFile]:
        directory = staging_directory(self._ledger.directory, number)
        return [StagedFile(self._disk, f"{directory}/{name}", size) for name, size in files]

    def _producer(self, is_needed: bool) -> tuple[Producer, Mapping[str, int]]:
        """Return the producer, and its next sequence number in each partition (0 if missing)."""
        state = self._ledger.state
        if "producer" in state:
            return Producer(*state["producer"]), state["sequences"]
        return (self._target.new_producer() if is_needed else Producer(-1, -1)), {}

    def _owed(
        self,
        records: Mapping[TopicPartition, tuple[int, int]],
        sequences: Mapping[str, int],
        new_topics: Mapping[str, int],
    ) -> list[PartPlan]:
        """`records`: how many are in the log already, and how many there are."""
        there = [partition for partition in records if partition.topic not in new_topics]
        ends = self._target.ends(there)
        return [
            PartPlan(partition, ends.get(partition, 0), sequences.get(str(partition), 0), *counts)
            for partition, counts in records.items()
        ]

    def _renewed(self, plan: Plan, written: Mapping[TopicPartition, int]) -> Plan:
        records = {
            owed.topic_partition: (owed.skip + written[owed.topic_partition], owed.records)
            for owed in plan.owed
            if written[owed.topic_partition] < owed.left
        }
        producer, owed = self._target.new_producer(), self._owed(records, {}, {})
        return replace(plan, producer=producer, owed=owed)

    def _state(self, plan: Plan, number: int) -> Json:
        sums = kept_sums(self._ledger.state, number, plan.rows)
        named: dict[str, Any] = {"rows": sums} if sums else {}
        named |= {"kept": plan.kept} if plan.kept else {}
        cluster = self._ledger.state.get("cluster") if self._cluster is None else self._cluster
        named |= {} if cluster is None else {"cluster": cluster}
        if plan.producer.id < 0:
            return {**self._ledger.state, **named}
        producer, sequences = self._producer(False)
        kept = dict(sequences) if producer == plan.producer else {}
        for owed in plan.owed:
            kept[str(owed.topic_partition)] = add_sequence(owed.first_sequence, owed.left)
        return {"producer": list(plan.producer), "sequences": kept, **named}
